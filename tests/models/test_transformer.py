"""Transformer: the whole model against NumPy, its tying, its cache; files: `test_every_model`."""

import functools

import keras
import numpy as np
import pytest
import reference
from keras import ops
from model_oracles import outputs_of
from reference import float64

from keras_transformer import Transformer, TransformerConfig

HEADS, WIDTH, INNER, SOURCE_VOCABULARY, TARGET_VOCABULARY = 3, 33, 13, 29, 31
SOURCE_IDS = np.array([[3, 5, 7, 2, 0, 0, 0], [11, 2, 0, 0, 0, 0, 0]])
TARGET_IDS = np.array([[1, 13, 17, 19, 5], [1, 23, 0, 0, 0]])
LEARNED = dict(positions="learned", max_length=11)
TWO = dict(target_vocabulary_size=TARGET_VOCABULARY)
VARIANTS = {
    "paper": dict(),
    "pre_norm": dict(normalize_first=True, position_offset=2),
    "learned": LEARNED,
    "decoder_tied": dict(TWO, tie_embeddings="decoder"),
    "untied": dict(TWO, **LEARNED, tie_embeddings="none", normalize_first=True),
    "rotary": dict(positions="rotary", num_heads=6, model_dim=36, num_kv_heads=2),
    "relative": dict(positions="relative", max_distance=2, sliding_window=4),
    "alibi": dict(positions="alibi", sliding_window=4, normalize_first=True),
    "opennmt": dict(positions="relative", relative_values=True, max_distance=2, source_eos=False),
    "no_positions": dict(positions="none", num_kv_heads=1, sliding_window=2),
    "concatenated": dict(combine_positions="concatenate"),
}
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 5e-2, "mixed_float16": 1e-2}
POLICIES = pytest.mark.parametrize(("policy", "tolerance"), TOLERANCE.items())
# Half precision, with each kind of positions.
HALF = [("paper", "mixed_bfloat16"), ("untied", "mixed_float16")]
HALF += [("rotary", "mixed_bfloat16"), ("relative", "mixed_float16"), ("alibi", "mixed_bfloat16")]
EVERY_VARIANT = pytest.mark.parametrize(
    ("variant", "policy"), [(variant, "float32") for variant in VARIANTS] + HALF
)
SOME_VARIANTS = pytest.mark.parametrize(("variant", "policy"), [("paper", "float32"), *HALF])


def config(variant="paper", **fields):
    sizes = dict(vocabulary_size=SOURCE_VOCABULARY, model_dim=WIDTH, num_heads=HEADS)
    sizes |= dict(intermediate_dim=INNER, num_encoder_layers=1, num_decoder_layers=2)
    sizes |= dict(dropout=0.3, attention_dropout=0.2)
    return TransformerConfig(**{**sizes, **VARIANTS[variant], **fields})


@functools.cache
def made(variant, policy):
    """A model with random weights, which no test changes."""
    model, rng = Transformer(config(variant), dtype=policy), np.random.default_rng(7)
    model.set_weights(
        [w.path.endswith("gamma") + 0.3 * rng.normal(size=w.shape) for w in model.weights]
    )
    return model


def close(actual, expected, tolerance):
    """Equal up to `tolerance` of the largest expected number."""
    scale = np.abs(expected).max()
    np.testing.assert_allclose(float64(actual) / scale, expected / scale, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("variant", "policy"), HALF)  # float32: test_effects
def test_equals_the_numpy_oracle(variant, policy):
    model = made(variant, policy)
    logits = model((SOURCE_IDS, TARGET_IDS))
    assert tuple(logits.shape) == (2, 5, model.config.output_vocabulary_size)
    assert keras.backend.standardize_dtype(logits.dtype) == model.compute_dtype
    weights = reference.weights_of(model)
    expected = outputs_of(weights, model.config, SOURCE_IDS, TARGET_IDS)
    close(logits, expected, 2 * TOLERANCE[policy])


def test_a_model_without_its_configuration_says_which_calls_make_it():
    with pytest.raises(ValueError, match=r"Transformer.from_preset\(.*: vocabulary_size=100."):
        Transformer(vocabulary_size=100)
    with pytest.raises(ValueError, match=r"Received: config=\{'vocabulary_size': 100\}."):
        Transformer({"vocabulary_size": 100})


def with_dropout_of(state, model, inputs):
    """A training pass whose dropout is drawn from a given state of the seed generators."""
    for variable, value in zip(model.variables, state, strict=True):
        variable.assign(value)
    return float64(model(inputs, training=True))


