"""What XLA compiles in an export, against whole passes of the live model, prefix by prefix."""

import types

import numpy as np
import pytest
from decoding_oracles import (
    VOCABULARY,
    FullPass,
    as_lists,
    check_equal,
    check_varied,
    varied_sources,
    varied_transformer,
)
from naive_search import EOS, log_probability, naive_beam, naive_greedy, penalty

from keras_transformer.export.programs import Programs

pytestmark = pytest.mark.tensorflow

SENTENCES, BEAMS, ALPHA, ROOM = 13, 3, 0.8, 11
BLANK = 5  # A source without tokens: nothing may follow.


@pytest.fixture(scope="module")
def model():
    return varied_transformer("pre_norm")


@pytest.fixture(scope="module")
def programs(model):
    engine = types.SimpleNamespace(model=model, max_target_length=ROOM)
    return Programs(engine, BEAMS, ALPHA)


@pytest.fixture(scope="module")
def sources():
    sources = varied_sources(SENTENCES)
    sources[BLANK] = 0
    return sources


@pytest.fixture(scope="module")
def scorer(model, sources):
    return FullPass(model, sources, ROOM + 1)


@pytest.fixture(scope="module")
def greedy(scorer):
    """What greedy search finds where every prefix is scored anew."""
    found = naive_greedy(scorer, [0 if row == BLANK else ROOM for row in range(SENTENCES)])
    return [[each._replace(score=each.score / penalty(len(each.ids), ALPHA))] for (each,) in found]


@pytest.fixture(scope="module")
def targets():
    """Random ids of 0 to 6 tokens, their end counted, then padding."""
    chance = np.random.default_rng(3)
    targets = np.zeros((SENTENCES, 7), "int32")
    for row in range(SENTENCES):
        length = row % 7
        targets[row, :length] = chance.integers(3, VOCABULARY, length)
        targets[row, length - 1 : length] = EOS
    return targets


def ids_scores_sums(found):
    """As the oracles have them: the scores come last."""
    ids, scores, log_probabilities = found
    return as_lists((ids, log_probabilities, scores))


def test_greedy_search_equals_one_that_scores_every_prefix_anew(programs, sources, greedy):
    check_varied(greedy)
    check_equal(ids_scores_sums(programs.greedy(sources)), greedy)


def test_beam_search_gives_all_hypotheses_of_one_that_scores_every_prefix_anew(
    programs, sources, scorer
):
    found = ids_scores_sums(programs.beam(sources))
    del found[BLANK]
    rows = [row for row in range(SENTENCES) if row != BLANK]
    expected = naive_beam(
        lambda places, prefixes: scorer([rows[place] for place in places], prefixes),
        [ROOM] * len(rows),
        BEAMS,
        ALPHA,
        n_best=BEAMS,
    )
    check_equal(found, expected)


def test_one_beam_is_greedy_search(model):
    engine = types.SimpleNamespace(model=model, max_target_length=ROOM)
    alone = Programs(engine, 1, ALPHA)
    assert alone.beam is alone.greedy


def test_each_sentence_is_sampled_with_its_own_options(programs, sources, scorer, greedy):
    chosen = [0, 1, 2, 3, 3, 3, 3, 3]
    cold, best_alone, smallest_share, *free, hot = range(8)
    temperature, top_p = np.ones((2, 8), "float32")
    temperature[cold], temperature[hot], top_p[smallest_share] = 1e-6, 1e6, 1e-6
    top_k = np.zeros(8, "int32")
    top_k[best_alone] = 1
    seeds = np.array([5, 5, 5, 7, 11, 13, 7, 7], "int32")
    options = (seeds, temperature, top_k, top_p)
    found = ids_scores_sums(programs.sample(sources[chosen], *options))
    narrow = [cold, best_alone, smallest_share]
    check_equal([found[row] for row in narrow], [greedy[chosen[row]] for row in narrow])
    samples = [found[row][0] for row in free]
    # A seed decides, and not the place in the batch.
    assert samples[0].ids == samples[3].ids
    assert len({each.ids for each in samples}) == 3
    # With the same seed: where all tokens are as probable, another one is drawn.
    assert found[hot][0].ids != samples[0].ids
    for ids, total, score in samples:
        expected = log_probability(scorer, 3, ids)
        np.testing.assert_allclose(total, expected, rtol=1e-4)
        np.testing.assert_allclose(score, expected / penalty(len(ids), ALPHA), rtol=1e-4)


def test_scores_are_those_of_one_whole_pass(programs, sources, targets, scorer):
    sums, scores = (each.numpy() for each in programs.score(sources, targets))
    lengths = np.count_nonzero(targets, axis=1)
    expected = [
        log_probability(scorer, row, targets[row, :length].tolist()) if length else 0.0
        for row, length in enumerate(lengths)
    ]
    assert sums.dtype == scores.dtype == "float32" and len(set(lengths)) == 7
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-5)
    penalties = [penalty(length, ALPHA) for length in lengths]
    np.testing.assert_allclose(scores, np.divide(expected, penalties), rtol=1e-4, atol=1e-5)


def test_an_alignment_is_the_last_blocks_attention_and_nothing_at_padding(
    programs, model, sources, targets
):
    found = programs.align(sources, targets).numpy()
    read = np.pad(targets, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    _, attention = model.call_with_attention(sources, read)
    heads = np.asarray(attention[-1])
    assert heads.shape == (SENTENCES, 3, 7, 7)
    for row in range(SENTENCES):
        target, source = (np.count_nonzero(each[row]) for each in (targets, sources))
        real = found[row, :target]
        np.testing.assert_allclose(real, heads[row, :, :target].mean(axis=0), atol=1e-5)
        assert not found[row, target:].any() and not real[:, source:].any()
        if source:
            np.testing.assert_allclose(real.sum(axis=1), np.ones(target), rtol=1e-5)


def test_a_program_is_traced_once_for_all_shapes(programs, sources, targets):
    padded = [np.pad(each[:2], ((0, 0), (0, 4))) for each in (sources, targets)]
    for short, long in zip(programs.score(sources, targets), programs.score(*padded), strict=True):
        np.testing.assert_allclose(long, short[:2], rtol=1e-4, atol=1e-5)
    assert programs.score.experimental_get_tracing_count() == 1
