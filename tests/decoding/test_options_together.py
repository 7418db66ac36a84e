"""Searches with many options at once, against the naive search."""

import functools
import itertools
import types
from typing import Any, NamedTuple

import naive_search as naive
import numpy as np
import pytest
from decoding_oracles import HistoryModel, as_lists, check_hypotheses
from keras import ops
from naive_search import EOS, PAD, UNK

from keras_transformer.decoding import SearchModel
from keras_transformer.decoding.candidates import Candidates
from keras_transformer.decoding.search import search

SOURCE_LENGTHS = 3, 1, 4, 0
SPECIAL = naive.PAD, naive.BOS, EOS, UNK


class _Cache(NamedTuple):
    history: Any
    capacity: Any


class CachedModel(SearchModel):
    """A `HistoryModel` whose logits are NaN in the steps that its cache has no place for."""

    has_unknown_id = True

    def __init__(self, model, forbidden_ids, has_candidate_logits, is_extendable):
        self.model, self.forbidden_ids = model, forbidden_ids
        self.has_candidate_logits, self.is_extendable = has_candidate_logits, is_extendable
        size = model.logits.shape[2]
        self.config = types.SimpleNamespace(output_vocabulary_size=size)

    def start_decoding(self, source_ids, capacity, num_beams=1):
        history = self.model.start(num_beams, len(source_ids))
        return _Cache(history, ops.convert_to_tensor(capacity, "int32"))

    def step(self, ids, cache):
        logits, history = self.model.step(ids, cache.history)
        logits = ops.where(cache.history.position < cache.capacity, logits, float("nan"))
        return logits, cache._replace(history=history)

    def reorder(self, cache, parents):
        return cache._replace(history=self.model.reorder(cache.history, parents))

    def extended(self, cache, capacity):
        return cache._replace(capacity=ops.convert_to_tensor(capacity, "int32"))

    def step_function(self, weights=None, candidate_ids=None):
        if candidate_ids is None:
            return self.step

        def step(ids, cache):
            logits, cache = self.step(ids, cache)
            return ops.take(logits, candidate_ids, axis=-1), cache

        return step


