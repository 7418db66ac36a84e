"""Transformer: the whole model against NumPy, its tying, its cache, its files."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import reference
from keras import ops
from reference import float64

import keras_transformer
from keras_transformer import (
    SmoothedCrossEntropy,
    TokenAccuracy,
    Transformer,
    TransformerConfig,
    TransformerSchedule,
)
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LearnedPositionalEmbedding,
    MultiHeadAttention,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)

HEADS, WIDTH, INNER, SOURCE_VOCABULARY, TARGET_VOCABULARY = 3, 33, 13, 29, 31
SOURCE_IDS = np.array([[3, 5, 7, 2, 0, 0, 0], [11, 2, 0, 0, 0, 0, 0]])
TARGET_IDS = np.array([[1, 13, 17, 19, 5], [1, 23, 0, 0, 0]])
VARIANTS = {
    "paper": dict(),
    "pre_norm": dict(normalize_first=True),
    "learned": dict(positions="learned", max_length=11),
    "decoder_tied": dict(tie_embeddings="decoder", target_vocabulary_size=TARGET_VOCABULARY),
    "untied": dict(
        tie_embeddings="none",
        target_vocabulary_size=TARGET_VOCABULARY,
        normalize_first=True,
        positions="learned",
        max_length=11,
    ),
    "rotary": dict(positions="rotary", num_heads=6, model_dim=36, num_kv_heads=2),
    "relative": dict(positions="relative", max_distance=2, sliding_window=4),
    "no_positions": dict(positions="none", num_kv_heads=1, sliding_window=2),
    "concatenated": dict(combine_positions="concatenate"),
}
EVERY_VARIANT = pytest.mark.parametrize("variant", VARIANTS)
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 5e-2, "mixed_float16": 1e-2}
POLICIES = pytest.mark.parametrize(("policy", "tolerance"), TOLERANCE.items())
# Every variant in float32, and half precision.
VARIANTS_AND_POLICIES = pytest.mark.parametrize(
    ("variant", "policy"),
    [(variant, "float32") for variant in VARIANTS]
    + [("paper", "mixed_bfloat16"), ("untied", "mixed_float16"), ("rotary", "mixed_bfloat16")],
)
# The two that share the least, in each precision.
SOME_VARIANTS = pytest.mark.parametrize(
    ("variant", "policy"),
    [
        ("paper", "float32"),
        ("untied", "mixed_bfloat16"),
        ("paper", "mixed_float16"),
        ("rotary", "mixed_bfloat16"),
        ("relative", "mixed_float16"),
    ],
)


def config(variant="paper", **fields):
    sizes = dict(
        vocabulary_size=SOURCE_VOCABULARY,
        model_dim=WIDTH,
        num_heads=HEADS,
        intermediate_dim=INNER,
        num_encoder_layers=1,
        num_decoder_layers=2,
        dropout=0.3,
        attention_dropout=0.2,
    )
    return TransformerConfig(**{**sizes, **VARIANTS[variant], **fields})


def close(actual, expected, tolerance):
    """Equal up to `tolerance` of the largest expected number."""
    scale = np.abs(expected).max()
    np.testing.assert_allclose(float64(actual) / scale, expected / scale, atol=tolerance, rtol=0)


@VARIANTS_AND_POLICIES
def test_equals_the_numpy_oracle(randomize, variant, policy):
    model = randomize(Transformer(config(variant), dtype=policy))
    logits = model((SOURCE_IDS, TARGET_IDS))
    assert tuple(logits.shape) == (2, 5, model.config.output_vocabulary_size)
    assert keras.backend.standardize_dtype(logits.dtype) == model.compute_dtype
    expected = reference.transformer(
        reference.weights_of(model), model.config, SOURCE_IDS, TARGET_IDS
    )
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
def test_the_future_never_leaks(randomize, variant, policy):
    model = randomize(Transformer(config(variant), dtype=policy))
    state = [v.numpy() for v in model.variables]
    for changed_from, ids in ((3, [0, 0]), (1, [3, 3, 3, 3])):
        changed = TARGET_IDS.copy()
        changed[:, changed_from:] = ids
        passes = [lambda x: float64(model(x)), lambda x: with_dropout_of(state, model, x)]
        for run in passes:
            before, after = run((SOURCE_IDS, TARGET_IDS)), run((SOURCE_IDS, changed))
            np.testing.assert_allclose(
                after[:, :changed_from], before[:, :changed_from], atol=1e-6, rtol=0
            )
            assert np.abs(after[0, changed_from:] - before[0, changed_from:]).max() > 1e-3


@SOME_VARIANTS
def test_padding_and_batch_mates_change_nothing(rng, randomize, variant, policy):
    model = randomize(Transformer(config(variant), dtype=policy))
    expected = float64(model((SOURCE_IDS[:1, :4], TARGET_IDS[:1])))
    for _ in range(2):  # Other mates each time.
        source_ids = rng.integers(1, SOURCE_VOCABULARY, (3, 11))
        target_ids = rng.integers(1, SOURCE_VOCABULARY, (3, 11))
        source_ids[0], target_ids[0] = 0, 0
        source_ids[0, :4], target_ids[0, :5] = SOURCE_IDS[0, :4], TARGET_IDS[0]
        close(model((source_ids, target_ids))[:1, :5], expected, TOLERANCE[policy])


@POLICIES
def test_a_row_of_padding_alone_stays_finite(randomize, policy, tolerance):
    model = randomize(Transformer(config(), dtype=policy))
    source_ids, target_ids = SOURCE_IDS.copy(), TARGET_IDS.copy()
    source_ids[1], target_ids[1] = 0, 0
    logits = float64(model((source_ids, target_ids)))
    assert np.isfinite(logits).all()
    close(logits[:1], float64(model((SOURCE_IDS[:1], TARGET_IDS[:1]))), tolerance)


@pytest.mark.parametrize(
    ("variant", "policy", "num_beams"),
    [(variant, "float32", 3) for variant in VARIANTS]
    + [("paper", "float32", 1), ("paper", "mixed_bfloat16", 3), ("untied", "mixed_float16", 3)]
    + [("rotary", "mixed_bfloat16", 3), ("relative", "mixed_float16", 3)],
)
def test_cached_steps_equal_one_full_pass(rng, randomize, variant, policy, num_beams):
    model = randomize(Transformer(config(variant), dtype=policy))
    vocabulary, length = model.config.output_vocabulary_size, 5
    cache = model.start_decoding(SOURCE_IDS, length, num_beams)
    histories = np.zeros((2, num_beams, length), int)
    sources = np.repeat(SOURCE_IDS, num_beams, axis=0)
    for t in range(length):
        histories[:, :, t] = rng.integers(1, vocabulary, (2, num_beams))
        newest = ops.convert_to_tensor(histories[:, :, t], "int32")
        logits, cache = model.step(newest, cache)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        full = model((sources, histories.reshape(-1, length)))
        expected = float64(full)[:, t].reshape(2, num_beams, vocabulary)
        close(logits, expected, TOLERANCE[policy])
        parents = rng.integers(0, num_beams, (2, num_beams))
        cache = model.reorder(cache, ops.convert_to_tensor(parents, "int32"))
        histories = np.take_along_axis(histories, parents[:, :, None], axis=1)
    assert int(cache.position) == length


def test_decoding_past_the_learned_positions_is_refused():
    model = Transformer(config("learned"))
    with pytest.raises(ValueError, match="max_length=12, the model's max_length=11"):
        model.start_decoding(SOURCE_IDS, 12)


def hand_count(c, tables):
    """Parameters of a Transformer with `tables` matrices of vocabulary by width in all."""
    d, f = c.model_dim, c.intermediate_dim
    shared = d * (c.num_kv_heads or c.num_heads) // c.num_heads
    attention = 2 * (d * d + d) + 2 * (d * shared + shared)
    feed_forward = d * f + f + f * d + d
    norm = 2 * d
    encoder = c.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = c.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    final_norms = 2 * norm if c.normalize_first else 0
    blocks = c.num_encoder_layers + c.num_decoder_layers
    distances = blocks * (2 * c.max_distance + 1) * c.key_dim if c.positions == "relative" else 0
    joins = 2 * 2 * d * d if c.combine_positions == "concatenate" else 0
    return encoder + decoder + final_norms + tables * d + distances + joins


@EVERY_VARIANT
def test_the_parameter_count_equals_the_count_by_hand(variant):
    c = config(variant)
    tables = {
        "all": SOURCE_VOCABULARY,
        "decoder": SOURCE_VOCABULARY + TARGET_VOCABULARY,
        "none": SOURCE_VOCABULARY + 2 * TARGET_VOCABULARY,
    }[c.tie_embeddings]
    if c.positions == "learned":
        tables += 2 * c.max_length
    assert Transformer(c).count_params() == hand_count(c, tables)


def test_logits_of_a_new_model_are_of_unit_size(rng):
    c = config(vocabulary_size=503)
    ids = rng.integers(1, 503, (3, 41))
    logits = float64(Transformer(c)((ids, ids)))
    assert 0.7 < logits.std() < 1.4


def functional_model():
    """A small model of every layer, as somebody who imports them would write it."""
    source = keras.Input((None,), dtype="int32", name="source")
    target = keras.Input((None,), dtype="int32", name="target")
    words = TokenEmbedding(SOURCE_VOCABULARY, WIDTH)
    hidden = keras.layers.Embedding(SOURCE_VOCABULARY, WIDTH, mask_zero=True)(source)
    encoded = EncoderBlock(INNER, HEADS, dropout=0.1)(SinusoidalPositionalEncoding()(hidden))
    decoded = DecoderBlock(INNER, HEADS, normalize_first=True)(
        LearnedPositionalEmbedding(11)(words(target)), encoded
    )
    attended = MultiHeadAttention(HEADS, 5, value_dim=7)(decoded, encoded)
    outputs = keras.layers.Dense(TARGET_VOCABULARY)(FeedForward(INNER)(attended))
    return keras.Model([source, target], outputs)


LOAD = """
import json, pathlib, sys
import numpy as np
import keras, keras_transformer

