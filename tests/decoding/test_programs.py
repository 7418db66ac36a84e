"""What is compiled once is kept: options that are no part of a program share it."""

import gc
import weakref

import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.programs import Programs
from keras_transformer.decoding.settings import settings_of
from keras_transformer.decoding.stages import Batch


@pytest.fixture(scope="module")
def programs():
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(11, model_dim=4, num_heads=2, intermediate_dim=3, **layers)
    return Programs(Transformer(config), 16, 16, False, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"length_penalty": 1.3},
        {"max_length": 7},
        {"min_length": 2},
        {"banned_ids": (5,)},
        {"max_length_ratio": 1.1},
    ],
)
def test_other_values_share_a_search(programs, change):
    plain = programs.stages(DecodingOptions(beam_size=3))
    assert programs.stages(DecodingOptions(beam_size=3, **change)) is plain


@pytest.mark.parametrize(
    "change",
    [
        {"beam_size": 2},
        {"n_best": 2},
        {"coverage_penalty": 0.1},
        {"no_repeat_ngram_size": 2},
        {"beam_size": 1, "sampling": True},
    ],
)
def test_another_search_is_another_program(programs, change):
    plain = programs.stages(DecodingOptions(beam_size=3))
    options = DecodingOptions(**{"beam_size": 3, **change})
    assert programs.stages(options) is not plain
    assert programs.stages(options) is programs.stages(options)


def test_scoring_is_kept_for_each_choice_of_heads(programs):
    options = DecodingOptions()
    assert programs.forced_targets(options, True) is programs.forced_targets(options, True)
    assert programs.forced_targets(options, True) is not programs.forced_targets(options, False)
    first_head = DecodingOptions(attention_heads=(0,))
    assert programs.forced_targets(first_head, True) is not programs.forced_targets(options, True)


def test_nothing_is_compiled_before_it_runs(programs):
    assert programs.compilations == 0


SHORT = np.array([[5, 7, 2]], "int32")


def found_with(programs, size):
    options = DecodingOptions(beam_size=2, no_repeat_ngram_size=size)
    batch = Batch([0], SHORT, settings_of(options, 8, 1))
    ((_, found),) = programs.stages(options).run([batch])
    return found


@pytest.mark.tensorflow
def test_what_comes_after_the_most_is_no_program_and_is_let_go():
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(11, model_dim=4, num_heads=2, intermediate_dim=3, **layers)
    model = Transformer(config)
    few, many = (Programs(model, 8, 8, False, 1, most=most) for most in (1, 64))
    first = few.stages(DecodingOptions(beam_size=2, no_repeat_ngram_size=2))
    kept = []
    for size in (2, 3, 2, 4):
        found, wanted = found_with(few, size), found_with(many, size)
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)
    assert few.stages(DecodingOptions(beam_size=2, no_repeat_ngram_size=2)) is first
    assert (few.compilations, many.compilations) == (1, 3)
    for size in range(3, 203):
        options = DecodingOptions(beam_size=2, no_repeat_ngram_size=size)
        kept.append(weakref.ref(few.stages(options)))
    gc.collect()
    assert 0 < sum(each() is not None for each in kept) < 10
    assert few.compilations == 1


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX frees what it compiled")
def test_where_programs_can_be_freed_the_oldest_is(programs):
    few = Programs(programs._model, 8, 8, False, 1, most=2)
    for size in (2, 3, 2, 4, 2):
        found_with(few, size)
    assert few.compilations == 3
    found_with(few, 3)
    assert few.compilations == 4
