"""Beam search on models whose probabilities are known."""

import itertools
import math

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_equal
from keras import ops
from naive_search import EOS, naive_beam

from keras_transformer.decoding import Beam, Constraints, Greedy, decode

# JAX compiles each eager loop: beams are proved there by test_beam_penalties.py, as one program.
pytestmark = pytest.mark.tensorflow

SENTENCES, VOCABULARY, CAPACITY = 29, 7, 11


def run(
    model,
    limits,
    beam_size,
    capacity=CAPACITY,
    length_penalty=0.6,
    n_best=1,
    early_stopping=False,
    **constraints,
):
    return decode(
        model.step,
        model.start(beam_size),
        Beam(beam_size, length_penalty, n_best, early_stopping),
        Constraints(ops.convert_to_tensor(limits, "int32"), **constraints),
        capacity,
        model.reorder,
    )


def run_greedy(model, limits, **constraints):
    limits = ops.convert_to_tensor(limits, "int32")
    return decode(
        model.step, model.start(1), Greedy(), Constraints(limits, **constraints), CAPACITY
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


@pytest.mark.parametrize("length_penalty, best", [(0.0, (EOS,)), (2.0, (3, 3, EOS))])
def test_the_penalty_lets_a_longer_hypothesis_win(length_penalty, best):
    # ln 0.3 = -1.20; ln 0.25 = -1.39, and -1.39 / (8 / 6)^2 = -0.78.
    model = HistoryModel.of_probabilities(
        {(): {EOS: 0.3, 3: 0.25, 4: 0.45}, (3,): {3: 1.0}, (3, 3): {EOS: 1.0}}
        | {(4,) * n: {3: 0.5, 4: 0.5} for n in range(1, 5)},
        vocabulary=5,
    )
    assert as_lists(run(model, [3], 3, capacity=3, length_penalty=length_penalty))[0][0].ids == best


def test_a_beam_of_one_without_an_end_is_greedy_search(rng):
    limits = [1 + row % CAPACITY for row in range(SENTENCES)]
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY)
    greedy = run_greedy(model, limits, end_id=-1)
    check_equal(run(model, limits, 1, length_penalty=0.0, end_id=-1), as_lists(greedy), 1e-5)


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


def test_with_early_stopping_it_ends_when_as_many_as_the_beam_size_have_ended(step_by_step):
    # After two steps (EOS) and (3, EOS) have ended. (3, 3, EOS) would be better: its score is
    # ln 0.36 / (8 / 6)^2 = -0.57, that of (EOS) ln 0.5 = -0.69.
    model = HistoryModel.of_probabilities(
        {(): {EOS: 0.5, 3: 0.45, 4: 0.05}, (3,): {EOS: 0.2, 3: 0.8}, (3, 3): {EOS: 1.0}}
        | {(4,) * n: {4: 1.0} for n in range(1, 11)},
        vocabulary=5,
    )
    with step_by_step:
        early = run(model, [CAPACITY], 2, length_penalty=2.0, early_stopping=True)
        assert (model.calls, as_lists(early)[0][0].ids) == (2, (EOS,))
        late = run(model, [CAPACITY], 2, length_penalty=2.0)
    assert as_lists(late)[0][0].ids == (3, 3, EOS)


def test_a_beam_of_one_with_early_stopping_is_greedy_search(rng):
    limits = [1 + row % CAPACITY for row in range(SENTENCES)]
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY)
    greedy = as_lists(run_greedy(model, limits))
    found = as_lists(run(model, limits, 1, length_penalty=2.0, early_stopping=True))
    assert [each[0].ids for each in found] == [each[0].ids for each in greedy]


def test_unfinished_hypotheses_come_after_all_finished_ones():
    # Ends have 0.001 and 0.002; tokens that go on are far more probable.
    model = HistoryModel.of_probabilities(
        {
            (): {EOS: 0.001, 3: 0.6, 4: 0.399},
            (3,): {EOS: 0.002 / 0.6, 3: 0.7 - 0.002 / 0.6, 4: 0.3},
            (4,): {3: 1.0},
        },
        vocabulary=5,
    )
    (found,) = as_lists(run(model, [2], 5, capacity=2, length_penalty=0.0, n_best=5))
    assert [each.ids for each in found] == [(3, EOS), (EOS,), (3, 3), (4, 3), (3, 4)]
    expected = [0.002, 0.001, 0.42 - 0.002, 0.399, 0.18]
    np.testing.assert_allclose([math.exp(each.score) for each in found], expected, rtol=1e-5)


@pytest.mark.parametrize("early_stopping", [True, False])
def test_a_long_vocabulary_that_is_read_in_columns_gives_the_same(rng, early_stopping):
    # 512 ids are eight pieces of 64: see `log_sums_and_maxima`.
    model = HistoryModel.random(rng, 3, 512, histories=101, scale=3.0, end=4.0)
    expected = naive_beam(model, [5, 1, 4], 3, 0.6, 3, early_stopping=early_stopping)
    assert {EOS in each.ids for each in sum(expected, [])} == {True, False}
    found = run(model, [5, 1, 4], 3, capacity=5, n_best=3, early_stopping=early_stopping)
    check_equal(found, expected)


def test_forbidden_ids_are_never_chosen_and_keep_their_probability(rng):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY)
    model.logits[:, :, [0, 1, 5]] += 3.0
    model = HistoryModel(model.logits)
    limits = [CAPACITY] * SENTENCES
    check_equal(
        run(model, limits, 3, n_best=3), naive_beam(model, limits, 3, 0.6, 3, early_stopping=False)
    )
    for forbidden in ((0, 1, 5), (0, 1)):
        found = as_lists(run(model, limits, 3, n_best=3, forbidden_ids=forbidden))
        chosen = {token for each in found for ids, *_ in each for token in ids}
        assert chosen == set(range(VOCABULARY)) - set(forbidden)


def test_logits_of_nan_give_ids_in_range():
    beam_size = 3
    model = HistoryModel(np.full((2, 1009, VOCABULARY), np.nan))
    ids = np.asarray(run(model, [3, 3], beam_size, capacity=3, n_best=beam_size).ids)
    assert ids.min() >= 0 and ids.max() < VOCABULARY
