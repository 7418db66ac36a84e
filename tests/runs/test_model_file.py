"""The file of a model: read where it lies, by Keras too, and never with a wrong number."""

import errno
import gc
import io
import math
import os
import pathlib
import threading
import zipfile

import h5py
import keras
import numpy as np
import pytest
from keras import ops
from reference import float64

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.base.errors import InputError
from keras_transformer.layers.half_precision import HalfPrecisionWeights
from keras_transformer.runs import model_file
from keras_transformer.runs.model_file import load_model, save_model, weight_bytes


@pytest.fixture(scope="module")
def model():
    fields = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    fields |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(TransformerConfig(30, **fields))


def check_equal(loaded, model):
    for variable, expected in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), np.asarray(expected))


def test_a_saved_model_is_read_by_this_package_and_by_keras_and_one_of_keras_here(model, tmp_path):
    save_model(model, tmp_path / "ours.keras")
    model.save(tmp_path / "keras.keras")
    for name in ("ours", "keras"):
        check_equal(load_model(tmp_path / f"{name}.keras", compile=False), model)
    check_equal(keras.saving.load_model(tmp_path / "ours.keras"), model)


def test_weights_are_read_where_they_lie(model, tmp_path, monkeypatch):
    """Neither a copy on the disk nor one in memory: the library of HDF5 opens the file itself."""
    save_model(model, tmp_path / "model.keras")
    opened, open_file = [], h5py.File
    monkeypatch.setattr(
        h5py, "File", lambda path, *a, **k: opened.append(path) or open_file(path, *a, **k)
    )
    monkeypatch.chdir(tmp_path)
    check_equal(load_model("model.keras", compile=False), model)
    assert [os.path.basename(path) for path in opened] == ["model.weights.h5"]
    assert not pathlib.Path(opened[0]).exists()  # a link, which is gone
    with zipfile.ZipFile("model.keras") as archive, open_file("model.keras", "r") as weights:
        assert {"config.json", "metadata.json", "model.weights.h5"} == {*archive.namelist()}
        assert archive.testzip() is None and len(weights) > 0
        assert archive.read("model.weights.h5").startswith(b"\x89HDF")


