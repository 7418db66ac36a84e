"""What the package imports is quiet, says why it fails, and is registered with Keras."""

import importlib
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import keras_transformer
from keras_transformer.base import imports
from keras_transformer.base.imports import LEVEL, after_import, stderr_kept_back


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


def test_a_function_is_called_after_the_import_of_a_module_by_whomever(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "to_wait_for.py").write_text("import to_wait_for_first\nvalue = 3")
    calls = []

    def told():
        calls.append(sys.modules["to_wait_for"].value)

    finders = list(sys.meta_path)
    after_import("to_wait_for", told)
    try:
        assert importlib.util.find_spec("absent_module") is None
        for _ in range(2):
            with pytest.raises(ImportError, match="to_wait_for_first"):
                importlib.import_module("to_wait_for")
        assert calls == []
        (tmp_path / "to_wait_for_first.py").write_text("")
        importlib.invalidate_caches()
        to_wait_for = importlib.import_module("to_wait_for")

        assert calls == [to_wait_for.value] and sys.meta_path == finders
        after_import("to_wait_for", told)
        assert calls == [3, 3] and sys.meta_path == finders
    finally:
        sys.meta_path[:] = finders
        sys.modules.pop("to_wait_for", None)


def test_every_class_that_files_of_keras_name_is_registered_before_its_import():
    root = Path(keras_transformer.__file__).parent
    declared = {}
    for path in root.rglob("*.py"):
        names = re.findall(
            r'^@keras.saving.register_keras_serializable\(package="keras_transformer"\)\n'
            r"class (\w+)",
            path.read_text(encoding="utf-8"),
            re.M,
        )
        if names:
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            declared[module] = tuple(sorted(names))
    assert keras_transformer._REGISTERED == declared


@pytest.mark.parametrize("name", ["decoding", "layers", "losses", "metrics", "models", "schedules"])
def test_packages_are_attributes_as_those_of_keras_and_imported_at_their_first_use(name):
    # An import of a submodule anywhere would set the attribute, so its maker is called.
    package = keras_transformer.__getattr__(name)
    assert package is sys.modules[f"keras_transformer.{name}"]
    with pytest.raises(AttributeError, match="has no attribute 'cli'"):
        keras_transformer.__getattr__("cli")
    program = "import sys, keras_transformer; print({'keras', 'tensorflow'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


# A model of the package's classes is loaded after one of these imports alone.
IMPORTS = [
    "import keras_transformer",
    "from keras_transformer.layers import EncoderBlock",
    "from keras_transformer.schedules import TransformerSchedule",
    "from keras_transformer.decoding.search import search",
    "from keras_transformer.losses import SmoothedCrossEntropy",
    "from keras_transformer.models.stacks import Encoder",
    "import keras_transformer.models.sequence_model",
]
# Each import has a process of its own, a fork of one that has loaded the slow library.
LOAD = """
import importlib, json, os, sys
import numpy as np
backend, path, expected, *statements = sys.argv[1:]
importlib.import_module(backend)
for statement in statements:
    if not os.fork():
        exec(statement)
        import keras
        for compiles in (False, True):
            model = keras.saving.load_model(path, compile=compiles)
            difference = np.abs(model(np.array([[3, 5, 0]])) - np.load(expected)).max()
            assert difference < 1e-5 and model.compiled == compiles, statement
        assert type(model.optimizer._learning_rate).__name__ == "TransformerSchedule"
        assert model.loss.label_smoothing == 0.2
        os._exit(0)
    assert os.wait()[1] == 0, statement
"""


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    import keras
    import numpy as np

    ids = keras.Input((None,), dtype="int32")
    embedding = keras_transformer.layers.TokenEmbedding(7, 4)
    hidden = keras_transformer.layers.EncoderBlock(5, 2)(embedding(ids))
    model = keras.Model(ids, keras.layers.Dense(7)(hidden))
    schedule = keras_transformer.TransformerSchedule(4, 3)
    loss = keras_transformer.SmoothedCrossEntropy(0.2)
    model.compile(keras.optimizers.Adam(schedule), loss, [keras_transformer.TokenAccuracy()])
    folder = tmp_path_factory.mktemp("saved")
    model.save(folder / "model.keras")
    np.save(folder / "expected.npy", np.asarray(model(np.array([[3, 5, 0]]))))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "count"), [("tensorflow", len(IMPORTS)), ("jax", 2)])
def test_a_model_is_loaded_whichever_module_was_imported_first(saved_model, backend, count):
    files = [str(saved_model / name) for name in ("model.keras", "expected.npy")]
    command = [sys.executable, "-c", LOAD, backend, *files, *IMPORTS[:count]]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


PROGRAM = """
import os, sys
from keras_transformer.base.imports import own_stderr
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
