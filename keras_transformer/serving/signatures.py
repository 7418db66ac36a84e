"""What an artifact takes and gives: signatures, and columns of values as arrays and back."""

import math
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.serving.reporting import answer_too_long

# Bytes that the arrays of outputs may have for each byte of the longest answer: a number has eight,
# and most of them may be padding.
PADDED = 8
_POWERS = np.array([10.0**power for power in range(23)])
# Fewest characters that a number takes in JSON, with what parts it from the next: "0.0, ", "0, ".
_FEWEST = {"f": 5, "i": 3, "u": 3, "b": 3, "O": 4}


class Tensor(NamedTuple):
    """An input or output: TensorFlow's name of its type, and its sizes, None for what may vary."""

    dtype: str
    shape: tuple[int | None, ...]


class Signature(NamedTuple):
    """A function of the artifact.

    Attributes:
        padded: Whether zeros and empty texts at the end of a free axis are padding and nothing
            else, as in the exports of this package.
        definition: `SignatureDef` as TensorFlow Serving writes it in JSON.
    """

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    padded: bool = False
    definition: dict[str, Any] = {}

    @property
    def mixes(self) -> bool:
        """Whether sentences of different requests may be in one batch.

        Where the longest sentence of a batch decides the shape of the others, only padding that
        is known to mean nothing leaves their answers as they are.
        """
        tensors = [*self.inputs.values(), *self.outputs.values()]
        return self.padded or not any(None in tensor.shape[1:] for tensor in tensors)


def read_signatures(graph: Any, padded: bool = False) -> dict[str, Signature]:
    """The signatures of a `MetaGraphDef` whose every input and output is a batch, by name."""
    from google.protobuf import json_format

    # As TensorFlow Serving does: the fields' own names, and those that are empty, too.
    form = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    # Batching divides along the first axis: what has none (`__saved_model_init_op`) is no function
    # that a server can offer.
    return {
        name: Signature(
            _tensors(definition.inputs),
            _tensors(definition.outputs),
            padded,
            json_format.MessageToDict(definition, **form),
        )
        for name, definition in graph.signature_def.items()
        if _are_batches(definition.inputs) and _are_batches(definition.outputs)
    }


def _are_batches(infos):
    shapes = [info.tensor_shape for info in infos.values()]
    return bool(shapes) and all(
        not shape.unknown_rank and shape.dim and shape.dim[0].size < 0 for shape in shapes
    )


def _tensors(infos):
    import tensorflow as tf

    return {
        key: Tensor(
            tf.dtypes.as_dtype(infos[key].dtype).name,
            tuple(None if dim.size < 0 else dim.size for dim in infos[key].tensor_shape.dim),
        )
        for key in sorted(infos)
    }


def to_array(values: list, tensor: Tensor) -> np.ndarray:
    """Values of sentences as one array of the rank of `tensor`.

    A value is a number, bytes, or lists of such; shorter lists are padded with 0, "" or False.
    """
    dtype = object if tensor.dtype == "string" else tensor.dtype
    shape = [len(values)] + [0] * (len(tensor.shape) - 1)
    _widen(values, shape, 1)
    array = np.full(shape, b"" if dtype is object else 0, dtype)
    _fill(array, values)
    return array


def _widen(values, shape, axis):
    if axis < len(shape):
        for value in values:
            shape[axis] = max(shape[axis], len(value))
            _widen(value, shape, axis + 1)


def _fill(array, values):
    if array.ndim == 1:
        array[: len(values)] = values
        return
    for row, value in zip(array, values, strict=False):
        _fill(row, value)


def to_values(array: np.ndarray) -> list | np.ndarray:
    """The rows of an array: Python values, or arrays where a row has axes of its own.

    A float32 becomes the shortest decimal that means it, as TensorFlow Serving writes it: 0.1,
    not 0.10000000149011612.
    """
    if array.dtype == np.float32:
        array = _shortest(array)
    return array.tolist() if array.ndim == 1 else array


