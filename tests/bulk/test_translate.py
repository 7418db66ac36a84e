"""Files over Ray: complete, in order, whoever dies."""

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
from keras_transformer.bulk.workers import Chunk
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def model(tmp_path):
    """An export that gives upper case; a line that begins with "busy" takes a while."""
    folder = tmp_path / "model"
    save_model(folder, busy_steps=150_000)
    manifest = {
        "format": "keras_transformer.saved_model",
        "beam_size": 1,
        "length_penalty": 0.0,
        "n_best": 1,
        "largest_chunk": 32,
        "max_source_length": 64,
    }
    (folder / "export.json").write_text(json.dumps(manifest))
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


def test_a_second_run_with_another_recipe_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_transformer.bulk.translate.Workers", NoWorkers)
    monkeypatch.setattr("keras_transformer.serving.cluster.start_ray", lambda *arguments: None)
    write(model, "recipe.yaml", "decoding: {beam_size: 4}")
    write(tmp_path, "a.txt", "one\n")
    arguments = (model, [tmp_path / "a.txt"], tmp_path / "out")
    translate_corpus(*arguments)
    write(model, "recipe.yaml", "decoding: {beam_size: 5}")
    with pytest.raises(InputError, match="another job: its model differs"):
        translate_corpus(*arguments)


def test_a_folder_that_another_command_translates_into_is_refused(model, tmp_path, monkeypatch):
    class Workers(NoWorkers):
        """Capitals, and in the middle of them the same command again."""

        def run(self, chunks, paths):
            monkeypatch.setattr("keras_transformer.bulk.translate.Workers", NoWorkers)
            with pytest.raises(InputError, match="out: another command translates into this"):
                translate_corpus(*arguments)
            yield from ((chunk, [line.upper() for line in chunk.lines]) for chunk in chunks)

    monkeypatch.setattr("keras_transformer.bulk.translate.Workers", Workers)
    monkeypatch.setattr("keras_transformer.serving.cluster.start_ray", lambda *arguments: None)
    write(tmp_path, "a.txt", "one\ntwo\n")
    arguments = (model, [tmp_path / "a.txt"], tmp_path / "out")
    assert translate_corpus(*arguments)["lines_translated"] == 2
    assert (tmp_path / "out" / "a.txt").read_text() == "ONE\nTWO\n"
    with pytest.raises(InputError, match="another job") as refused:
        translate_corpus(*arguments, beam_size=5)
    # Though the refused one lives on, in its traceback.
    assert refused and translate_corpus(*arguments)["lines_translated"] == 0


class NoWorkers:
    """Translates nothing."""

    def __init__(self, *arguments):
        pass

    def run(self, chunks, paths):
        next(chunks)
        return iter(())

    def stop(self):
        pass


def wait(running, condition):
    """Waits for what a process does; the clock is against hanging alone."""
    deadline = time.monotonic() + 600
    while not condition():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_worker_and_a_killed_command_lose_nothing(model, tmp_path):
    pytest.importorskip("ray")
    output, log = tmp_path / "out", tmp_path / "log"
    for name, lines in TEXTS.items():
        write(tmp_path, name, "".join(line + "\n" for line in lines))
    inputs = [str(tmp_path / name) for name in TEXTS]

    def start(workers):
        command = [sys.executable, "-m", "keras_transformer", "translate", f"--model={model}"]
        command += ["--engine=ray", f"--workers={workers}", "--threads=1", "--chunk-lines=4"]
        command += ["--input", *inputs, f"--output={output}"]
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
        with open(log, "w") as file:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment
            )

    first = start(workers=1)
    wait(first, lambda: list(output.glob(".parts/0/[0-9]*.txt")))
    done = len(list(output.glob(".parts/0/[0-9]*.txt")))
    os.kill(processes_below(first.pid, b"ray::Worker")[0], signal.SIGKILL)
    # Its chunk is done again by another worker, then the command itself is killed.
    wait(first, lambda: len(list(output.glob(".parts/0/[0-9]*.txt"))) > done)
    first.kill()
    first.communicate(timeout=600)
    assert "a worker failed (ActorDiedError); " in log.read_text()
    assert not (output / "a.txt").exists()
    second = start(workers=2)
    stdout, _ = second.communicate(timeout=600)
    assert second.returncode == 0, log.read_text()[-2000:]
    assert json.loads(stdout)["lines_translated"] <= 39 - 2 * 4
    for name, lines in TEXTS.items():
        assert (output / name).read_text() == "".join(line.upper() + "\n" for line in lines)
    # A further run finds that all is there, and starts nothing.
    again = translate_corpus(model, inputs, output, workers=2, threads=1, chunk_lines=4)
    assert again["lines_translated"] == 0


def test_chunks_are_the_lines_in_order_with_their_numbers(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\n\nfour\x0cx\nfive")
    assert list(read_chunks(str(path), 3, 2)) == [
        Chunk(3, 0, 1, ["one", "two"]),
        Chunk(3, 1, 3, ["", "four\x0cx"]),
        Chunk(3, 2, 5, ["five"]),
    ]
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_chunks(str(packed), 3, 2)) == list(read_chunks(str(path), 3, 2))


def test_a_line_that_is_no_utf8_is_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(InputError, match="a.txt, line 3: expected UTF-8"):
        list(read_chunks(str(path), 0, 2))
    (tmp_path / "b.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="b.gz: expected a whole gzip file"):
        list(read_chunks(str(tmp_path / "b.gz"), 0, 2))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\n")
    return path


def test_a_file_appears_whole_when_its_last_chunk_is_there(tmp_path, source):
    first, last = read_chunks(str(source), 0, 2)
    with Output(tmp_path / "out", [str(source)], {"model": "m"}) as output:
        output.write(last, ["C"])
        assert output.has(last) and not output.has(first) and not output.is_done(0)
    again = Output(tmp_path / "out", [str(source)], {"model": "m"})
    assert again.has(last)
    again.write(first, ["A", "B\nb"])
    again.finish(0, 2)
    assert again.is_done(0)
    assert (tmp_path / "out" / "in.txt").read_text() == "A\nB b\nC\n"
    again.clean()
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {".lock", "bulk.json", "in.txt"}
    with pytest.raises(ValueError, match="1 translations of 2 lines"):
        again.write(first, ["A"])


@pytest.mark.parametrize("damaged", [b"", b"A\n", b"A\nB", b"\0\0\0\0", b"A\nB\nC\n"])
def test_a_part_of_another_number_of_lines_is_made_again(tmp_path, source, damaged):
    first, last = read_chunks(str(source), 0, 2)
    with Output(tmp_path / "out", [str(source)], {"model": "m"}) as output:
        output.write(first, ["A", ""])
        assert output.has(first) and not output.has(last)
    (part,) = (tmp_path / "out").glob(".parts/*/*.txt")
    part.write_bytes(damaged)
    assert not Output(tmp_path / "out", [str(source)], {"model": "m"}).has(first)


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
