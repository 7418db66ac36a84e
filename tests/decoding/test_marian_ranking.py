"""Marian's beam search, which shrinks, and its scores, against a search in plain Python."""

import numpy as np
import pytest
from decoding_oracles import HistoryModel, check_equal
from keras import ops
from naive_search import Rules, marian_beam
from pairwise import pairwise

from keras_transformer import decoding
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow

SENTENCES, VOCABULARY, CAPACITY = 41, 7, 11


def run(model, beam, limits, prefixes=None):
    limits = ops.convert_to_tensor(limits, "int32")
    constraints = decoding.Constraints(limits, prefixes=prefixes)
    return decoding.decode(
        model.step, model.start(beam.beams), beam, constraints, CAPACITY, model.reorder
    )


# With fewer results than beams a sentence stops while others could still end: that must be right.
@pytest.mark.slow(after=6)
@pairwise(
    sizes=[(1, 1), (2, 2), (4, 4), (4, 1)],  # of the beam, and its results
    penalties=[(0.0, 0.0), (0.6, 0.0), (1.0, 0.3), (0.5, 0.7), (0.5, 2.0), (1.4, 0.2)],
    longest_prefix=[0, 3],
)
def test_a_beam_shrinks_as_it_ends(rng, sizes, penalties, longest_prefix):
    (beam_size, n_best), (exponent, word_penalty) = sizes, penalties
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, end=0.5)
    limits = rng.integers(1, CAPACITY, SENTENCES)
    lengths = np.minimum(rng.integers(0, longest_prefix + 1, SENTENCES), limits - 1)
    rules = Rules(prefixes=[tuple(rng.integers(3, VOCABULARY, n).tolist()) for n in lengths])
    prefixes = rules.arrays(limits, VOCABULARY, longest_prefix)[2] if longest_prefix else None
    beam = decoding.Beam(beam_size, decoding.MarianRanking(exponent, word_penalty), n_best, False)
    result = run(model, beam, limits, prefixes)
    expected = [
        marian_beam(model, row, limit, beam_size, exponent, word_penalty, rules)[:n_best]
        for row, limit in enumerate(limits)
    ]
    # Where fewer hypotheses exist, the last places are empty.
    first = [[hypotheses[0]] for hypotheses in expected]
    check_equal(result._replace(**{k: getattr(result, k)[:, :1] for k in result._fields}), first)
    for row, hypotheses in enumerate(expected):
        scores = np.asarray(result.scores)[row, : len(hypotheses)]
        np.testing.assert_allclose(scores, [h.score for h in hypotheses], atol=1e-4)


def test_a_full_beam_ranks_by_the_length_alone(rng):
    model = HistoryModel.random(rng, SENTENCES, VOCABULARY, end=0.5)
    result = run(model, decoding.Beam(3, decoding.LengthRanking(0.8), 3, False), [9] * SENTENCES)
    lengths = np.count_nonzero(np.asarray(result.ids), axis=2)
    expected = np.asarray(result.log_probabilities) / lengths**0.8
    np.testing.assert_allclose(result.scores, expected, rtol=1e-5)
    assert (np.diff(np.asarray(result.scores), axis=1) <= 1e-6).all()


def test_a_word_penalty_needs_marians_rule():
    with pytest.raises(InputError, match="`word_penalty` needs `length_normalization: marian`"):
        decoding.DecodingOptions(word_penalty=0.3)
