"""Files over Ray: complete, in order, whoever dies."""

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
from keras_transformer.bulk.translate import _fingerprint
from keras_transformer.errors import InputError

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def model(tmp_path):
    """An export that gives upper case; a line that begins with "busy" takes a while."""
    folder = tmp_path / "model"
    save_model(folder, busy_steps=250_000)
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
    monkeypatch.setattr("keras_transformer.bulk.translate._stop_ray", lambda: None)
    monkeypatch.setattr("keras_transformer.serving.cluster.start_ray", lambda *arguments: None)
    write(model, "recipe.yaml", "decoding: {beam_size: 4}")
    write(tmp_path, "a.txt", "one\n")
    arguments = (model, [tmp_path / "a.txt"], tmp_path / "out")
    translate_corpus(*arguments)
    write(model, "recipe.yaml", "decoding: {beam_size: 5}")
    with pytest.raises(InputError, match="another job: its model differs"):
        translate_corpus(*arguments)


class NoWorkers:
    """Translates nothing."""

    def __init__(self, *arguments):
        pass

    def run(self, chunks, paths):
        next(chunks)
        return iter(())

    def stop(self):
        pass


class Job:
    """The command on two files of one folder, and Ray where it needs it."""

    def __init__(self, model, folder):
        pytest.importorskip("ray")
        self.model, self.output = model, folder / "out"
        self.inputs = [str(folder / name) for name in TEXTS]
        for name, lines in TEXTS.items():
            (folder / name).write_text("".join(line + "\n" for line in lines))

    def start(self):
        command = [sys.executable, "-m", "keras_transformer", "translate", f"--model={self.model}"]
        command += ["--engine=ray", "--workers=2", "--threads=1", "--chunk-lines=4"]
        command += ["--input", *self.inputs, f"--output={self.output}"]
        package = pathlib.Path(__file__).parents[2]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(package)},
        )

    def wait_for_a_chunk(self, running):
        deadline = time.monotonic() + 120
        while not list(self.output.glob(".parts/0/*.txt")):
            assert running.poll() is None and time.monotonic() < deadline, running.communicate()
            time.sleep(0.05)
        assert not (self.output / "a.txt").exists()

    def check(self):
        for name, lines in TEXTS.items():
            expected = "".join(line.upper() + "\n" for line in lines)
            assert (self.output / name).read_text() == expected


@pytest.fixture
def job(model, tmp_path):
    return Job(model, tmp_path)


def test_a_killed_worker_loses_nothing_and_a_second_run_goes_on(job):
    running = job.start()
    job.wait_for_a_chunk(running)
    os.kill(processes_below(running.pid, b"ray::Worker")[0], signal.SIGKILL)
    stdout, stderr = running.communicate(timeout=120)
    assert running.returncode == 0, stderr[-2000:]
    assert "a worker failed (ActorDiedError)" in stderr
    assert json.loads(stdout)["lines_translated"] == 39
    job.check()
    # A second run finds that all is there, and starts nothing.
    again = translate_corpus(job.model, job.inputs, job.output, workers=2, threads=1, chunk_lines=4)
    assert again["lines_translated"] == 0


def test_a_killed_command_goes_on_where_it_stopped(job):
    first = job.start()
    job.wait_for_a_chunk(first)
    first.kill()
    first.communicate(timeout=60)
    assert not (job.output / "a.txt").exists()
    second = job.start()
    stdout, stderr = second.communicate(timeout=120)
    assert second.returncode == 0, stderr[-2000:]
    assert json.loads(stdout)["lines_translated"] <= 39 - 4
    job.check()