@pytest.mark.parametrize("offset", [0.3, 0.6, 0.9])
def test_a_wrong_byte_in_the_weights_is_one_line(model, tmp_path, offset):
    save_model(model, path := tmp_path / "model.keras")
    content = bytearray(path.read_bytes())
    content[int(offset * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model.keras: cannot be read as a Keras model"):
        load_model(path, compile=False)


def test_a_system_without_links_reads_the_file_as_keras_does(model, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    save_model(model, tmp_path / "model.keras")
    monkeypatch.setattr(model_file.os, "symlink", refuse)
    check_equal(load_model(tmp_path / "model.keras", compile=False), model)


def test_other_files_of_an_archive_have_a_limit(model, tmp_path, monkeypatch):
    save_model(model, path := tmp_path / "model.keras")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("assets/much.txt", bytes(17 << 20))
    extracted, extract_all = [], zipfile.ZipFile.extractall

    def record(archive, folder, members=None):  # Keras extracts other members with it.
        extracted.extend(getattr(member, "filename", member) for member in members or ())
        return extract_all(archive, folder, members)

    monkeypatch.setattr(zipfile.ZipFile, "extractall", record)
    check_equal(load_model(path, compile=False), model)
    assert "model.weights.h5" in extracted  # Keras reads the file, by its own rules.


def test_a_member_with_a_path_outside_stays_inside(model, tmp_path):
    save_model(model, path := tmp_path / "model.keras")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../outside", "x")
    check_equal(load_model(path, compile=False), model)
    assert not (tmp_path.parent / "outside").exists()


@pytest.mark.parametrize(
    ("dtype", "load"),
    [("float16", lambda path: load_model(path, False)), ("bfloat16", keras.saving.load_model)],
)
def test_weights_in_16_bits_take_half_the_file_and_the_memory(model, tmp_path, dtype, load):
    half = type(model)(model.config, dtype=HalfPrecisionWeights(dtype))
    half.set_weights([ops.convert_to_numpy(weight) for weight in model.weights])
    save_model(model, tmp_path / "full.keras")
    save_model(half, tmp_path / "half.keras")
    loaded = load(tmp_path / "half.keras")
    for saved, received in zip(half.weights, loaded.weights, strict=True):
        assert received.dtype == "float16"
        np.testing.assert_allclose(float64(received), float64(saved), atol=3e-8)
    sizes = [weight_bytes(tmp_path / name) for name in ("full.keras", "half.keras")]
    count = sum(math.prod(weight.shape) for weight in model.weights)
    assert sizes[0] - sizes[1] == pytest.approx(2 * count, abs=0.2 * count + 4096)
    assert sizes[1] == (tmp_path / "half.keras").stat().st_size
    assert weight_bytes(tmp_path / "none.keras") == 0


class FailingWrites:
    """Counts writes; the n-th of them fails, or all from there on, the later ones as "full"."""

    def __init__(self):
        self.count, self.failing, self.is_full, self._write = 0, None, False, os.pwrite

    def __call__(self, descriptor, data, start):
        self.count += 1
        if self.count == self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.failing and self.is_full and self.count > self.failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, data, start)


@pytest.fixture
def small_model():
    model = keras.Sequential([keras.layers.Dense(97), keras.layers.Dense(5)])
    model.build((None, 7))
    model.compile("adam")
    model.optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("is_full", [False, True])
def test_each_write_of_weights_that_fails_is_an_error_and_leaves_the_earlier_file(
    small_model, tmp_path, monkeypatch, is_full
):
    """HDF5 itself would end the process, or write a file with wrong numbers.

    A file that it could not close would end the process later, when Python ends.
    """
    path = tmp_path / "model.keras"
    path.write_text("before")
    monkeypatch.setattr(os, "pwrite", writes := FailingWrites())
    save_model(small_model, tmp_path / "other.keras")
    count = writes.count
    assert count > len(small_model.variables) + len(small_model.optimizer.variables)
    writes.is_full, step = is_full, 5 if is_full else 1
    for writes.failing in range(1, count + 1, step):
        writes.count = 0
        with pytest.raises(OSError, match="Input/output error") as caught:
            save_model(small_model, path)
        assert caught.value.filename == str(path)
        assert {*os.listdir(tmp_path)} == {"model.keras", "other.keras"}
        assert h5py.h5f.get_obj_count(types=h5py.h5f.OBJ_FILE) == 0
        assert path.read_text() == "before"


def test_hdf5_reads_what_it_has_written_to_a_part_of_a_file(tmp_path):
    numbers = np.arange(9973)
    with open(tmp_path / "a", "w+b", buffering=0) as file:
        weights = model_file._WeightsFile(file)
        for mode in "w", "r":
            with h5py.File(weights, mode) as opened:
                if mode == "w":
                    opened["a"] = numbers
                np.testing.assert_array_equal(opened["a"], numbers)
        assert weights.error is None


def test_a_disk_that_is_full_anywhere_in_the_file_is_an_error(small_model, tmp_path, small_disk):
    save_model(small_model, path := tmp_path / "model.keras")
    content = path.read_bytes()
    for size in range(0, len(content), 1501):
        with small_disk(size), pytest.raises(OSError, match="File too large") as caught:
            save_model(small_model, path)
        assert caught.value.filename == str(path) and path.read_bytes() == content
    with small_disk(len(content)):  # One copy is all that is on the disk, even while it is written.
        save_model(small_model, path)


def test_an_interrupt_while_weights_are_written_ends_saving(small_model, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_model(small_model, tmp_path / "model.keras")
    assert os.listdir(tmp_path) == []


def test_hdf5_meets_no_error_of_the_file_not_even_after_it_is_closed(tmp_path, monkeypatch):
    """It would crash as Python ends, where it could not close its file."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with open(tmp_path / "a", "w+b", buffering=0) as file:
        interrupted, closed = model_file._WeightsFile(file), model_file._WeightsFile(file)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", interrupt)
            interrupted.write(b"abc")
    assert [closed.write(b"abc"), closed.seek(0, os.SEEK_END)] == [3, 3]
    assert [closed.truncate(2), closed.seek(0, os.SEEK_END)] == [2, 2]
    errors = [type(weights.error) for weights in (interrupted, closed)]
    assert errors == [KeyboardInterrupt, ValueError]


def test_a_write_may_take_several_calls(small_model, tmp_path, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, start: write(file, data[:97], start))
    save_model(small_model, tmp_path / "model.keras")
    check_equal(keras.saving.load_model(tmp_path / "model.keras"), small_model)


def test_an_error_of_a_layer_is_raised_and_leaves_no_file_of_hdf5(small_model, tmp_path):
    def fail(store):
        raise ValueError("cannot be saved")

    small_model.layers[-1].save_own_variables = fail
    with pytest.raises(ValueError, match="cannot be saved"):
        save_model(small_model, tmp_path / "model.keras")
    gc.collect()
    assert h5py.h5f.get_obj_count(types=h5py.h5f.OBJ_FILE) == 0 and os.listdir(tmp_path) == []


def test_models_are_saved_in_several_threads_beside_other_files_of_hdf5(tmp_path, rng):
    """Each file holds its own model, and files that other threads write are theirs."""
    models = []
    for width in 3, 5, 7:
        models.append(keras.Sequential([keras.layers.Dense(width)]))
        models[-1].build((None, 97))

    def save(index):
        for _ in range(3):
            save_model(models[index], tmp_path / f"{index}.keras")

    def write():
        for number in range(9):
            with h5py.File(memory[number], "w") as file:
                file["a"] = number

    memory = [io.BytesIO() for _ in range(9)]
    threads = [threading.Thread(target=save, args=(index,)) for index in range(3)]
    threads.append(threading.Thread(target=write))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, model in enumerate(models):
        check_equal(keras.saving.load_model(tmp_path / f"{index}.keras"), model)
    for number, file in enumerate(memory):
        assert h5py.File(file, "r")["a"][()] == number
