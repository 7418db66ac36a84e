"""What the tests share: few threads, one seed, tools that work on every Keras backend."""

import collections
import contextlib
import fcntl
import functools
import gc
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import time
import typing
import zipfile

import decoding_oracles as oracles
import hypothesis
import keras
import numpy as np
import pytest
from keras import ops
from packaging.version import Version

from keras_transformer.base.compilation_cache import enable_compilation_cache
from keras_transformer.base.errors import InputError

BACKEND = keras.backend.backend()
# Exports that tests of several folders read; which process runs which test.
pytest_plugins = ["export_fixtures", "scheduling"]

# For `import benchmarks`; last, as the package itself comes from the installation.
sys.path.append(str(pathlib.Path(__file__).parents[1]))

# A program of a test is compiled once and runs for milliseconds: LLVM's optimizations cost a third
# of the time of the tests that compile, and so does emitting each fusion through MLIR instead of as
# LLVM code at once. XLA's own passes stay as they are; the demo runs with neither. Read when XLA is
# first used, also by the processes that tests start.
FLAGS = "--xla_backend_optimization_level=0"
with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # JAX needs no TensorFlow
    if Version(importlib.metadata.version("tensorflow")).release < (2, 22):  # then only MLIR
        FLAGS += " --xla_cpu_use_fusion_emitters=false"
# benchmarks/gpu.py sets it. XLA has no code for GPUs without optimizations.
ON_GPU = "cuda" in os.environ.get("JAX_PLATFORMS", "")
if not ON_GPU:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
enable_compilation_cache()

# What else the machine does decides how long an example takes.
hypothesis.settings.register_profile(
    "tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("tests")

if BACKEND == "tensorflow":
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
elif BACKEND == "jax" and not ON_GPU:
    import jax

    # Each test compiles many tiny programs once: compiling is nearly all of the time.
    jax.config.update("jax_disable_most_optimizations", True)


# Keras 3.15 looks for what it has stored under a misspelled name. So it makes a new layer for each
# layer of a model that it saves or loads, which takes a third of the time.
with contextlib.suppress(ImportError, AttributeError):  # another version of Keras
    from keras.src.saving import saving_lib

    saving_lib.get_attr_skipset = functools.cache(saving_lib.get_attr_skipset)


# TensorFlow asks for each operand whether it is of a protocol. Before version 3.12 Python lists the
# protocol's attributes each time, which takes 7 % of the time of tests that compute.
if sys.version_info < (3, 12):
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """`made_once(name, make)`: a folder that the first process that asks fills by `make(folder)`.

    All processes of pytest-xdist share it.
    """
    shared = tmp_path_factory.getbasetemp()
    shared = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "made_once"
    shared.mkdir(exist_ok=True)

    def made_once(name, make):
        folder, mark = shared / name, shared / f"{name}.whole"
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not mark.exists():
                shutil.rmtree(folder, ignore_errors=True)  # Its maker has failed or was killed.
                folder.mkdir()
                make(folder)
                mark.touch()
        return folder

    return made_once


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="Run also the tests that are marked slow.")


# Fixtures that start an interpreter or a browser, or train: their users are slow.
SLOW_FIXTURES = {"ask", "browser", "cluster", "continuing", "converse", "holder", "in_javascript"}
SLOW_FIXTURES |= {"labelling", "shell", "web_report"}


TESTS = pathlib.Path(__file__).parent
# `pytest -n 2 -m core`: a minute of tests, which need only the extra [test-core].
CORE = {"data", "steps", "text", "test_losses.py", "test_metrics.py", "test_schedules.py"}


def pytest_ignore_collect(collection_path, config):
    """Imports no other tests for `-m core`: their packages may be missing."""
    if config.option.markexpr == "core" and collection_path.parent == TESTS:
        return True if collection_path.name not in CORE else None


ORACLES = TESTS / "data" / "oracles"


