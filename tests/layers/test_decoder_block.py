"""DecoderBlock against NumPy, with and without an encoder, and what its masks promise."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from pairwise import POLICIES, pairwise
from reference import float64

from keras_transformer.cache import KeyValue
from keras_transformer.layers import DecoderBlock

BATCH, TARGET, SOURCE, HEADS, INNER = 2, 5, 7, 3, 13
KEY_DIM = 11
WIDTH, SOURCE_WIDTH = HEADS * KEY_DIM, 17
TARGET_IDS = np.array([[3, 5, 7, 0, 0], [11, 0, 0, 0, 0]])
SOURCE_IDS = np.array([[3, 5, 7, 2, 0, 0, 0], [11, 2, 0, 0, 0, 0, 0]])
TARGET_REAL, SOURCE_REAL = TARGET_IDS != 0, SOURCE_IDS != 0
WITH_AND_WITHOUT = pytest.mark.parametrize("with_encoder", [False, True])
TOLERANCE = dict(zip(POLICIES, (2e-5, 1e-1, 1e-2), strict=True))
EVERY_KIND = dict(normalize_first=[False, True], with_encoder=[False, True], policy=POLICIES)
# Before and after a norm, in each precision; what the two say is independent.
PRECISIONS = pytest.mark.parametrize(
    ("policy", "normalize_first"),
    [("float32", False), ("mixed_bfloat16", True), ("mixed_float16", False)],
)


def built(randomize, with_encoder=True, **arguments):
    block = DecoderBlock(INNER, HEADS, **arguments)
    block.build((None, None, WIDTH), (None, None, SOURCE_WIDTH) if with_encoder else None)
    return randomize(block)


@pytest.fixture
def target(rng):
    return rng.normal(size=(BATCH, TARGET, WIDTH)).astype("float32")


@pytest.fixture
def source(rng):
    return rng.normal(size=(BATCH, SOURCE, SOURCE_WIDTH)).astype("float32")


@pairwise(**EVERY_KIND, masked=[False, True])
def test_equals_the_numpy_oracle(
    rng, target, source, randomize, normalize_first, with_encoder, policy, masked
):
    block = built(randomize, with_encoder, normalize_first=normalize_first, dtype=policy)
    call, mask, memory_mask = {}, None, None
    if masked:
        pairs = rng.random((BATCH, HEADS, TARGET, TARGET)) < 0.7
        call = dict(decoder_padding_mask=TARGET_REAL, decoder_attention_mask=pairs)
        mask = TARGET_REAL[:, None, None] & pairs
        if with_encoder:
            memory_pairs = rng.random((TARGET, SOURCE)) < 0.7
            call |= dict(encoder_padding_mask=SOURCE_REAL, encoder_attention_mask=memory_pairs)
            memory_mask = SOURCE_REAL[:, None, None] & memory_pairs
    memory = source if with_encoder else None
    outputs = block(target, memory, **call)
    assert keras.backend.standardize_dtype(outputs.dtype) == block.compute_dtype
    expected = reference.decoder_block(
        reference.weights_of(block), target, memory, mask, memory_mask, normalize_first
    )
    scale = np.abs(expected).max()
    np.testing.assert_allclose(float64(outputs) / scale, expected / scale, atol=TOLERANCE[policy])


@pairwise(**EVERY_KIND, dropout_while_training=[(0.0, True), (0.3, False), (0.3, True)])
def test_the_future_never_leaks(
    target,
    source,
    randomize,
    influence,
    normalize_first,
    with_encoder,
    policy,
    dropout_while_training,
):
    dropout, training = dropout_while_training
    block = built(
        randomize,
        with_encoder,
        normalize_first=normalize_first,
        dropout=dropout,
        attention_dropout=dropout,
        feed_forward_dropout=dropout,
        dtype=policy,
    )
    memory = source if with_encoder else None
    moved_by = influence(lambda x: block(x, memory, training=training), target)
    past = np.tri(TARGET, dtype=bool)
    np.testing.assert_array_equal(moved_by[~past], 0.0)
    if training and dropout:
        assert (np.diagonal(moved_by) > 0).all()
    else:
        assert (moved_by[past] > 0).all()


def test_without_the_causal_mask_every_position_sees_every_other(target, randomize, influence):
    block = built(randomize, with_encoder=False)
    assert (influence(lambda x: block(x, use_causal_mask=False), target) > 0).all()


@PRECISIONS
def test_padding_and_batch_mates_change_nothing(
    rng, target, source, randomize, normalize_first, policy
):
    block = built(randomize, normalize_first=normalize_first, dropout=0.3, dtype=policy)
    expected = float64(block(target[:1, :3], source[:1, :4]))
    target_mask = np.broadcast_to(np.arange(TARGET + 6) < 3, (BATCH, TARGET + 6))
    source_mask = np.broadcast_to(np.arange(SOURCE + 6) < 4, (BATCH, SOURCE + 6))
    for junk in (0.0, 1e3):
        longer_target = junk * rng.normal(size=(BATCH, TARGET + 6, WIDTH))
        longer_source = junk * rng.normal(size=(BATCH, SOURCE + 6, SOURCE_WIDTH))
        longer_target[0, :3], longer_source[0, :4] = target[0, :3], source[0, :4]
        outputs = block(
            longer_target.astype("float32"),
            longer_source.astype("float32"),
            decoder_padding_mask=target_mask,
            encoder_padding_mask=source_mask,
        )
        np.testing.assert_allclose(float64(outputs)[:1, :3], expected, atol=TOLERANCE[policy])


def test_padding_before_the_sentence_is_hidden_as_well(rng, target, randomize):
    block = built(randomize, with_encoder=False)
    mask = np.array([[False, False, True, True, True]] * BATCH)
    outputs = float64(block(target, decoder_padding_mask=mask))
    assert np.isfinite(outputs).all()
    np.testing.assert_allclose(outputs[:, 2:], float64(block(target[:, 2:])), atol=1e-5)


@PRECISIONS
def test_no_gradient_leads_to_source_padding(
    rng, target, source, randomize, pull_back, normalize_first, policy
):
    block = built(randomize, normalize_first=normalize_first, dropout=0.3, dtype=policy)
    outputs, pull = pull_back(
        lambda x: block(target, x, encoder_padding_mask=SOURCE_REAL, training=True), source
    )
    moved = np.abs(pull(rng.normal(size=outputs.shape))).max(axis=-1)
    np.testing.assert_array_equal(moved > 0, SOURCE_REAL)


@pytest.mark.parametrize(
    ("normalize_first", "with_encoder"), [(False, False), (False, True), (True, True)]
)
def test_masks_of_embeddings_hide_padding_and_travel_on(rng, normalize_first, with_encoder):
    target_ids = keras.Input((TARGET,), dtype="int32")
    source_ids = keras.Input((SOURCE,), dtype="int32")
    target_embedding = keras.layers.Embedding(29, WIDTH, mask_zero=True)
    source_embedding = keras.layers.Embedding(31, SOURCE_WIDTH, mask_zero=True)
    block = DecoderBlock(INNER, HEADS, normalize_first=normalize_first)
    hidden, memory = target_embedding(target_ids), source_embedding(source_ids)
    decoded = block(hidden, memory) if with_encoder else block(hidden)
    inputs = [target_ids, source_ids] if with_encoder else [target_ids]
    model = keras.Model(inputs, [decoded, keras.layers.GlobalAveragePooling1D()(decoded)])
    ids = [TARGET_IDS, SOURCE_IDS] if with_encoder else [TARGET_IDS]
    before, pooled = (float64(x) for x in model(ids))

    vectors = np.asarray(target_embedding(TARGET_IDS))
    memory = np.asarray(source_embedding(SOURCE_IDS)) if with_encoder else None
    source_mask = SOURCE_REAL if with_encoder else None
    # Of the causal block's padding only the source's can be seen by a real position.
    explicit = block(
        vectors, memory, decoder_padding_mask=TARGET_REAL, encoder_padding_mask=source_mask
    )
    np.testing.assert_array_equal(before, float64(explicit))
    np.testing.assert_allclose(pooled, np.stack([before[0, :3].mean(0), before[1, 0]]), atol=1e-6)
    if with_encoder:
        unmasked = float64(block(vectors, memory, decoder_padding_mask=TARGET_REAL))
        assert np.abs(unmasked - before)[TARGET_REAL].max() > 1e-3
    for embedding in [target_embedding, source_embedding][: len(inputs)]:
        table = np.array(embedding.get_weights()[0])
        table[0] = 5 * rng.normal(size=table[0].shape)
        embedding.set_weights([table])
    np.testing.assert_array_equal(float64(model(ids)[0])[TARGET_REAL], before[TARGET_REAL])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_masks_survive_the_cast_to_half_precision(policy):
    target_ids = keras.Input((TARGET,), dtype="int32")
    source_ids = keras.Input((SOURCE,), dtype="int32")
    target_embedding = keras.layers.Embedding(29, WIDTH, mask_zero=True)
    source_embedding = keras.layers.Embedding(31, SOURCE_WIDTH, mask_zero=True)
    block = DecoderBlock(INNER, HEADS, dtype=policy)
    decoded = block(target_embedding(target_ids), source_embedding(source_ids))
    model = keras.Model([target_ids, source_ids], decoded)
    explicit = block(
        np.asarray(target_embedding(TARGET_IDS)),
        np.asarray(source_embedding(SOURCE_IDS)),
        decoder_padding_mask=TARGET_REAL,
        encoder_padding_mask=SOURCE_REAL,
    )
    np.testing.assert_array_equal(float64(model([TARGET_IDS, SOURCE_IDS])), float64(explicit))


@pytest.mark.filterwarnings("error:.*mask:UserWarning")
def test_an_attached_mask_raises_no_warning():
    ids = keras.Input((TARGET,), dtype="int32")
    hidden = keras.layers.Embedding(29, WIDTH, mask_zero=True)(ids)
    keras.Model(ids, DecoderBlock(INNER, HEADS)(hidden, hidden))(TARGET_IDS)


@pairwise(**EVERY_KIND)
def test_steps_through_the_cache_equal_one_call(
    target, source, randomize, normalize_first, with_encoder, policy
):
    block = built(randomize, with_encoder, normalize_first=normalize_first, dtype=policy)
    target, source = ops.cast(target, block.compute_dtype), ops.cast(source, block.compute_dtype)
    expected = float64(block(target, source if with_encoder else None))
    memory = block.cross_attention.project_key_value(source) if with_encoder else None
    sizes = (BATCH, HEADS, TARGET + 2, KEY_DIM, KEY_DIM)
    cache, begin = KeyValue.empty(*sizes, block.compute_dtype), 0
    for end in (1, 3, 4, TARGET):  # One or two positions at a time.
        mask = np.arange(TARGET + 2) <= np.arange(begin, end)[:, None]
        outputs, cache, _ = block.step(target[:, begin:end], cache, begin, mask[None, None], memory)
        np.testing.assert_allclose(
            float64(outputs),
            expected[:, begin:end],
            atol=TOLERANCE[policy] * np.abs(expected).max(),
        )
        begin = end


def test_a_decoder_only_block_has_no_weights_for_an_encoder(randomize):
    block = built(randomize, with_encoder=False)
    assert len(block.weights) == 8 + 4 + 2 * 2
    assert len(built(randomize).weights) == 2 * 8 + 4 + 3 * 2


@WITH_AND_WITHOUT
def test_an_encoder_sequence_may_not_come_and_go(target, source, randomize, with_encoder):
    block = built(randomize, with_encoder)
    built_how, given = ("with", "none") if with_encoder else ("without", "one")
    with pytest.raises(ValueError, match=f"built {built_how} .* called with {given}"):
        block(target, None if with_encoder else source)
