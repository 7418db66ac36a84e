"""Memory of large models: what is said before it is taken, and what commands take."""

import contextlib
import os
import pathlib
import subprocess
import sys
import threading

import keras
import pytest

from benchmarks import large
from keras_transformer.base import memory
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import FORMAT_VERSION
from keras_transformer.layers.half_precision import HalfPrecisionWeights

GIGABYTE = 10**9
# Growth of the peak with the weights, of which one copy more would add 1. Pages of a file that is
# read count here, which they do not in the tables of the documentation.
LIMITS = {
    ("tensorflow", "float32"): {
        "import": 2.2,
        "translate": 2.1,
        "evaluate": 2.0,
        "litert": 2.2,
        "ctranslate2": 2.1,
        "saved_model": 2.6,
    },
    ("jax", "float32"): {"import": 2.0, "translate": 1.8},
    # Of half the bytes. On a Xeon this program grows by 2.1, and by 3.4 if it casts all matrices
    # before a loop; on an EPYC by 2.9 and 3.14.
    ("tensorflow", "float16"): {"import": 2.2, "translate": 3.1},
    ("jax", "float16"): {"import": 2.4, "translate": 2.1},
}
ROUNDS = 3


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes a machine with files as Linux writes them."""

    def make(free, groups=(), swap=0, statistics="inactive_file {}\n", total=10**12, all_swap=0):
        meminfo = tmp_path / "meminfo"
        sizes = {"MemTotal": total, "MemAvailable": free, "SwapTotal": all_swap, "SwapFree": swap}
        meminfo.write_text("".join(f"{k}: {size // 1024} kB\n" for k, size in sizes.items()))
        read = memory._read
        monkeypatch.setattr(
            memory, "_read", lambda path: read(meminfo if path == "/proc/meminfo" else path)
        )
        files = []
        for number, (limit, used, pages) in enumerate(groups):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "limit").write_text(f"{limit}\n")
            (folder / "used").write_text(f"{used}\n")
            (folder / "memory.stat").write_text(f"anon 5\n{statistics.format(pages)}")
            files.append((str(folder / "limit"), str(folder / "used")))
        monkeypatch.setattr(memory, "_CGROUPS", files)

    return make


GROUPS = [
    ([], 8 * GIGABYTE),
    ([("max", 3 * GIGABYTE, 0)], 8 * GIGABYTE),  # no limit
    ([(4 * GIGABYTE, 3 * GIGABYTE, 0)], GIGABYTE),
    ([(4 * GIGABYTE, 3 * GIGABYTE, 2 * GIGABYTE)], 3 * GIGABYTE),  # pages of files are given up
    ([(4 * GIGABYTE, 5 * GIGABYTE, 0)], 0),
    ([(90 * GIGABYTE, GIGABYTE, 0)], 8 * GIGABYTE),  # a group may have more than the machine
]


# Version 1 of Linux' control groups also counts the pages of a group without those of its parts.
@pytest.mark.parametrize(
    "statistics", ["inactive_file {}\n", "inactive_file 0\ntotal_inactive_file {}\n"]
)
@pytest.mark.parametrize("groups, free", GROUPS)
def test_free_memory_is_what_the_machine_and_its_groups_allow(machine, groups, free, statistics):
    machine(8 * GIGABYTE, groups, statistics=statistics)
    assert memory.free_bytes() == pytest.approx(free, abs=1024)


def test_free_swap_is_free_memory(machine):
    machine(8 * GIGABYTE, swap=2 * GIGABYTE)
    assert memory.free_bytes() == pytest.approx(10 * GIGABYTE, abs=2048)


def test_a_system_that_does_not_tell_its_memory_warns_of_nothing(monkeypatch, capsys):
    monkeypatch.setattr(memory, "_read", lambda path: "")
    assert memory.free_bytes() is None and memory.total_bytes() is None
    memory.check_memory(10**13, "the import")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("size, is_told", [(2.1, True), (1.8, False), (0.4, False)])
def test_a_lack_of_memory_is_one_line_with_both_numbers(machine, capsys, size, is_told):
    # 3.5 GB hold 1.9 GB beside the 1.6 GB of any model; 0.4 GB is no large model.
    machine(int(3.5 * GIGABYTE) if size > 1 else 0)
    memory.check_memory(int(size * GIGABYTE), "runs/nllb: the translation")
    line = (
        "keras-transformer: runs/nllb: the translation takes about 3.7 GB of memory, and 3.5 GB "
        "are free: the system may end it.\n"
    )
    assert capsys.readouterr().err == (line if is_told else "")


@pytest.mark.parametrize(
    "total, swap, groups, is_enough",
    [
        (2.1, 0, [], True),
        (1.9, 0, [], False),
        (1.9, 0.2, [], True),
        (9, 0, [1.9], False),
        (9, 0.2, [1.9], True),
        (9, 0, ["max"], True),
        (9, 0, ["max", 1.9], False),
    ],
)
def test_weights_that_no_memory_of_the_machine_holds_are_refused(
    machine, total, swap, groups, is_enough
):
    limits = [one if one == "max" else int(one * GIGABYTE) for one in groups]
    sizes = {"total": int(total * GIGABYTE), "all_swap": int(swap * GIGABYTE)}
    machine(9 * GIGABYTE, [(limit, 0, 0) for limit in limits], **sizes)
    with (
        contextlib.nullcontext()
        if is_enough
        else pytest.raises(
            InputError,
            match="runs/nllb: the import needs 2.0 GB .* weights, and there are 1.9 GB, swap",
        )
    ):
        memory.check_memory(2 * GIGABYTE, "runs/nllb: the import")


def test_copies_of_the_weights_count(machine, capsys):
    machine(4 * GIGABYTE)
    memory.check_memory(2 * GIGABYTE, "the export", copies=1.5)
    assert "takes about 4.6 GB" in capsys.readouterr().err


@pytest.mark.parametrize(
    "size, is_imported, chosen, expected",
    [
        (memory.LARGE_MODEL_BYTES, False, None, "1"),
        (memory.LARGE_MODEL_BYTES - 1, False, None, None),
        (memory.LARGE_MODEL_BYTES, True, None, None),  # too late
        (memory.LARGE_MODEL_BYTES, False, "0", "0"),  # the user's choice
    ],
)
def test_tensorflow_is_told_before_its_import_to_give_memory_back(
    monkeypatch, machine, size, is_imported, chosen, expected
):
    machine(100 * GIGABYTE)
    monkeypatch.delenv(memory.ALLOCATOR, raising=False)
    if chosen is not None:
        monkeypatch.setenv(memory.ALLOCATOR, chosen)
    with monkeypatch.context() as patch:  # Without modules pytest cannot report a failure.
        patch.setattr(sys, "modules", {"tensorflow": None} if is_imported else {})
        memory.check_memory(size, "a test")
        received = os.environ.pop(memory.ALLOCATOR, None)
    assert received == expected


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", HalfPrecisionWeights()])
def test_a_model_is_large_by_the_bytes_of_its_weights_in_float32(monkeypatch, dtype):
    model = keras.Sequential([keras.layers.Dense(3, dtype=dtype)])
    model.build((None, 5))
    monkeypatch.setattr(memory, "LARGE_MODEL_BYTES", 18 * 4)
    assert memory.is_large(model)
    monkeypatch.setattr(memory, "LARGE_MODEL_BYTES", 18 * 4 + 1)
    assert not memory.is_large(model)
    assert not memory.is_large(object())


@pytest.mark.parametrize("is_needed", [False, True])
def test_memory_is_given_back_while_a_program_is_made_and_when_it_has_run(monkeypatch, is_needed):
    calls, has_been_called = [], threading.Event()
    monkeypatch.setattr(memory, "give_back", lambda: (calls.append(1), has_been_called.set()))
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), memory.giving_back(is_needed):
        assert has_been_called.wait(5 if is_needed else 0) is is_needed
        has_been_called.clear()
        raise KeyboardInterrupt
    assert has_been_called.is_set() is is_needed
    assert threading.active_count() == before


OPENED = """
import os
import sys
from keras_transformer.base import memory
from keras_transformer.cli.main import main

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            os.write(1, str(os.environ.get(memory.ALLOCATOR)).encode())
            os._exit(0)

