"""Search once more, in plain Python and float64: every prefix scored from scratch.

A scorer stands for the model: `scorer(rows, prefixes)` gives the log-probabilities of what
follows each prefix (a tuple of ids) in sentence `rows[i]`, float64 `(prefixes, vocabulary)`.
"""

import collections
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PAD, BOS, EOS, UNK = 0, 1, 2, 3
FORBIDDEN = (PAD, BOS)


class Hypothesis(NamedTuple):
    ids: tuple
    log_probability: float
    score: float


def log_softmax(logits):
    """Over the last axis, in float64."""
    logits = np.asarray(logits).astype("float64")
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def penalty(length, exponent):
    """Equation 14 of Wu et al. 2016."""
    return ((5 + length) / (5 + 1)) ** exponent


def log_probability(scorer, row, ids):
    """Of one sequence: the sum over its tokens, given those before them."""
    table = scorer([row] * len(ids), [ids[:i] for i in range(len(ids))])
    return sum(table[i, token] for i, token in enumerate(ids))


def open_phrases(ids, phrases):
    """Those that do not occur in `ids`, as often as they are listed."""
    every = [ids[i:] for i in range(len(ids))]
    return [
        phrase
        for index, phrase in enumerate(phrases)
        if sum(rest[: len(phrase)] == phrase for rest in every) <= phrases[:index].count(phrase)
    ]


def under_way(ids, phrase):
    """Tokens of a phrase, not all, that stand at the end of `ids`."""
    return max(k for k in range(len(phrase)) if ids[len(ids) - k :] == phrase[:k])


def met_tokens(ids, phrases):
    """Tokens of the phrases that are met, and of the longest one under way."""
    left = open_phrases(ids, phrases)
    written = max((under_way(ids, phrase) for phrase in left), default=0)
    return sum(map(len, phrases)) - sum(map(len, left)) + written


class Rules(NamedTuple):
    """Which sequences there are, said of a whole sequence, from its first token to its last.

    Attributes:
        min_lengths: A number for each sentence.
        prefixes: A tuple of ids for each sentence; what is forced overrides all else.
        bias: A number for each id, added to the rank of a token that is not forced; -inf bans it.
        ngram_size: No n-gram of this many tokens comes a second time, unless it is forced.
        phrases: Tuples of ids for each sentence, all in a sequence before it ends.
        forbidden: Ids that are in no sequence, unless they are forced.
        candidates: A set of ids for each sentence: others are in no sequence.
    """

    min_lengths: tuple = ()
    prefixes: tuple = ()
    bias: tuple = ()
    ngram_size: int = 0
    phrases: tuple = ()
    forbidden: tuple = FORBIDDEN
    candidates: tuple = ()

    def prefix(self, row):
        return tuple(self.prefixes[row]) if self.prefixes else ()

    def allow(self, row, ids):
        """Whether `ids` are such a sequence, or the beginning of one."""
        prefix = self.prefix(row)
        if EOS in ids[:-1] or ids[: len(prefix)] != prefix[: len(ids)]:
            return False
        if EOS in ids and self.phrases and open_phrases(ids, self.phrases[row]):
            return False
        return all(self._allow_at(row, ids, index) for index in range(len(prefix), len(ids)))

    def _allow_at(self, row, ids, index):
        token, first = ids[index], index - self.ngram_size + 1
        if token in self.forbidden or (self.bias and self.bias[token] == -np.inf):
            return False
        if self.candidates and token not in self.candidates[row]:
            return False
        if token == EOS and self.min_lengths and index + 1 < self.min_lengths[row]:
            return False
        ngrams = [ids[i : i + self.ngram_size] for i in range(first + 1)]
        return not self.ngram_size or ngrams[-1:] == [] or ngrams[-1] not in ngrams[:-1]

    def with_most_phrases(self, row, unfinished, has_ended):
        """Those that no hypothesis has more phrase tokens than."""
        phrases = self.phrases[row] if self.phrases else ()
        met = [met_tokens(partial.ids, phrases) for partial in unfinished]
        needed = sum(map(len, phrases)) if has_ended else max(met, default=0)
        return [partial for partial, has in zip(unfinished, met, strict=True) if has == needed]

    def bonus(self, row, ids):
        """What the bias adds to the rank of `ids`."""
        return sum(self.bias[token] for token in ids[len(self.prefix(row)) :]) if self.bias else 0

    def arrays(self, limits, vocabulary, columns):
        """The first four fields of `Constraints`, with `columns` for the prefixes."""
        prefixes = np.full((len(limits), columns), PAD, "int32")
        for row in range(len(limits)):
            prefixes[row, : len(self.prefix(row))] = self.prefix(row)
        bias = np.array(self.bias or [0.0] * vocabulary, "float32")
        min_lengths = np.array(self.min_lengths or [0] * len(limits), "int32")
        return np.array(limits, "int32"), min_lengths, prefixes, bias

    def phrase_array(self, shape):
        """The field of `Constraints`."""
        array = np.full(shape, PAD, "int32")
        for row, phrases in enumerate(self.phrases):
            for index, phrase in enumerate(phrases):
                array[row, index, : len(phrase)] = phrase
        return array


