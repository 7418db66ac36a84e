"""Tokenizes pairs of texts once, checks and counts them, and keeps ids in temporary files."""

import collections
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.base.errors import InputError, writing
from keras_transformer.base.ids import EOS_ID, UNK_ID
from keras_transformer.base.options import option, options_class
from keras_transformer.data.pairs import (
    NO_HASHES,
    EncodedPairs,
    are_among,
    are_first,
    offsets_of,
    pair_hashes,
)
from keras_transformer.text.languages import Direction

# Reasons to drop a pair, in the order of the checks.
_REASONS = (
    "empty side",
    "over-long side",
    "extreme length ratio",
    "equal to a held-out pair",
    "exact duplicate",
)
_KEPT, _EMPTY, _OVER_LONG, _RATIO, _HELD_OUT, _DUPLICATE = range(6)

_REMEDY = "  The model does not learn them: write words into the targets, such as `euros` for `€`."
_LINES_NAMED, _CHARACTERS_NAMED = 5, 10
# The ratio of shorter texts says nothing: "Yes." is a fair translation of a short sentence.
_RATIO_NEEDS_TOKENS = 10
# Number of pairs read and tokenized at once: Python's lists of ids are about ten times as big as
# arrays.
CHUNK_LINES = 50_000


@options_class
class PairChecks:
    """Checks of training pairs."""

    max_length: int = option(
        128,
        "Maximum number of tokens of a side, EOS included; longer pairs are dropped.",
        ge=2,
    )
    max_length_ratio: float | None = option(
        4.0,
        "Maximum ratio of the sides' lengths in tokens; pairs above it are dropped. Pairs whose "
        "longer side has at most 10 tokens pass. null: any.",
        ge=1,
    )
    drop_duplicates: bool = option(True, "Keep only the first of equal training pairs.")


@dataclasses.dataclass(frozen=True)
class DropCount:
    """Number of pairs that one reason dropped, and their first line numbers (from 1)."""

    count: int
    first_lines: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PairReport:
    """Filter statistics: numbers of pairs in `total`, `kept`, and `dropped` by reason.

    Each dropped pair is counted once, under the first reason that applies. `dropped` has the
    reasons that occurred; `str(report)` is a text of a few lines. With several corpora, `corpora`
    has a report per corpus, by name, with line numbers of its own files. `unknown` has, per side,
    the characters that the vocabulary lacks, with the number of texts that have each, dropped pairs
    included. A model does not learn them in targets; see `ParallelDataset`.
    """

    total: int
    kept: int
    dropped: dict[str, DropCount]
    corpora: dict[str, "PairReport"] = dataclasses.field(default_factory=dict)
    unknown: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)

    def __str__(self):
        lines = [f"{self.kept} of {self.total} pairs kept"]
        for name, report in self.corpora.items():
            lines += f"{name}: {report}".splitlines()
        for reason, drop in self.dropped.items() if not self.corpora else ():
            numbers = ", ".join(map(str, drop.first_lines))
            ellipsis = ", ..." if drop.count > len(drop.first_lines) else ""
            noun = "line" if drop.count == 1 else "lines"
            lines.append(f"  {drop.count} dropped, {reason}: {noun} {numbers}{ellipsis}")
        for side, counts in self.unknown.items():
            most = sorted(counts.items(), key=lambda item: -item[1])[:_CHARACTERS_NAMED]
            named = ", ".join(f"{count} have {character}" for character, count in most)
            rest = f", and {len(counts) - len(most)} more" if len(counts) > len(most) else ""
            lines.append(f"  {side}s with characters that the vocabulary lacks: {named}{rest}")
            if side == "target":
                lines.append(_REMEDY)
        return "\n".join(lines)


