"""Each field of each configuration has the effect that its formula says.

A variant sets several fields. Its model equals the oracle in NumPy, at inference and in training,
where each dropout multiplies by what it keeps on average. And the oracle with one of these fields
at its default gives something else: the field is not there for nothing. The oracle reads real
tokens one sentence at a time, so padding and other sentences change nothing.
"""

import contextlib
import copy
import dataclasses
import functools
import json

import keras
import numpy as np
import pytest
from keras import ops
from model_oracles import outputs_of
from reference import float64, weights_of

from keras_transformer.base.errors import InputError
from keras_transformer.models import config, model_of

EOS, TURN = 2, 4
IDS = {
    "source_ids": np.array([[3, 5, TURN, 7, 8, 9, TURN, 6, EOS, 0], [11, 12, EOS, *[0] * 7]]),
    "target_ids": np.array([[1, 13, 17, 19, 5, 4, 3], [1, 22, 14, 0, 0, 0, 0]]),
}
SIZES = dict(model_dim=12, num_heads=3, intermediate_dim=13, num_encoder_layers=1)
SIZES |= dict(num_decoder_layers=1)
RATES = dict(dropout=0.25, attention_dropout=0.5, feed_forward_dropout=0.125)
INNER = dict(activation="silu", layer_norm_epsilon=0.1, normalize_first=True)
TWO = dict(target_vocabulary_size=29)
VARIANTS = {
    "transformer": {
        "paper": dict(RATES, num_encoder_layers=2, num_decoder_layers=2),
        "inner": dict(RATES, **INNER, output_bias=True, position_offset=3),
        "marian": dict(position_layout="halves", position_frequencies="marian", source_eos=False)
        | dict(decoder="ssru"),
        "ssru": dict(RATES, decoder="ssru", ssru_projection=True, tie_embeddings="none", **TWO),
        "learned": dict(positions="learned", max_length=11, combine_positions="concatenate"),
        "rotary": dict(positions="rotary", num_kv_heads=1, sliding_window=2),
        "relative": dict(positions="relative", max_distance=2, relative_values=True),
        "alibi": dict(positions="alibi", tie_embeddings="decoder", output_bias=True, **TWO),
        "pruned": dict(encoder_heads=(1,), decoder_heads=(2,), cross_heads=(1,), positions="none")
        | dict(tie_embeddings="none"),
        "turns": dict(RATES, turn_layers=2, turn_id=TURN),
        "turns inside": dict(turn_layers=1, turn_id=TURN, normalize_first=True, sliding_window=2)
        | dict(positions="rotary", num_heads=2),
    },
    "language_model": {
        "first": dict(RATES, **INNER, tie_embeddings="none", output_bias=True),
        "pruned": dict(decoder_heads=(1,), position_layout="halves", position_offset=1),
        "learned": dict(positions="learned", combine_positions="concatenate", max_length=9),
        "relative": dict(positions="relative", max_distance=1, relative_values=True),
        "window": dict(position_frequencies="marian", num_kv_heads=1, sliding_window=2),
    },
    "classifier": {
        "attention": dict(RATES, word_dropout=0.375, pooling="attention", target_vocabulary_size=5),
        "largest": dict(pooling="max", activation="silu", encoder_heads=(1,), position_offset=1),
        "first": dict(normalize_first=False, layer_norm_epsilon=0.1, num_encoder_layers=2)
        | dict(num_kv_heads=1),
        "learned": dict(positions="learned", combine_positions="concatenate", max_length=12),
        "relative": dict(positions="relative", max_distance=1, relative_values=True),
        "marian": dict(position_layout="halves", position_frequencies="marian", sliding_window=2),
    },
    "recurrent": {
        "gru": dict(dropout=0.25, num_decoder_layers=2),
        "general": dict(attention="luong", input_feeding=True, num_encoder_layers=2, dropout=0.0),
        "dot": dict(cell="lstm", attention_score="dot", dropout=0.25),
        "scaled": dict(cell="lstm", attention="luong", attention_score="scaled_dot", dropout=0.5),
        "no attention": dict(cell="lstm", attention="none", num_decoder_layers=2, **TWO)
        | dict(tie_embeddings="decoder"),
        "untied": dict(input_feeding=True, tie_embeddings="none"),
    },
}
HEADS = dict(num_heads=4)
EACH = [(kind, name) for kind, variants in VARIANTS.items() for name in variants]
# Whose steps are compared in float32: `paper` is compared in 16 bits, and turns are in the source.
DECODERS = [
    row for row in EACH if row[0] != "classifier" and row[1] not in ("paper", "turns inside")
]
BFLOAT16, FLOAT16 = "mixed_bfloat16", "mixed_float16"
HALF = [("transformer", name, BFLOAT16) for name in ("paper", "rotary", "alibi", "turns")]
HALF += [("transformer", name, FLOAT16) for name in ("learned", "relative")]
HALF += [("language_model", "first", BFLOAT16), ("classifier", "attention", BFLOAT16)]
HALF += [("recurrent", "untied", BFLOAT16), ("recurrent", "general", FLOAT16)]


def config_of(kind, name):
    config_class = config.CONFIGURATIONS[kind]
    names = {field.name for field in dataclasses.fields(config_class)}
    sizes = {field: size for field, size in SIZES.items() if field in names}
    return config_class(**{"vocabulary_size": 23, **sizes, **VARIANTS[kind][name]})