ANYTHING = Rules()
WITHOUT_UNKNOWN = Rules(forbidden=(*FORBIDDEN, UNK))  # what `search` does by default


class _Partial(NamedTuple):
    ids: tuple = ()
    total: float = 0.0  # log-probability
    following: float = 0.0  # that of what follows the forced tokens

    def ends(self):
        return self.ids[-1:] == (EOS,)


class _Ranking(NamedTuple):
    length_penalty: float
    rules: Rules
    penalty: Callable = penalty

    def total(self, row, partial):
        return partial.following + self.rules.bonus(row, partial.ids)

    def hypothesis(self, row, partial):
        length = max(len(partial.ids) - len(self.rules.prefix(row)), 0)
        score = self.total(row, partial) / self.penalty(length, self.length_penalty)
        return Hypothesis(partial.ids, partial.total, score)

    def in_order(self, row, partials):
        hypotheses = [self.hypothesis(row, partial) for partial in partials]
        return sorted(hypotheses, key=lambda h: -h.score)


def _extensions(scorer, alive, rules):
    """All that may follow, a list for each key of `alive`, whose first entry is the sentence."""
    flat = [(key, part) for key, partials in alive.items() for part in partials]
    if not flat:
        return {key: [] for key in alive}
    table = scorer([key[0] for key, _ in flat], [part.ids for _, part in flat])
    extended = {key: [] for key in alive}
    for (key, part), gained in zip(flat, table, strict=True):
        free = len(part.ids) >= len(rules.prefix(key[0]))
        longer = [
            _Partial((*part.ids, t), part.total + gain, part.following + (gain if free else 0.0))
            for t, gain in enumerate(gained)
        ]
        extended[key] += [part for part in longer if rules.allow(key[0], part.ids)]
    return extended


def naive_beam(
    scorer,
    limits,
    beam_size,
    length_penalty,
    n_best,
    rules=ANYTHING,
    early_stopping=True,
    penalty=penalty,
):
    """Beam search, every prefix scored from scratch, that stops at the limit and nowhere else, or
    with `early_stopping` also where `beam_size` hypotheses have finished.

    Of the `beam_size` best extensions of a sentence's hypotheses, those that end are finished, and
    the best `beam_size` that do not end continue.
    """
    ranking = _Ranking(length_penalty, rules, penalty)
    alive, finished = [[_Partial()] for _ in limits], [[] for _ in limits]
    for length in range(1, max(limits) + 1):
        is_done = [early_stopping and len(ended) >= beam_size for ended in finished]
        rows = [row for row, limit in enumerate(limits) if length <= limit and not is_done[row]]
        going = {(row,): alive[row] for row in rows}
        # A hypothesis may be shorter than that where nothing could follow.
        going = {k: a for k, a in going.items() if a and len(a[0].ids) == length - 1}
        for (row,), extended in _extensions(scorer, going, rules).items():
            if not extended:
                continue
            ranks = [ranking.total(row, partial) for partial in extended]
            best = [extended[i] for i in np.argsort(ranks)[::-1]]
            if rules.phrases:
                best = _by_bank(best, rules.phrases[row], 2 * beam_size)
            finished[row] += [partial for partial in best[:beam_size] if partial.ends()]
            alive[row] = [partial for partial in best if not partial.ends()][:beam_size]
    results = []
    for row in range(len(limits)):
        ended = ranking.in_order(row, finished[row])
        unfinished = rules.with_most_phrases(row, alive[row], bool(ended))
        results.append((ended + ranking.in_order(row, unfinished))[:n_best])
    return results


