"""Reads sentence pairs from files, and keeps them as ids in flat arrays."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from keras_transformer.base.errors import InputError, check_folder
from keras_transformer.base.ids import EOS_ID, PAD_ID
from keras_transformer.base.reading import iterate_lines, without_compression
from keras_transformer.text.tables import is_table, iterate_rows

InlineTags = Literal["drop", "keep"]
"""Treatment of formatting inside the sentences of a file of pairs."""


@runtime_checkable
class PairFile(Protocol):
    """A file of sentence pairs that is not lines of text, such as a translation memory."""

    def __fspath__(self) -> str: ...

    def pairs(self, lenient: bool = False) -> Iterator[tuple[str, str]]: ...


@dataclasses.dataclass(frozen=True)
class PairTable:
    """The sentence pairs of a table of two columns.

    Python's `csv` reads a file with the ending `.csv`, whose columns are separated by commas,
    semicolons or tabs. Line breaks in a cell become spaces. Lines of other files are split at tabs,
    and none of their cells begins with `"`.

    Args:
        path: Path of the file, plain or compressed.
        header: Whether the first row has the names of the columns, and is skipped. By default such
            a row, as `source` and `target`, is an error.
    """

    path: str | os.PathLike
    header: bool | None = None

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        return os.fspath(self.path)

    def pairs(self, lenient: bool = False) -> Iterator[tuple[str, str]]:
        """Yields pairs of a source and a target; see `iterate_pairs`."""
        rows = iterate_rows(self.path, self.header, lenient)
        first_rows = list(itertools.islice(rows, 2 if lenient else 0))
        lenient = any(len(cells) == 2 for _, cells in first_rows)
        for number, cells in itertools.chain(first_rows, rows):
            if len(cells) != 2 and not lenient:
                rule = f"{self}, line {number}: expected exactly two columns, a source and a target"
                raise InputError(f"{rule}. Received: columns={len(cells)}.")
            yield cells[0], "\t".join(cells[1:])


def open_memory(
    path: str | os.PathLike, languages: str, inline_tags: InlineTags = "drop"
) -> PairFile:
    """Opens a translation memory; raises the errors of `TranslationMemory`."""
    check_folder("extras/corpora")
    from keras_transformer.extras.corpora.translation_memory import TranslationMemory

    return TranslationMemory(path, languages, inline_tags)


def is_tmx(path: str) -> bool:
    """Returns whether a path names a translation memory, plain or compressed."""
    return without_compression(path).endswith(".tmx")


def pair_file(
    path: str,
    header: bool | None = None,
    languages: str | None = None,
    inline_tags: InlineTags | None = None,
) -> str | PairFile:
    """Returns the translation memory at a path that ends in .tmx, and any other path as it is.

    With a `header`, returns the table at the path.

    Raises:
        InputError: A memory lacks `languages`, or another file has options of a memory, or a file
            that is not a table has a `header`.
    """
    if header is not None and not is_table(path):
        raise InputError(f"`header` belongs to a table, *.tsv or *.csv. Received: {path}.")
    if is_tmx(path):
        if languages is None:
            raise InputError(f"{path}: a translation memory needs `languages`, such as en-de.")
        return open_memory(path, languages, inline_tags or "drop")
    if languages is not None or inline_tags is not None:
        rule = "`languages` and `inline_tags` belong to a translation memory, *.tmx"
        raise InputError(f"{rule}. Received: {path}.")
    return path if header is None else PairTable(path, header)


def iterate_pairs(
    source: str | os.PathLike | PairFile,
    target: str | os.PathLike | None = None,
    *,
    lenient: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yields pairs of lines of two aligned files, of columns of one table, or of a `PairFile`.

    Args:
        source: Path of the source lines, or of the two-column file when `target` is None, TSV or
            CSV; or a `PairFile`, such as a translation memory.
        target: Path of the target lines, aligned with `source`.
        lenient: Whether single lines may be malformed: bytes that are not UTF-8 become U+FFFD, and
            all that follows the first column of a line is its target, with tabs. The first or the
            second line of a two-column file has two columns nevertheless. In a memory, characters
            that XML forbids become U+FFFD.

    Raises:
        InputError: See `read_lines` and `PairTable`; or the line counts differ; or a line of the
            two-column file does not have exactly two columns.
    """
    if isinstance(source, PairFile):
        yield from source.pairs(lenient)
        return
    if target is None:
        yield from PairTable(source).pairs(lenient)
        return
    errors = "replace" if lenient else "strict"
    sides = [iterate_lines(path, errors=errors) for path in (source, target)]
    for number, (sentence, translation) in enumerate(itertools.zip_longest(*sides)):
        if sentence is None or translation is None:
            counts = [number + (line is not None) for line in (sentence, translation)]
            counts = [count + len(list(side)) for count, side in zip(counts, sides, strict=True)]
            raise InputError(
                "Aligned files must have the same number of lines. Received: "
                f"{source} with {counts[0]} lines, {target} with {counts[1]} lines."
            )
        yield sentence, translation


def read_pairs(
    source: str | os.PathLike | PairFile, target: str | os.PathLike | None = None
) -> tuple[list[str], list[str]]:
    """Reads all pairs of files as two lists, sources and targets; see `iterate_pairs`."""
    sources, targets = zip(*iterate_pairs(source, target), strict=True)
    return list(sources), list(targets)