class Drawn:
    """Options of a search of four sentences, the last one without tokens, drawn from a seed."""

    def __init__(self, seed, vocabulary, beam_sizes, max_lengths):
        rng = self.rng = np.random.default_rng(seed)
        self.seed, self.vocabulary, self.draws = seed, vocabulary, []
        rows = len(SOURCE_LENGTHS)
        self.end = self.one_of(-1.0, 1.0, 3.0) + (4.0 if vocabulary >= 100 else 0.0)
        self.ids = np.arange(UNK, vocabulary)
        self.source = np.array([[5] * n + [PAD] * (4 - n) for n in SOURCE_LENGTHS], "int32")
        self.beam_size = self.one_of(*beam_sizes)
        self.n_best = self.one_of(1, self.beam_size)
        self.early_stopping = self.one_of(True, False)
        self.name = self.one_of("gnmt", "length", "marian")
        self.exponent, self.price = self.one_of(0.0, 0.6, 1.3), self.one_of(0.0, 0.4)
        self.max_length = self.one_of(*max_lengths)
        self.max_ratio = self.one_of(0.0, 0.7, 1e37, np.inf)
        self.min_length, self.min_ratio = self.one_of(0, 3), self.one_of(0.0, 1.3)
        self.ngram_size = self.one_of(0, 0, 1, 2, 3)
        self.allow_unknown = self.one_of(True, False)
        self.forbidden = tuple(self.some(self.one_of(0, 0, 2)))
        self.banned = tuple(self.some(self.one_of(0, 0, 2)))
        self.bias = {id: float(rng.normal(0, 2)) for id in (*self.some(2), *self.banned, EOS)}
        self.kind_of_bias = self.one_of(None, "dict", "array")
        self.prefixes = [tuple(self.some(n)) for n in rng.permutation([0, 0, 1, 3])]
        self.prefixes = self.one_of(None, self.prefixes)
        # Marian has no phrases.
        phrases = [(tuple(self.some(2)), tuple(self.some(1)))[:n] for n in rng.integers(0, 3, rows)]
        self.phrases = None if self.name == "marian" else self.one_of(None, None, phrases)
        self.forced = self.one_of(None, self.some(rows))
        self.candidates = self.one_of(None, self._draw_candidates())

    @functools.cached_property
    def table(self):
        histories = 1009 if self.vocabulary < 100 else 67
        sizes = len(SOURCE_LENGTHS), self.vocabulary, histories
        return HistoryModel.random(np.random.default_rng(self.seed), *sizes, end=self.end)

    def one_of(self, *values):
        self.draws.append(int(self.rng.integers(len(values))))
        return values[self.draws[-1]]

    def some(self, count):
        return [int(id) for id in self.rng.choice(self.ids, count)]

    def _draw_candidates(self):
        lists = []
        for row in range(len(SOURCE_LENGTHS)):
            chosen = set(self.rng.choice(self.ids, len(self.ids) // 2, replace=False).tolist())
            chosen |= set(self.prefixes[row] if self.prefixes else ())
            chosen |= set().union(*self.phrases[row]) if self.phrases else set()
            lists.append(chosen | set(SPECIAL))
        return lists

    def hypotheses(self):
        model = CachedModel(self.table, self.forbidden, self.one_of(True, False), True)
        options = {
            "beam_size": self.beam_size,
            "n_best": self.n_best,
            "early_stopping": self.early_stopping,
            "length_normalization": self.name,
            "length_penalty": self.exponent,
            "word_penalty": self.price if self.name == "marian" else 0.0,
            "max_length": self.max_length,
            "max_length_ratio": self.max_ratio,
            "min_length": self.min_length,
            "min_length_ratio": self.min_ratio,
            "no_repeat_ngram_size": self.ngram_size,
            "allow_unknown": self.allow_unknown,
            "banned_ids": self.banned,
            "first_capacity": self.one_of(2, 32),
        }
        size = self.table.logits.shape[2]
        if self.kind_of_bias == "dict":
            options["logit_bias"] = self.bias
        elif self.kind_of_bias == "array":
            options["logit_bias"] = np.zeros(size, "float32")
            options["logit_bias"][[*self.bias]] = [*self.bias.values()]
        if self.prefixes:
            options["prefixes"] = padded(self.prefixes, self.one_of(3, 4))
        if self.phrases:
            flat = padded([phrase for two in self.phrases for phrase in (*two, (), ())[:2]], 2)
            options["phrases"] = flat.reshape(-1, 2, 2)
        if self.forced:
            options["forced_ids"] = np.array(self.forced, "int32")
        if self.candidates:
            union = sorted(set().union(*self.candidates))
            mask = [[id in ids for id in union] for ids in self.candidates]
            padding = self.one_of(0, 3)
            options["candidates"] = Candidates(
                np.pad(np.array(union, "int32"), (0, padding)),
                np.pad(np.array(mask), ((0, 0), (0, padding))),
            )
        return search(model, self.source, **options)

    def scorer(self, rows, prefixes):
        if self.forced:
            prefixes = [(self.forced[row], *p) for row, p in zip(rows, prefixes, strict=True)]
        logits = self.table.logits[rows, [self.table._node(p) for p in prefixes]]
        if self.candidates:
            chosen = [[id in self.candidates[row] for id in range(logits.shape[1])] for row in rows]
            logits = np.where(chosen, logits, -np.inf)
        return naive.log_softmax(logits)

    def forced_tokens(self, row):
        return self.prefixes[row] if self.prefixes else ()

    def limits(self):
        margin = 0 if self.name == "marian" else 10
        for row, length in enumerate(SOURCE_LENGTHS):
            phrases = self.phrases[row] if self.phrases else ()
            more = margin + len(self.forced_tokens(row)) + sum(map(len, phrases))
            yield int(min(self.max_ratio * length + more, self.max_length)) if length else 0

    def rules(self):
        bias = np.zeros(self.table.logits.shape[2])
        if self.kind_of_bias:
            bias[[*self.bias]] = [*self.bias.values()]
        bias[[*self.banned, *self.forbidden]] = -np.inf
        return naive.Rules(
            tuple(max(int(self.min_ratio * n), self.min_length) for n in SOURCE_LENGTHS),
            self.prefixes or (),
            tuple(bias),
            self.ngram_size,
            self.phrases or (),
            naive.FORBIDDEN if self.allow_unknown else (*naive.FORBIDDEN, UNK),
            self.candidates or (),
        )

    def penalty(self, length, exponent):
        return (
            naive.penalty(length, exponent) if self.name == "gnmt" else max(length, 1) ** exponent
        )

    def expected(self):
        limits, rules, scorer = [*self.limits()], self.rules(), self.scorer
        if self.name == "marian":
            numbers = self.beam_size, self.exponent, self.price, rules
            results = [
                naive.marian_beam(scorer, row, limit, *numbers)[: self.n_best]
                for row, limit in enumerate(limits)
            ]
        else:
            stops = self.early_stopping or (self.beam_size == 1)
            numbers = self.beam_size, self.exponent, self.n_best
            results = naive.naive_beam(scorer, limits, *numbers, rules, stops, self.penalty)
        if self.beam_size > 1 or self.phrases:
            return results
        # Greedy search chooses with the bias, but scores without it.
        for row, sentence in enumerate(results):
            for index, (ids, total, score) in enumerate(sentence):
                length = len(ids) - len(self.forced_tokens(row))
                bonus = rules.bonus(row, ids) / self.penalty(max(length, 0), self.exponent)
                sentence[index] = naive.Hypothesis(ids, total, score - bonus)
        return results


def padded(rows, columns):
    array = np.full((len(rows), columns), PAD, "int32")
    for row, ids in enumerate(rows):
        array[row, : len(ids)] = ids
    return array


def check(drawn, step_by_step):
    with step_by_step:
        hypotheses = drawn.hypotheses()
    check_hypotheses(hypotheses, drawn.expected(), drawn.scorer)
    by_token = np.asarray(hypotheses.token_log_probabilities)
    for row, sentence in enumerate(as_lists(hypotheses)):
        forced = len(drawn.forced_tokens(row))
        for index, (ids, *_) in enumerate(sentence):
            assert hypotheses.continuation_lengths[row, index] == max(len(ids) - forced, 0)
            following = hypotheses.continuation_log_probabilities[row, index]
            np.testing.assert_allclose(following, by_token[row, index, forced:].sum(), atol=1e-4)


# Any two values of two options meet in one of them.
SEEDS = 0, 76, 688, 1526, 755, 455, 1561, 1746, 309, 855, 93, 1104, 520
SEEDS += 131, 1983, 191, 1564, 1770, 1407, 54, 648, 89, 78, 133, 385, 7, 18


def pairs_of_values(seeds):
    """Returns which two draws had which two values."""
    draws = (enumerate(Drawn(seed, 12, (1, 2, 5), (5, 8)).draws) for seed in seeds)
    return set().union(*(itertools.combinations(values, 2) for values in draws))


def test_any_two_values_of_two_options_meet():
    assert pairs_of_values(SEEDS) >= pairs_of_values(range(100))


@pytest.mark.parametrize(
    "seed",
    [*SEEDS[:9], *(pytest.param(seed, marks=pytest.mark.tensorflow) for seed in SEEDS[9:])],
)
def test_any_options_together_give_the_naive_search(seed, step_by_step):
    check(Drawn(seed, 12, (1, 2, 5), (5, 8)), step_by_step)


@pytest.mark.tensorflow
@pytest.mark.parametrize("seed", range(9))
def test_any_options_together_give_the_naive_search_over_many_tokens(seed, step_by_step):
    """Rows of 512 and of 640 logits are searched by columns, others by blocks."""
    vocabulary = (512, 640, 521)[seed % 3]
    check(Drawn(seed, vocabulary, (1, 2, 3), (4, 5)), step_by_step)


@pytest.mark.tensorflow
@pytest.mark.parametrize("seed", range(3))
def test_a_shortlist_without_a_bias_leaves_out_what_the_model_forbids(seed, step_by_step):
    drawn = Drawn(seed, 12, (1, 2, 5), (5, 9))
    drawn.candidates, drawn.forbidden = drawn._draw_candidates(), (5, 6, 7, 8)
    drawn.banned, drawn.kind_of_bias = (), None
    check(drawn, step_by_step)


PLAIN = {"candidates": None, "forbidden": (), "banned": (), "kind_of_bias": None, "ngram_size": 0}
PLAIN |= {"name": "gnmt", "phrases": None, "max_ratio": 0.0}
PAIRS = {
    "prefixes of long rows": (512, {"prefixes": [(400,), (), (7, 300), ()], "beam_size": 3}),
    "prefixes and phrases at the limit": (
        12,
        {
            "prefixes": [(5, 6, 7), (), (8,), ()],
            "phrases": [((9, 10), (11,))] * 4,
            "min_length": 14,
            "max_length": 14,
        },
    ),
    "a bias above 0 without early stopping": (
        12,
        {
            "bias": {6: 2.5, 8: 2.0},
            "kind_of_bias": "array",
            "early_stopping": False,
            "beam_size": 2,
            "prefixes": None,
            "min_length": 0,
            "min_ratio": 0.0,
        },
    ),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("vocabulary", "options"), PAIRS.values(), ids=PAIRS)
def test_two_options_alone_give_the_naive_search(vocabulary, options, seed, step_by_step):
    drawn = Drawn(seed, vocabulary, (2,), (5,) if vocabulary > 100 else (9,))
    vars(drawn).update({**PLAIN, "n_best": 1, **options})
    check(drawn, step_by_step)


@pytest.mark.tensorflow
def test_a_bias_may_raise_a_score_at_each_further_token():
    """The end is nearly sure at first, but eight tokens of a bias win against it."""
    after = {(6,) * k: {6: 0.135, EOS: 0.8, 7: 0.065} for k in range(1, 9)}
    probabilities = {(): {EOS: 0.99, 6: 0.006, 7: 0.004}, **after}
    model = HistoryModel.of_probabilities(probabilities, vocabulary=8, histories=10007)
    bias = np.array([0, 0, 0, 0, 0, 0, 2.5, 0], "float32")
    options = {"beam_size": 2, "length_penalty": 0.0, "early_stopping": False, "max_length": 9}
    source = np.array([[5, 5, 5]], "int32")
    hypotheses = search(CachedModel(model, (), False, True), source, logit_bias=bias, **options)
    rules = naive.Rules(bias=tuple(bias), forbidden=(*naive.FORBIDDEN, UNK))
    expected = naive.naive_beam(model, [9], 2, 0.0, 1, rules, early_stopping=False)
    assert len(expected[0][0].ids) > 5
    check_hypotheses(hypotheses, expected, model)
