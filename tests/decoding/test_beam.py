"""Beam search on models whose probabilities are known."""

import itertools
import math

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists
from keras import ops
from naive_search import EOS

from keras_transformer.decoding import Beam, Constraints, GNMTRanking, decode

# JAX compiles each eager loop: beams are proved there by test_constrained_search.py.
pytestmark = pytest.mark.tensorflow

CAPACITY = 11


def run(model, limits, beam, capacity=CAPACITY, bias=None, **rules):
    bias = None if bias is None else ops.convert_to_tensor(bias, "float32")
    constraints = Constraints(ops.convert_to_tensor(limits, "int32"), logit_bias=bias, **rules)
    return decode(model.step, model.start(beam.beams), beam, constraints, capacity, model.reorder)


def test_two_beams_find_what_one_passes_by():
    first, after_3 = {3: 0.5, 4: 0.4, EOS: 0.1}, {EOS: 0.4, 4: 0.3, 3: 0.3}
    probabilities = {(): first, (3,): after_3, (4,): {EOS: 0.9, 3: 0.1}}
    model = HistoryModel.of_probabilities(probabilities, vocabulary=5)
    ranking = GNMTRanking(1.0)
    hypotheses = run(model, [3], Beam(2, ranking, 2, early_stopping=False), capacity=3)
    np.testing.assert_array_equal(hypotheses.ids, [[[4, EOS, 0], [3, EOS, 0]]])
    expected = [[math.log(0.4 * 0.9), math.log(0.5 * 0.4)]]
    np.testing.assert_allclose(hypotheses.log_probabilities, expected, rtol=1e-6)
    by_token = np.log([[[0.4, 0.9, 1.0], [0.5, 0.4, 1.0]]])
    np.testing.assert_allclose(hypotheses.token_log_probabilities, by_token, rtol=1e-6, atol=1e-7)
    for end in (EOS, -1):  # Any id, the end too, or none, may be forbidden.
        rules = dict(forbidden_ids=(), end_id=end)
        ((best,),) = as_lists(run(model, [3], Beam(2, ranking), capacity=3, **rules))
        assert best.ids[:2] == (4, EOS)
    # Two tokens: (5 + 2) / 6.
    np.testing.assert_allclose(hypotheses.scores, np.array(expected) * 6 / 7, rtol=1e-6)


# With a bias on each later token the rest could still win: ln 0.06 + 5 * 0.542 > ln 0.9.
@pytest.mark.parametrize(
    ("n_best", "bias", "steps"), [(1, 0.0, 1), (2, 0.0, 5), (1, 0.541, 1), (1, 0.542, 2)]
)
def test_it_stops_when_no_hypothesis_can_still_win(step_by_step, n_best, bias, steps):
    # 0.9 has ended after the first step; what is alive has at most 0.06 and never ends.
    after = {(): {EOS: 0.9, 3: 0.06, 4: 0.04}}
    for length in range(1, 5):
        after |= {prefix: {3: 0.5, 4: 0.5} for prefix in itertools.product((3, 4), repeat=length)}
    model = HistoryModel.of_probabilities(after, vocabulary=5)
    with step_by_step:
        beam = Beam(2, GNMTRanking(0.0), n_best, early_stopping=False)
        run(model, [5], beam, bias=[0, 0, 0, bias, bias])
    assert model.calls == steps


def test_it_continues_while_the_penalty_could_still_turn_the_order(step_by_step):
    # ln 0.5 has ended. At three tokens ln 0.4 / (8 / 6)^2 = -0.52 is better than ln 0.5 = -0.69.
    model = HistoryModel.of_probabilities(
        {(): {EOS: 0.5, 3: 0.4, 4: 0.1}, (3,): {3: 1.0}, (3, 3): {EOS: 1.0}, (4,): {4: 1.0}}
        | {(4,) * n: {4: 1.0} for n in range(1, 11)},
        vocabulary=5,
    )
    with step_by_step:
        beam = Beam(2, GNMTRanking(2.0), early_stopping=False)
        best = as_lists(run(model, [CAPACITY], beam))[0][0]
    assert best.ids == (3, 3, EOS)
    # ln 0.1 / (16 / 6)^2 = -0.32: the other one could have won until the limit.
    assert model.calls == CAPACITY
