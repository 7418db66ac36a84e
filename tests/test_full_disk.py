"""The disk is full while a C library writes: the error names the file."""

import types

import numpy as np
import pytest

from keras_transformer.base.errors import writing
from keras_transformer.base.files import replaced_file, write_whole
from keras_transformer.training.tensorboard import TensorBoard


def tensors(folder):
    safetensors = pytest.importorskip("safetensors.numpy", reason="comes with the extra [import]")
    with replaced_file(folder / "model.safetensors") as path:
        safetensors.save_file({"a": np.zeros(99)}, path)


def curves(folder):
    pytest.importorskip("tensorboard", reason="needs TensorFlow's TensorBoard")
    files = types.SimpleNamespace(tensorboard=folder / "tensorboard")
    history = [{"epoch": epoch, "loss": 0.5} for epoch in range(1, 9)]
    TensorBoard(types.SimpleNamespace(folder=files, history=history)).on_train_begin()


WRITERS = [(tensors, "model.safetensors", "File too large (os error 27)")]
WRITERS += [
    pytest.param(curves, "tensorboard/train", "File too large", marks=pytest.mark.tensorflow)
]


@pytest.mark.parametrize(("write", "name", "reason"), WRITERS)
def test_the_error_of_a_full_disk_names_the_file(tmp_path, small_disk, write, name, reason):
    with small_disk(99), pytest.raises(OSError) as caught:
        write(tmp_path)
    assert (caught.value.filename, caught.value.strerror) == (str(tmp_path / name), reason)


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
