"""Files over Ray Data: complete, in order, whoever dies."""

import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from live_server import processes_below, save_model

from keras_transformer.bulk import translate_corpus
from keras_transformer.bulk.translate import Output, _fingerprint, read_chunks
from keras_transformer.errors import InputError

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


RUN = ["recipe.yaml", "source_tokenizer.model", "target_tokenizer.model", "model.keras"]
EXPORT = ["export.json", "saved_model.pb", "variables/variables.index", "assets/source.model"]
OTHERS = ["model_ids.tflite", "model.tflite", "model.bin", "shared_vocabulary.json", "ids/x.pb"]


def write(folder, name, content):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)


@pytest.mark.parametrize("changed", [*RUN, *EXPORT, *OTHERS])
def test_a_job_is_another_one_when_a_file_that_decides_the_answer_changes(tmp_path, changed):
    for name in [*RUN, *EXPORT, *OTHERS]:
        write(tmp_path / "model", name, "before")
    before = _fingerprint(str(tmp_path / "model"))
    of_file = _fingerprint(str(tmp_path / "model" / "model.tflite"))
    (tmp_path / "copy").symlink_to(tmp_path / "model")
    assert _fingerprint(str(tmp_path / "copy")) == before
    write(tmp_path / "model", changed, "after")
    assert _fingerprint(str(tmp_path / "model")) != before
    assert _fingerprint(str(tmp_path / "model" / "model.tflite")) != of_file


def test_a_job_is_the_same_one_when_its_run_only_logs(tmp_path):
    for name in RUN:
        write(tmp_path, name, "before")
    before = _fingerprint(str(tmp_path))
    for name in ("history.csv", "metrics.json", "samples.txt", ".model.partial.keras"):
        write(tmp_path, name, "1")
    for name in ("checkpoints/epoch-0001.keras", "tensorboard/train/events"):
        write(tmp_path, name, "1")
    assert _fingerprint(str(tmp_path)) == before


def write_lines(folder):
    for name, lines in TEXTS.items():
        write(folder, name, "".join(line + "\n" for line in lines))
    return [str(folder / name) for name in TEXTS]


def wait(running, condition):
    """Waits for what a process does; the clock is against hanging alone."""
    deadline = time.monotonic() + 600
    while not condition():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_worker_and_a_killed_command_lose_nothing(model, tmp_path):
    pytest.importorskip("ray.data")
    output, log = tmp_path / "out", tmp_path / "log"
    inputs = write_lines(tmp_path)

    def start(workers):
        command = [sys.executable, "-m", "keras_transformer", "translate", f"--model={model}"]
        command += ["--engine=ray", f"--workers={workers}", "--chunk-lines=4"]
        command += ["--input", *inputs, f"--output={output}"]
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
        with open(log, "w") as file:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
            )

    first = start(workers=1)
    wait(first, lambda: list(output.glob(".parts/0/[0-9]*.txt")))
    done = len(list(output.glob(".parts/0/[0-9]*.txt")))
    # A second command may not translate into the folder.
    with pytest.raises(InputError, match="out: another command translates into this"):
        translate_corpus(model, inputs, output, chunk_lines=4)
    os.kill(processes_below(first.pid, b"ray::MapWorker")[0], signal.SIGKILL)
    # Its chunk is done again by another worker, then the command itself is killed.
    wait(first, lambda: len(list(output.glob(".parts/0/[0-9]*.txt"))) > done)
    first.kill()
    first.communicate(timeout=600)
    assert not (output / "a.txt").exists()
    second = start(workers=2)
    stdout, _ = second.communicate(timeout=600)
    assert second.returncode == 0, log.read_text()[-2000:]
    assert json.loads(stdout)["lines_translated"] <= 39 - 2 * 4
    for name, lines in TEXTS.items():
        assert (output / name).read_text() == "".join(line.upper() + "\n" for line in lines)
    # A further run finds that all is there, and starts nothing.
    again = translate_corpus(model, inputs, output, chunk_lines=4)
    assert again["lines_translated"] == 0
    # Another model is another job.
    write(model, "export.json", "{}")
    with pytest.raises(InputError, match="another job: its model differs"):
        translate_corpus(model, inputs, output, chunk_lines=4)


