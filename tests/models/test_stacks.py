"""Encoder and decoder: stacks of blocks, against NumPy, and the masks that reach every block."""

import keras
import numpy as np
import pytest
from reference import float64

from keras_transformer import TransformerConfig
from keras_transformer.models.config import ClassifierConfig, LanguageModelConfig
from keras_transformer.models.stacks import Decoder, Encoder

BATCH, TARGET, SOURCE, HEADS, KEY_DIM = 2, 5, 7, 3, 11
WIDTH = HEADS * KEY_DIM
TARGET_REAL = np.array([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
SOURCE_REAL = np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]], bool)
BOTH = pytest.mark.parametrize("stack_class", [Encoder, Decoder])


def config(**fields):
    sizes = dict(model_dim=WIDTH, num_heads=HEADS, intermediate_dim=13)
    layers = dict(num_encoder_layers=2, num_decoder_layers=2, dropout=0.3)
    return TransformerConfig(29, **{**sizes, **layers, **fields})


def built(randomize, stack_class, **fields):
    stack = stack_class(config(**fields))
    stack.build(*[(None, None, WIDTH)] * (1 + (stack_class is Decoder)))
    return randomize(stack)


@pytest.fixture
def target(rng):
    return rng.normal(size=(BATCH, TARGET, WIDTH)).astype("float32")


@pytest.fixture
def source(rng):
    return rng.normal(size=(BATCH, SOURCE, WIDTH)).astype("float32")


@BOTH
def test_the_masks_of_embeddings_reach_every_block_and_travel_on(rng, randomize, stack_class):
    count = 1 + (stack_class is Decoder)
    real = [TARGET_REAL, SOURCE_REAL][:count]
    ids = [each * 3 for each in real]
    inputs = [keras.Input((each.shape[1],), dtype="int32") for each in ids]
    embeddings = [keras.layers.Embedding(29, WIDTH, mask_zero=True) for _ in inputs]
    stack = built(randomize, stack_class)
    hidden = stack(*(embed(each) for embed, each in zip(embeddings, inputs, strict=True)))
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    model = keras.Model(inputs, [hidden, pooled])
    before, pooled = (float64(x) for x in model(ids))
    vectors = [np.asarray(embed(each)) for embed, each in zip(embeddings, ids, strict=True)]
    names = ("decoder_padding_mask", "encoder_padding_mask") if count == 2 else ("padding_mask",)
    explicit = float64(stack(*vectors, **dict(zip(names, real, strict=True))))
    np.testing.assert_array_equal(before[TARGET_REAL], explicit[TARGET_REAL])
    assert np.abs(float64(stack(*vectors)) - before)[TARGET_REAL].max() > 1e-3
    np.testing.assert_allclose(pooled, np.stack([before[0, :3].mean(0), before[1, 0]]), atol=1e-5)
    for embedding in embeddings:
        table = np.array(embedding.get_weights()[0])
        table[0] = 5 * rng.normal(size=table[0].shape)
        embedding.set_weights([table])
    np.testing.assert_array_equal(float64(model(ids)[0])[TARGET_REAL], before[TARGET_REAL])


@BOTH
@pytest.mark.parametrize("normalize_first", [False, True])
def test_a_pre_norm_stack_ends_with_a_normalization(source, stack_class, normalize_first):
    stack = stack_class(config(normalize_first=normalize_first, num_decoder_layers=3))
    assert len(stack.blocks) == (2 if stack_class is Encoder else 3)
    assert (stack.final_norm is not None) == normalize_first
    outputs = float64(stack(source))
    np.testing.assert_allclose(outputs.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(outputs.std(-1), 1.0, atol=1e-3)


@BOTH
def test_every_block_is_made_as_the_configuration_says(stack_class):
    fields = dict(dropout=0.25, activation="gelu", attention_dropout=0.125)
    fields |= dict(feed_forward_dropout=0.5, layer_norm_epsilon=0.03)
    for block in stack_class(config(**fields)).blocks:
        for name, value in fields.items():
            made = getattr(block, name)
            assert (keras.activations.serialize(made) if name == "activation" else made) == value


@pytest.mark.parametrize(
    ("stack_class", "made"),
    [
        (Encoder, config(normalize_first=True)),
        (Decoder, config()),
        (Encoder, ClassifierConfig(29, pooling="max")),
        (Decoder, LanguageModelConfig(29, sliding_window=3)),
    ],
)
def test_a_stack_survives_its_configuration(stack_class, made):
    stack = stack_class(made, name="mine", dtype="mixed_bfloat16")
    again = stack_class.from_config(stack.get_config())
    assert (again.config, again.name, again.compute_dtype) == (made, "mine", "bfloat16")
    assert again.get_config() == stack.get_config()
