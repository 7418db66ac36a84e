"""Pickles of PyTorch are read as data: right tensors or one line, and never a call."""

import os
import pathlib
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.base.errors import InputError
from keras_transformer.extras.hugging_face.pickles import read_state
from keras_transformer.extras.hugging_face.shards import read_tensors
from keras_transformer.extras.importing.importing import read_model

FOLDER = pathlib.Path(__file__).parents[3] / "data" / "pickles"
LAYOUTS = ("zip", "legacy")
NUMBERS = np.arange(20.0)
EXPECTED = {
    "whole": np.arange(12).reshape(3, 4) / 8,
    "tied": np.arange(12).reshape(3, 4) / 8,
    "with_float16": np.arange(6) / 4,
    "with_bfloat16": np.arange(6).reshape(2, 3) / 4,
    "with_int64": np.arange(5),
    "view": NUMBERS[2:18].reshape(4, 4).T,
    "column": NUMBERS.reshape(4, 5)[:, 1],
}


def check_equal(tensors):
    assert tensors.keys() == EXPECTED.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(np.asarray(tensor, "float32"), EXPECTED[name])
        assert tensor.dtype == np.asarray(tensor).dtype


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_are_those_that_torch_saved(layout):
    check_equal(read_state(FOLDER / f"{layout}.bin"))


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def zipped(pickled, *storages, compression=zipfile.ZIP_STORED):
    def write(path):
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, content in [("data.pkl", pickled), *storages]:
                archive.writestr(f"archive/{name}", content)

    return write


def tensor(count=b"K\x04", shape=b"K\x04\x85", stride=b"K\x01\x85", kind=b"Float", offset=b"K\x00"):
    """The pickle of a dict with one tensor; numbers are opcodes."""
    text = b"X\x01\x00\x00\x00"
    record = b"(X\x07\x00\x00\x00storagectorch\n" + kind + b"Storage\n" + text + b"0"
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n(" + record + text + b"c" + count + b"tQ"
    return b"\x80\x02}" + text + b"w" + rebuild + offset + shape + stride + b"\x89}tRs."


def long(value):
    return b"\x8a\x08" + struct.pack("<q", value)


STORAGE = "data/0", np.arange(4, dtype="<f4").tobytes()
TOUCH = Call(os.system, "touch pickle_was_run")
NESTED = b"\x80\x02" + b"]" * 30_000 + b"a" * 29_999 + b"."
WRONG = {
    "a call": (pickle.dumps({"w": TOUCH}, 2), "the name '(posix|nt).system'"),
    "a call by a new opcode": (pickle.dumps({"w": TOUCH}, 4), "the opcode PROTO"),
    "an instance": (b"\x80\x02(ios\nsystem\n.", "the opcode INST"),
    "a class": (b"\x80\x02cbuiltins\neval\n.", "the name 'builtins.eval'"),
    "a module of ours": (b"\x80\x02ctorch._utils\n_rebuild_meta_tensor_no_storage\n.", "_meta_"),
    "an extension": (b"\x80\x02\x82\x01.", "the opcode EXT1"),
    "a call of a dict": (b"\x80\x02})R.", "a call of something else"),
    "a large view": (tensor(shape=long(2**40) + b"\x85", stride=b"K\x00\x85"), "larger than its"),
    "a view past the end": (tensor(offset=b"K\x01"), "larger than its storage"),
    "a negative stride": (tensor(stride=long(-1) + b"\x85"), "wrong size or stride"),
    "a large storage": (tensor(count=long(2**40)), "storages are larger than the file"),
    "a storage of another size": (tensor(count=b"K\x03", shape=b"K\x03\x85"), "another size"),
    "an unknown type": (tensor(kind=b"Quint8"), "the name 'torch.Quint8Storage'"),
    "a memo of 4 billion": (b"\x80\x02}r\xff\xff\xff\xff.", "a dict of names to tensors"),
    "nested lists": (NESTED, "a dict of names to tensors"),
    "a key that takes long": (b"\x80\x02})" + b"\x86q\x00h\x00" * 60 + b"Ns.", "."),
    "a key that is deep": (b"\x80\x02})" + b"\x85" * 100_000 + b"Ns.", "keys that are not names"),
    "attributes of a function": (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nN}X\x0c\x00\x00\x00__defaults__NNN\x87s\x86b.",
        "changes a function",
    ),
    "a number": (pickle.dumps({"w": 1}, 2), "'w' with a int"),
    "a truncated pickle": (tensor()[:60], "no newline found"),
    "nothing": (b"", "pickle exhausted before"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_pickle_of_anything_else_is_one_line_and_runs_nothing(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    pickled, message = WRONG[case]
    zipped(pickled, STORAGE)(tmp_path / "zip.bin")
    stream = b"".join(pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001))
    system = pickle.dumps({"little_endian": True}, 2)
    (tmp_path / "legacy.bin").write_bytes(stream + system + pickled + pickle.dumps(["0"], 2))
    (tmp_path / "system.bin").write_bytes(stream + pickled)
    for layout in (*LAYOUTS, "system"):
        with pytest.raises(InputError, match=f"{layout}.bin: ") as caught:
            read_state(tmp_path / f"{layout}.bin")
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
        if layout == "zip":
            assert caught.match(message)
    assert not pathlib.Path("pickle_was_run").exists()


HOSTILE_NAMES = ["bomb_legacy", "bomb_storage", "bomb_stride", "index_escapes", "system_legacy"]
HOSTILE_NAMES += ["system_zip", "truncated_pickle", "truncated_zip"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_hostile_folder_is_one_line_and_runs_nothing(tmp_path, monkeypatch, oracle, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"{name}/pytorch_model.bin") as caught:
        read_model(oracle("hostile") / name)
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (zipped(tensor(), STORAGE, compression=zipfile.ZIP_DEFLATED), "data.pkl is compressed"),
        (zipped(tensor()), "the storage 0 has another size than its entry"),
        (zipped(tensor(), STORAGE, ("byteorder", "big")), "not little-endian"),
        (zipped(tensor(), STORAGE, ("x/data.pkl", "")), "expected one entry data.pkl"),
    ],
)
def test_an_archive_that_torch_does_not_write_is_one_line(tmp_path, write, message):
    write(tmp_path / "a.bin")
    with pytest.raises(InputError, match=message):
        read_state(tmp_path / "a.bin")
    zipped(tensor(), STORAGE)(tmp_path / "a.bin")
    np.testing.assert_array_equal(read_state(tmp_path / "a.bin")["w"], np.arange(4))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 899), st.integers(0, 255)), max_size=8
    ),
    size=st.none() | st.floats(0, 1),
)
def test_a_damaged_file_is_an_error_or_has_the_right_tensors(
    tmp_path_factory, layout, changes, size
):
    """A legacy stream has no checksums: its names and numbers may change, its shapes may not."""
    content = (FOLDER / f"{layout}.bin").read_bytes()
    path = tmp_path_factory.getbasetemp() / f"damaged_{layout}.bin"
    pickled = [index for index in range(len(content)) if content[index : index + 2] == b"\x80\x02"]
    starts, damaged = [0, *pickled, len(content) - 400], bytearray(content)
    for start, offset, byte in changes:  # mostly next to the pickles
        damaged[min(len(content) - 1, starts[start % len(starts)] + offset)] = byte
    path.write_bytes(damaged if size is None else damaged[: int(size * len(content))])
    try:
        tensors = read_state(path)
    except InputError as error:
        assert "\n" not in str(error)
        return
    if layout == "zip":
        check_equal(tensors)
    assert all(np.asarray(array).size <= 20 for array in tensors.values())
    assert len(tensors) <= len({array.shape for array in EXPECTED.values()}) + 1


