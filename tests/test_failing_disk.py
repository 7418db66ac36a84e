"""A command on a full or broken disk ends well, or with one line and without a wrong file.

`failing_disk.c` lets one call fail that makes, writes, syncs or renames a file: once (a broken
disk), or with all later calls (a full disk). Each file that a command leaves then equals the file
before, or the file of an undisturbed run. A command that can be resumed has the whole result then.

`FAILING_CALLS=9 pytest --slow tests/test_failing_disk.py` tries nine calls of each function, for
every command; `-k train` takes one command, and a large number all its calls.
"""

import contextlib
import ctypes
import errno
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import traceback
import zipfile

import pytest
from small_corpus import PAIRS, recipe_values, write_corpus, write_recipe

TESTS = pathlib.Path(__file__).parent
TOY = TESTS / "data" / "marian" / "opus"
FULL, BROKEN = (errno.ENOSPC, True), (errno.EIO, False)  # whether all later calls fail, too
COUNT = int(os.environ.get("FAILING_CALLS", "1"))  # of the calls of each function
SECONDS = 900  # A command that takes longer hangs.

RUN, TEXTS, OUTPUT = ["--model", "{inputs}/run"], "{inputs}/texts.txt", ["--output", "{disk}/out"]
COMMANDS = {
    "save_model": ["{disk}/model.keras"],
    "clean": [
        "clean",
        "{inputs}/corpus/train.en",
        "{inputs}/corpus/train.de",
        "--processes=1",
        *OUTPUT,
    ],
    "import": ["import", str(TOY), *OUTPUT],
    "shortlist": ["shortlist", "--model", "{disk}/run", "{inputs}/pairs.tsv"],
    "train": ["train", "{inputs}/recipe.yaml", *OUTPUT],
    "translate": ["translate", *RUN, TEXTS, *OUTPUT],
    "synthesize": ["synthesize", *RUN, TEXTS, *OUTPUT],
    "evaluate": ["evaluate", *RUN, "--source", TEXTS, "--reference", TEXTS, *OUTPUT],
    "inspect": ["inspect", *RUN, "--text", "a cat", *OUTPUT],
}
TRAINED = {"hugging_face", "argos", "web"}  # They do not take the imported model.
for name in "saved_model", "litert", "ctranslate2", "marian", *sorted(TRAINED):
    run = ["--model", "{inputs}/trained"] if name in TRAINED else RUN
    COMMANDS[name] = ["export", *run, "--samples", TEXTS, *OUTPUT, "--format", name]
COMMANDS["argos"] += ["--languages", "en-eo"]
QUICK = ["save_model", "clean"]
SLOW = COMMANDS.keys() - QUICK if "FAILING_CALLS" in os.environ else ["import", "shortlist"]
MARKS = [pytest.mark.slow, pytest.mark.tensorflow]
IN_PARTS = {"clean", "shortlist"}  # Each file has its name as soon as it is whole.
RESUMED = {"train": ["--resume"], "synthesize": []}  # by the same command with these options


