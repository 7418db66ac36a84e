"""Shortlist: the target tokens that each source token is likely to become.

With a shortlist a search computes the logits of these tokens only, instead of the vocabulary's.
The file is one array of NumPy's format, so that programs without this package can read it. It has
two sizes F and S, S counts, and F ids of candidates of every sentence. The candidates of source id
0, of source id 1, and so on, follow in rising order.

References: Devlin 2017, section 5.3 (D17-1300); Junczys-Dowmunt et al. 2018 (W18-2716).
"""

import io
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from keras_transformer.base.files import write_whole
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.reading import reading_errors

LIST_SIZES = (256, 512, 1024, 2048, 4096)
"""Sizes that the candidates of a batch are padded to; larger ones to further powers of two."""
_ALWAYS = (PAD_ID, BOS_ID, EOS_ID, UNK_ID)


class Shortlist:
    """Candidates of each source token, and candidates of every sentence.

    Args:
        frequent: Ids of target tokens that are candidates of every sentence. The ids of padding,
            BOS, EOS and `<unk>` are added.
        candidates: For each source id the ids of target tokens.
    """

    def __init__(self, frequent: Iterable[int], candidates: Sequence[Sequence[int] | np.ndarray]):
        self.frequent = np.unique([*_ALWAYS, *frequent]).astype("int32")
        rows = [np.asarray(ids, "int64") for ids in candidates]
        sources = np.repeat(np.arange(len(rows)), [len(ids) for ids in rows])
        targets = np.concatenate([np.zeros(0, "int64"), *rows])
        # One sort, not `np.unique`, which takes 20 times as long.
        keys = np.sort((sources << 32) + targets)
        sources, targets = np.divmod(keys[np.diff(keys, prepend=-1) > 0], 1 << 32)
        self._ids = targets.astype("int32")
        self._ends = np.searchsorted(sources, np.arange(len(rows) + 1))

    @property
    def source_vocabulary_size(self) -> int:
        """Number of source ids that have candidates; further ones have none."""
        return len(self._ends) - 1

    @property
    def largest_id(self) -> int:
        """The largest id of a target token."""
        return int(max(self.frequent.max(), self._ids.max(initial=0)))

    @property
    def candidates(self) -> list[np.ndarray]:
        """Candidates of each source id."""
        return np.split(self._ids, self._ends[1:-1]) if self.source_vocabulary_size else []

    def candidates_of(
        self, source_ids: Iterable[int], additional: Iterable[int] = ()
    ) -> np.ndarray:
        """Returns the candidates of a sentence, int32 in rising order without repetition.

        Args:
            source_ids: Ids of the sentence.
            additional: Further candidates, such as the tokens of a target prefix.
        """
        ends, size = self._ends, self.source_vocabulary_size
        rows = [self._ids[ends[id] : ends[id + 1]] for id in {*source_ids} if id < size]
        return _distinct([self.frequent, *rows, np.array([*additional], "int32")])

    def largest_size(self, num_tokens: int) -> int:
        """Returns the largest number of candidates that a sentence of `num_tokens` may have."""
        longest_first = np.sort(np.diff(self._ends))[::-1]
        size = len(self.frequent) + int(longest_first[:num_tokens].sum())
        return min(size, self.largest_id + 1)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the file, of numbers of two bytes where they are enough."""
        counts = np.diff(self._ends)
        sizes = [len(self.frequent), len(counts)]
        values = np.concatenate([sizes, counts, self.frequent, self._ids])
        dtype = "<u2" if values.max() < 2**16 else "<u4"
        content = io.BytesIO()  # To a file, `np.save` would not report each full disk.
        np.save(content, values.astype(dtype), allow_pickle=False)
        write_whole(path, content.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Shortlist":
        """Reads a file; raises `InputError` if it is missing or not a shortlist."""
        with reading_errors(path, "a shortlist, one array of integers"):
            return cls.from_bytes(pathlib.Path(path).read_bytes())

    @classmethod
    def from_bytes(cls, content: bytes) -> "Shortlist":
        """Reads the content of a file; raises `ValueError` or NumPy's errors if it is another."""
        values = np.load(io.BytesIO(content), allow_pickle=False)
        if values.dtype.kind not in "iu" or values.ndim != 1:
            raise ValueError(f"the array has the shape {values.shape} and is {values.dtype}")
        if values.min() < 0 or values.max() >= 1 << 31:
            raise ValueError("an integer is negative or above 2,147,483,647")
        values = values.astype("int64")
        num_frequent, num_sources = values[:2]
        counts, frequent, ids = np.split(values[2:], np.cumsum([num_sources, num_frequent]))
        if len(counts) != num_sources or len(ids) != counts.sum():
            raise ValueError(f"{counts.sum()} candidates are counted, {len(ids)} are there")
        return cls(frequent, np.split(ids, np.cumsum(counts))[:-1])


def union_of(
    lists: Sequence[np.ndarray], rows: int, padded_size: Callable[[int], int]
) -> tuple[np.ndarray, np.ndarray]:
    """Joins the candidates of the sentences of a batch.

    Args:
        lists: For each sentence ids, int32 in rising order.
        rows: Number of rows of the batch; further rows have no candidates.
        padded_size: Function from the number of ids to the size that they are padded to.

    Returns:
        The union, int32 `(count,)` in rising order, padded with 0; and bool `(rows, count)`, True
        for the candidates of a sentence.
    """
    union = _distinct(lists)
    count = padded_size(len(union))
    mask = np.zeros((rows, count), "bool")
    for row, ids in enumerate(lists):
        mask[row, np.searchsorted(union, ids)] = True
    return np.pad(union, (0, count - len(union))), mask


def _distinct(lists):
    """Returns the ids of lists in rising order; `np.unique` takes four times as long."""
    ids = np.sort(np.concatenate(lists))
    return ids[np.diff(ids, prepend=-1) > 0].astype("int32")


def compiled_size(count: int, vocabulary_size: int, least: int = LIST_SIZES[0]) -> int:
    """Returns the size of a list of `count` candidates for programs that are compiled by size."""
    size = 1 << (max(count, least, LIST_SIZES[0]) - 1).bit_length()
    return min(size, vocabulary_size)
