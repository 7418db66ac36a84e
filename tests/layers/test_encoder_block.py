"""EncoderBlock against NumPy, and what its masks promise."""

import keras
import numpy as np
import pytest
import reference
from pairwise import POLICIES, pairwise
from reference import float64

from keras_transformer.layers import EncoderBlock

BATCH, LENGTH, HEADS, INNER = 2, 5, 3, 13
WIDTH = HEADS * 11
IDS = np.array([[3, 5, 7, 0, 0], [11, 0, 0, 0, 0]])
REAL = IDS != 0
PRE_AND_POST = pytest.mark.parametrize("normalize_first", [False, True])
TOLERANCE = dict(zip(POLICIES, (2e-5, 1e-1, 1e-2), strict=True))
# Before and after a norm, in each precision; what the two say is independent.
PRECISIONS = pytest.mark.parametrize(
    ("policy", "normalize_first"),
    [("float32", False), ("mixed_bfloat16", True), ("mixed_float16", False)],
)


def built(randomize, **arguments):
    block = EncoderBlock(INNER, HEADS, **arguments)
    block.build((None, None, WIDTH))
    return randomize(block)


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")


@pairwise(
    normalize_first=[False, True], policy=POLICIES, masks=["none", "padding", "attention", "both"]
)
def test_equals_the_numpy_oracle(rng, inputs, randomize, normalize_first, policy, masks):
    block = built(randomize, normalize_first=normalize_first, dtype=policy)
    attention_mask = rng.random((BATCH, LENGTH, LENGTH)) < 0.5
    attention_mask[..., 0] = True
    call, mask = {}, np.ones((1, 1, 1, 1), bool)
    if masks in ("padding", "both"):
        call["padding_mask"] = REAL
        mask = mask & REAL[:, None, None]
    if masks in ("attention", "both"):
        call["attention_mask"] = attention_mask
        mask = mask & attention_mask[:, None]
    outputs = block(inputs, **call)
    assert keras.backend.standardize_dtype(outputs.dtype) == block.compute_dtype
    expected = reference.encoder_block(reference.weights_of(block), inputs, mask, normalize_first)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(float64(outputs) / scale, expected / scale, atol=TOLERANCE[policy])


@PRECISIONS
def test_padding_and_batch_mates_change_nothing(rng, inputs, randomize, normalize_first, policy):
    block = built(randomize, normalize_first=normalize_first, dropout=0.3, dtype=policy)
    real = 3
    expected = float64(block(inputs[:1, :real]))
    mask = np.broadcast_to(np.arange(LENGTH + 6) < real, (BATCH, LENGTH + 6))
    for junk in (0.0, 1.0, 1e3):
        longer = junk * rng.normal(size=(BATCH, LENGTH + 6, WIDTH))
        longer[0, :real] = inputs[0, :real]
        outputs = float64(block(longer.astype("float32"), padding_mask=mask))
        np.testing.assert_allclose(outputs[:1, :real], expected, atol=TOLERANCE[policy])


@pairwise(normalize_first=[False, True], policy=POLICIES, training=[False, True])
def test_no_gradient_leads_to_padding(
    inputs, randomize, influence, normalize_first, policy, training
):
    block = built(
        randomize,
        normalize_first=normalize_first,
        dropout=0.3,
        attention_dropout=0.3,
        dtype=policy,
    )
    mask = np.broadcast_to(np.arange(LENGTH) < 3, (BATCH, LENGTH))
    moved_by = influence(lambda x: block(x, padding_mask=mask, training=training), inputs)
    np.testing.assert_array_equal(moved_by[:3, 3:], 0.0)
    assert (np.diagonal(moved_by) > 0).all()
    if not training:
        assert (moved_by[:3, :3] > 0).all()


@pytest.mark.parametrize(
    ("policy", "normalize_first"), [("float32", True), ("mixed_float16", False)]
)
def test_a_sentence_of_padding_alone_stays_finite(
    rng, inputs, randomize, pull_back, normalize_first, policy
):
    block = built(randomize, normalize_first=normalize_first, dtype=policy)
    mask = np.array([[False] * LENGTH, [True] * LENGTH])
    outputs, pull = pull_back(lambda x: block(x, padding_mask=mask), inputs)
    assert np.isfinite(float64(outputs)).all()
    assert np.isfinite(pull(rng.normal(size=outputs.shape))).all()


@PRE_AND_POST
def test_the_mask_of_an_embedding_hides_padding_and_travels_on(rng, normalize_first):
    ids = keras.Input((LENGTH,), dtype="int32")
    embedding = keras.layers.Embedding(29, WIDTH, mask_zero=True)
    block = EncoderBlock(INNER, HEADS, normalize_first=normalize_first)
    encoded = block(embedding(ids))
    model = keras.Model(ids, [encoded, keras.layers.GlobalAveragePooling1D()(encoded)])
    before, pooled = (float64(x) for x in model(IDS))

    vectors = np.asarray(embedding(IDS))
    np.testing.assert_array_equal(before, float64(block(vectors, padding_mask=REAL)))
    assert np.abs(float64(block(vectors)) - before)[REAL].max() > 1e-3
    np.testing.assert_allclose(pooled, np.stack([before[0, :3].mean(0), before[1, 0]]), atol=1e-6)
    table = np.array(embedding.get_weights()[0])
    table[0] = 5 * rng.normal(size=table[0].shape)
    embedding.set_weights([table])
    np.testing.assert_array_equal(float64(model(IDS)[0])[REAL], before[REAL])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_mask_survives_the_cast_to_half_precision(policy):
    ids = keras.Input((LENGTH,), dtype="int32")
    embedding = keras.layers.Embedding(29, WIDTH, mask_zero=True)
    block = EncoderBlock(INNER, HEADS, dtype=policy)
    model = keras.Model(ids, block(embedding(ids)))
    explicit = block(np.asarray(embedding(IDS)), padding_mask=REAL)
    np.testing.assert_array_equal(float64(model(IDS)), float64(explicit))


def test_explicit_and_implicit_masks_are_combined(rng):
    ids = keras.Input((LENGTH,), dtype="int32")
    padding = keras.Input((LENGTH,), dtype="bool")
    pairs = keras.Input((LENGTH, LENGTH), dtype="bool")
    embedding = keras.layers.Embedding(29, WIDTH, mask_zero=True)
    block = EncoderBlock(INNER, HEADS)
    encoded = block(embedding(ids), padding_mask=padding, attention_mask=pairs)
    model = keras.Model([ids, padding, pairs], encoded)
    padding = np.array([[True, True, False, True, True], [True] * LENGTH])
    pairs = rng.random((BATCH, LENGTH, LENGTH)) < 0.7
    combined = REAL[:, None] & padding[:, None] & pairs
    expected = block(np.asarray(embedding(IDS)), attention_mask=combined)
    np.testing.assert_array_equal(float64(model([IDS, padding, pairs])), float64(expected))


@pytest.mark.filterwarnings("error:.*mask:UserWarning")
def test_an_attached_mask_raises_no_warning():
    ids = keras.Input((LENGTH,), dtype="int32")
    hidden = keras.layers.Embedding(29, WIDTH, mask_zero=True)(ids)
    keras.Model(ids, EncoderBlock(INNER, HEADS)(hidden))(IDS)