def encode_pairs(
    source_texts: Sequence[str],
    target_texts: Sequence[str],
    source_tokenizer: Any,
    target_tokenizer: Any,
    **checks: Any,
) -> tuple[EncodedPairs, PairReport]:
    """Tokenizes parallel text once and drops the pairs that would harm training.

    Args:
        source_texts: One text per pair.
        target_texts: One text per pair.
        source_tokenizer: Object whose `tokenize(texts, add_eos=False)` returns lists of ids.
        target_tokenizer: `source_tokenizer` for a joint vocabulary.
        **checks: Fields of `PairChecks`. `drop_duplicates=False` is for validation and test sets,
            whose score is defined over all their lines.

    Raises:
        InputError: The counts differ, an option is out of range, or no pair is left.
    """
    for texts in (source_texts, target_texts):
        if isinstance(texts, (str, bytes)):
            raise InputError(f"Expected a list of strings. Received: one text, {texts!r:.40}.")
    if len(source_texts) != len(target_texts):
        raise InputError(
            "Both sides need the same number of texts. "
            f"Received: {len(source_texts)} sources, {len(target_texts)} targets."
        )
    encoder = PairEncoder((source_tokenizer, target_tokenizer), PairChecks(**checks))
    for numbers, pairs in in_chunks(zip(source_texts, target_texts, strict=True)):
        encoder.add(Lines("", "", numbers, pairs))
    return encoder.finish()


class Lines(NamedTuple):
    """Some lines of a text.

    Attributes:
        part: Name of the part of the data, such as `"train"`.
        corpus: Name of the corpus among the corpora of the part.
        numbers: Numbers of the lines in their files, int64 `(lines,)`, from 1.
        pairs: The pair of each line.
    """

    part: str
    corpus: str
    numbers: np.ndarray
    pairs: list[tuple[str, str]]


def in_chunks(
    pairs: Iterable[tuple[str, str]], size: int = CHUNK_LINES
) -> Iterator[tuple[np.ndarray, list[tuple[str, str]]]]:
    """Yields the pairs of all lines of a text in lists of `size`, with the numbers of the lines."""
    pairs, first = iter(pairs), 1
    while chunk := list(itertools.islice(pairs, size)):
        yield np.arange(first, first + len(chunk)), chunk
        first += len(chunk)


def encode_parts(
    read: Callable[[Collection[str]], Iterable[Lines]],
    encoders: Mapping[str, "PairEncoder"],
    held_out: str | None = None,
) -> dict[str, tuple[EncodedPairs, PairReport]]:
    """Tokenizes and checks the pairs of several parts, which are read in one pass.

    Args:
        read: Function that yields the lines of the parts whose names it gets.
        encoders: Encoder of each part.
        held_out: Name of the part whose pairs are dropped from the other parts.

    Raises:
        InputError: See `encode_pairs`.
    """
    held_out_hashes = [NO_HASHES]
    for lines in read({*encoders, *filter(None, [held_out])}):
        if lines.part == held_out:
            held_out_hashes.append(pair_hashes(lines.pairs))
        if lines.part in encoders:
            encoders[lines.part].add(lines)
    unwanted = np.unique(np.concatenate(held_out_hashes))
    return {
        part: encoder.finish(NO_HASHES if part == held_out else unwanted)
        for part, encoder in encoders.items()
    }


def _sizes(report):
    return {name: corpus.kept for name, corpus in report.corpora.items()} or None