def naive_greedy(scorer, limits, rules=ANYTHING):
    """The most probable token again and again: a beam of one, scored without the bias."""
    beams = naive_beam(scorer, limits, 1, 0.0, 1, rules)
    best = [(row, *hypothesis) for row, (hypothesis,) in enumerate(beams)]
    return [[Hypothesis(ids, x, score - rules.bonus(row, ids))] for row, ids, x, score in best]


def exhaustive_search(scorer, limits, length_penalty, n_best, rules=ANYTHING):
    """Looks at every sequence that there is: what ended, best first, then what did not."""
    ranking, results = _Ranking(length_penalty, rules), []
    for row, limit in enumerate(limits):
        finished, level = [], [_Partial()]
        for _ in range(limit):
            following = _extensions(scorer, {(row,): level}, rules)[row,]
            if not following:
                break
            finished += [partial for partial in following if partial.ends()]
            level = [partial for partial in following if not partial.ends()]
        level = rules.with_most_phrases(row, level, bool(finished))
        ranked = ranking.in_order(row, finished) + ranking.in_order(row, level)
        results.append(ranked[:n_best])
    return results


def _by_bank(best, phrases, count):
    """The best `count` of each hypothesis, and what continues a phrase, each bank in turn."""
    seen, banks = collections.Counter(), collections.defaultdict(list)
    for partial in best:
        *parent, token = partial.ids
        parent = tuple(parent)
        seen[parent] += 1
        following = {p[under_way(parent, p)] for p in open_phrases(parent, phrases)}
        if seen[parent] <= count or token in following:
            banks[met_tokens(partial.ids, phrases)].append(partial)
    turns = itertools.zip_longest(*(banks[bank] for bank in sorted(banks, reverse=True)))
    return [partial for turn in turns for partial in turn if partial is not None]


def filtered(logits, temperature=1.0, top_k=0, top_p=1.0):
    """The probabilities that sampling draws with, one row."""
    shares = np.exp(log_softmax(np.asarray(logits) / temperature))
    falling = np.argsort(-shares)
    if top_k:
        shares[falling[top_k:]] = 0.0
    if top_p < 1.0:
        so_far = np.cumsum(shares[falling]) / shares.sum()
        shares[falling[np.argmax(so_far >= top_p) + 1 :]] = 0.0
    return shares / shares.sum()


def sequence_probabilities(scorer, row, limit, rules=ANYTHING, **filters):
    """The probability of each sequence that sampling can give, as a dict."""
    results, level = {}, {(): 1.0}
    for _ in range(limit):
        following = {}
        table = scorer([row] * len(level), list(level))
        for (ids, probability), scores in zip(level.items(), table, strict=True):
            longer = [(*ids, token) for token in range(len(scores))]
            bonus = rules.bonus(row, ids)
            is_allowed = [rules.allow(row, seq) for seq in longer]
            gained = scores + np.array([rules.bonus(row, seq) - bonus for seq in longer])
            logits = np.where(is_allowed, gained, -np.inf)
            if np.isinf(logits).all():
                results[ids] = probability
                continue
            shares = filtered(logits, **filters)
            following |= {e: probability * s for e, s in zip(longer, shares, strict=True) if s > 0}
        results |= {ids: share for ids, share in following.items() if ids[-1] == EOS}
        level = {ids: share for ids, share in following.items() if ids[-1] != EOS}
    return results | level


def marian_beam(scorer, row, limit, beam_size, exponent, word_penalty, rules=ANYTHING):
    """The hypotheses of a sentence, best first: every prefix scored from scratch."""
    ranking, alive, ended = _Ranking(exponent, rules), [_Partial()], []
    for _ in range(limit):
        extended = _extensions(scorer, {(row,): alive}, rules)[row,]
        if not extended:
            break
        extended.sort(key=lambda partial: -ranking.total(row, partial))
        # What has ended takes its place along.
        best = extended[: beam_size - len(ended)]
        ended += [partial for partial in best if partial.ends()]
        alive = [partial for partial in best if not partial.ends()]
    hypotheses = []
    for partial in ended + alive:
        length = max(len(partial.ids) - len(rules.prefix(row)), 1)
        score = (ranking.total(row, partial) - word_penalty * length) / length**exponent
        hypotheses.append(Hypothesis(partial.ids, partial.total, score))
    # A hypothesis that nothing could follow before the limit comes last.
    return sorted(hypotheses, key=lambda h: (EOS not in h.ids and len(h.ids) < limit, -h.score))
