"""Decoding in stages, with capacity that grows between them, equals decoding at once."""

import keras
import numpy as np
import pytest
from decoding_oracles import (
    MAX_LENGTH,
    HistoryModel,
    as_lists,
    check_equal,
    check_found,
    varied_sources,
)
from naive_search import EOS, Rules, naive_beam, naive_greedy

from keras_transformer.decoding import Beam, Constraints, Greedy, Sampling, decode
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.loop import advance, start
from keras_transformer.decoding.search import Search, search_arguments
from keras_transformer.options import DecodingOptions

SENTENCES, VOCABULARY, SOURCE, CAPACITY = 13, 7, 3, 11
LIMITS = [11, 0, 5, 7, 11, 1, 11, 3, 2, 4, 11, 6, 11]
# Capacities, and the tokens to stop at within each.
STAGES = ((2, (1, 2)), (3, (3,)), (5, (5,)), (11, (7, 11)))
# The last sentence comes to a dead end: each word has followed 3, and it may not yet end.
RULES = Rules(
    min_lengths=(0, 0, 4) + (0,) * 9 + (11,),
    prefixes=((), (), (5,), (3, 3, 4, 5), (), (6, 4), *((),) * 6, (3, 3, 4, 3, 5, 3, 6, 3)),
    bias=(0.0, 0.0, 0.3, -0.5, 0.2, 0.0, 0.1),
    ngram_size=2,
)


@pytest.fixture
def model(rng):
    mask = np.arange(SOURCE) < rng.integers(1, SOURCE + 1, size=(SENTENCES, 1))
    mask[1] = False
    return HistoryModel.random(rng, SENTENCES, VOCABULARY, scale=1.0, end=-1.0, source_mask=mask)


def constraints():
    return Constraints(*RULES.arrays(LIMITS, VOCABULARY, 8), RULES.ngram_size)


@pytest.fixture
def quick():
    """JAX would compile each loop by itself, and each operation between them."""
    return (lambda function: function) if keras.backend.backend() == "tensorflow" else _jit


def _jit(function):
    return Compiled(None, function)


def in_stages(model, strategy):
    """Hypotheses found so far, for each stop."""
    state, found = None, {}
    for capacity, stops in STAGES:
        if state is None:
            state = start(strategy, model.start(strategy.beams), constraints(), capacity)
        state = state.extended(capacity - state.ids.shape[2])
        for stop in stops:
            state = advance(strategy, model.step, state, constraints(), stop, model.reorder)
            found[str(stop)] = strategy.hypotheses(state, constraints())
    return found


@pytest.mark.tensorflow
def test_in_stages_greedy_search_is_at_each_stop_where_one_of_that_limit_ends(model, quick):
    for stop, found in quick(lambda: in_stages(model, Greedy()))().items():
        limits = [min(limit, int(stop)) for limit in LIMITS]
        expected = naive_greedy(model, limits, RULES)
        check_found(found, expected, model)
    expected = naive_greedy(model, LIMITS, RULES)
    assert len({len(each.ids) for (each,) in expected if EOS in each.ids}) >= 4
    assert len(expected[12][0].ids) == 8


@pytest.mark.tensorflow
@pytest.mark.parametrize("beam_size, num_groups", [(6, 3)])
def test_in_stages_a_beam_is_at_each_stop_where_one_of_that_limit_ends(
    model, quick, beam_size, num_groups
):
    def run():
        strategy = Beam(
            beam_size,
            n_best=beam_size,
            coverage_penalty=0.3,
            attention=lambda cache: cache.attention,
            source_mask=model.source_mask,
            num_groups=num_groups,
        )
        return in_stages(model, strategy)

    for stop, found in quick(run)().items():
        limits = [min(limit, int(stop)) for limit in LIMITS]
        expected = naive_beam(
            model,
            limits,
            beam_size,
            0.6,
            beam_size,
            RULES,
            model.coverage(0.3),
            num_groups,
            0.5,
        )
        check_found(found, expected, model)


@pytest.mark.tensorflow
def test_in_stages_samples_are_those_drawn_at_once(model, quick):
    strategy = Sampling(np.arange(SENTENCES, dtype="int32"), 3, temperature=1.3, top_k=3)

    def run():
        return in_stages(model, strategy), decode(
            model.step, model.start(3), strategy, constraints(), CAPACITY
        )

    stages, at_once = quick(run)()
    ids, by_token = np.asarray(at_once[0]), np.asarray(at_once[3])
    assert (ids[..., -1] != 0).any() and (ids == EOS).any()
    for stop, found in stages.items():
        written = int(stop)
        np.testing.assert_array_equal(np.asarray(found.ids)[..., :written], ids[..., :written])
        assert not np.asarray(found.ids)[..., written:].any()
        np.testing.assert_allclose(
            np.asarray(found[3])[..., :written], by_token[..., :written], atol=1e-6
        )


# Sampling and greedy search with an engine: see test_scheduler.py.
OPTIONS = DecodingOptions(
    beam_size=6, n_best=6, num_groups=2, coverage_penalty=0.3, no_repeat_ngram_size=2, min_length=3
)


def test_a_transformer_decodes_in_stages_what_it_decodes_at_once(varied):
    model, source = varied("pre_norm"), varied_sources()
    rows = len(source)
    prefixes = np.zeros((rows, 3), "int32")
    prefixes[2], prefixes[5, :1], prefixes[7, :2] = (5, 7, 5), 11, (4, 13)
    bias = np.linspace(-0.3, 0.5, model.config.output_vocabulary_size).astype("float32")
    arguments = search_arguments(OPTIONS, source, MAX_LENGTH, None, prefixes, bias)

    def compiled(name, *after):
        def function(arguments, *given):
            return getattr(Search(model, OPTIONS, arguments), name)(*given, *after)

        # Eagerly JAX would compile each loop anew.
        return Compiled(model, function) if keras.backend.backend() == "jax" else function

    expected = as_lists(compiled("run", MAX_LENGTH)(arguments))
    assert len({len(each[0].ids) for each in expected}) >= 4
    state, proceed = compiled("begin", MAX_LENGTH)(arguments), compiled("proceed")
    for stop in (2, 5, 7, MAX_LENGTH):
        state, found = proceed(arguments, state, np.array(stop, "int32"))
        lengths = {len(each.ids) for hypotheses in as_lists(found) for each in hypotheses}
        assert max(lengths) <= stop
    check_equal(found, expected, 1e-5)
