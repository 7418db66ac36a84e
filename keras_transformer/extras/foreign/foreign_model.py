"""Model of another program, as the readers of this package give it."""

import collections
import functools
import math
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.extras.foreign.vocabulary import Vocabulary
from keras_transformer.text.languages import Languages
from keras_transformer.text.shortlist import Shortlist

_MAX_RUNS = 16  # of consecutive ids, each of which is read by itself
_HALF_PRECISION = (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16))


def inverted(names: Mapping[Any, str]) -> dict[str, Any]:
    """Returns another program's names by this package's names, from the inverse table.

    Of two names of the program, the first is written. Keras has two names of `silu`.
    """
    ours = {}
    for theirs, name in names.items():
        ours.setdefault(name, theirs)
    return {**ours, "swish": ours["silu"]}


class FileArray:
    """Array of a file, which is read whenever NumPy needs its numbers.

    So memory holds the numbers of one tensor at a time, and no file stays open.

    Args:
        shape: Shape of the array in the file.
        read: Function that reads it.
        read_rows: Function that reads the rows from one index up to another one, where the file
            allows that.
        dtype: Dtype of the numbers.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        read: Callable[[], np.ndarray],
        read_rows: Callable[[int, int], np.ndarray] | None = None,
        dtype: Any = "float32",
    ):
        self.shape, self._read, self._read_rows = shape, read, read_rows
        self.dtype = np.dtype(dtype)

    @classmethod
    def at(cls, path: Path, dtype: Any, offset: int, shape: tuple[int, ...]) -> "FileArray":
        """Returns the array of consecutive numbers from an offset in bytes on."""
        count = math.prod(shape)
        return cls(
            shape,
            lambda: np.fromfile(path, dtype, count, offset=offset).reshape(shape),
            None,
            dtype,
        )

    def changed(
        self, function: Callable[[np.ndarray], np.ndarray], dtype: Any = "float32"
    ) -> "FileArray":
        """Returns the array, of a dtype, that a function makes of this array when it is read."""
        return FileArray(self.shape, lambda: function(self._read()), None, dtype)

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of ids in their order; reads few others."""
        if self._read_rows is None or not len(ids):
            return np.asarray(self)[ids]
        ends = np.flatnonzero(np.diff(ids) != 1) + 1
        if len(ends) > _MAX_RUNS:
            first = int(ids.min())
            return self._read_rows(first, int(ids.max()) + 1)[ids - first]
        runs = np.split(ids, ends)
        return np.concatenate([self._read_rows(int(r[0]), int(r[-1]) + 1) for r in runs])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(), dtype)


class TensorRows:
    """Rows of a tensor: float32, or half precision, by an array of indices.

    Args:
        shape: Shape of the tensor.
        read: Function from indices to rows.
    """

    def __init__(self, shape: tuple[int, ...], read: Callable[[np.ndarray], np.ndarray]):
        self.shape, self._read = shape, read

    def __getitem__(self, ids: np.ndarray) -> np.ndarray:
        return self._read(ids)


class Tensors:
    """Tensors of a file by name; each must be used exactly once.

    Args:
        arrays: Arrays by their names in Marian; matrices `(inputs, outputs)`.
        file: The file, for errors.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray | FileArray], file: Any):
        self.arrays, self.file = dict(arrays), file

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def get(self, name: str, default: np.ndarray | None = None) -> np.ndarray:
        """Removes a tensor and returns it as float32; half precision stays.

        Raises `InputError` for a missing tensor.
        """
        array = self.arrays.pop(name, default)
        if array is None:
            raise InputError(f"{self.file}: the model has no tensor {name}.")
        return self._numbers(name, lambda: np.asarray(array))

    def get_rows(self, name: str) -> "TensorRows":
        """Removes a tensor and returns its rows, which are read where they are needed."""
        array = self.arrays.pop(name, None)
        if array is None:
            raise InputError(f"{self.file}: the model has no tensor {name}.")
        read = functools.partial(operator.getitem, array)
        return TensorRows(array.shape, lambda ids: self._numbers(name, lambda: read(ids)))

    def _numbers(self, name, read):
        try:
            numbers = np.asarray(read())
            return numbers if numbers.dtype in _HALF_PRECISION else np.asarray(numbers, "float32")
        except (ValueError, TypeError) as error:
            rule = f"{self.file}: a tensor must have numbers"
            raise InputError(f"{rule}. Received: {name}: {error!s:.100}.") from None

    @property
    def dtype(self) -> str:
        """The dtype of most numbers: one of 16 bits, otherwise "float32"."""
        counts: collections.Counter = collections.Counter()
        for array in self.arrays.values():
            counts[np.dtype(array.dtype)] += math.prod(array.shape)
        ((dtype, _),) = counts.most_common(1) or [(None, 0)]
        return str(dtype) if dtype in _HALF_PRECISION else "float32"

    @property
    def count(self) -> int:
        """Number of all weights."""
        return sum(math.prod(array.shape) for array in self.arrays.values())

    @property
    def tied_embeddings(self) -> str:
        """The value of `tie_embeddings` for a model with these tensors."""
        if {"decoder_ff_logit_out_W", "decoder_ff_logit_out_Wt"} & set(self.arrays):
            return "none"
        return "all" if "Wemb" in self.arrays else "decoder"

    def rows(self, side: str) -> int:
        """Returns the number of rows of the embeddings of a side, `"encoder"` or `"decoder"`."""
        name = "Wemb" if "Wemb" in self.arrays else f"{side}_Wemb"
        if name not in self.arrays:
            raise InputError(f"{self.file}: the model has no tensor {name}.")
        return (*self.arrays[name].shape, 0)[0]

    def check_all_used(self) -> None:
        """Raises `InputError` for a tensor that no layer of this package has."""
        for name in sorted(self.arrays):
            rule = "a `Transformer` has no weight for the tensor"
            raise InputError(f"{self.file}: {rule} {name:.80}.")


def check_heads(width: int, heads: int, where: Any) -> None:
    """Raises `InputError` for a width that has no sinusoids, or that the heads cannot share."""
    if width % 2 or not heads or width % heads:
        rule = f"the width must be even, and a multiple of the {heads} heads"
        raise InputError(f"{where}: {rule}. Received: {width}.")


class ForeignModel(NamedTuple):
    """Model of another program, read from its folder.

    Attributes:
        fields: Fields of the `TransformerConfig`, without sizes and tying of vocabularies.
        tensors: Weights by Marian's names.
        vocabularies: Vocabularies of the source and of the target.
        decoding: Options of `Translator.translate`.
        limits: Options of the engine that limit lengths.
        notes: Lines for the user.
        shortlist: Shortlist of this package's ids, or None.
        languages: Languages of a model whose tokens are not tags, or None.
    """

    fields: dict[str, Any]
    tensors: Tensors
    vocabularies: list[Vocabulary]
    decoding: dict[str, Any]
    limits: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    shortlist: Shortlist | None = None
    languages: Languages | None = None
