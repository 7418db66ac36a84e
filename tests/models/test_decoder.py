"""Decoder: a stack of blocks, against NumPy, and what its masks promise."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from pairwise import POLICIES, pairwise
from reference import float64

from keras_transformer import TransformerConfig
from keras_transformer.cache import KeyValue
from keras_transformer.models.stacks import Decoder

BATCH, TARGET, SOURCE, HEADS, KEY_DIM = 2, 5, 7, 3, 11
WIDTH = HEADS * KEY_DIM
TARGET_REAL = np.array([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
SOURCE_REAL = np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0]], bool)
PRE_AND_POST = pytest.mark.parametrize("normalize_first", [False, True])
TOLERANCE = dict(zip(POLICIES, (2e-5, 1e-1, 2e-2), strict=True))
# Before and after a norm, in each precision; what the two say is independent.
PRECISIONS = pytest.mark.parametrize(
    ("policy", "normalize_first"),
    [("float32", False), ("mixed_bfloat16", True), ("mixed_float16", False)],
)


def built(randomize, policy="float32", **fields):
    sizes = dict(
        vocabulary_size=29,
        model_dim=WIDTH,
        num_heads=HEADS,
        intermediate_dim=13,
        num_encoder_layers=1,
        num_decoder_layers=2,
        dropout=0.3,
    )
    decoder = Decoder(TransformerConfig(**{**sizes, **fields}), dtype=policy)
    decoder.build((None, None, WIDTH), (None, None, WIDTH))
    return randomize(decoder)


@pytest.fixture
def target(rng):
    return rng.normal(size=(BATCH, TARGET, WIDTH)).astype("float32")


@pytest.fixture
def source(rng):
    return rng.normal(size=(BATCH, SOURCE, WIDTH)).astype("float32")


@PRECISIONS
def test_equals_the_numpy_oracle(target, source, randomize, normalize_first, policy):
    decoder = built(randomize, policy, normalize_first=normalize_first, layer_norm_epsilon=1e-2)
    outputs = decoder(
        target, source, decoder_padding_mask=TARGET_REAL, encoder_padding_mask=SOURCE_REAL
    )
    assert keras.backend.standardize_dtype(outputs.dtype) == decoder.compute_dtype
    expected = reference.decoder(
        reference.weights_of(decoder), decoder.config, target, source, TARGET_REAL, SOURCE_REAL
    )
    scale = np.abs(expected).max()
    np.testing.assert_allclose(float64(outputs) / scale, expected / scale, atol=TOLERANCE[policy])


@pairwise(normalize_first=[False, True], policy=POLICIES, training=[False, True])
def test_the_future_never_leaks(
    target, source, randomize, influence, normalize_first, policy, training
):
    decoder = built(randomize, policy, normalize_first=normalize_first, attention_dropout=0.3)
    moved_by = influence(lambda x: decoder(x, source, training=training), target)
    past = np.tri(TARGET, dtype=bool)
    np.testing.assert_array_equal(moved_by[~past], 0.0)
    assert (np.diagonal(moved_by) > 0).all()
    if not training:
        assert (moved_by[past] > 0).all()


@PRECISIONS
def test_padding_and_batch_mates_change_nothing(
    rng, target, source, randomize, normalize_first, policy
):
    decoder = built(randomize, policy, normalize_first=normalize_first)
    expected = float64(decoder(target[:1, :3], source[:1, :4]))
    more_target = 1e3 * rng.normal(size=(BATCH, TARGET + 6, WIDTH)).astype("float32")
    more_source = 1e3 * rng.normal(size=(BATCH, SOURCE + 6, WIDTH)).astype("float32")
    more_target[0, :3], more_source[0, :4] = target[0, :3], source[0, :4]
    outputs = decoder(
        more_target,
        more_source,
        decoder_padding_mask=np.broadcast_to(np.arange(TARGET + 6) < 3, (BATCH, TARGET + 6)),
        encoder_padding_mask=np.broadcast_to(np.arange(SOURCE + 6) < 4, (BATCH, SOURCE + 6)),
    )
    scale = np.abs(expected).max()
    np.testing.assert_allclose(
        float64(outputs)[:1, :3] / scale, expected / scale, atol=TOLERANCE[policy]
    )


def test_the_masks_of_embeddings_reach_every_block_and_travel_on(rng, randomize):
    target_ids, source_ids = TARGET_REAL * 3, SOURCE_REAL * 5
    inputs = [keras.Input((TARGET,), dtype="int32"), keras.Input((SOURCE,), dtype="int32")]
    embeddings = [keras.layers.Embedding(29, WIDTH, mask_zero=True) for _ in inputs]
    decoder = built(randomize)
    hidden = decoder(embeddings[0](inputs[0]), embeddings[1](inputs[1]))
    pooled = keras.layers.GlobalAveragePooling1D()(hidden)
    model = keras.Model(inputs, [hidden, pooled])
    before, pooled = (float64(x) for x in model([target_ids, source_ids]))
    explicit = decoder(
        np.asarray(embeddings[0](target_ids)),
        np.asarray(embeddings[1](source_ids)),
        decoder_padding_mask=TARGET_REAL,
        encoder_padding_mask=SOURCE_REAL,
    )
    np.testing.assert_array_equal(before[TARGET_REAL], float64(explicit)[TARGET_REAL])
    np.testing.assert_allclose(pooled, np.stack([before[0, :3].mean(0), before[1, 0]]), atol=1e-5)
    for embedding in embeddings:
        table = np.array(embedding.get_weights()[0])
        table[0] = 5 * rng.normal(size=table[0].shape)
        embedding.set_weights([table])
    after = float64(model([target_ids, source_ids])[0])
    np.testing.assert_array_equal(after[TARGET_REAL], before[TARGET_REAL])


@PRE_AND_POST
def test_steps_through_the_caches_equal_one_call(target, source, randomize, normalize_first):
    decoder = built(randomize, normalize_first=normalize_first)
    expected, scores = decoder(
        target, source, encoder_padding_mask=SOURCE_REAL, return_attention_scores=True
    )
    expected = float64(expected)
    key_values = decoder.project_encoder_sequence(ops.convert_to_tensor(source))
    assert [tuple(key.shape) for key, _ in key_values] == [(BATCH, HEADS, KEY_DIM, SOURCE)] * 2
    caches = (KeyValue.empty(BATCH, HEADS, TARGET, KEY_DIM, KEY_DIM, "float32"),) * 2
    for i in range(TARGET):
        outputs, caches, attention = decoder.step(
            ops.convert_to_tensor(target[:, i : i + 1]),
            caches,
            i,
            (np.arange(TARGET) <= i)[None, None, None],
            key_values,
            SOURCE_REAL[:, None, None],
        )
        np.testing.assert_allclose(float64(outputs), expected[:, i : i + 1], atol=1e-5)
        for seen, whole in zip(attention, scores, strict=True):
            np.testing.assert_allclose(float64(seen), float64(whole)[:, :, i : i + 1], atol=1e-5)
            assert tuple(seen.shape) == (BATCH, HEADS, 1, SOURCE)
            np.testing.assert_allclose(float64(seen).sum(axis=-1), 1, atol=1e-5)
            assert not (float64(seen) * ~SOURCE_REAL[:, None, None]).any()


def test_config_round_trip_keeps_the_sizes_and_the_policy(randomize):
    decoder = built(randomize, "mixed_bfloat16", activation="gelu")
    copy = Decoder.from_config(decoder.get_config())
    assert copy.config == decoder.config
    assert (copy.compute_dtype, len(copy.blocks)) == ("bfloat16", 2)
    assert copy.get_config() == decoder.get_config()