class PairEncoder:
    """Tokenizes and checks the pairs of one part of the data.

    Two different pairs count as equal if their hashes of 64 bits are equal.

    Args:
        tokenizers: Tokenizers of the sources and the targets, see `encode_pairs`.
        checks: Checks of the pairs.
        with_sources: False for a model that reads no sources, whose targets are still checked.
        name: Name of the part, for an error.
        chunk_lines: Number of pairs that are filtered in memory at once.
        directions: Ids around the sentences of a corpus that tell the model its languages, by the
            name of the corpus.
    """

    def __init__(
        self,
        tokenizers: tuple[Any, Any],
        checks: PairChecks,
        with_sources: bool = True,
        name: str = "",
        chunk_lines: int = CHUNK_LINES,
        directions: Mapping[str, Direction] | None = None,
    ):
        self._tokenizers, self._checks, self._chunk_lines = tokenizers, checks, chunk_lines
        self._directions = directions or {}
        self._with_sources, self._name = with_sources, name
        self._sides = [_Side(), _Side()]
        self._lines, self._reasons = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)]
        self._hashes = [NO_HASHES]  # of the pairs that pass the checks
        self._count, self._ends = 0, dict[str, int]()
        self._unknown: dict[str, collections.Counter[str]] = {
            side: collections.Counter() for side in ("source", "target")
        }

    def add(self, lines: Lines) -> None:
        """Tokenizes some lines; all lines of a corpus come before the lines of the next corpus."""
        self._count += len(lines.pairs)
        self._ends[lines.corpus] = self._count
        if not lines.pairs:
            return
        texts = [list(side) for side in zip(*lines.pairs, strict=True)]
        encoded = [
            _tokenize(side, tokenizer, add_eos)
            for side, tokenizer, add_eos in zip(texts, self._tokenizers, (True, False), strict=True)
        ]
        for counts, tokenizer, texts_of_side, ids in zip(
            self._unknown.values(), self._tokenizers, texts, encoded, strict=True
        ):
            counts.update(_unknown_characters(tokenizer, texts_of_side, *ids))
        encoded[1] = _without_spaces_before_unknown(self._tokenizers[1], *encoded[1])
        (_, source_lengths), (_, target_lengths) = encoded
        source_tokens = source_lengths - 1 if self._with_sources else target_lengths
        direction = self._directions.get(lines.corpus, Direction())
        added = direction.num_added, len(direction.target_prefix)
        reasons = _reasons(source_tokens, target_lengths, self._checks, added)
        keep = reasons == _KEPT
        self._lines.append(lines.numbers)
        self._reasons.append(reasons)
        self._hashes.append(pair_hashes(itertools.compress(lines.pairs, keep)))
        around = (
            (direction.source_prefix, direction.source_suffix),
            (direction.target_prefix, ()),
        )
        for side, (flat, lengths), ids in zip(self._sides, encoded, around, strict=True):
            side.append(*_with_ids_around(flat[np.repeat(keep, lengths)], lengths[keep], *ids))

    def finish(self, held_out: np.ndarray = NO_HASHES) -> tuple[EncodedPairs, PairReport]:
        """Drops duplicates and held-out pairs, and returns the other pairs.

        Args:
            held_out: Sorted hashes of the pairs to drop, uint64 `(hashes,)`.

        Raises:
            InputError: No pair is left.
        """
        reasons, lines = np.concatenate(self._reasons), np.concatenate(self._lines)
        passed = np.flatnonzero(reasons == _KEPT)
        is_held_out = np.concatenate([are_among(hashes, held_out) for hashes in self._hashes])
        if self._checks.drop_duplicates:
            reasons[passed[~are_first(self._hashes)]] = _DUPLICATE
        reasons[passed[is_held_out]] = _HELD_OUT
        report = _report(reasons, lines, {} if list(self._ends) == [""] else self._ends)
        unknown = {side: dict(counts) for side, counts in self._unknown.items() if counts}
        report = dataclasses.replace(report, unknown=unknown)
        if not report.kept:
            raise InputError(
                f"{self._name}: ".removeprefix(": ")
                + "No sentence pair is left after the checks: "
                + "; ".join(line.strip() for line in str(report).splitlines())
                + "."
            )
        is_kept = reasons == _KEPT
        (source, source_offsets), (target, target_offsets) = (
            side.finish(is_kept[passed], self._chunk_lines) for side in self._sides
        )
        sides = source, source_offsets, target, target_offsets
        return EncodedPairs(*sides, lines[is_kept], _sizes(report)), report


