"""Files over Ray Data: complete, in order, whoever dies."""

import gzip
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types
import warnings

import pytest
from live_server import processes_below, save_model

from keras_transformer import Translation, Translator
from keras_transformer.errors import InputError
from keras_transformer.locks import locked_folder
from keras_transformer.serving.bulk import (
    _begin,
    _fingerprint,
    _join,
    _parts,
    _Worker,
    translate_corpus,
)

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def model(tmp_path):
    """An export that gives upper case; a line that begins with "busy" takes a while."""
    folder = tmp_path / "model"
    save_model(folder, busy_steps=150_000)
    return folder


TEXTS = {
    "a.txt": [f"busy line {i}" for i in range(16)],
    "b.txt": [f"line {i}" if i % 3 else "" for i in range(23)],
}


def write(folder, name, content):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)


DECIDING = "recipe.yaml model.keras export.json saved_model.pb variables/variables.index assets/m"
LOGS = "history.csv metrics.json samples.txt .model.partial.keras checkpoints/1.keras"


def test_a_job_is_another_one_when_a_file_that_decides_the_answer_changes(tmp_path):
    model = tmp_path / "model"
    for name in f"{DECIDING} {LOGS}".split():
        write(model, name, "before")
    (tmp_path / "link").symlink_to(model)
    found = [_fingerprint(str(model))]
    for name in LOGS.split():
        write(model, name, "after")
        assert _fingerprint(str(tmp_path / "link")) == found[0]
    for name in DECIDING.split():
        write(model, name, "after")
        found.append(_fingerprint(str(model)))
    assert len(set(found)) == len(found)
    assert _fingerprint(str(model / "saved_model.pb")) == found[-1]


def write_lines(folder):
    """Paths of the texts, one of them packed, with a mark and other line ends."""
    write(folder, "a.txt", "".join(line + "\n" for line in TEXTS["a.txt"]))
    content = "\ufeff" + "\r\n".join(TEXTS["b.txt"])
    (folder / "b.txt.gz").write_bytes(gzip.compress(content.encode()))
    return [str(folder / name) for name in ("a.txt", "b.txt.gz")]


def wait(running, condition):
    """Waits for what a process does; the clock is against hanging alone."""
    deadline = time.monotonic() + 600
    while not condition():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_worker_and_a_killed_command_lose_nothing(model, tmp_path):
    pytest.importorskip("ray.data")
    output, inputs = tmp_path / "out", write_lines(tmp_path)

    command = [sys.executable, "-m", "keras_transformer", "translate", f"--model={model}"]
    command += ["--engine=ray", "--workers=1", "--chunk-lines=4"]
    command += ["--input", *inputs, f"--output={output}"]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    with open(tmp_path / "log", "w") as file:
        first = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    wait(first, lambda: list(output.glob(".parts/a.txt/[0-9]*.txt")))
    done = len(list(output.glob(".parts/a.txt/[0-9]*.txt")))
    # A second command may not translate into the folder.
    with pytest.raises(InputError, match=f"out: process {first.pid} writes to this folder"):
        translate_corpus(model, inputs, output, chunk_lines=4)
    os.kill(processes_below(first.pid, b"ray::MapWorker")[0], signal.SIGKILL)
    # Its chunk is done again by another worker, then the command itself is killed.
    wait(first, lambda: len(list(output.glob(".parts/a.txt/[0-9]*.txt"))) > done)
    first.kill()
    first.wait(timeout=600)
    assert not (output / "a.txt").exists()
    second = translate_corpus(model, inputs, output, chunk_lines=4, with_ray=False)
    assert 0 < second["lines_translated"] <= 39 - 2 * 4
    for name, lines in TEXTS.items():
        assert (output / name).read_text() == "".join(line.upper() + "\n" for line in lines)
    # A further run finds that all is there, and starts nothing.
    again = translate_corpus(model, inputs, output, chunk_lines=4)
    assert again["lines_translated"] == 0
    # Another model is another job.
    write(model, "export.json", "{}")
    with pytest.raises(InputError, match="another job"):
        translate_corpus(model, inputs, output, chunk_lines=4)


TEXT_ENGINE = types.SimpleNamespace(
    labels=None, turns=None, reads_sources=True, long_inputs=("refuse", "split")
)