class TestShards:
    """Files with an index, which names the file of each tensor."""

    @pytest.fixture
    def folder(self, tmp_path):
        for layout in LAYOUTS:
            path = tmp_path / f"pytorch_model-{layout}.bin"
            path.write_bytes((FOLDER / f"{layout}.bin").read_bytes())
        return tmp_path

    def write_index(self, folder, files):
        names = ", ".join(f'"{name}": {file}' for name, file in files.items())
        path = folder / "pytorch_model.bin.index.json"
        path.write_text('{"weight_map": {' + names + "}}")

    def test_each_tensor_is_read_from_its_file(self, folder):
        files = [f'"pytorch_model-{layout}.bin"' for layout in LAYOUTS]
        self.write_index(folder, {name: files[i % 2] for i, name in enumerate(EXPECTED)})
        check_equal(read_tensors(folder)[0])

    @pytest.mark.parametrize(
        ("name", "file", "message"),
        [
            ("whole", '"../pytorch_model-zip.bin"', "must be a file of this folder"),
            ("whole", '"/etc/passwd"', "must be a file of this folder"),
            ("whole", '"a\\\\b"', "must be a file of this folder"),
            ("whole", "1", "must be a file of this folder. Received: 1"),
            ("whole", '"pytorch_model-none.bin"', "none.bin: no such file"),
            ("other", '"pytorch_model-zip.bin"', "pytorch_model-zip.bin has no tensor 'other'"),
        ],
    )
    def test_an_index_that_is_wrong_is_one_line(self, folder, name, file, message):
        self.write_index(folder, {name: file})
        with pytest.raises(InputError, match=message):
            read_tensors(folder)