sys.meta_path.insert(0, Watch())
memory.LARGE_MODEL_BYTES = 1
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["translate"],
        ["score", "--source", "{file}", "--target", "{file}"],
        ["evaluate", "--source", "{file}", "--reference", "{file}"],
        ["inspect"],
        ["export", "--format", "litert", "--output", "{folder}/out"],
        ["export", "--format", "ctranslate2", "--output", "{folder}/out"],
    ],
    ids=" ".join,
)
def test_each_command_prepares_for_a_large_model_before_tensorflow_is_imported(tmp_path, words):
    """TensorFlow reads the variable while it is imported, so that later it has no effect."""
    (tmp_path / "recipe.yaml").write_text(f"format_version: {FORMAT_VERSION}\ndecoding: {{}}")
    (tmp_path / "model.keras").write_bytes(bytes(7))
    (tmp_path / "text.txt").write_text("a\n")
    words = [word.format(folder=tmp_path, file=tmp_path / "text.txt") for word in words]
    command = [sys.executable, "-c", OPENED, *words, "--model", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != memory.ALLOCATOR}
    environment["KERAS_BACKEND"] = "tensorflow"
    result = subprocess.run(command, input="", capture_output=True, text=True, env=environment)
    assert result.stdout == "1", result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--set", "training.lora_rank=8"]], ids=["all", "lora"])