def contents(folder):
    """Checksums of files by their names, without times and numbers of epochs."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {re.sub(r"tfevents.*|\d+\.keras", "", str(path)): checksum(path) for path in files}


def checksum(path):
    content = path.read_bytes()
    if path.suffix in {".json", ".csv", ".md", ".html"}:  # checksums, dates, seconds
        content = re.sub(rb"[0-9a-f]{64}|[\d.:@e+-]+", b"0", content)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            content = repr([(name, archive.read(name)) for name in archive.namelist()]).encode()
    return hashlib.sha256(content).hexdigest()


def answer_requests():
    """Runs the commands that `Disk` asks for: the program of a process with a failing disk."""
    disk = ctypes.CDLL(os.environ["LD_PRELOAD"])
    disk.disk_start.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    disk.disk_stop.restype = ctypes.c_char_p
    answers = os.fdopen(os.dup(1), "w", 1)
    for arguments, folder, log, *failure in map(json.loads, sys.stdin):
        with open(log, "w") as file:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                disk.disk_start(os.fsencode(folder), *failure)
                code = exit_code(arguments)
                calls = disk.disk_stop().decode().splitlines()
        print(json.dumps([code, calls]), file=answers)
    os._exit(0)


def exit_code(arguments):
    try:
        if len(arguments) > 1:
            from keras_transformer.cli.main import run

            return run(arguments)
        from keras_transformer.runs.model_file import save_model

        save_model(small_model(), *arguments)
    except SystemExit as ended:
        return ended.code
    except OSError as error:
        print(f"{error.filename}: cannot be written: {error.strerror}")
        return 1
    except BaseException:
        return traceback.format_exc()
    return 0


@functools.cache
def small_model():
    sys.modules["tensorflow"] = None  # Keras with NumPy does not need it.
    import keras

    model = keras.Sequential([keras.layers.Dense(97)])
    model.build((None, 7))
    return model


class Disk:
    """A folder that a command writes to while calls fail. Its runs share a process."""

    def __init__(self, name, folder, library, inputs):
        self._name, self._folder, self._inputs, self._process = name, folder, inputs, None
        self.root = folder / "disk"
        paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        self._environment = {**os.environ, "PYTHONPATH": paths, "LD_PRELOAD": str(library)}
        self._environment["FAILING_DISK"] = str(folder / "state")
        if name == "save_model":
            self._environment["KERAS_BACKEND"] = "numpy"

    def attempt(self, failing=0, kind=BROKEN, options=()):
        """Runs the command; returns its exit code, its lines, its calls, and all files."""
        log = self._folder / "log"
        words = [word.format(inputs=self._inputs, disk=self.root) for word in COMMANDS[self._name]]
        if self._process is None or self._process.poll() is not None:
            program = [sys.executable, "-c", "import test_failing_disk as t; t.answer_requests()"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._process = subprocess.Popen(program, **pipes, env=self._environment)
        timer = threading.Timer(SECONDS, self._process.kill)
        timer.start()
        request = [[*words, *options], str(self.root), str(log), failing, *kind]
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        timer.cancel()
        code, calls = json.loads(answer) if answer else (f"ended: {self._process.wait()}", [])
        return code, log.read_text().splitlines(), calls, contents(self.root)

    def new(self):
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        if self._name == "shortlist":
            shutil.copytree(self._inputs / "run", self.root / "run")
        return contents(self.root)

    def close(self):
        if self._process is not None:
            self._process.communicate()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    library, source = tmp_path_factory.mktemp("disk") / "failing.so", TESTS / "failing_disk.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    corpus = write_corpus(folder / "corpus")
    values = recipe_values(corpus, sample_translations=1, jit_compile=False)
    values["model"] |= {"model_dim": 16, "intermediate_dim": 16}
    write_recipe(folder / "recipe.yaml", values)
    (folder / "texts.txt").write_text("the old child sees\na cat\nyes\n")
    (folder / "pairs.tsv").write_text("".join("\t".join(pair) + "\n" for pair in PAIRS))
    return folder


@pytest.fixture
def disk(name, tmp_path, library, inputs):
    from keras_transformer.cli.main import run

    commands = {"run": ["import", str(TOY)], "trained": ["train", str(inputs / "recipe.yaml")]}
    needed = f"{COMMANDS[name]}{'{inputs}/run' if name == 'shortlist' else ''}"
    for folder, command in commands.items():
        output = inputs / folder
        if f"{{inputs}}/{folder}" in needed and not output.exists():
            assert run([*command, "--output", str(output)]) == 0
    disk = Disk(name, tmp_path, library, inputs)
    yield disk
    disk.close()


def chosen(calls):
    """Yields numbers of calls, from first to last for each function, and kinds of failures."""
    functions = {}
    for number, call in enumerate(calls, start=1):
        functions.setdefault(call.split()[0].removesuffix("64"), []).append(number)
    numbers = []
    for index, group in enumerate(functions.values()):
        start = len(group) * index // len(functions)
        numbers += (group * 2)[start : start + len(group) : -(-len(group) // COUNT)]
    return zip(numbers, itertools.cycle([FULL, BROKEN]))


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=MARKS) for name in SLOW)])
def test_a_call_that_fails_is_one_line_and_leaves_no_wrong_file(name, disk):
    before = disk.new()
    *_, first = disk.attempt()  # What is imported and compiled once is there afterwards.
    disk.new()
    code, lines, calls, second = disk.attempt()
    assert code == 0, lines
    # A few files, such as a log, are different each time: only their names are compared.
    whole = {path: content for path, content in second.items() if first[path] == content}
    assert len(whole) > 0.5 * len(second)
    whole |= dict.fromkeys(second.keys() - whole.keys())

    def problem_of(result):
        """Returns what is wrong with a result, or None."""
        code, lines, _, contents = result
        files = {path: whole.get(path, "") and content for path, content in contents.items()}
        if code == 0:
            return None if files == whole else "not the whole result"
        errors = [line for line in lines if "cannot be written" in line or "cannot write" in line]
        if code not in (1, 2) or errors != lines[-1:] or "partial" in errors[0]:
            return "not one clear line"
        if name in RESUMED:
            return None
        if name not in IN_PARTS and files.keys() not in (before.keys(), whole.keys()):
            return "not all files"
        wrong = files.items() - before.items() - whole.items()
        return f"wrong files: {wrong}" if wrong else None

    problems, count = [], 0
    for number, kind in chosen(calls):
        disk.new()
        result, count = disk.attempt(number, kind), count + 1
        problem = problem_of(result)
        if name in RESUMED and not problem and result[0] and result[3]:
            result = disk.attempt(options=RESUMED[name])
            problem = problem_of(result) or (result[0] and "not resumed")
        if problem:
            problems.append((number, kind, calls[number - 1], problem, *result[:2]))
            print(*problems[-1], flush=True)
    print(f"{name}: {len(calls)} calls, {count} tried, {len(problems)} problems", flush=True)
    assert not problems, "\n".join(map(str, problems))
