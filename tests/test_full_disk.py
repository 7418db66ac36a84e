"""The disk is full while a file is written: the error names the file."""

import re
import shutil
import tempfile
import types

import keras
import numpy as np
import pytest
from small_corpus import PAIRS, write_corpus

from keras_transformer.bulk import corpus as bulk
from keras_transformer.cli import demo
from keras_transformer.corpora.cleaning import clean_corpora
from keras_transformer.data import encoding
from keras_transformer.errors import writing
from keras_transformer.files import replaced_file, write_whole
from keras_transformer.runs.model_file import save_model
from keras_transformer.runs.run_files import RunFiles
from keras_transformer.text import Tokenizer
from keras_transformer.text.shortlist import Shortlist
from keras_transformer.training.tensorboard import TensorBoard


def sample_pairs(folder):
    return lambda: RunFiles(folder).write_sample_pairs(PAIRS)


def model(folder):
    small = keras.Sequential([keras.layers.Dense(97)])
    small.build((None, 7))
    return lambda: save_model(small, folder / "model.keras")


def copied(folder):
    (folder / "best.keras").write_bytes(bytes(999))

    def copy():
        with replaced_file(folder / "model.keras") as temporary:
            shutil.copyfile(folder / "best.keras", temporary)

    return copy


def cleaned(folder):
    corpus = write_corpus(folder / "corpus")
    files = corpus / "train.en", corpus / "train.de"
    return lambda: clean_corpora([tuple(map(str, files))], folder / "out", processes=1)


def encoded(folder):
    tokenizer = Tokenizer.train_from_texts([text for pair in PAIRS for text in pair], 150)
    lines = encoding.Lines("", "", np.arange(len(PAIRS)), PAIRS)

    def encode():
        encoder = encoding.PairEncoder((tokenizer, tokenizer), encoding.PairChecks(99, 99))
        return encoding.encode_parts(lambda parts: [lines], {"": encoder})

    return encode


def shortlist(folder):
    return lambda: Shortlist([3, 5], [[7]] * 300).save(folder / "shortlist.npy")


def joined(folder):
    (folder / ".parts" / "a.csv").mkdir(parents=True)
    (folder / ".parts" / "a.csv" / "1.txt").write_text("a cat,a dog,-0.5\n" * 9)
    return lambda: bulk._join(folder, "a.csv", True)


def demo_data(folder):
    return lambda: demo._write_data(folder)


def curves(folder):
    pytest.importorskip("tensorboard", reason="needs TensorFlow's TensorBoard")
    files = types.SimpleNamespace(tensorboard=folder / "tensorboard")
    history = [{"epoch": epoch, "loss": 0.5} for epoch in range(1, 9)]
    return TensorBoard(types.SimpleNamespace(folder=files, history=history)).on_train_begin


FULL_DISKS = [(sample_pairs, 99, r"samples\.tsv"), (model, 99, r"model\.keras")]
FULL_DISKS += [(copied, 99, r"model\.keras"), (cleaned, 99, r"out/tmp\w+/hashes")]
FULL_DISKS += [(cleaned, 600, r"out/train\.(en|de)"), (encoded, 99, "temporary")]
# Its array's first 16 bytes fit: few enough for a buffer, whose error NumPy's `tofile` loses.
FULL_DISKS += [(shortlist, 144, r"shortlist\.npy")]
FULL_DISKS += [(joined, 30, r"a\.csv\.scores"), (joined, 60, r"a\.csv")]
FULL_DISKS += [(demo_data, 99, r"held_out\.source")]
FULL_DISKS += [pytest.param(curves, 99, r"tensorboard/train", marks=pytest.mark.tensorflow)]


@pytest.mark.parametrize(("prepare", "size", "name"), FULL_DISKS)
def test_the_error_of_a_full_disk_names_the_file(
    tmp_path, monkeypatch, small_disk, prepare, size, name
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    write = prepare(tmp_path)
    with small_disk(size), pytest.raises(OSError, match="File too large") as caught:
        write()
    assert re.fullmatch(f"{re.escape(str(tmp_path))}/{name}", caught.value.filename)


def test_an_error_of_safetensors_names_the_file(tmp_path, small_disk):
    safetensors = pytest.importorskip("safetensors.numpy", reason="comes with the extra [import]")
    with small_disk(99), pytest.raises(OSError) as caught:
        with replaced_file(tmp_path / "model.safetensors") as path:
            safetensors.save_file({"a": np.zeros(99)}, path)
    assert caught.value.filename == str(tmp_path / "model.safetensors")
    # Its own text also names a temporary file.
    assert caught.value.strerror == "File too large (os error 27)"


def test_an_error_of_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, writing(tmp_path / "a"):
        (tmp_path / "b").read_bytes()
    assert caught.value.filename == str(tmp_path / "b")


@pytest.mark.tensorflow
def test_errors_without_a_number_name_the_file_too(tmp_path):
    import tensorflow as tf

    message = "{{node SaveV2}} a/part-0; No space left on device [Op:SaveV2]"
    errors = {
        tf.errors.ResourceExhaustedError(None, None, message): "No space left on device",
        OSError("9 requested and 7 written"): "9 requested and 7 written",
    }
    for error, reason in errors.items():
        with pytest.raises(OSError, match=f"{reason}: '{tmp_path}'$"), writing(tmp_path):
            raise error
    with pytest.raises(ValueError, match="^no error of a file$"), writing(tmp_path):
        raise ValueError("no error of a file")
    (tmp_path / "a").write_text("before")
    with pytest.raises(OSError), replaced_file(tmp_path / "a") as temporary:
        write_whole(temporary, "after")
        raise OSError("no space")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"
