"""IBM's Model 1: probabilities that a token of one side becomes each token of the other side.

Each source token links to all target tokens of its sentences. Links are made in blocks of source
tokens whenever they are needed, because a million sentences have half a billion links.

Reference: Brown et al. 1993 (J93-2003).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

_ITERATIONS = 5
_BLOCK_LINKS = 1_000_000
# Number of zeros per link that an array for all pairs of a block's tokens may have. Above it, the
# pairs are sorted, which takes longer.
_SPARSE = 4
_LEAST = 1e-6  # Smaller probabilities become 0, to save memory.


class Sentences(NamedTuple):
    """Sets of tokens: the sentences of one side, without repeated tokens.

    Attributes:
        ids: Int `(tokens,)`, all sentences concatenated.
        offsets: Int `(sentences + 1,)`; sentence `i` is `ids[offsets[i] : offsets[i + 1]]`.
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]]) -> "Sentences":
        """Makes the sets of some lists of different tokens."""
        offsets = np.cumsum([0, *map(len, sentences)])
        ids = itertools.chain.from_iterable(sentences)
        return cls(np.fromiter(ids, "int32", offsets[-1]), offsets)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each sentence."""
        return np.diff(self.offsets)


class Translations(NamedTuple):
    """Pairs of tokens, as arrays of one length, sorted by source and then by target.

    Attributes:
        sources: Source tokens.
        targets: Target tokens.
        probabilities: Probability of the target token, given the source token.
        counts: Number of sentences that have both tokens.
    """

    sources: np.ndarray
    targets: np.ndarray
    probabilities: np.ndarray
    counts: np.ndarray


def model_1(
    sources: Sentences,
    targets: Sentences,
    progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Translations]:
    """Yields the pairs of tokens with a probability above 0, in rising order of source tokens.

    Args:
        sources: Source sentences. A token that all of them have explains target tokens without a
            translation.
        targets: The target sentences.
        progress: Function that is called with each finished share of the work.
    """
    links = _Links(sources, targets)
    tables: list[_Table | None] = [None] * len(links.blocks)  # At first all probabilities are 1.
    totals = np.repeat(sources.lengths, targets.lengths).astype("float64")
    for iteration in range(_ITERATIONS):
        is_last = iteration == _ITERATIONS - 1
        new_totals = np.zeros(0 if is_last else len(totals))
        for number, (start, stop) in enumerate(links.blocks):
            block, table = links.between(start, stop), tables[number]
            weights = np.ones(block.size, "float32") if table is None else table.array(block.size)
            probabilities = block.reestimated(weights, totals)
            if is_last:
                yield block.translations(probabilities)
            else:
                tables[number] = new_table = _Table.of(probabilities)
                block.add_to_totals(new_totals, new_table.array(block.size))
            progress(len(block.token_pairs) / max(links.count, 1) / _ITERATIONS)
        totals = new_totals


class _Table(NamedTuple):
    """Probabilities of a block's pairs of tokens between two iterations, without small ones.

    Attributes:
        token_pairs: Pairs with a probability above `_LEAST`.
        probabilities: Their probabilities.
    """

    token_pairs: np.ndarray
    probabilities: np.ndarray

    @classmethod
    def of(cls, probabilities: np.ndarray) -> "_Table":
        """Makes the table of the probabilities of all pairs."""
        token_pairs = np.flatnonzero(probabilities > _LEAST).astype("int32")
        return cls(token_pairs, probabilities[token_pairs].astype("float32"))

    def array(self, size: int) -> np.ndarray:
        """Returns the probabilities of all pairs, float32 `(size,)`."""
        probabilities = np.zeros(size, "float32")
        probabilities[self.token_pairs] = self.probabilities
        return probabilities


class _Links:
    """Links from each occurrence of a source token to the target tokens of its sentence.

    Attributes:
        blocks: First and last occurrence (excluded) of each block. Occurrences are sorted by token.
        count: Number of links.
    """

    def __init__(self, sources: Sentences, targets: Sentences):
        # int32: there is a number of each occurrence of a token.
        order = np.argsort(sources.ids, kind="stable").astype("int32")
        sentences = np.repeat(np.arange(len(sources.lengths), dtype="int32"), sources.lengths)
        sentences = sentences[order]
        self._tokens, self._targets = sources.ids[order], targets.ids
        self._starts = targets.offsets.astype("int32")[sentences]
        self._counts = targets.lengths.astype("int32")[sentences]
        self._num_targets = int(targets.ids.max(initial=0)) + 1
        # Few links are of rare tokens, whose pairs are sorted, so all of them are remembered.
        self._sorted: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        ends = np.cumsum(self._counts, dtype="int64")
        self.count = int(ends[-1]) if len(ends) else 0
        firsts = np.flatnonzero(np.diff(self._tokens, prepend=-1))  # occurrences of each token
        number = (ends - self._counts)[firsts] // _BLOCK_LINKS
        firsts = firsts[np.flatnonzero(np.diff(number, prepend=-1))]
        self.blocks = list(itertools.pairwise([*firsts.tolist(), len(self._tokens)]))

    def between(self, start: int, stop: int) -> "_Block":
        """Makes the links of some occurrences."""
        counts = self._counts[start:stop]
        ends = np.cumsum(counts)
        shifts = (self._starts[start:stop] - (ends - counts)).astype("int32")
        positions = np.repeat(shifts, counts)
        positions += np.arange(ends[-1], dtype="int32")
        first = int(self._tokens[start])
        rows = (self._tokens[start:stop] - first).astype("int64") * self._num_targets
        token_pairs = np.repeat(rows, counts)
        token_pairs += self._targets[positions]
        size = (int(self._tokens[stop - 1]) - first + 1) * self._num_targets
        if size <= _SPARSE * len(token_pairs):
            return _Block(first, self._num_targets, positions, token_pairs, None, size)
        if start not in self._sorted:
            keys, token_pairs = np.unique(token_pairs, return_inverse=True)
            self._sorted[start] = keys, token_pairs.astype("int32")
        keys, token_pairs = self._sorted[start]
        return _Block(first, self._num_targets, positions, token_pairs, keys, len(keys))


class _Block(NamedTuple):
    """Links of some source tokens.

    Attributes:
        first: The first source token.
        num_targets: Number of target tokens.
        positions: Position of each link's target token among all target tokens.
        token_pairs: Number of each link's pair of tokens.
        keys: Source minus `first`, times `num_targets`, plus target, of each pair; None if all
            pairs of the block's tokens are numbered.
        size: Number of pairs.
    """

    first: int
    num_targets: int
    positions: np.ndarray
    token_pairs: np.ndarray
    keys: np.ndarray | None
    size: int

    def reestimated(self, probabilities: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Returns new probabilities of the pairs, float64.

        Args:
            probabilities: Earlier probabilities of the pairs.
            totals: Sum of the probabilities of each target token's links, by its position.
        """
        # A total is 0 where all probabilities were too small.
        shares = probabilities[self.token_pairs] / np.maximum(totals[self.positions], 1e-30)
        expected_counts = np.bincount(self.token_pairs, shares, self.size)
        return expected_counts / np.maximum(self._sums(expected_counts), 1e-30)

    def add_to_totals(self, totals: np.ndarray, probabilities: np.ndarray) -> None:
        """Adds the probability of each link to the total of its target token."""
        np.add.at(totals, self.positions, probabilities[self.token_pairs].astype("float64"))

    def _sums(self, values):
        """Returns for each pair the sum of the values of its source token."""
        if self.keys is None:
            return np.repeat(values.reshape(-1, self.num_targets).sum(1), self.num_targets)
        sources = self.keys // self.num_targets
        return np.bincount(sources, values)[sources]

    def translations(self, probabilities: np.ndarray) -> Translations:
        """Returns the pairs with a probability above 0."""
        token_pairs = np.flatnonzero(probabilities)
        keys = token_pairs if self.keys is None else self.keys[token_pairs]
        sources, targets = np.divmod(keys, self.num_targets)
        counts = np.bincount(self.token_pairs, minlength=self.size)[token_pairs]
        return Translations(sources + self.first, targets, probabilities[token_pairs], counts)
