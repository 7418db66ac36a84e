"""Greedy search on models whose probabilities are known."""

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_equal
from keras import ops
from naive_search import EOS, naive_greedy

from keras_transformer.decoding import Constraints, Greedy, decode

SENTENCES, VOCABULARY, ROOM = 31, 7, 11


def run(model, limits, room=ROOM, **constraints):
    limits = ops.convert_to_tensor(limits, "int32")
    return decode(model.step, model.start(1), Greedy(), Constraints(limits, **constraints), room)


def test_it_takes_the_most_probable_token_even_where_that_ends_badly():
    model = HistoryModel.of_probabilities(
        {(): {3: 0.5, 4: 0.4, EOS: 0.1}, (3,): {EOS: 0.4, 4: 0.3, 3: 0.3}, (4,): {EOS: 1.0}},
        {(): {EOS: 0.6, 3: 0.4}},
        vocabulary=5,
    )
    ids, log_probabilities, scores, by_token = (
        np.asarray(each) for each in run(model, [3, 3], room=3)
    )
    np.testing.assert_array_equal(ids, [[[3, EOS, 0]], [[EOS, 0, 0]]])
    np.testing.assert_allclose(np.exp(log_probabilities), [[0.5 * 0.4], [0.6]], rtol=1e-6)
    np.testing.assert_array_equal(scores, log_probabilities)
    np.testing.assert_allclose(np.exp(by_token), [[[0.5, 0.4, 1.0]], [[0.6, 1.0, 1.0]]], rtol=1e-6)


def test_it_equals_a_search_that_scores_every_prefix_anew(rng, compiled):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY)
    limits = [1 + row % ROOM for row in range(SENTENCES)]
    expected = naive_greedy(model, limits)
    assert len({len(each[0].ids) for each in expected if EOS in each[0].ids}) > 5
    assert any(EOS not in each[0].ids for each in expected)
    check_equal(run(model, limits), expected)
    check_equal(compiled(lambda limits: run(model, limits))(np.array(limits, "int32")), expected)


def test_each_sentence_keeps_its_own_limit(rng):
    limits = [5, 0, 1, 11, 2]
    model = HistoryModel.random(rng, len(limits), VOCABULARY, end=-np.inf)
    results = as_lists(run(model, limits))
    assert [len(each[0].ids) for each in results] == limits
    assert results[1][0].score == 0.0


def test_nothing_follows_the_end(rng):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, end=1.0)
    ids = np.asarray(run(model, [ROOM] * SENTENCES).ids)[:, 0]
    after = np.cumsum(ids == EOS, axis=1) - (ids == EOS)
    assert (after > 0).any() and not ids[after > 0].any()


def test_forbidden_ids_are_never_chosen_and_keep_their_probability(rng):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY)
    model.logits[:, :, [0, 1, 5]] += 3.0
    model = HistoryModel(model.logits)
    limits = [ROOM] * SENTENCES
    for forbidden in ((0, 1), (0, 1, 5), (0,), ()):
        ids = np.asarray(run(model, limits, forbidden_ids=forbidden).ids)[:, 0, 0]
        assert not set(ids) & set(forbidden)
        assert {0, 1, 5} - set(forbidden) <= set(ids)
    check_equal(run(model, limits), naive_greedy(model, limits))


def test_another_id_can_be_the_end(rng):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY)
    limits = [ROOM] * SENTENCES
    endless = [each[0].ids for each in as_lists(run(model, limits, end_id=-1))]
    assert {len(ids) for ids in endless} == {ROOM}
    cut = [ids[: ids.index(5) + 1] if 5 in ids else ids for ids in endless]
    assert [each[0].ids for each in as_lists(run(model, limits, end_id=5))] == cut


@pytest.mark.parametrize("chosen", [[3, 4, EOS], [EOS]])
def test_it_stops_as_soon_as_all_have_ended(step_by_step, chosen):
    after = {tuple(chosen[:i]): {token: 1.0} for i, token in enumerate(chosen)}
    model = HistoryModel.of_probabilities(after, {(): {EOS: 1.0}}, vocabulary=5)
    with step_by_step:
        run(model, [ROOM, ROOM])
    assert model.calls == len(chosen)
