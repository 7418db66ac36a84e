"""Sentence pairs: read from files, then as ids, checked, counted, and kept in flat arrays."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines

# Why a pair is dropped, in the order in which the reasons are tried.
_REASONS = ("empty side", "over-long side", "extreme length ratio", "exact duplicate")
_EMPTY, _OVER_LONG, _RATIO, _DUPLICATE = _REASONS

_LINES_NAMED = 5
# Below this a ratio says nothing: "Yes." against a short sentence is a fair translation.
_RATIO_NEEDS_TOKENS = 10
# Texts tokenized at once: Python's lists of ids are about ten times as big as the arrays.
_CHUNK = 50_000


def read_pairs(
    source: str | os.PathLike, target: str | os.PathLike | None = None
) -> tuple[list[str], list[str]]:
    """The lines of two aligned files, or of one file of two tab-separated columns.

    Args:
        source: Path of the source lines, or of the two-column file when `target` is None.
        target: Path of the target lines, as many as `source` has.

    Raises:
        InputError: As `read_lines`; the line counts differ; or a line of the two-column file
            does not have exactly two columns.
    """
    if target is None:
        rows = [line.split("\t") for line in read_lines(source)]
        for number, row in enumerate(rows, start=1):
            if len(row) != 2:
                raise InputError(
                    f"{source}, line {number}: expected exactly two columns, source and target, "
                    f"with one tab between them. Received: columns={len(row)}."
                )
        return [row[0] for row in rows], [row[1] for row in rows]
    source_lines, target_lines = read_lines(source), read_lines(target)
    if len(source_lines) != len(target_lines):
        raise InputError(
            "Aligned files must have the same number of lines. Received: "
            f"{source} with {len(source_lines)} lines, {target} with {len(target_lines)} lines."
        )
    return source_lines, target_lines


@dataclasses.dataclass(frozen=True)
class DropCount:
    """How many pairs one reason dropped, and the first of their line numbers (from 1)."""

    count: int
    first_lines: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PairReport:
    """The fate of the pairs: `total` seen, `kept`, and `dropped` by reason.

    Each dropped pair is counted once, under the first reason that applies. `dropped` has the
    reasons that occurred, `str(report)` is a text of a few lines.
    """

    total: int
    kept: int
    dropped: dict[str, DropCount]

    def __str__(self):
        lines = [f"{self.kept} of {self.total} pairs kept"]
        for reason, drop in self.dropped.items():
            numbers = ", ".join(map(str, drop.first_lines))
            more = ", ..." if drop.count > len(drop.first_lines) else ""
            noun = "line" if drop.count == 1 else "lines"
            lines.append(f"  {drop.count} dropped, {reason}: {noun} {numbers}{more}")
        return "\n".join(lines)


class EncodedPairs:
    """Tokenized pairs: one flat int32 array a side, cut by offsets.

    Source ids are what the encoder reads, EOS included. Target ids stand without BOS and EOS:
    a batch puts BOS before what the decoder reads and EOS after what it must predict.

    Args:
        source_flat: int32 `(source tokens,)`, all source sentences one after the other.
        source_offsets: int64 `(pairs + 1,)`; pair `i` is `flat[offsets[i] : offsets[i + 1]]`.
        target_flat: int32 `(target tokens,)`.
        target_offsets: int64 `(pairs + 1,)`.

    Most callers use `encode_pairs` or `EncodedPairs.from_lists`.
    """

    def __init__(
        self,
        source_flat: np.ndarray,
        source_offsets: np.ndarray,
        target_flat: np.ndarray,
        target_offsets: np.ndarray,
    ):
        self.source_flat, self.source_offsets = source_flat, source_offsets
        self.target_flat, self.target_offsets = target_flat, target_offsets

    @classmethod
    def from_lists(
        cls, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]
    ) -> "EncodedPairs":
        """Pairs from ids of your own.

        Args:
            source_ids: One sequence of ids a pair, EOS included if the encoder shall read it.
            target_ids: One sequence of ids a pair, without BOS and EOS.

        Raises:
            InputError: The counts differ, there is no pair, a side is empty, or an id is not
                a positive integer (0 is padding and would be masked away).
        """
        if len(source_ids) != len(target_ids) or not len(source_ids):
            raise InputError(
                "Both sides need the same number of sequences, at least one. "
                f"Received: {len(source_ids)} sources, {len(target_ids)} targets."
            )
        return cls(*_flatten_checked("source", source_ids), *_flatten_checked("target", target_ids))

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def source(self, index: int) -> np.ndarray:
        """int32 ids of one source sentence, EOS included."""
        return self.source_flat[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> np.ndarray:
        """int32 ids of one target sentence, without BOS and EOS."""
        return self.target_flat[self.target_offsets[index] : self.target_offsets[index + 1]]

    @property
    def source_lengths(self) -> np.ndarray:
        """int64 `(pairs,)`, including EOS."""
        return np.diff(self.source_offsets)

    @property
    def target_lengths(self) -> np.ndarray:
        """int64 `(pairs,)`, neither BOS nor including EOS."""
        return np.diff(self.target_offsets)

    @property
    def lengths(self) -> np.ndarray:
        """int64 `(pairs,)`: columns that a batch needs, for the source and for target + 1."""
        return np.maximum(self.source_lengths, self.target_lengths + 1)


def encode_pairs(
    source_texts: Sequence[str],
    target_texts: Sequence[str],
    source_tokenizer: Any,
    target_tokenizer: Any,
    max_length: int = 128,
    max_length_ratio: float | None = 4.0,
    drop_duplicates: bool = True,
) -> tuple[EncodedPairs, PairReport]:
    """Tokenizes parallel text once and drops the pairs that would harm training.

    Args:
        source_texts: A text a pair.
        target_texts: As many.
        source_tokenizer: Has `tokenize(texts, add_eos=False)` giving lists of ids.
        target_tokenizer: The same object for a joint vocabulary.
        max_length: Most tokens of a side, including EOS.
        max_length_ratio: Most times that one side may be as long as the other, in tokens; looked
            at once the longer side has more than 10 tokens. None switches the check off.
        drop_duplicates: Keep only the first of equal pairs of texts. False for validation and
            test sets, whose score is defined over all their lines.

    Raises:
        InputError: The counts differ, an option is out of range, or no pair is left.
    """
    _check_options(source_texts, target_texts, max_length, max_length_ratio)
    source_flat, source_lengths = _tokenize(source_texts, source_tokenizer, add_eos=True)
    target_flat, target_lengths = _tokenize(target_texts, target_tokenizer, add_eos=False)
    reasons = _reasons(source_lengths - 1, target_lengths, max_length, max_length_ratio)
    if drop_duplicates:
        _mark_duplicates(reasons, source_texts, target_texts)
    report = _report(reasons)
    if not report.kept:
        raise InputError(
            "No sentence pair is left after the checks: "
            + "; ".join(line.strip() for line in str(report).splitlines())
            + "."
        )
    keep = reasons == ""
    pairs = EncodedPairs(
        source_flat[np.repeat(keep, source_lengths)],
        _offsets(source_lengths[keep]),
        target_flat[np.repeat(keep, target_lengths)],
        _offsets(target_lengths[keep]),
    )
    return pairs, report


def _check_options(source_texts, target_texts, max_length, max_length_ratio):
    for texts in (source_texts, target_texts):
        if isinstance(texts, (str, bytes)):
            raise InputError(f"Expected a list of strings. Received: one text, {texts!r:.40}.")
    if len(source_texts) != len(target_texts):
        raise InputError(
            "Both sides need the same number of texts. "
            f"Received: {len(source_texts)} sources, {len(target_texts)} targets."
        )
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 2:
        raise InputError(
            "`max_length` must be an integer of at least 2, a token and EOS. "
            f"Received: max_length={max_length!r}."
        )
    ratio_is_number = isinstance(max_length_ratio, (int, float))
    if max_length_ratio is not None and not (ratio_is_number and max_length_ratio >= 1):
        raise InputError(
            "`max_length_ratio` must be at least 1, or None. "
            f"Received: max_length_ratio={max_length_ratio!r}."
        )


def _tokenize(texts, tokenizer, add_eos):
    """int32 ids of all texts in a row, and int64 `(texts,)` lengths."""
    parts, lengths = [np.zeros(0, np.int32)], []
    for start in range(0, len(texts), _CHUNK):
        rows = tokenizer.tokenize(list(texts[start : start + _CHUNK]), add_eos=add_eos)
        lengths.extend(map(len, rows))
        parts.append(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
    return np.concatenate(parts), np.array(lengths, np.int64)


def _reasons(source_tokens, target_tokens, max_length, max_length_ratio):
    """`(pairs,)` of strings: why a pair is dropped, "" for a pair that is kept."""
    shorter = np.minimum(source_tokens, target_tokens)
    longer = np.maximum(source_tokens, target_tokens)
    conditions = [shorter == 0, longer + 1 > max_length]
    choices = [_EMPTY, _OVER_LONG]
    if max_length_ratio is not None:
        conditions.append((longer > _RATIO_NEEDS_TOKENS) & (longer > max_length_ratio * shorter))
        choices.append(_RATIO)
    # object: the longest name, that of a duplicate, must fit in afterwards.
    return np.select(conditions, choices, default="").astype(object)


def _mark_duplicates(reasons, source_texts, target_texts):
    seen = set()
    for index in np.flatnonzero(reasons == ""):
        pair = (source_texts[index], target_texts[index])
        if pair in seen:
            reasons[index] = _DUPLICATE
        seen.add(pair)


def _report(reasons):
    dropped = {}
    for reason in _REASONS:
        lines = np.flatnonzero(reasons == reason) + 1
        if len(lines):
            dropped[reason] = DropCount(len(lines), tuple(lines[:_LINES_NAMED].tolist()))
    return PairReport(len(reasons), int(np.sum(reasons == "")), dropped)


def _flatten_checked(side, rows):
    for number, row in enumerate(rows, start=1):
        if not _are_ids(row):
            raise InputError(
                f"The {side} of pair {number} must be a non-empty list of positive integers "
                f"(0 is padding, {EOS_ID} ends a sentence). Received: {str(row):.80}."
            )
    flat = np.concatenate([np.asarray(row, np.int32) for row in rows])
    return flat, _offsets([len(row) for row in rows])


def _are_ids(row):
    try:
        ids = np.asarray(row)
    except ValueError:  # lists of different lengths inside
        return False
    whole = ids.ndim == 1 and ids.size > 0 and ids.dtype.kind in "iu"
    return whole and PAD_ID < ids.min() and ids.max() <= np.iinfo(np.int32).max


def _offsets(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