@pytest.fixture(scope="session")
def oracle(made_once):
    """`oracle(name)`: a folder with files of another program and what it says of them."""

    def oracle(name):
        def extract(folder):
            with zipfile.ZipFile(ORACLES / f"{name}.zip") as archive:
                archive.extractall(folder)

        return made_once(f"oracle_{name}", extract)

    return oracle


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A tab of Chromium, whose console's complaints are collected."""
    from browser import Browser, find_chromium

    if find_chromium() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    pytest.importorskip("websockets", reason="comes with the extra [test]")
    running = Browser(tmp_path_factory.mktemp("profile"))
    running.call("Runtime.enable")
    running.call("Log.enable")
    yield running
    running.close()


# Everything that a test may lack, and what it then says. A skip with another reason is a failure;
# `TESTS_MAY_LACK`, names with commas between them, allows fewer: .ci/run sets it.
SKIPS = {
    "a corpus": r"needs \.\./shared/data/",
    "a browser": r"needs Chromium|needs the site|needs npm while the site is built",
    "another Python": r"needs another environment: OTHER_PYTHON",
    "a program": r"needs (node|npm|nginx|a C compiler)\b|npm could not install",
    "another library": r"comes with the extra \[peers\]",
    "another backend": r"needs Keras' TensorFlow backend",
    "another version": r"(Keras|Python before) \S.* does not ",
    "another system": r"needs (limits of Unix|/dev/full|/proc)",
    "time": "the time is used up: TESTS_END_AT",
    "a package": r"comes with the extra|need tensorflow-text|needs ([Tt]ensor|jax|Keras|Ray)",
}


def pytest_runtest_setup():
    if time.time() > float(os.environ.get("TESTS_END_AT", "inf")):
        pytest.skip(SKIPS["time"])


def lacking(report):
    """What a skipped test lacks: a name of `SKIPS`, or None for another reason."""
    found = (name for name, reason in SKIPS.items() if re.search(reason, reason_of(report)))
    return next(found, None)


def reason_of(report):
    is_place = isinstance(report.longrepr, tuple)  # file, line, reason
    return str(report.longrepr[2] if is_place else report.longrepr).removeprefix("Skipped: ")


def refuse_unlisted(report):
    """Makes a failure of a skip whose reason is not listed, or not allowed."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return report
    allowed = os.environ.get("TESTS_MAY_LACK", ",".join(SKIPS)).split(",")
    if lacking(report) not in allowed:
        report.outcome = "failed"
        rule = f"a skip must be for want of {', '.join(allowed)}: `SKIPS` in tests/conftest.py"
        report.longrepr = f"{report.nodeid}: {rule}. Received: {reason_of(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return refuse_unlisted((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return refuse_unlisted((yield))


def pytest_terminal_summary(terminalreporter):
    counts = collections.Counter(map(lacking, terminalreporter.stats.get("skipped", ())))
    for name, count in sorted(counts.items()):
        terminalreporter.write_line(f"skipped for want of {name}: {count}")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at `-m`
def pytest_collection_modifyitems(config, items):
    for item in items:
        if TESTS in item.path.parents and item.path.relative_to(TESTS).parts[0] in CORE:
            item.add_marker("core")
        if not SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
    slow = {*slow_ones(items)}
    of_jax = {item for item in items if BACKEND != "jax" and item.get_closest_marker("jax")}
    left_out = of_jax if config.option.slow else of_jax | slow
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
    if BACKEND == "tensorflow":
        return
    for item in items:
        if item.get_closest_marker("tensorflow"):
            item.add_marker(pytest.mark.skip(reason="needs Keras' TensorFlow backend"))


def slow_ones(items):
    """Tests that `slow` marks; `slow(after=n)` is no mark of the first n cases of a table."""
    counts = collections.Counter()
    for item in items:
        if marker := item.get_closest_marker("slow"):
            function = item.nodeid.partition("[")[0]
            counts[function] += 1
            if counts[function] <= marker.kwargs.get("after", 0):
                item.own_markers.remove(marker)  # nor one that `-m slow` sees
            else:
                yield item


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup():
    """A test that needs tensorflow-text is skipped where it is missing or made for another
    TensorFlow: with the package's own message."""
    try:
        return (yield)
    except (ImportError, InputError) as error:
        if "need tensorflow-text" in str(error) and not has_tensorflow_text():
            pytest.skip(str(error))
        raise


pytest_pyfunc_call = pytest_fixture_setup  # for a fixture and for the test itself


