"""Encoder: a stack of blocks, against NumPy, and what its masks promise."""

import keras
import numpy as np
import pytest
import reference
from pairwise import POLICIES
from reference import float64

from keras_transformer import TransformerConfig
from keras_transformer.models.stacks import Encoder

BATCH, LENGTH, HEADS = 2, 5, 3
WIDTH = HEADS * 11
IDS = np.array([[3, 5, 7, 0, 0], [11, 0, 0, 0, 0]])
REAL = IDS != 0
PRE_AND_POST = pytest.mark.parametrize("normalize_first", [False, True])
TOLERANCE = dict(zip(POLICIES, (2e-5, 1e-1, 2e-2), strict=True))
# Before and after a norm, in each precision; what the two say is independent.
PRECISIONS = pytest.mark.parametrize(
    ("policy", "normalize_first"),
    [("float32", False), ("mixed_bfloat16", True), ("mixed_float16", False)],
)


def config(**fields):
    sizes = dict(
        vocabulary_size=29,
        model_dim=WIDTH,
        num_heads=HEADS,
        intermediate_dim=13,
        num_encoder_layers=2,
        num_decoder_layers=1,
        dropout=0.3,
    )
    return TransformerConfig(**{**sizes, **fields})


def built(randomize, policy="float32", **fields):
    encoder = Encoder(config(**fields), dtype=policy)
    encoder.build((None, None, WIDTH))
    return randomize(encoder)


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")


@PRECISIONS
def test_equals_the_numpy_oracle(inputs, randomize, normalize_first, policy):
    encoder = built(randomize, policy, normalize_first=normalize_first, layer_norm_epsilon=1e-2)
    outputs = encoder(inputs, padding_mask=REAL)
    assert keras.backend.standardize_dtype(outputs.dtype) == encoder.compute_dtype
    expected = reference.encoder(reference.weights_of(encoder), encoder.config, inputs, REAL)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        float64(outputs)[REAL] / scale, expected[REAL] / scale, atol=TOLERANCE[policy]
    )


@PRECISIONS
def test_padding_and_batch_mates_change_nothing(rng, inputs, randomize, normalize_first, policy):
    encoder = built(randomize, policy, normalize_first=normalize_first)
    expected = float64(encoder(inputs[:1, :3]))
    longer = 1e3 * rng.normal(size=(BATCH, LENGTH + 6, WIDTH)).astype("float32")
    longer[0, :3] = inputs[0, :3]
    mask = np.broadcast_to(np.arange(LENGTH + 6) < 3, longer.shape[:2])
    outputs = float64(encoder(longer, padding_mask=mask))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(outputs[:1, :3] / scale, expected / scale, atol=TOLERANCE[policy])


@PRE_AND_POST
@pytest.mark.parametrize("training", [False, True])
def test_no_gradient_leads_to_padding(inputs, randomize, influence, normalize_first, training):
    encoder = built(randomize, normalize_first=normalize_first)
    mask = np.broadcast_to(np.arange(LENGTH) < 3, (BATCH, LENGTH))
    moved_by = influence(lambda x: encoder(x, padding_mask=mask, training=training), inputs)
    np.testing.assert_array_equal(moved_by[:3, 3:], 0.0)
    assert (moved_by[:3, :3] > 0).all()


@PRE_AND_POST
def test_the_mask_of_an_embedding_reaches_every_block_and_travels_on(rng, normalize_first):
    ids = keras.Input((LENGTH,), dtype="int32")
    embedding = keras.layers.Embedding(29, WIDTH, mask_zero=True)
    encoder = Encoder(config(normalize_first=normalize_first))
    encoded = encoder(embedding(ids))
    model = keras.Model(ids, [encoded, keras.layers.GlobalAveragePooling1D()(encoded)])
    before, pooled = (float64(x) for x in model(IDS))
    vectors = np.asarray(embedding(IDS))
    explicit = float64(encoder(vectors, padding_mask=REAL))
    np.testing.assert_array_equal(before[REAL], explicit[REAL])
    assert np.abs(float64(encoder(vectors)) - before)[REAL].max() > 1e-3
    np.testing.assert_allclose(pooled, np.stack([before[0, :3].mean(0), before[1, 0]]), atol=1e-6)
    table = np.array(embedding.get_weights()[0])
    table[0] = 5 * rng.normal(size=table[0].shape)
    embedding.set_weights([table])
    np.testing.assert_array_equal(float64(model(IDS)[0])[REAL], before[REAL])


def test_a_pre_norm_stack_ends_with_a_normalization(inputs):
    outputs = float64(Encoder(config(normalize_first=True))(inputs))
    np.testing.assert_allclose(outputs.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(outputs.std(-1), 1.0, atol=1e-3)


def test_config_round_trip_keeps_the_sizes_and_the_policy():
    encoder = Encoder(config(activation="gelu"), dtype="mixed_bfloat16", name="reader")
    copy = Encoder.from_config(encoder.get_config())
    assert copy.config == encoder.config
    assert (copy.name, copy.compute_dtype, len(copy.blocks)) == ("reader", "bfloat16", 2)
    assert copy.get_config() == encoder.get_config()