@functools.cache
def made(kind, name, policy="float32"):
    """A model with random weights, which no test changes, and its weights."""
    model, rng = model_of(config_of(kind, name), dtype=policy), np.random.default_rng(7)
    model.set_weights(
        [w.path.endswith("gamma") + 0.3 * rng.normal(size=w.shape) for w in model.weights]
    )
    return model, weights_of(model)


def inputs_of(model):
    return [IDS[name] for name in model.input_names]


def close(outputs, expected, ids, tolerance=2e-5):
    """Equal at non-padding tokens; a classifier has one output."""
    expected, real = float64(expected), ids != 0 if outputs.shape[1] > 1 else np.s_[:]
    np.testing.assert_allclose(
        float64(outputs)[real], expected[real], atol=tolerance * np.abs(expected).max(), rtol=0
    )


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_a_model_is_what_its_fields_say(kind, name, monkeypatch):
    model, weights = made(kind, name)
    ids = inputs_of(model)
    close(model(ids), outputs_of(weights, model.config, *ids), ids[-1])

    def call(self, inputs, training=False):
        return inputs * (1.0 - self.rate) if training else inputs

    monkeypatch.setattr(keras.layers.Dropout, "call", call)
    expected = outputs_of(weights, model.config, *ids, training=True)
    close(model(ids, training=True), expected, ids[-1])


TOLERANCE = {"float32": 2e-5, BFLOAT16: 1e-1, FLOAT16: 2e-2}


@pytest.mark.parametrize(("kind", "name", "policy"), HALF)
def test_in_16_bits_a_model_is_nearly_what_its_fields_say(kind, name, policy):
    model, weights = made(kind, name, policy)
    ids = inputs_of(model)
    outputs = model(ids)
    assert keras.backend.standardize_dtype(outputs.dtype) == model.compute_dtype
    close(outputs, outputs_of(weights, model.config, *ids), ids[-1], TOLERANCE[policy])


@pytest.mark.parametrize(
    ("kind", "name", "policy"),
    [
        *(pytest.param(*row, "float32", marks=pytest.mark.tensorflow) for row in DECODERS),
        ("transformer", "paper", BFLOAT16),
        ("language_model", "first", BFLOAT16),
        ("recurrent", "general", FLOAT16),
    ],
)
def test_cached_steps_of_hypotheses_equal_one_full_pass(rng, kind, name, policy):
    model, _ = made(kind, name, policy)
    has_source = "source_ids" in model.input_names
    source = IDS["source_ids"] if has_source else np.array([[EOS], [EOS]])
    vocabulary, length, beams = model.config.output_vocabulary_size, 4, 2
    cache = model.start_decoding(source, length, beams)
    histories = np.zeros((2, beams, length), int)
    received = np.zeros((2, beams, length, vocabulary))
    rows = np.arange(2)[:, None]
    for t in range(length):
        histories[:, :, t] = rng.integers(1, vocabulary, (2, beams))
        newest = ops.convert_to_tensor(histories[:, :, t], "int32")
        logits, cache = model.step(newest, cache)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        received[:, :, t] = logits
        if t + 1 < length:
            parents = rng.integers(0, beams, (2, beams))
            cache = model.reorder(cache, ops.convert_to_tensor(parents, "int32"))
            histories, received = histories[rows, parents], received[rows, parents]
    histories = histories.reshape(-1, length)
    sources = [np.repeat(source, beams, axis=0)] if has_source else []
    full = model([*sources, histories])
    close(received.reshape(full.shape), full, histories, TOLERANCE[policy])


@pytest.mark.parametrize(("kind", "name"), EACH)
def test_a_configuration_is_the_same_after_json(kind, name):
    fields = config_of(kind, name)
    assert type(fields).from_dict(json.loads(json.dumps(fields.to_dict()))) == fields


def test_whole_words_are_dropped_in_training_alone():
    model, _ = made("classifier", "attention")
    embedded = np.ones((40, 9, 12), "float32")
    np.testing.assert_array_equal(model.word_dropout(embedded), embedded)
    dropped = float64(model.word_dropout(embedded, training=True))
    remaining = dropped[..., 0] > 0
    assert 0.5 < remaining.mean() < 0.75  # The rate is 0.375.
    np.testing.assert_allclose(dropped, remaining[..., None] * np.ones(12) / 0.625, rtol=1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", VARIANTS)
def test_every_field_changes_outputs_or_the_shapes_of_weights(kind):
    sizes = dict(vocabulary_size=22, model_dim=24) | ({} if kind == "recurrent" else HEADS)
    defaults = config.CONFIGURATIONS[kind](**sizes)
    without_effect = {field.name for field in dataclasses.fields(defaults)}
    for name in VARIANTS[kind]:
        for field in sorted(without_effect):
            default = getattr(defaults, field)
            if getattr(made(kind, name)[0].config, field) != default:
                if has_effect(*made(kind, name), field, default):
                    without_effect.remove(field)
    assert not without_effect


def has_effect(model, weights, field, default):
    """Whether the oracle with a field at its default differs, or a model has other weights."""
    other, ids = copy.copy(model.config), inputs_of(model)
    object.__setattr__(other, field, default)  # without checks: it may contradict other fields
    with contextlib.suppress(KeyError, ValueError):  # Other weights are needed.
        outputs, changed = (
            outputs_of(weights, fields, *ids, training=True) for fields in (model.config, other)
        )
        if np.abs(outputs - changed).max() > 1e-3:
            return True
    try:
        made_anew = model_of(dataclasses.replace(model.config, **{field: default}))
    except InputError:
        return False  # Another variant shows it.
    return [w.shape for w in made_anew.weights] != [w.shape for w in model.weights]
