"""Decoding in stages, with capacity that grows between them, equals decoding at once."""

import keras
import pytest
from decoding_oracles import HistoryModel, check_found
from naive_search import EOS, Rules, naive_beam, naive_greedy

from keras_transformer.decoding import Beam, Constraints, Greedy
from keras_transformer.decoding.loop import advance, make_step_body, start
from keras_transformer.decoding.programs import Compiled

SENTENCES, VOCABULARY = 13, 7
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
    return HistoryModel.random(rng, SENTENCES, VOCABULARY, scale=1.0, end=-1.0)


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
    body = make_step_body(strategy, model.step, constraints(), model.reorder)
    for capacity, stops in STAGES:
        if state is None:
            state = start(strategy, model.start(strategy.beams), constraints(), capacity)
        state = state.extended(capacity - state.ids.shape[2])
        for stop in stops:
            state = advance(body, state, stop)
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
def test_in_stages_a_beam_is_at_each_stop_where_one_of_that_limit_ends(model, quick):
    for stop, found in quick(lambda: in_stages(model, Beam(6, n_best=6)))().items():
        limits = [min(limit, int(stop)) for limit in LIMITS]
        check_found(found, naive_beam(model, limits, 6, 0.6, 6, RULES), model)