@SOME_VARIANTS
def test_the_future_never_leaks(variant, policy):
    model = made(variant, policy)
    state = [v.numpy() for v in model.variables]
    for changed_from, ids in ((3, [0, 0]), (1, [3, 3, 3, 3])):
        changed = TARGET_IDS.copy()
        changed[:, changed_from:] = ids
        passes = [lambda x: float64(model(x)), lambda x: with_dropout_of(state, model, x)]
        for run in passes:
            before, after = run((SOURCE_IDS, TARGET_IDS)), run((SOURCE_IDS, changed))
            kept = np.s_[:, :changed_from]
            np.testing.assert_allclose(after[kept], before[kept], atol=1e-6, rtol=0)
            assert np.abs(after[0, changed_from:] - before[0, changed_from:]).max() > 1e-3


@SOME_VARIANTS
def test_padding_and_batch_mates_change_nothing(rng, variant, policy):
    model = made(variant, policy)
    expected = float64(model((SOURCE_IDS[:1, :4], TARGET_IDS[:1])))
    for _ in range(2):  # Other mates each time.
        source_ids = rng.integers(1, SOURCE_VOCABULARY, (3, 11))
        target_ids = rng.integers(1, SOURCE_VOCABULARY, (3, 11))
        source_ids[0], target_ids[0] = 0, 0
        source_ids[0, :4], target_ids[0, :5] = SOURCE_IDS[0, :4], TARGET_IDS[0]
        close(model((source_ids, target_ids))[:1, :5], expected, TOLERANCE[policy])


@POLICIES
def test_a_row_of_padding_alone_stays_finite(policy, tolerance):
    model = made("paper", policy)
    source_ids, target_ids = SOURCE_IDS.copy(), TARGET_IDS.copy()
    source_ids[1], target_ids[1] = 0, 0
    logits = float64(model((source_ids, target_ids)))
    assert np.isfinite(logits).all()
    close(logits[:1], float64(model((SOURCE_IDS[:1], TARGET_IDS[:1]))), tolerance)


@EVERY_VARIANT
def test_cached_steps_equal_one_full_pass(rng, variant, policy):
    model = made(variant, policy)
    vocabulary, length, num_beams = model.config.output_vocabulary_size, 5, 3
    cache = model.start_decoding(SOURCE_IDS, length, num_beams)
    histories = np.zeros((2, num_beams, length), int)
    received = np.zeros((2, num_beams, length, vocabulary))
    for t in range(length):
        histories[:, :, t] = rng.integers(1, vocabulary, (2, num_beams))
        newest = ops.convert_to_tensor(histories[:, :, t], "int32")
        logits, cache = model.step(newest, cache)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        received[:, :, t] = logits
        if t + 1 < length:
            parents = rng.integers(0, num_beams, (2, num_beams))
            cache = model.reorder(cache, ops.convert_to_tensor(parents, "int32"))
            rows = np.arange(2)[:, None]
            histories, received = histories[rows, parents], received[rows, parents]
    sources = np.repeat(SOURCE_IDS, num_beams, axis=0)
    full = float64(model((sources, histories.reshape(-1, length))))
    close(received.reshape(full.shape), full, TOLERANCE[policy])
    assert int(cache.position) == length


def test_decoding_past_the_learned_positions_is_refused():
    model = Transformer(config("learned"))
    with pytest.raises(ValueError, match="max_length=12, the model's max_length=11"):
        model.start_decoding(SOURCE_IDS, 12)


TABLES = [("paper", {"target_embedding"})]
TABLES += [("decoder_tied", {"source_embedding", "target_embedding"})]
TABLES += [("untied", {"source_embedding", "target_embedding", "output"})]


@pytest.mark.parametrize(("variant", "tables"), TABLES)
def test_tied_tables_are_one_weight(variant, tables):
    model = Transformer(config(variant))
    vocabularies = SOURCE_VOCABULARY, TARGET_VOCABULARY
    shapes = {name: w.shape for name, w in reference.weights_of(model).items()}
    owners = [name.split("/")[0] for name, shape in shapes.items() if {*shape} & {*vocabularies}]
    assert len(owners) == len(tables) and set(owners) == tables


def test_logits_of_a_new_model_are_of_unit_size(rng):
    c = config(vocabulary_size=503)
    ids = rng.integers(1, 503, (3, 41))
    logits = float64(Transformer(c)((ids, ids)))
    assert 0.7 < logits.std() < 1.4