class EncodedPairs:
    """Tokenized pairs: one flat int32 array per side, divided by offsets.

    Source ids include EOS, as the encoder reads them. Target ids have neither BOS nor EOS: a batch
    puts BOS before the decoder's input and EOS after its expected output.

    Args:
        source_flat: int32 `(source tokens,)`, all source sentences concatenated.
        source_offsets: int64 `(pairs + 1,)`; pair `i` is `flat[offsets[i] : offsets[i + 1]]`.
        target_flat: int32 `(target tokens,)`.
        target_offsets: int64 `(pairs + 1,)`.
        lines: int64 `(pairs,)`, the line of each pair in its files, from 1. Default: 1, 2, 3, …
        corpora: Number of pairs of each corpus by its name, in their order; by default one corpus
            without a name.

    Most callers use `encode_pairs` or `EncodedPairs.from_lists`.
    """

    def __init__(
        self,
        source_flat: np.ndarray,
        source_offsets: np.ndarray,
        target_flat: np.ndarray,
        target_offsets: np.ndarray,
        lines: np.ndarray | None = None,
        corpora: Mapping[str, int] | None = None,
    ):
        self.source_flat, self.source_offsets = source_flat, source_offsets
        self.target_flat, self.target_offsets = target_flat, target_offsets
        self.lines = np.arange(1, len(self) + 1) if lines is None else lines
        self.corpora = {"": len(self)} if corpora is None else dict(corpora)

    @classmethod
    def from_lists(
        cls, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]]
    ) -> "EncodedPairs":
        """Makes pairs from your own ids.

        Args:
            source_ids: One sequence of ids per pair, EOS included if the encoder should read it.
            target_ids: One sequence of ids per pair, without BOS and EOS.

        Raises:
            InputError: The counts differ, there is no pair, a side is empty, or an id is not
                a positive integer (0 is padding, which is masked).
        """
        if len(source_ids) != len(target_ids) or not len(source_ids):
            raise InputError(
                "Both sides need the same number of sequences, at least one. "
                f"Received: {len(source_ids)} sources, {len(target_ids)} targets."
            )
        return cls(*_flatten_checked("source", source_ids), *_flatten_checked("target", target_ids))

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    def of_corpus(self, name: str) -> "EncodedPairs":
        """Returns the pairs of one corpus, as a view of the same arrays."""
        sizes = list(self.corpora.values())
        index = list(self.corpora).index(name)
        start, size = sum(sizes[:index]), sizes[index]
        source, target = (
            offsets[start : start + size + 1]
            for offsets in (self.source_offsets, self.target_offsets)
        )
        lines = self.lines[start : start + size]
        return EncodedPairs(self.source_flat, source, self.target_flat, target, lines)

    def source(self, index: int) -> np.ndarray:
        """Returns int32 ids of one source sentence, EOS included."""
        return self.source_flat[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> np.ndarray:
        """Returns int32 ids of one target sentence, without BOS and EOS."""
        return self.target_flat[self.target_offsets[index] : self.target_offsets[index + 1]]

    @property
    def source_lengths(self) -> np.ndarray:
        """Numbers of source ids, int32 `(pairs,)`, including EOS."""
        return np.diff(self.source_offsets).astype(np.int32)

    @property
    def target_lengths(self) -> np.ndarray:
        """Numbers of target ids, int32 `(pairs,)`, without BOS and EOS."""
        return np.diff(self.target_offsets).astype(np.int32)

    @property
    def lengths(self) -> np.ndarray:
        """Numbers of columns that each pair needs in a batch, int32 `(pairs,)`."""
        return np.maximum(self.source_lengths, self.target_lengths + 1)


def _flatten_checked(side, rows):
    for number, row in enumerate(rows, start=1):
        if not _are_ids(row):
            raise InputError(
                f"The {side} of pair {number} must be a non-empty list of positive integers "
                f"(0 is padding, {EOS_ID} ends a sentence). Received: {str(row):.80}."
            )
    flat = np.concatenate([np.asarray(row, np.int32) for row in rows])
    return flat, offsets_of([len(row) for row in rows])


def _are_ids(row):
    try:
        ids = np.asarray(row)
    except ValueError:  # lists of different lengths inside
        return False
    is_list_of_ids = ids.ndim == 1 and ids.size > 0 and ids.dtype.kind in "iu"
    return is_list_of_ids and PAD_ID < ids.min() and ids.max() <= np.iinfo(np.int32).max


def offsets_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the offsets of sequences of these lengths in a flat array, int64 `(count + 1,)`."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def are_first(chunks: list[np.ndarray]) -> np.ndarray:
    """Returns True for the first occurrence of each number, and empties `chunks`."""
    values = np.concatenate(chunks)
    chunks.clear()
    # Not `np.unique`, whose copies would double the memory that a large corpus needs.
    order = np.argsort(values, kind="stable")
    values, first = values[order], np.ones(len(values), bool)
    first[order[1:][values[1:] == values[:-1]]] = False
    return first


NO_HASHES = np.zeros(0, np.uint64)
"""No result of `pair_hashes`."""


def are_among(values: np.ndarray, sorted_values: np.ndarray) -> np.ndarray:
    """Returns True for each number that is among sorted numbers."""
    if not len(sorted_values):
        return np.zeros(len(values), bool)
    indices = np.searchsorted(sorted_values, values)
    return sorted_values[np.minimum(indices, len(sorted_values) - 1)] == values


def pair_hashes(pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """Returns hashes of 64 bits, uint64 `(pairs,)`, which depend on where the sources end."""
    return np.array([pair_hash(*pair) for pair in pairs], np.uint64)


def pair_hash(source: str, target: str) -> int:
    """Returns a hash of 64 bits of a pair, which depends on where the source ends."""
    sides = source.encode("utf-8"), target.encode("utf-8")
    content = b"%d %b%b" % (len(sides[0]), *sides)
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
