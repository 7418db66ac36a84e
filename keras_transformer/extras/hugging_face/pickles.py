"""Reads PyTorch's pickled weights as data: nothing that a file names is imported or called.

A stack machine knows the opcodes and names that `torch.save` writes for a dict of tensors. Any
other opcode or name is an error. Only the numbers of a tensor that lies within its storage are
read, so that memory is bounded by the size of the file.

`pickle.Unpickler` with a table of names would not be enough. Its `BUILD` sets attributes of the
table's functions, and it hashes keys: a key of many nested tuples ends the process.
"""

import io
import math
import pickletools
import struct
import types
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.base.reading import reading_errors
from keras_transformer.extras.foreign.foreign_model import FileArray

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_LEGACY_START = b"\x80\x02\x8a\x0a" + _MAGIC.to_bytes(10, "little")
_MAX_PICKLE = 1 << 22  # bytes; 300 tensors take 60,000
_BLOCK_BYTES = 1 << 20


class _Storage(NamedTuple):
    """Numbers of a file, which several tensors may share."""

    dtype: np.dtype
    key: str
    size: int

    @property
    def bytes(self):
        return self.size * self.dtype.itemsize


class _Tensor(NamedTuple):
    """A view of a storage; the offset, the strides and the span are counted in numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    span: int

    def read(self, path, start):
        """Reads the numbers from the first to the last of the tensor."""
        dtype = self.storage.dtype
        numbers = np.fromfile(path, dtype, self.span, offset=start + self.offset * dtype.itemsize)
        # A stride of an axis with one number may be any number.
        sizes = zip(self.shape, self.strides, strict=True)
        steps = [stride * dtype.itemsize if size > 1 else 0 for size, stride in sizes]
        return np.ndarray(self.shape, dtype, numbers, 0, steps)


def read_state(path: Path) -> dict[str, FileArray]:
    """Reads the tensors of a file of `torch.save`, in the zip layout or the legacy stream.

    Raises:
        InputError: The file is missing, damaged, or holds anything but tensors by their names.
    """
    with reading_errors(path, "weights of PyTorch"), open(path, "rb") as file:
        is_legacy = file.read(len(_LEGACY_START)) == _LEGACY_START
        state, starts = (_read_legacy if is_legacy else _read_zip)(path, file)
        for name in ("model", "state_dict"):  # as checkpoints of a training have it
            if isinstance(state, dict) and isinstance(state.get(name), dict):
                state = state[name]
        if not isinstance(state, dict) or not state:
            raise ValueError("expected a dict of names to tensors")
        return {name: _array(name, tensor, path, starts) for name, tensor in state.items()}


def _array(name, tensor, path, starts: dict[str, int]):
    if not isinstance(name, str) or not isinstance(tensor, _Tensor):
        kind = type(tensor).__name__
        raise ValueError(f"expected names with tensors, not {received(name)} with a {kind}")
    start = starts[tensor.storage.key]
    dtype = tensor.storage.dtype
    return FileArray(tensor.shape, lambda: tensor.read(path, start), None, dtype)


def _read_zip(path, file):
    """Returns the state of a zip archive, and where each storage starts in the file."""
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        pickles = [name for name in entries if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("expected one entry data.pkl in the archive")
        root = pickles[0].removesuffix("data.pkl")
        for entry in entries.values():
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise ValueError(f"the entry {entry.filename:.80} is compressed")
        if entries[pickles[0]].file_size > _MAX_PICKLE:
            raise ValueError(f"the pickle has more than {_MAX_PICKLE} bytes")
        order = root + "byteorder"
        if order in entries and (entries[order].file_size, archive.read(order)) != (6, b"little"):
            raise ValueError("the numbers are not little-endian")
        machine = _Machine(path)
        state, starts = machine.load(io.BytesIO(archive.read(pickles[0]))), {}
        _check_sizes(machine.storages, path.stat().st_size)
        for key, storage in machine.storages.items():
            entry = entries.get(f"{root}data/{key}")
            if entry is None or entry.file_size != storage.bytes:
                raise ValueError(f"the storage {key:.80} has another size than its entry")
            with archive.open(entry) as content:
                while content.read(_BLOCK_BYTES):  # The module compares the checksum.
                    pass
            file.seek(entry.header_offset + 26)
            starts[key] = entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
        return state, starts


def _read_legacy(path, file):
    """Returns what `_read_zip` does, of a legacy stream: five pickles, then the numbers."""
    values, position, size = [], 0, path.stat().st_size
    storages, starts = {}, {}
    for _ in range(5):
        file.seek(position)
        machine, content = _Machine(path), io.BytesIO(file.read(_MAX_PICKLE))
        values.append(machine.load(content))
        position += content.tell()
        storages |= machine.storages  # Only the state, which is the fourth, has storages.
    magic, protocol, system, state, keys = values
    if magic != _MAGIC or protocol != _PROTOCOL or system.get("little_endian") is not True:
        raise ValueError(f"expected the protocol {_PROTOCOL} with little-endian numbers")
    _check_sizes(storages, size - position)
    if not isinstance(keys, list) or any(type(key) is not str for key in keys):
        raise ValueError("expected a list of storages")
    if sorted(keys) != sorted(storages):
        raise ValueError("the list of storages has other storages than the state")
    for key in keys:
        file.seek(position)
        if struct.unpack("<q", file.read(8)) != (storages[key].size,):
            raise ValueError(f"the storage {key:.80} has another size than its record")
        starts[key] = position + 8
        position += 8 + storages[key].bytes
    if position > size:
        raise ValueError("the file ends too early")
    return state, starts


def _check_sizes(storages, size):
    if sum(storage.bytes for storage in storages.values()) > size:
        raise ValueError("the storages are larger than the file")


_EMPTY: dict[str, type] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = ("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_TUPLES = {"TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """Runs the opcodes of one pickle on a stack of plain values, storages and tensors.

    Attributes:
        storages: Storages that the pickle names, by their keys.
    """

    def __init__(self, path: Path):
        self.storages: dict[str, _Storage] = {}
        self._path = path
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}  # A dict: an index of any size takes one entry.

    def load(self, content: io.BytesIO) -> Any:
        """Returns the value of the pickle, and moves to its end."""
        for opcode, argument, _ in pickletools.genops(content):
            self._run(opcode.name, argument)
        (value,) = self._stack
        return value

    def _run(self, opcode, argument):
        stack, memo = self._stack, self._memo
        if opcode in _EMPTY:
            stack.append(_EMPTY[opcode]())
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        elif opcode in _ARGUMENTS:
            stack.append(argument)
        elif opcode in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif opcode == "MARK":
            self._marks.append(len(stack))
        elif opcode in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES[opcode])))
        elif opcode in ("SETITEM", "SETITEMS"):
            self._set_items(self._pop(2 if opcode == "SETITEM" else None))
        elif opcode in ("APPEND", "APPENDS"):
            values = self._pop(1 if opcode == "APPEND" else None)
            self._top(list).extend(values)
        elif opcode == "GLOBAL":
            if argument not in _NAMES:
                self._refuse(f"the name {argument.replace(' ', '.')!r:.200}")
            stack.append(_NAMES[argument])
        elif opcode == "REDUCE":
            function, arguments = self._pop(2)
            # Only `_NAMES` has functions.
            if not isinstance(function, types.FunctionType):
                self._refuse("a call of something else than a function of PyTorch's tensors")
            stack.append(function(*arguments))
        elif opcode == "BINPERSID":
            stack.append(self._storage(*self._pop(1)))
        elif opcode == "BUILD":  # The attributes of a dict or of a parameter mean nothing here.
            self._pop(1)
            self._top(dict, _Tensor)
        elif (opcode, argument) not in (("PROTO", 2), ("STOP", None)):
            self._refuse(f"the opcode {opcode}")

    def _refuse(self, thing):
        rule = "a pickle may hold only tensors, and may run any code, so that it is not opened"
        raise InputError(f"{self._path}: {rule}. Received: {thing}.")

    def _pop(self, count):
        """Removes the last values; `count` is None for those after the last mark."""
        lowest = self._marks[-1] if self._marks else 0
        if count is None:
            count = len(self._stack) - self._marks.pop()
        if not 0 <= count <= len(self._stack) - lowest:
            raise ValueError("the pickle takes more values than it has")
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def _top(self, *kinds):
        if not isinstance(self._stack[-1], kinds):
            raise ValueError(f"the pickle changes a {type(self._stack[-1]).__name__}")
        return self._stack[-1]

    def _set_items(self, items):
        pairs = list(zip(items[::2], items[1::2], strict=True))
        # The hash of other keys, such as nested tuples, may take any time.
        if any(type(key) not in (str, int) for key, _ in pairs):
            raise ValueError("the pickle has keys that are not names")
        self._top(dict).update(pairs)

    def _storage(self, record):
        kind, dtype, key, _, count, *views = record
        texts_are_right = kind == "storage" and type(key) is str
        if not texts_are_right or not isinstance(dtype, np.dtype) or views not in ([], [None]):
            raise ValueError("expected a record of a storage")
        if type(count) is not int or count < 0:
            raise ValueError("a storage has a wrong number of numbers")
        storage = _Storage(dtype, key, count)
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError(f"the storage {key:.80} has two sizes or types")
        return storage


def _tensor(storage, offset, shape, strides, *_):
    """Makes a tensor that lies within its storage and has no more numbers than the storage."""
    sizes_are_tuples = type(shape) is type(strides) is tuple and len(shape) == len(strides) <= 8
    if not isinstance(storage, _Storage) or not sizes_are_tuples:
        raise ValueError("expected a tensor with its storage")
    if any(type(number) is not int or number < 0 for number in (offset, *shape, *strides)):
        raise ValueError("a tensor has a wrong size or stride")
    steps = ((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    span = 1 + sum(steps) if math.prod(shape) else 0
    if math.prod(shape) > storage.size or offset + span > storage.size:
        raise ValueError("a tensor is larger than its storage")
    return _Tensor(storage, offset, shape, strides, span)


def _only_tensor(tensor, *_):
    if not isinstance(tensor, _Tensor):
        raise ValueError("expected a parameter with its tensor")
    return tensor


def _of_type(function, _, arguments, *__):
    if function is not _tensor:
        raise ValueError("expected a tensor of a known function")
    return _tensor(*arguments)


# Meaning of the names in a pickle: the type of a storage, or a function that makes a record.
_NAMES: dict[str, Any] = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch DoubleStorage": np.dtype("<f8"),
    "torch HalfStorage": np.dtype("<f2"),
    "torch BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch LongStorage": np.dtype("<i8"),
    "torch IntStorage": np.dtype("<i4"),
    "torch CharStorage": np.dtype("i1"),
    "torch ByteStorage": np.dtype("u1"),
    "torch BoolStorage": np.dtype("?"),
    "torch Tensor": None,
    "collections OrderedDict": lambda: {},
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": _only_tensor,
    "torch._utils _rebuild_parameter_with_state": _only_tensor,
    "torch._tensor _rebuild_from_type_v2": _of_type,
}