@pytest.mark.parametrize("is_set", [False, True])
def test_a_training_prepares_for_the_run_that_it_starts_from(tmp_path, words, is_set):
    (tmp_path / "model.keras").write_bytes(bytes(7))
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(
        "training: {epochs: 1}" if is_set else f"training: {{start_from: {tmp_path}}}"
    )
    words = [*words, *(["--set", f"training.start_from={tmp_path}"] if is_set else [])]
    command = [sys.executable, "-c", OPENED, "train", str(recipe), "--output", "new", *words]
    environment = {name: value for name, value in os.environ.items() if name != memory.ALLOCATOR}
    environment["KERAS_BACKEND"] = "tensorflow"
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    result = subprocess.run(command, **options)
    assert result.stdout == "1", result.stderr


# As a command of its own, which takes any model for a large one.
COMMAND = """
import sys
from keras_transformer.base import memory
from keras_transformer.cli.main import main
memory.LARGE_MODEL_BYTES = 1
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/smaps_rollup").exists(), reason="needs /proc/self/smaps_rollup"
)
@pytest.mark.parametrize(("backend", "dtype"), LIMITS)
def test_memory_grows_as_the_weights_do(tmp_path, monkeypatch, backend, dtype):
    monkeypatch.setattr(large, "PROGRAM", [sys.executable, "-c", COMMAND])
    # Shares of libraries depend on the processes of other tests; whole processes do not.
    monkeypatch.setattr(large, "FIELD", "Rss")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    shape = large.SHAPES["60MB"]
    if dtype == "float16":  # about as many bytes
        shape = shape._replace(rows=100_000)
    # Of the same layers, vocabulary and caches, so that only the weights are larger.
    shapes = {"60MB": shape, "toy": shape._replace(width=16, inner=64)}
    monkeypatch.setattr(large, "SHAPES", {**large.SHAPES, **shapes})
    limits = LIMITS[backend, dtype]
    least, commands = {}, [*limits]
    for _ in range(ROUNDS):  # Compilers take up to 0.2 GB more at times.
        sizes = {}
        for name in shapes:
            report = large.table(tmp_path, name, commands, longest=24, dtype=dtype)
            sizes[name] = report.figures["weights"]
            for row in report.figures["rows"]:
                key, peak = (name, row["command"]), row["peak, GB"]
                least[key] = min(peak, least.get(key, peak))
        weights = sizes["60MB"] - sizes["toy"]
        growths = {name: (least["60MB", name] - least["toy", name]) / weights for name in commands}
        # Less than half a copy of the weights says that the narrow model's peak was one of those.
        commands = [name for name in commands if not 0.5 < growths[name] <= limits[name]]
        if not commands:
            return
    raise AssertionError(f"{growths}, expected 0.5 to {limits}; {least}")