def test_a_glossary_that_was_edited_is_another_job(tmp_path, source, monkeypatch):
    glossary, output, seen = tmp_path / "terms.tsv", tmp_path / "out", []

    def translate(texts, glossary, long_input):
        seen.append(pathlib.Path(glossary).read_text())
        return [Translation(text, 0.0) for text in texts]

    loaded = types.SimpleNamespace(translate=translate, engine=TEXT_ENGINE)
    monkeypatch.setattr(Translator, "load", lambda model, threads: loaded)
    write(tmp_path / "model", "export.json", "{}")

    def start(glossary=glossary):
        translate_corpus(tmp_path / "model", [source], output, with_ray=False, glossary=glossary)

    glossary.write_text("rack\tGestell\n")
    start()
    start(shutil.copy(glossary, tmp_path / "copy.tsv"))  # An equal one is the same job.
    glossary.write_text("rack\tRegal\n")
    with pytest.raises(InputError, match="another job"):
        start()
    assert seen == ["rack\tGestell\n"]


def test_a_worker_says_which_lines_were_cut_and_which_text_is_at_fault(monkeypatch):
    def translate(texts, long_input):
        assert long_input == "split"
        if "bad" in texts:
            raise InputError("text 2 is bad.")
        warnings.warn("1 text was cut.", stacklevel=2)
        return [Translation(text.upper(), 0.0) for text in texts]

    loaded = types.SimpleNamespace(translate=translate, engine=TEXT_ENGINE)
    monkeypatch.setattr(Translator, "load", lambda model, threads: loaded)
    worker = _Worker("model", 1, {})
    row = {"name": "a", "first": 1, "where": "a, lines 1-2", "lines": ["x", "y"], "error": ""}
    done = worker(dict(row))
    assert done["lines"] == ["X", "Y"] and done["messages"] == ["a, lines 1-2: 1 text was cut."]
    assert worker({**row, "lines": ["x", "bad"]})["error"] == "a, lines 1-2: text 2 is bad."


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    return path


def test_parts_become_a_file_in_order_and_a_damaged_one_is_none(tmp_path):
    for first, texts in (1, "A\nB\n"), (11, "D\n"), (3, "C\n"):
        write(tmp_path, f".parts/in.txt/{first}.txt", texts)
    assert sorted(zip(*_parts(tmp_path, "in.txt"), strict=True)) == [(1, 2), (3, 1), (11, 1)]
    _join(tmp_path, "in.txt")
    assert (tmp_path / "in.txt").read_text() == "A\nB\nC\nD\n"
    for damaged in (b"", b"A\nB", b"\0\0\0\0"):
        (tmp_path / ".parts" / "in.txt" / "1.txt").write_bytes(damaged)
        assert sorted(_parts(tmp_path, "in.txt")[0]) == [3, 11]


@pytest.mark.parametrize("name", ["bulk.json", "bulk.json.gz", ".parts", ".b.partial.txt", ".gz"])
def test_an_input_named_as_the_folders_own_files_is_refused(tmp_path, name):
    (tmp_path / name).write_text("a\n")
    with pytest.raises(InputError, match="must not be bulk.json nor begin with a point"):
        translate_corpus(tmp_path, [tmp_path / name], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_another_job_does_not_mix_with_what_is_there(tmp_path, source):
    output = tmp_path / "out"

    def start(*inputs, output=output, **options):
        return translate_corpus(tmp_path / "model", inputs, output, **options)

    write(tmp_path / "model", "export.json", "{}")
    # Killed before it had written its job: begun again.
    write(output, ".bulk.partial.json", "{")
    with locked_folder(output):
        with pytest.raises(InputError, match=f"out: process {os.getpid()} writes to this folder"):
            start(source)
    _begin(output, {})
    with pytest.raises(InputError, match="another job"):
        start(source)
    empty = tmp_path / "empty"
    for _ in range(2):
        assert start(output=empty, banned_ids=(5, 7), logit_bias={11: -1.0})["files"] == 0
    with pytest.raises(InputError, match="another job, whose model, options or inputs differ"):
        start(output=empty, banned_ids=(5,))
    write(tmp_path / "model", "export.json", "{ }")
    with pytest.raises(InputError, match="another job"):
        start(output=empty, banned_ids=(5, 7), logit_bias={11: -1.0})
    with pytest.raises(InputError, match="another job"):
        start(source, output=empty)
    with pytest.raises(InputError, match="expected an empty folder"):
        start(source, output=tmp_path)
    with pytest.raises(InputError, match="in.txt twice"):
        start(source, f"{source}.gz")
    with pytest.raises(InputError, match="none: cannot be read"):
        start(tmp_path / "none")