class _Side:
    """Ids of one side, collected in a file without a name, which a killed process does not leave.

    The system takes back the memory of a mapped file's pages when it needs it.
    """

    def __init__(self):
        self._file, self._lengths = tempfile.TemporaryFile(), []

    def append(self, flat, lengths):
        self._lengths.append(lengths)
        _write(self._file, flat)

    def finish(self, keep, chunk_lines):
        """Returns the flat array and the offsets of the kept pairs."""
        lengths = np.concatenate(self._lengths)
        offsets = offsets_of(lengths)
        # Closing a file writes again what a full disk has not taken.
        with (
            writing(tempfile.gettempdir()),
            self._file as file,
            tempfile.TemporaryFile() as kept_file,
        ):
            all_ids = _mapped(file)
            for start in range(0, len(lengths), chunk_lines):
                part = slice(start, start + chunk_lines)
                flat = all_ids[offsets[start] : offsets[min(start + chunk_lines, len(lengths))]]
                _write(kept_file, flat[np.repeat(keep[part], lengths[part])])
            return _mapped(kept_file), offsets_of(lengths[keep])


def _write(file, flat):
    with writing(tempfile.gettempdir()):
        file.write(flat)
        file.flush()


def _mapped(file):
    # An array of NumPy's own class, whose parts are made faster.
    return np.asarray(np.memmap(file, np.int32, "r"))


def _tokenize(texts, tokenizer, add_eos):
    """Returns concatenated int32 ids of all texts, and int32 lengths `(texts,)`."""
    rows = tokenizer.tokenize(texts, add_eos=add_eos)
    lengths = np.array(list(map(len, rows)), np.int32)
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32), lengths


def _without_spaces_before_unknown(tokenizer, flat, lengths):
    """Removes each token of a space before an unknown token, from ids as `_tokenize` has them.

    Both spell one word. With the space as a label, the model would learn only the word's beginning.
    """
    space_id = getattr(tokenizer, "space_id", None)  # Labels have none.
    if space_id is None:
        return flat, lengths
    keep = (flat != space_id) | (np.append(flat[1:], EOS_ID) != UNK_ID)
    removed = offsets_of(~keep)
    return flat[keep], lengths - np.diff(removed[offsets_of(lengths)]).astype(np.int32)


def _with_ids_around(flat, lengths, before, after):
    """Returns the ids of all rows with other ids before and after each row, and the lengths."""
    count, ends = len(lengths), offsets_of(lengths)[1:]
    flat = np.insert(flat, np.repeat(ends, len(after)), np.tile(after, count))
    lengths = lengths + len(after)
    starts = offsets_of(lengths)[:-1]
    flat = np.insert(flat, np.repeat(starts, len(before)), np.tile(before, count))
    return flat, lengths + len(before)


def _unknown_characters(tokenizer, texts, flat, lengths):
    """Counts the texts that have each character that the vocabulary lacks."""
    rows = np.unique(np.searchsorted(np.cumsum(lengths), np.flatnonzero(flat == UNK_ID), "right"))
    count = getattr(tokenizer, "unknown_characters", None)  # Labels have none.
    return {} if count is None else count([texts[row] for row in rows.tolist()])


def _reasons(source_tokens, target_tokens, options, added):
    """Returns uint8 `(pairs,)`: the reason to drop each pair, or 0.

    `added` are the numbers of ids of languages that each side has besides.
    """
    shorter = np.minimum(source_tokens, target_tokens)
    longer = np.maximum(source_tokens, target_tokens)
    longest = np.maximum(source_tokens + added[0], target_tokens + added[1])
    conditions = [shorter == 0, longest + 1 > options.max_length]
    ratio = options.max_length_ratio
    if ratio is not None:
        conditions.append((longer > _RATIO_NEEDS_TOKENS) & (longer > ratio * shorter))
    choices = [_EMPTY, _OVER_LONG, _RATIO][: len(conditions)]
    return np.select(conditions, choices, default=_KEPT).astype(np.uint8)


def _report(reasons, lines, ends):
    dropped, parts, start = {}, {}, 0
    for name, end in ends.items():
        parts[name] = _report(reasons[start:end], lines[start:end], {})
        start = end
    for reason, name in enumerate(_REASONS, start=1):
        dropped_lines = lines[reasons == reason]
        if len(dropped_lines):
            dropped[name] = DropCount(
                len(dropped_lines), tuple(dropped_lines[:_LINES_NAMED].tolist())
            )
    return PairReport(len(reasons), int(np.sum(reasons == _KEPT)), dropped, parts)