@functools.cache
def has_tensorflow_text():
    from keras_transformer.export.saved_model.graph_tokenizer import load_operations

    with contextlib.suppress(InputError):
        return bool(load_operations())


@pytest.fixture(autouse=True)
def same_start():
    """The same seed before each test, and the dtype policy put back after it."""
    policy = keras.config.dtype_policy()
    keras.utils.set_random_seed(7)
    yield
    keras.config.set_dtype_policy(policy)


@pytest.fixture
def unverified(monkeypatch):
    """Exports are not verified, in another process: for tests that compare them themselves."""
    from keras_transformer.export import FORMATS, exporter_of

    for exporter in map(exporter_of, FORMATS):
        monkeypatch.setattr(type(exporter), "verify", lambda *_: {"equal": 1, "texts": 1})


@pytest.fixture
def one_graph():
    """Engines search in one graph: for tests that are about texts and scores, not batches."""
    from device_plans import one_graph

    with one_graph():
        yield


@pytest.fixture(scope="session")
def load_program():
    """`load_program("training/fit.py")`: a file that no package holds, as a module."""

    def load_program(path):
        script = pathlib.Path(__file__).parents[1] / path
        spec = importlib.util.spec_from_file_location(script.stem, script)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load_program


@pytest.fixture
def uncollected(monkeypatch):
    """Keras looks for garbage after each weight that it quantizes, in all that tests have made."""
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture(scope="session")
def varied():
    """`varied(variant)`: a float32 model whose sentences end at different lengths."""
    models = {}

    def varied(variant):
        if variant not in models:
            models[variant] = oracles.varied_transformer(variant)
        return models[variant]

    return varied


@pytest.fixture
def small_disk():
    """`with small_disk(size)`: no file can grow beyond some bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource", reason="needs limits of Unix")

    @contextlib.contextmanager
    def small_disk(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            # Python does not notice that a compiled module was cut off.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "dont_write_bytecode", True)
                yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return small_disk


@pytest.fixture
def disk(monkeypatch):
    """What was synced and renamed so far, in order: ("sync", inode) and ("rename", name)."""
    events, fsync = [], os.fsync

    def recorded_fsync(descriptor):
        events.append(("sync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded_fsync)

    def recorded(move):
        def recorded_move(source, target, *arguments, **options):
            events.append(("rename", os.path.basename(target)))
            move(source, target, *arguments, **options)

        return recorded_move

    monkeypatch.setattr(os, "rename", recorded(os.rename))
    monkeypatch.setattr(os, "replace", recorded(os.replace))
    return events


@pytest.fixture
def rng():
    """NumPy's generator, seeded."""
    return np.random.default_rng(7)


@pytest.fixture
def randomize(rng):
    """Gives every weight of a layer a random value, also those that start at zero or one."""

    def randomize(layer, scale=0.3):
        layer.set_weights(
            [w.path.endswith("gamma") + scale * rng.normal(size=w.shape) for w in layer.weights]
        )
        return layer

    return randomize


@pytest.fixture
def compiled():
    """`compiled(function)` runs it as one XLA program."""
    if BACKEND == "tensorflow":
        return tf.function(jit_compile=True, autograph=False)
    return jax.jit


@pytest.fixture(scope="module")
def plain_graphs():
    """TensorFlow runs graphs as they are: its optimizer takes a sixth of the time to make one.

    They take more memory, so not all tests do.
    """
    if BACKEND != "tensorflow":
        yield
        return
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture
def pull_back():
    """`pull_back(function, inputs)` gives the outputs and the map of output to input gradients."""

    def pull_back(function, inputs):
        inputs = ops.convert_to_tensor(inputs, "float32")
        if BACKEND == "tensorflow":
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(inputs)
                outputs = function(inputs)

            def pull(cotangent):
                gradient = tape.gradient(outputs, inputs, ops.cast(cotangent, outputs.dtype))
                return np.asarray(tf.convert_to_tensor(gradient))  # It may be a sparse one.

            return outputs, pull
        outputs, pull = jax.vjp(function, inputs)
        return outputs, lambda cotangent: np.asarray(pull(ops.cast(cotangent, outputs.dtype))[0])

    return pull_back
