"""LiteRT's greedy and beam search on models whose probabilities are known."""

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_equal, check_varied
from naive_search import BOS, EOS, FORBIDDEN, PAD, naive_beam, naive_greedy, penalty

from keras_transformer.export.litert_model import HIDDEN
from keras_transformer.export.litert_strategies import Beam, Greedy, Options, write

pytestmark = pytest.mark.tensorflow

SENTENCES, VOCABULARY, ROOM = 23, 11, 7


def run(model, limits, beam_size, alpha=0.6, n_best=1, **fields):
    """What a strategy finds, step by step, as `Search` runs it."""
    import tensorflow as tf

    options = Options(beam_size, alpha, n_best, ROOM, **fields)
    strategy = (Greedy if beam_size == 1 else Beam)(options, np.array(limits, "int32")[:, None])

    @tf.function(autograph=False)
    def search():
        state, memory = strategy.begin(tf.zeros((len(limits), 1))), model.start(beam_size)
        hidden = np.zeros(model.logits.shape[2], "float32")
        hidden[list(options.forbidden_ids)] = HIDDEN
        for position in range(ROOM):
            logits, memory = model.step(state["newest"], memory)
            rows = tf.reshape(logits, (-1, hidden.size))
            others = tf.gather(rows, options.forbidden_ids, axis=1)
            state, parents = strategy.choose(position, state, rows + hidden, others)
            if parents is not None:
                memory = model.reorder(memory, parents)
        return strategy.result(state)

    found = search()
    shape = (len(limits), n_best)
    return (
        np.reshape(found["ids"], (*shape, ROOM)),
        np.reshape(found["log_probability"], shape),
        np.reshape(found["score"], shape),
    )


def test_greedy_equals_a_search_that_scores_every_prefix_anew(rng):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, end=0.5)
    limits = [row % (ROOM + 1) for row in range(SENTENCES)]
    expected = [
        [each._replace(score=each.score / penalty(len(each.ids), 0.6))]
        for (each,) in naive_greedy(model, limits)
    ]
    check_varied(expected)
    check_equal(as_lists(run(model, limits, 1)), expected)


@pytest.mark.parametrize(
    ("beam_size", "alpha", "n_best", "vocabulary"),
    [
        (2, 0.0, 2, VOCABULARY),
        (3, 0.9, 1, VOCABULARY),
        (4, 2.0, 3, VOCABULARY),
        pytest.param(4, 0.6, 2, 7, id="fewer-tokens-than-twice-the-beams"),
    ],
)
def test_beam_equals_a_search_that_scores_every_prefix_anew(
    rng, beam_size, alpha, n_best, vocabulary
):
    model = HistoryModel.random(rng, SENTENCES, vocabulary, end=1.0)
    limits = [1 + row % ROOM for row in range(SENTENCES)]
    expected = naive_beam(model, limits, beam_size, alpha, n_best)
    assert len({len(each[0].ids) for each in expected}) >= 3
    check_equal(as_lists(run(model, limits, beam_size, alpha, n_best)), expected)


def test_two_beams_find_what_one_passes_by():
    model = HistoryModel.of_probabilities(
        {
            (): {3: 0.5, 4: 0.4, EOS: 0.1},
            (3,): {EOS: 0.4, 4: 0.3, 3: 0.3},
            (4,): {EOS: 0.9, 3: 0.1},
        },
        vocabulary=5,
    )
    greedy, beam = (run(model, [3], size, alpha=1.0) for size in (1, 2))
    for (ids, sums, scores), best, probability in ((greedy, 3, 0.2), (beam, 4, 0.36)):
        assert ids[0, 0, :3].tolist() == [best, EOS, PAD]
        np.testing.assert_allclose(np.exp(sums), [[probability]], rtol=1e-5)
        # Two tokens: (5 + 2) / 6.
        np.testing.assert_allclose(scores, sums * 6 / 7, rtol=1e-5)


def test_places_without_a_hypothesis_say_so():
    # One token follows and then the end: there are no more.
    model = HistoryModel.of_probabilities({(): {3: 1.0}, (3,): {EOS: 1.0}}, vocabulary=7)
    ids, sums, scores = run(model, [3], 3, n_best=3)
    assert ids[0, :, :3].tolist() == [[3, EOS, PAD], [PAD] * 3, [PAD] * 3]
    np.testing.assert_allclose(sums, [[0.0] * 3], atol=1e-5)
    assert scores[0, 1:].tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_forbidden_ids_are_never_chosen_and_keep_their_probability(rng, beam_size):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, end=-np.inf)
    model.logits[..., list(FORBIDDEN)] += 3.0
    model = HistoryModel(model.logits)
    ids, sums, _ = run(model, [1] * SENTENCES, beam_size)
    assert not np.isin(ids[:, 0, 0], [PAD, BOS]).any()
    probabilities = np.exp(model(range(SENTENCES), [()] * SENTENCES))
    chosen = probabilities[np.arange(SENTENCES), ids[:, 0, 0]]
    np.testing.assert_allclose(np.exp(sums[:, 0]), chosen, rtol=1e-4)
    np.testing.assert_array_equal(chosen, np.delete(probabilities, FORBIDDEN, 1).max(axis=1))


def test_write_puts_values_at_their_place():
    values = np.arange(24, dtype="float32").reshape(2, 3, 4)
    found = np.array(write(values, np.full((2, 3, 1), -1.0, "float32"), (0, 0, 2)))
    assert np.all(found[:, :, 2] == -1)
    np.testing.assert_array_equal(np.delete(found, 2, 2), np.delete(values, 2, 2))