def test_a_line_that_cannot_be_translated_ends_the_command_in_one_line(model, tmp_path):
    pytest.importorskip("ray.data")
    write(tmp_path, "a.txt", "one\ntwo\n")
    (tmp_path / "b.txt").write_bytes(b"one\n\xff\n")
    command = [sys.executable, "-m", "keras_transformer", "translate", f"--model={model}"]
    command += ["--engine=ray", "--workers=1", "--input", str(tmp_path / "a.txt")]
    mistakes = (
        (["--length-penalty=0.7"], "a.txt, lines 1-2: `length_penalty`"),
        ([str(tmp_path / "b.txt")], "b.txt, line 2: expected UTF-8 text"),
    )
    for number, (more, says) in enumerate(mistakes):
        run = subprocess.run(
            [*command, *more, f"--output={tmp_path / 'out'}{number}"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert run.returncode == 2 and "Traceback" not in run.stderr
        assert says in run.stderr.splitlines()[-1]


def test_chunks_are_the_lines_in_order(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\nfour\x0cx\nfive")
    assert list(read_chunks(str(path), 2)) == [["one", "two"], ["", "four\x0cx"], ["five"]]
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_chunks(str(packed), 2)) == list(read_chunks(str(path), 2))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    return path


def test_a_file_appears_whole_when_its_last_part_is_there(tmp_path, source):
    with Output(tmp_path / "out", [str(source)], {"model": "m"}) as output:
        output.write(0, 1, ["C"])
        assert output.parts(0) == ([1], [1]) and not output.is_done(0)
    again = Output(tmp_path / "out", [str(source)], {"model": "m"})
    again.write(0, 0, ["A", "B\nb"])
    assert again.parts(0) == ([0, 1], [2, 1])
    again.finish(0, 2)
    assert again.is_done(0)
    assert (tmp_path / "out" / "in.txt").read_text() == "A\nB b\nC\n"
    again.clean()
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {".lock", "bulk.json", "in.txt"}


@pytest.mark.parametrize("damaged", [b"", b"A\nB", b"\0\0\0\0"])
def test_a_part_that_does_not_end_with_a_line_is_none(tmp_path, source, damaged):
    with Output(tmp_path / "out", [str(source)], {"model": "m"}) as output:
        output.write(0, 0, ["A", ""])
        assert output.parts(0) == ([0], [2])
        (part,) = (tmp_path / "out").glob(".parts/*/*.txt")
        part.write_bytes(damaged)
        assert output.parts(0) == ([], [])


def test_a_folder_whose_job_was_not_written_to_its_end_is_begun_again(
    tmp_path, source, monkeypatch
):
    class Killed(BaseException):
        """Ends a command where it stands: nothing is put right afterwards."""

    def kill(*names):
        raise Killed

    arguments = tmp_path / "out", [str(source)], {"model": "m"}
    with monkeypatch.context() as context, pytest.raises(Killed):
        context.setattr(os, "replace", kill)
        context.setattr(pathlib.Path, "unlink", lambda *_, **__: None)
        Output(*arguments)
    assert any((tmp_path / "out").iterdir()) and not (tmp_path / "out" / "bulk.json").exists()
    for _ in range(2):
        with Output(*arguments) as output:
            assert not output.is_done(0)


@pytest.mark.parametrize("name", ["bulk.json", "bulk.json.gz", ".parts", ".b.partial.txt", ".gz"])
def test_an_input_named_as_the_folders_own_files_is_refused(tmp_path, name):
    (tmp_path / name).write_text("a\n")
    with pytest.raises(InputError, match="must not be bulk.json nor begin with a point"):
        Output(tmp_path / "out", [str(tmp_path / name)], {})
    assert not (tmp_path / "out").exists()


def test_options_are_the_same_job_again_whatever_json_makes_of_them(tmp_path, source):
    job = {"options": {"banned_ids": (5, 7), "logit_bias": {11: -1.0}}}
    for _ in range(2):
        Output(tmp_path / "out", [str(source)], job)
    with pytest.raises(InputError, match="fit for JSON.*set"):
        Output(tmp_path / "new", [str(source)], {"options": {"banned_ids": {5}}})


def test_another_job_does_not_mix_with_what_is_there(tmp_path, source):
    Output(tmp_path / "out", [str(source)], {"model": "m"})
    with pytest.raises(InputError, match="its model differs"):
        Output(tmp_path / "out", [str(source)], {"model": "n"})
    source.write_text("a\nb\n")
    with pytest.raises(InputError, match="its inputs differs"):
        Output(tmp_path / "out", [str(source)], {"model": "m"})
    with pytest.raises(InputError, match="expected an empty folder"):
        Output(tmp_path, [str(source)], {})
    with pytest.raises(InputError, match="in.txt twice"):
        Output(tmp_path / "new", [str(source), str(source) + ".gz"], {})
    with pytest.raises(InputError, match="none: cannot be read"):
        Output(tmp_path / "new", [str(tmp_path / "none")], {})
