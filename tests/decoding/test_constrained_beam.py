"""Searches that must write given phrases, against plain ones that look at whole sequences."""

import functools

import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_hypotheses, many_seeds, search_program
from keras import ops
from naive_search import BOS, EOS, Rules, exhaustive_search, naive_beam, open_phrases

from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding import ConstrainedBeam, SearchModel
from keras_transformer.decoding.search import search

SENTENCES, PHRASES, LENGTH = 5, 3, 3


def random_phrases(rng, vocabulary):
    """None to three phrases of few words for each sentence: they repeat, overlap and nest."""

    def phrases():
        sizes = rng.integers(1, LENGTH + 1, size=rng.integers(0, PHRASES + 1))
        return tuple(tuple(rng.integers(EOS + 1, vocabulary, size=n).tolist()) for n in sizes)

    return tuple(phrases() for _ in range(SENTENCES))


def program(graph, beam_size, vocabulary, capacity, n_best=3, **rules):
    model = HistoryModel.random(np.random.default_rng(0), SENTENCES, vocabulary)
    strategy = functools.partial(ConstrainedBeam, beam_size, n_best=n_best)
    return search_program(graph, model, strategy, capacity, phrases=(PHRASES, LENGTH), **rules)


def test_a_beam_as_wide_as_the_tree_finds_the_best_with_all_phrases(graph):
    # Two words: the last of six steps has 2^5 hypotheses of 3 extensions each.
    vocabulary, longest, met = 5, 6, []
    run = program(graph, 3 * 2**5, vocabulary, longest, n_best=13)

    @many_seeds
    def check(seed):
        rng = np.random.default_rng(seed)
        model = HistoryModel.random(rng, SENTENCES, vocabulary)
        limits = rng.integers(0, longest + 1, size=SENTENCES).tolist()
        rules = Rules(phrases=random_phrases(rng, vocabulary))
        expected = exhaustive_search(model, limits, 0.6, 13, rules)
        check_hypotheses(run(model, limits, rules)[0], expected, model)
        for hypotheses, phrases in zip(expected, rules.phrases, strict=True):
            met.append((len(phrases), EOS in hypotheses[0].ids))

    check()
    # Both those that fit the limit and those that do not.
    assert {(count, ended) for count in range(1, 4) for ended in (False, True)} <= set(met)


def random_case(seed, vocabulary, longest):
    rng = np.random.default_rng(seed)
    model = HistoryModel.random(rng, SENTENCES, vocabulary, end=rng.choice([0.0, 2.0]))
    limits = rng.integers(0, longest + 1, size=SENTENCES).tolist()
    prefixes = [tuple(rng.integers(3, 7, size=rng.integers(0, 3)).tolist()) for _ in limits]
    bias = tuple((0.7 * rng.normal(size=vocabulary)).tolist())
    min_lengths = rng.integers(0, longest, size=SENTENCES).tolist()
    phrases = random_phrases(rng, vocabulary)
    return model, limits, Rules(min_lengths, prefixes, bias, 4, phrases)


@pytest.mark.slow(after=1)
@pytest.mark.tensorflow
@pytest.mark.parametrize(("beam_size", "n_best"), [(3, 2), (1, 1), (4, 4)])
def test_a_narrow_beam_shares_its_places_among_the_banks(graph, beam_size, n_best):
    vocabulary, longest = 17, 13
    run = program(graph, beam_size, vocabulary, longest, n_best, ngram_size=4)

    @many_seeds
    def check(seed):
        model, limits, rules = random_case(seed, vocabulary, longest)
        expected = naive_beam(model, limits, beam_size, 0.6, n_best, rules)
        check_hypotheses(run(model, limits, rules)[0], expected, model)

    check()


@pytest.mark.slow
def test_every_phrase_is_in_each_hypothesis_with_room_for_it(compiled):
    vocabulary, longest = 17, 13
    run = program(compiled, 4, vocabulary, longest)

    @many_seeds
    def check(seed):
        model, _, rules = random_case(seed, vocabulary, longest)
        rules, prefixes = Rules(phrases=rules.phrases, prefixes=rules.prefixes), rules.prefixes
        # As many tokens as are forced: an end need not be among them.
        limits = [
            min(len(prefix) + sum(map(len, phrases)) + seed % 3, longest)
            for prefix, phrases in zip(prefixes, rules.phrases, strict=True)
        ]
        results = as_lists(run(model, limits, rules)[0])
        for hypotheses, phrases in zip(results, rules.phrases, strict=True):
            for h in hypotheses:
                assert h.score < -1e29 or not open_phrases(h.ids, phrases), (h, phrases)

    check()


class Chain(SearchModel):
    """After each id the ids of `following` are equally probable, and no other id is possible."""

    following = {BOS: (7, 9), 7: (8, 9), 8: (EOS,), 9: (9,)}

    def start_decoding(self, source_ids, capacity, num_beams=1):
        return source_ids

    def step(self, ids, cache):
        table = np.full((11, 11), NEG_INF, "float32")
        for id, following in self.following.items():
            table[id, following] = 0.0
        return ops.take(table, ids, axis=0), cache

    def reorder(self, cache, parents):
        return cache


@pytest.mark.parametrize(
    ("phrases", "expected"),
    [([[7, 8]], [[7, 8, EOS, 0], [0] * 4, [0] * 4]), ([[7, 10]], [[9] * 4, [7, 9, 9, 9], [0] * 4])],
)
def test_what_has_ended_is_followed_only_by_hypotheses_with_all_phrases(phrases, expected):
    """Nothing ends with the second phrase, because no hypothesis can contain it."""
    options = {"n_best": 3, "max_length": 4, "phrases": [phrases]}
    ids = np.asarray(search(Chain(), np.array([[5, 2]], "int32"), 3, **options).ids)
    assert ids[0].tolist() == expected
