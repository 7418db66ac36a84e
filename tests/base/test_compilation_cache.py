"""A private folder of compiled programs: where it is, when it is refused, what it keeps."""

import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from keras_transformer.base import compilation_cache as module
from keras_transformer.base.compilation_cache import enable_compilation_cache
from keras_transformer.cli import main as cli


@pytest.fixture
def enable(monkeypatch, tmp_path):
    """`enable(**environment)`: the folder that is then used, or None, and the warnings' texts."""

    def enable(**environment):
        names = "TF_XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", module.VARIABLE
        for name in (*names, *module._JAX_SETTINGS):
            monkeypatch.setenv(name, "")  # so that it is as before after the test
            monkeypatch.delenv(name)
        for name, value in {"XDG_CACHE_HOME": str(tmp_path), **environment}.items():
            monkeypatch.setenv(name, value)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            enable_compilation_cache()
        used = re.search('_cache_directory=(?:"(.*?)"|(.*))', os.environ.get("TF_XLA_FLAGS", ""))
        return used and Path(used[1] or used[2]), [str(warning.message) for warning in caught]

    return enable


def test_programs_are_kept_in_a_folder_that_only_its_user_can_enter(enable, tmp_path):
    folder, told = enable(TF_XLA_FLAGS="--tf_xla_auto_jit=0")
    assert told == []
    assert folder.parent == tmp_path / "keras_transformer" / "programs"
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
    assert os.environ["TF_XLA_FLAGS"].startswith("--tf_xla_auto_jit=0 --tf_xla_persistent")
    assert Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).parent == folder


def test_other_flags_or_another_processor_have_a_folder_of_their_own(enable, monkeypatch):
    folders = [enable(XLA_FLAGS=flags)[0] for flags in ("", "--xla_cpu_x=1", "")]
    monkeypatch.setattr(module, "_processor", lambda: "another")
    folders.append(enable(XLA_FLAGS="")[0])
    assert folders[0] == folders[2]
    assert len(set(folders)) == 3


def test_programs_for_a_gpu_are_kept_apart_by_its_model_and_driver(enable, monkeypatch):
    folders, devices = [], []
    for described in ("", "Model: A\n1.0", "Model: B\n1.0", "Model: A\n2.0", "Model: A\n1.0"):
        monkeypatch.setattr(module, "gpus", lambda described=described: described)
        folders.append(enable(XLA_FLAGS="")[0])
        devices.append(os.environ["TF_XLA_FLAGS"].rpartition("device_types=")[2])
    assert len(set(folders)) == 4 and folders[1] == folders[4]
    assert devices == ["CPU", *["CPU,GPU"] * 4]


@pytest.mark.parametrize(
    "name",
    ["tensorflow", "tensorflow_cpu", "tensorflow_intel", "tf_nightly", "jaxlib", "jax_cuda12"],
)
def test_another_version_of_a_library_has_a_folder_of_its_own(enable, monkeypatch, tmp_path, name):
    folders = []
    for version in ("2.20.0", "2.21.0"):
        path = tmp_path / version
        (path / f"{name}-{version}.dist-info").mkdir(parents=True)
        (path / f"numpy-{version}.dist-info").mkdir()
        monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(path)])
        folders.append(enable()[0])
        (path / "numpy-3.dist-info").mkdir()
        assert enable()[0] == folders[-1]
    assert len(set(folders)) == 2


def test_a_gpu_is_described_by_its_driver(tmp_path):
    assert module.gpus(tmp_path / "none") == ""
    (tmp_path / "version").write_text("NVRM version: 595.1\nGCC version: 12\n")
    assert module.gpus(tmp_path) == ""
    for name, model in ((1, "B"), (0, "A")):
        (tmp_path / f"gpus/{name}").mkdir(parents=True)
        text = f"Model: \t\t NVIDIA {model}\nIRQ: {name}\n"
        (tmp_path / f"gpus/{name}/information").write_text(text)
    lines = ["Model: \t\t NVIDIA A", "Model: \t\t NVIDIA B", "NVRM version: 595.1"]
    assert module.gpus(tmp_path).split("\n") == lines


def test_jax_keeps_programs_that_compile_in_no_time_and_what_it_found_out_about_kernels(enable):
    enable(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="3")
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "3"  # the user's own
    enable()
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert "autotune" in os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"]


@pytest.mark.parametrize(
    "text", ["", "not a word of it\n", "model : 85", "model : 85\nflags : fma\n\nmodel : 86\n\n"]
)
def test_a_processor_is_told_from_any_list_of_processors(text, monkeypatch):
    monkeypatch.setattr("builtins.open", lambda path, *_, **__: io.StringIO(text))
    told = module._processor()
    has_a_model = "model : 85" in text
    names = "model : 85", platform.machine()
    assert [name in told for name in names] == [has_a_model, not has_a_model]
    assert "model : 86" not in told


def test_the_users_own_settings_stay(enable, tmp_path):
    assert enable(**{module.VARIABLE: str(tmp_path / "mine")})[0].parent == tmp_path / "mine"
    assert enable(**{module.VARIABLE: "off"}) == (None, [])
    assert "TF_XLA_FLAGS" not in os.environ
    flags = "--tf_xla_persistent_cache_directory=/elsewhere"
    assert enable(TF_XLA_FLAGS=flags) == (Path("/elsewhere"), [])
    assert os.environ["TF_XLA_FLAGS"] == flags


def refuse_writable(folder, monkeypatch):
    folder.chmod(0o770)


