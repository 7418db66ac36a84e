"""Reads PyTorch's pickled weights as data: nothing that a file names is imported or called.

A stack machine knows the opcodes and names that `torch.save` writes for a dict of tensors. Any
other opcode or name is an error. Only the numbers of a tensor that lies within its storage are
read, so that memory is bounded by the size of the file.
"""

import math
import mmap
import pickletools
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError, first_line
from keras_transformer.importing.weights import BFLOAT16, mapped_array
from keras_transformer.options import received
from keras_transformer.reading import check_file

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_LEGACY_START = b"\x80\x02\x8a\x0a" + _MAGIC.to_bytes(10, "little")
_MAX_PICKLE = 1 << 22  # bytes; 300 tensors take 60,000
_BLOCK = 1 << 20
_DTYPES = {
    "Float": np.dtype("<f4"),
    "Double": np.dtype("<f8"),
    "Half": np.dtype("<f2"),
    "BFloat16": BFLOAT16,
    "Long": np.dtype("<i8"),
    "Int": np.dtype("<i4"),
    "Char": np.dtype("i1"),
    "Byte": np.dtype("u1"),
    "Bool": np.dtype("?"),
}


class _Storage(NamedTuple):
    """Numbers of a file, which several tensors may share."""

    dtype: np.dtype
    key: str
    size: int


class _Tensor(NamedTuple):
    """A view of a storage; the offset and the strides are counted in numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Reads the tensors of a file of `torch.save`, in the zip layout or the legacy stream.

    Arrays are views of the file. Numbers of the type bfloat16 have the dtype `BFLOAT16`.

    Raises:
        InputError: The file is missing, damaged, or holds anything but tensors by their names.
    """
    check_file(path)
    try:
        with open(path, "rb") as file:
            is_legacy = file.read(len(_LEGACY_START)) == _LEGACY_START
        state, storages = _read_legacy(path) if is_legacy else _read_zip(path)
        for name in ("model", "state_dict"):  # as checkpoints of a training have it
            if isinstance(state, dict) and isinstance(state.get(name), dict):
                state = state[name]
        if not isinstance(state, dict) or not state:
            raise ValueError("expected a dict of names to tensors")
        return {name: _array(name, tensor, storages) for name, tensor in state.items()}
    except InputError:
        raise
    except Exception as error:  # Any byte of a damaged file may be wrong.
        reason = f"{first_line(error):.200}"
        raise InputError(f"{path}: cannot be read as weights of PyTorch: {reason}.") from None


def _array(name, tensor, storages: Mapping[str, np.ndarray]):
    """Returns a tensor as a view of its storage's numbers."""
    if not isinstance(name, str) or not isinstance(tensor, _Tensor):
        kind = type(tensor).__name__
        raise ValueError(f"expected names with tensors, not {received(name)} with a {kind}")
    numbers = storages[tensor.storage.key]
    offset, *steps = (number * numbers.itemsize for number in (tensor.offset, *tensor.strides))
    return np.ndarray(tensor.shape, numbers.dtype, numbers, offset, steps)


