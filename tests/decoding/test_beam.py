"""Beam search on models whose probabilities are known."""

import itertools
import math

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_equal
from keras import ops
from naive_search import EOS, naive_beam

from keras_transformer.decoding import Beam, Constraints, decode

# JAX compiles each eager loop: beams are proved there by test_constrained_search.py.
pytestmark = pytest.mark.tensorflow

VOCABULARY, CAPACITY = 7, 11


def run(
    model, limits, beam_size, capacity=CAPACITY, length_penalty=0.6, n_best=1, early_stopping=False
):
    return decode(
        model.step,
        model.start(beam_size),
        Beam(beam_size, length_penalty, n_best, early_stopping),
        Constraints(ops.convert_to_tensor(limits, "int32")),
        capacity,
        model.reorder,
    )


def test_two_beams_find_what_one_passes_by():
    model = HistoryModel.of_probabilities(
        {
            (): {3: 0.5, 4: 0.4, EOS: 0.1},
            (3,): {EOS: 0.4, 4: 0.3, 3: 0.3},
            (4,): {EOS: 0.9, 3: 0.1},
        },
        vocabulary=5,
    )
    ids, log_probabilities, scores, by_token = (
        np.asarray(each)
        for each in run(model, [3], 2, capacity=3, length_penalty=1.0, n_best=2)[:4]
    )
    np.testing.assert_array_equal(ids, [[[4, EOS, 0], [3, EOS, 0]]])
    expected = [[math.log(0.4 * 0.9), math.log(0.5 * 0.4)]]
    np.testing.assert_allclose(log_probabilities, expected, rtol=1e-6)
    np.testing.assert_allclose(
        by_token, np.log([[[0.4, 0.9, 1.0], [0.5, 0.4, 1.0]]]), rtol=1e-6, atol=1e-7
    )
    # Two tokens: (5 + 2) / 6.
    np.testing.assert_allclose(scores, np.array(expected) * 6 / 7, rtol=1e-6)


def test_it_stops_when_no_hypothesis_can_still_win(step_by_step):
    # 0.9 has ended after the first step; what is alive has at most 0.06 and never ends.
    after = {(): {EOS: 0.9, 3: 0.06, 4: 0.04}}
    for length in range(1, 5):
        after |= {prefix: {3: 0.5, 4: 0.5} for prefix in itertools.product((3, 4), repeat=length)}
    with step_by_step:
        for n_best, steps in ((1, 1), (2, 5)):
            model = HistoryModel.of_probabilities(after, vocabulary=5)
            run(model, [5], 2, length_penalty=0.0, n_best=n_best)
            assert model.calls == steps


def test_it_goes_on_while_the_penalty_could_still_turn_the_order(step_by_step):
    # ln 0.5 has ended. At three tokens ln 0.4 / (8 / 6)^2 = -0.52 is better than ln 0.5 = -0.69.
    model = HistoryModel.of_probabilities(
        {(): {EOS: 0.5, 3: 0.4, 4: 0.1}, (3,): {3: 1.0}, (3, 3): {EOS: 1.0}, (4,): {4: 1.0}}
        | {(4,) * n: {4: 1.0} for n in range(1, 11)},
        vocabulary=5,
    )
    with step_by_step:
        best = as_lists(run(model, [CAPACITY], 2, length_penalty=2.0))[0][0]
    assert best.ids == (3, 3, EOS)
    # ln 0.1 / (16 / 6)^2 = -0.32: the other one could have won until the limit.
    assert model.calls == CAPACITY


@pytest.mark.parametrize(("vocabulary", "early_stopping"), [(512, True), (512, False), (257, True)])
def test_a_long_vocabulary_that_is_read_in_columns_or_blocks_gives_the_same(
    rng, vocabulary, early_stopping
):
    # 512 ids are eight pieces of 64: see `log_sums_and_maxima`. 257 is prime: three blocks of 128,
    # the last one padded: see `largest_of_rows`.
    model = HistoryModel.random(rng, 3, vocabulary, histories=101, scale=3.0, end=4.0)
    expected = naive_beam(model, [5, 1, 4], 3, 0.6, 3, early_stopping=early_stopping)
    assert {EOS in each.ids for each in sum(expected, [])} == {True, False}
    found = run(model, [5, 1, 4], 3, capacity=5, n_best=3, early_stopping=early_stopping)
    check_equal(found, expected)


def test_logits_of_nan_give_ids_in_range():
    beam_size = 3
    model = HistoryModel(np.full((2, 1009, VOCABULARY), np.nan))
    ids = np.asarray(run(model, [3, 3], beam_size, capacity=3, n_best=beam_size).ids)
    assert ids.min() >= 0 and ids.max() < VOCABULARY