def refuse_link(folder, monkeypatch):
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def refuse_owner(folder, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def refuse_file(folder, monkeypatch):
    shutil.rmtree(folder)
    folder.write_text("")


@pytest.mark.parametrize("make", [refuse_writable, refuse_link, refuse_owner, refuse_file])
@pytest.mark.parametrize("inner", [True, False])
def test_a_folder_that_is_not_private_is_refused_in_one_line(make, inner, enable, monkeypatch):
    folder, _ = enable()
    if not inner:
        shutil.rmtree(folder)
        folder = folder.parent
    make(folder, monkeypatch)
    used, (line,) = enable()
    assert used is None and "JAX_COMPILATION_CACHE_DIR" not in os.environ
    refused = folder.parent if inner and make is refuse_owner else folder
    rule = "Functions are compiled again, without a cache"
    assert line.startswith(f"{rule}: {refused} must be private")


def raise_runtime_error():
    raise RuntimeError("no home folder")


def test_a_full_disk_and_a_missing_home_are_warnings(enable, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    used, (line,) = enable(XDG_CACHE_HOME=str(tmp_path / "file"))
    assert used is None and line.endswith(f"{tmp_path / 'file'}/keras_transformer: Not a directory")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    used, (line,) = enable()
    assert used is None and "only 1 MB are free" in line
    monkeypatch.undo()
    monkeypatch.setattr(Path, "home", raise_runtime_error)
    used, (line,) = enable(XDG_CACHE_HOME="")
    assert used is None and "no home" in line


def test_a_cache_beyond_its_limit_is_emptied(enable, monkeypatch):
    other, _ = enable(XLA_FLAGS="--xla_cpu_x=1")
    folder, _ = enable(XLA_FLAGS="")
    (folder / "jax").mkdir()
    paths = [other / "a.pb", folder / "jax" / "b-cache", other / "c.pb", folder / "d.tmp"]
    for path in paths:
        path.write_bytes(b"x" * 100)
    for limit in (400, 399):
        monkeypatch.setattr(module, "LIMIT_BYTES", limit)
        assert enable(XLA_FLAGS="") == (folder, [])
        assert [path.exists() for path in paths] == [limit == 400] * 4


def test_files_outside_of_its_own_folders_stay(enable, monkeypatch, tmp_path):
    environment = {module.VARIABLE: str(tmp_path)}
    folder, _ = enable(**environment)
    names = ["thesis.tex", "model.pb", "data/x.pb", "data/y/z.tmp", "keras_transformer-v1/model.pb"]
    files = [tmp_path / name for name in names]
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / f"keras_transformer-{'0' * 32}").symlink_to(tmp_path / "data")
    for path in (*files, program := folder / "program.pb"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 100)
    monkeypatch.setattr(module, "LIMIT_BYTES", 50)
    assert enable(**environment) == (folder, [])
    assert all(path.exists() for path in files) and not program.exists()


@pytest.mark.parametrize("command", ["train", "translate", "export", "serve"])
@pytest.mark.parametrize("switch", [[], ["--no-compilation-cache"]])
def test_each_command_has_the_cache_without_the_switch(command, switch, monkeypatch):
    calls = []
    monkeypatch.setattr(cli, "enable_compilation_cache", lambda: calls.append("on"))
    monkeypatch.setattr(cli, "_call", lambda options, _: calls.append(vars(options)) or 0)
    monkeypatch.setattr(cli.Parser, "error", lambda self, message: None)  # what is missing
    needed = ["--model", "run"] if command == "translate" else []
    cli.run([command, *needed, *switch])
    assert calls[:-1] == ([] if switch else ["on"])
    assert "no_compilation_cache" not in calls[-1]


# Two processes compile the same functions; a file is removed in between. They are forks, because
# TensorFlow reads its flags when it first compiles, and its import takes seconds.
COMPILE = """
    import json, os, pathlib, sys
    import tensorflow as tf
    from keras_transformer.base.compilation_cache import enable_compilation_cache

    for _ in range(2):
        if not (child := os.fork()):
            enable_compilation_cache()
            for addend in (1.0, 2.0):
                f = tf.function(lambda x: tf.linalg.matmul(x, x) + addend, jit_compile=True)
                assert float(f(tf.fill((3, 3), 2.0))[0, 0]) == 12 + addend
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        paths = sorted(pathlib.Path(sys.argv[1]).rglob("*.pb"))
        print(json.dumps({str(path): path.stat().st_ino for path in paths}))
        paths[0].unlink()
"""


def test_damaged_programs_are_deleted(enable):
    other, _ = enable(XLA_FLAGS="--xla_cpu_x=1")
    folder, _ = enable(XLA_FLAGS="")
    paths = [folder / "damaged.pb", folder / "whole.pb", other / "whole.pb"]
    for path, content in zip(paths, (b"", b"x", b"x"), strict=True):
        path.write_bytes(content)
    assert enable(XLA_FLAGS="") == (folder, [])
    assert [path.exists() for path in paths] == [False, True, True]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_program_is_compiled_once(tmp_path):
    home = str(tmp_path / "a space")  # the flags are words
    names = {"TF_XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", module.VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"PYTHONPATH": str(Path(module.__file__).parents[2]), "XDG_CACHE_HOME": home}
    command = [sys.executable, "-c", textwrap.dedent(COMPILE), home]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = map(json.loads, done.stdout.splitlines())
    missing, remaining = first
    assert second.keys() == first.keys() and second[remaining] == first[remaining]