def _read_zip(path):
    """Returns the state and the storages of a zip archive."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
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
        machine = _Machine(archive.read(pickles[0]), 0, path)
        state, storages = machine.load(), {}
        _check_sizes(machine.storages, size)
        for key, storage in machine.storages.items():
            entry = entries.get(f"{root}data/{key}")
            if entry is None or entry.file_size != storage.size * storage.dtype.itemsize:
                raise ValueError(f"the storage {key:.80} has another size than its entry")
            with archive.open(entry) as content:
                while content.read(_BLOCK):  # The module compares the checksum.
                    pass
            file.seek(entry.header_offset + 26)
            start = entry.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
            storages[key] = mapped_array(path, storage.dtype, start, (storage.size,))
        return state, storages


def _read_legacy(path):
    """Returns the state and the storages of a legacy stream: five pickles, then the numbers."""
    storages = {}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        values, position = [], 0
        for _ in range(5):
            machine = _Machine(data, position, path)
            values.append(machine.load())
            position = machine.position
            if len(values) == 4:
                records = machine.storages
        magic, protocol, system, state, keys = values
        if magic != _MAGIC or protocol != _PROTOCOL or system.get("little_endian") is not True:
            raise ValueError(f"expected the protocol {_PROTOCOL} with little-endian numbers")
        _check_sizes(records, len(data) - position)
        if not isinstance(keys, list) or any(type(key) is not str for key in keys):
            raise ValueError("expected a list of storages")
        if sorted(keys) != sorted(records):
            raise ValueError("the list of storages has other storages than the state")
        for key in keys:
            dtype, _, count = records[key]
            if struct.unpack_from("<q", data, position) != (count,):
                raise ValueError(f"the storage {key:.80} has another size than its record")
            storages[key] = mapped_array(path, dtype, position + 8, (count,))
            position += 8 + count * dtype.itemsize
        if position > len(data):
            raise ValueError("the file ends too early")
    return state, storages


def _check_sizes(storages, size):
    if sum(count * dtype.itemsize for dtype, _, count in storages.values()) > size:
        raise ValueError("the storages are larger than the file")


# Opcodes by their byte. Protocol 2 of Python's module `pickletools` describes each.
_VALUES: dict[int, Any] = {
    ord("N"): lambda: None,
    0x88: lambda: True,
    0x89: lambda: False,
    ord("}"): dict,
    ord("]"): list,
    ord(")"): tuple,
}
_NUMBERS = {ord("J"): "<i", ord("K"): "<B", ord("M"): "<H", ord("G"): ">d"}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_PUT = {ord("q"): "<B", ord("r"): "<I"}
_GET = {ord("h"): "<B", ord("j"): "<I"}


class _Machine:
    """Runs the opcodes of one pickle on a stack of plain values, storages and tensors.

    Attributes:
        position: Position of the next byte; after `load`, that of the byte after the pickle.
        storages: Storages that the pickle names, by their keys.
    """

    def __init__(self, data: Any, position: int, path: Path):
        self.position, self.storages = position, {}
        self._data, self._path = data, path
        self._end = min(len(data), position + _MAX_PICKLE)
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}  # A dict: an index of any size takes one entry.

    def load(self) -> Any:
        """Returns the value of the pickle."""
        while (code := self._take(1)[0]) != ord("."):
            self._run(code)
        (value,) = self._stack
        return value

    def _run(self, code):
        stack, memo = self._stack, self._memo
        if code in _VALUES:
            stack.append(_VALUES[code]())
        elif code in _NUMBERS:
            stack.append(self._number(_NUMBERS[code]))
        elif code == ord("X"):
            stack.append(self._take(self._number("<I")).decode())
        elif code == 0x8A:
            stack.append(int.from_bytes(self._take(self._number("<B")), "little", signed=True))
        elif code in _PUT:
            memo[self._number(_PUT[code])] = stack[-1]
        elif code in _GET:
            stack.append(memo[self._number(_GET[code])])
        elif code == ord("("):
            self._marks.append(len(stack))
        elif code == ord("t") or code in _TUPLES:
            stack.append(tuple(self._pop(_TUPLES.get(code))))
        elif code in b"su":
            self._set_items(self._pop(2 if code == ord("s") else None))
        elif code in b"ae":
            values = self._pop(1 if code == ord("a") else None)
            self._top(list).extend(values)
        elif code == ord("c"):
            stack.append(self._name(f"{self._line()}.{self._line()}"))
        elif code == ord("R"):
            function, arguments = self._pop(2)
            stack.append(self._called(function, arguments))
        elif code == ord("Q"):
            stack.append(self._storage(*self._pop(1)))
        elif code == ord("b"):  # The attributes of a dict or of a parameter mean nothing here.
            self._pop(1)
            self._top(dict, _Tensor)
        elif code != 0x80 or self._number("<B") != 2:
            opcode = pickletools.code2op.get(chr(code))
            self._refuse(f"the opcode {opcode.name if opcode else hex(code)}")

    def _refuse(self, thing):
        rule = "a pickle may hold only tensors, and may run any code, so that it is not opened"
        raise InputError(f"{self._path}: {rule}. Received: {thing}.")

    def _take(self, count):
        start, self.position = self.position, self.position + count
        if self.position > self._end:
            raise EOFError("the pickle ends too early")
        return self._data[start : self.position]

    def _number(self, form):
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self):
        end = self._data.find(b"\n", self.position, min(self._end, self.position + 200))
        if end < 0:
            raise ValueError("a name in the pickle has no end")
        return self._take(end + 1 - self.position)[:-1].decode()

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

    def _name(self, name):
        kind = name.removeprefix("torch.").removesuffix("Storage")
        if name == f"torch.{kind}Storage" and kind in _DTYPES:
            return _DTYPES[kind]
        if name == "torch.Tensor" or name in _FUNCTIONS:
            return _Name(name)
        return self._refuse(f"the name {name!r:.200}")

    def _called(self, function, arguments):
        if not isinstance(function, _Name) or function.name not in _FUNCTIONS:
            self._refuse("a call of something else than a function of PyTorch's tensors")
        return _FUNCTIONS[function.name](*arguments)

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


class _Name(NamedTuple):
    """A name of `_FUNCTIONS`, or that of PyTorch's class of tensors."""

    name: str


def _tensor(storage, offset, shape, strides, *_):
    """Makes a tensor that lies within its storage and has no more numbers than the storage."""
    sizes_are_tuples = type(shape) is type(strides) is tuple and len(shape) == len(strides) <= 8
    if not isinstance(storage, _Storage) or not sizes_are_tuples:
        raise ValueError("expected a tensor with its storage")
    if any(type(number) is not int or number < 0 for number in (offset, *shape, *strides)):
        raise ValueError("a tensor has a wrong size or stride")
    steps = ((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    count = math.prod(shape)
    last = offset + sum(steps) if count else offset - 1
    if count > storage.size or last >= storage.size:
        raise ValueError("a tensor is larger than its storage")
    return _Tensor(storage, offset, shape, strides)


def _only_tensor(tensor, *_):
    if not isinstance(tensor, _Tensor):
        raise ValueError("expected a parameter with its tensor")
    return tensor


def _of_type(function, _, arguments, *__):
    if function != _Name("torch._utils._rebuild_tensor_v2"):
        raise ValueError("expected a tensor of a known function")
    return _tensor(*arguments)


# Functions of this module for the names that PyTorch writes; each only makes a record.
_FUNCTIONS: dict[str, Any] = {
    "collections.OrderedDict": lambda: {},
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _only_tensor,
    "torch._utils._rebuild_parameter_with_state": _only_tensor,
    "torch._tensor._rebuild_from_type_v2": _of_type,
}