errors = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.keras")):
    model = keras.saving.load_model(path)
    data = np.load(path.with_suffix(".npz"))
    outputs = np.asarray(model([data["source"], data["target"]])).astype("float32")
    errors[path.stem] = float(np.abs(outputs - data["outputs"]).max())
print(json.dumps(errors))
"""


def test_saved_models_load_in_a_new_process_that_only_imports_the_package(tmp_path, randomize):
    models = {
        "paper": Transformer(config()),
        "untied": Transformer(config("untied")),
        "decoder_tied_half": Transformer(config("decoder_tied"), dtype="mixed_bfloat16"),
        "functional": functional_model(),
    }
    for name, model in models.items():
        randomize(model).save(tmp_path / f"{name}.keras")
        outputs = np.asarray(model([SOURCE_IDS, TARGET_IDS])).astype("float32")
        np.savez(tmp_path / f"{name}.npz", source=SOURCE_IDS, target=TARGET_IDS, outputs=outputs)
    package = pathlib.Path(keras_transformer.__file__).parents[1]
    finished = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)],
        # The last one because this process has it too; it compiles in a third of the time.
        env={
            **os.environ,
            "PYTHONPATH": str(package),
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert json.loads(finished.stdout) == {name: 0.0 for name in models}


def test_training_resumed_from_a_file_equals_training_unbroken(tmp_path):
    inputs = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    labels = np.roll(TARGET_IDS, -1, axis=1)

    def trained(model, steps):
        model.fit(inputs, labels, batch_size=2, epochs=steps, verbose=0, shuffle=False)
        return model

    keras.utils.set_random_seed(7)
    model = Transformer(config(dropout=0.0, attention_dropout=0.0))
    schedule = TransformerSchedule(WIDTH, warmup_steps=3)
    model.compile(
        keras.optimizers.Adam(schedule, beta_2=0.98),
        SmoothedCrossEntropy(),
        metrics=[TokenAccuracy()],
        jit_compile=False,
    )
    start = float64(model((SOURCE_IDS, TARGET_IDS)))
    trained(model, 2).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    resumed = float64(trained(loaded, 2)((SOURCE_IDS, TARGET_IDS)))
    unbroken = float64(trained(model, 2)((SOURCE_IDS, TARGET_IDS)))
    assert int(loaded.optimizer.iterations) == 4
    np.testing.assert_allclose(resumed, unbroken, atol=1e-6)
    assert np.abs(unbroken - start).max() > 1e-2


def test_fitting_lowers_the_loss_to_the_floor_of_the_smoothing():
    """Two sentences are learned by heart: the loss nears the entropy of the smoothed labels."""
    smoothing = 0.1
    labels = np.roll(TARGET_IDS, -1, axis=1)
    labels[0, -1] = 2
    model = Transformer(config(dropout=0.0, attention_dropout=0.0, normalize_first=True))
    model.compile(
        keras.optimizers.Adam(0.01),
        SmoothedCrossEntropy(smoothing),
        metrics=[TokenAccuracy()],
        jit_compile=False,  # Compiling would take longer than all steps; the README's model does.
    )
    history = model.fit((SOURCE_IDS, TARGET_IDS), labels, epochs=60, verbose=0).history
    smoothed = reference.target_distribution(1, SOURCE_VOCABULARY, smoothing)
    floor = -float(np.sum(smoothed * np.log(smoothed)))
    assert history["loss"][-1] < floor + 0.05
    assert history["loss"][-1] > floor - 1e-4
    assert history["token_accuracy"][-1] == 1.0
