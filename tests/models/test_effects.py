"""Each field of each configuration has the effect that its formula says.

A variant sets several fields. Its model equals the oracle in NumPy, at inference and in training,
where each dropout multiplies by what it keeps on average. And the oracle with one of these fields
at its default gives something else: the field is not there for nothing.
"""

import contextlib
import copy
import dataclasses
import functools

import keras
import numpy as np
import pytest
from model_oracles import outputs_of
from reference import float64, weights_of

from keras_transformer.errors import InputError
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


def config_of(kind, name):
    config_class = config.CONFIGURATIONS[kind]
    names = {field.name for field in dataclasses.fields(config_class)}
    sizes = {field: size for field, size in SIZES.items() if field in names}
    return config_class(**{"vocabulary_size": 23, **sizes, **VARIANTS[kind][name]})


@functools.cache
def made(kind, name):
    """A model with random weights, which no test changes, and its weights."""
    model, rng = model_of(config_of(kind, name)), np.random.default_rng(7)
    model.set_weights(
        [w.path.endswith("gamma") + 0.3 * rng.normal(size=w.shape) for w in model.weights]
    )
    return model, weights_of(model)


def inputs_of(model):
    return [IDS[name] for name in model.input_names]


def close(outputs, expected, ids):
    """Equal at real tokens; a classifier has one output."""
    expected, real = float64(expected), ids != 0 if outputs.shape[1] > 1 else np.s_[:]
    np.testing.assert_allclose(
        float64(outputs)[real], expected[real], atol=2e-5 * np.abs(expected).max(), rtol=0
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