def _shortest(array):
    """Float64 whose shortest decimal is that of the float32: `repr` of each, but in few passes."""
    flat = array.ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = flat.astype(np.float64)
        exponents = np.floor(np.log10(np.abs(exact)))
    # A power of ten up to 22 is a float64, so that a product or quotient with it is rounded once.
    is_near = (exponents >= 8 - 22) & (exponents <= 22)
    found, left = exact.copy(), np.nonzero(is_near)[0]
    for digits in (6, 7, 8, 9):  # Any six digits are some float32's, nine tell all of them apart.
        powers = (digits - 1 - exponents[left]).astype(int)
        scales, values = _POWERS[np.abs(powers)], exact[left]
        rounded = np.where(
            powers >= 0, np.rint(values * scales) / scales, np.rint(values / scales) * scales
        )
        good = rounded.astype(np.float32) == flat[left]
        found[left[good]] = rounded[good]
        left = left[~good]
    left = np.concatenate([left, np.nonzero(~is_near & (exact != 0))[0]])
    found[left] = flat[left].astype("U").astype(np.float64)
    return found.reshape(array.shape)


def array_bytes(outputs: dict[str, Any]) -> int:
    """Bytes of the arrays among outputs, whatever their values are in JSON."""
    return sum(getattr(values, "nbytes", 0) for values in outputs.values())


def join(parts: list[dict[str, Any]], signature: Signature, max_bytes: int) -> dict[str, Any]:
    """Puts the sentences of one request together, whichever batches they were in.

    Of an export of this package an axis whose size is not fixed is as long as its batch needed:
    here it becomes what this request needs, so that an answer does not depend on who else was in
    the batch. Of any other model nothing is cut off, because its zeros may mean something.

    Args:
        parts: For each sentence its values, by the name of the output.
        signature: The one that gave them.
        max_bytes: Longest answer in bytes of JSON.

    Returns:
        Lists, or arrays of numbers, by the name of the output.

    Raises:
        Rejection: 413, the answer would certainly be longer than `max_bytes`.
    """
    if not parts:
        return {key: [] for key in signature.outputs}
    columns, shapes = {}, {}
    for key, tensor in signature.outputs.items():
        columns[key] = values = [part[key] for part in parts]
        if len(tensor.shape) > 1:
            columns[key] = values = [
                value if isinstance(value, np.ndarray) else to_array([value], tensor)[0]
                for value in values
            ]
            free = [size is None and signature.padded for size in tensor.shape[1:]]
            needed = [_needed(value, free) for value in values]
            shapes[key] = [max(sizes) for sizes in zip(*needed, strict=True)]
    # For `align`: the matrix is as large as its tokens, whose padding is known for certain.
    tokens = [shapes.get(f"{side}_tokens") for side in ("target", "source")]
    if signature.padded and "alignment" in shapes and all(tokens):
        shapes["alignment"] = [tokens[0][0], tokens[1][0]]
    fewest = (
        len(parts) * math.prod(shape) * _FEWEST.get(columns[key][0].dtype.kind, 3)
        for key, shape in shapes.items()
    )
    if sum(fewest) > max_bytes:
        raise answer_too_long(max_bytes)
    for key, shape in shapes.items():
        columns[key] = _stack(columns[key], shape)
    return columns


def _filler(array):
    return b"" if array.dtype == object else 0


def _needed(array, free):
    """The shape of an array without what stands empty at the end of its free axes."""
    shape = list(array.shape)
    used = array != _filler(array) if any(free) else None
    for axis, is_free in enumerate(free):
        if is_free:
            others = tuple(other for other in range(array.ndim) if other != axis)
            places = np.nonzero(used.any(axis=others))[0]
            shape[axis] = int(places[-1]) + 1 if len(places) else 0
    return shape


def _stack(arrays, shape):
    stacked = np.full((len(arrays), *shape), _filler(arrays[0]), arrays[0].dtype)
    for row, array in zip(stacked, arrays, strict=True):
        places = tuple(slice(min(sizes)) for sizes in zip(shape, array.shape, strict=True))
        row[places] = array[places]
    # --> [sentences, *shape]; texts as a list, as those without axes of their own are.
    return stacked.tolist() if stacked.dtype == object else stacked
