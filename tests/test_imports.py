"""What the package imports is quiet, and says why it fails."""

import os
import subprocess
import sys
import types

import pytest

from keras_transformer import imports
from keras_transformer.imports import LEVEL, stderr_kept_back


def write(text):
    os.write(2, text.encode())


def test_what_is_written_meanwhile_is_dropped_and_shown_after_an_exception(capfd, monkeypatch):
    monkeypatch.delenv(LEVEL, raising=False)
    monkeypatch.setattr(imports, "_owns_stderr", True)
    with stderr_kept_back():
        write("a delegate")
    with pytest.raises(ImportError), stderr_kept_back():
        write("a reason")
        raise ImportError
    with pytest.raises(KeyboardInterrupt), stderr_kept_back():
        write("a line that Ctrl-C need not show")
        raise KeyboardInterrupt
    with stderr_kept_back(is_wrong=lambda: True):
        write(", a GPU")
    write(", after it")
    assert capfd.readouterr().err == "a reason, a GPU, after it"


def test_what_other_threads_write_in_a_program_is_never_hidden(capfd, monkeypatch):
    monkeypatch.delenv(LEVEL, raising=False)
    monkeypatch.setattr(imports, "_owns_stderr", False)
    with stderr_kept_back():
        write("another thread")
    assert capfd.readouterr().err == "another thread"


def test_a_user_who_wants_tensorflows_messages_gets_these_too(capfd, monkeypatch):
    monkeypatch.setenv(LEVEL, "0")
    monkeypatch.setattr(imports, "_owns_stderr", True)
    with stderr_kept_back():
        write("a delegate")
    assert capfd.readouterr().err == "a delegate"


GPUS = [(["/dev/nvidia0"], None, [], True), (["/dev/nvidia0"], None, ["GPU:0"], False)]
GPUS += [(["/dev/nvidia0"], "0", [], True), (["/dev/nvidia0"], "-1", [], False)]
GPUS += [(["/dev/nvidia0"], "", [], False), ([], None, [], False)]


@pytest.mark.parametrize(("devices", "visible", "used", "is_unusable"), GPUS)
def test_a_gpu_is_unusable_if_tensorflow_does_not_list_it_and_nobody_has_hidden_it(
    monkeypatch, devices, visible, used, is_unusable
):
    config = types.SimpleNamespace(list_physical_devices=lambda kind: used)
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    monkeypatch.setattr(imports.glob, "glob", lambda pattern: devices)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert imports._has_unusable_gpu() is is_unusable


PROGRAM = """
import os, sys
from keras_transformer.imports import own_stderr
own_stderr()
from keras_transformer.training import train
import keras
loaded = "tensorflow" in sys.modules
keras.ops.zeros((2,))
os.write(2, b"ours")
print(loaded)
"""


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_first_use_of_keras_in_a_command_is_quiet(monkeypatch):
    monkeypatch.delenv(LEVEL, raising=False)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "ours")
