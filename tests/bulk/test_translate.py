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
from keras_transformer.export.manifest import FORMAT

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def model(tmp_path):
    """An export that gives upper case; a line that begins with "busy" takes a while."""
    folder = tmp_path / "model"
    save_model(folder, busy_steps=250_000)
    manifest = {
        "format": FORMAT,
        "beam_size": 1,
        "length_penalty": 0.0,
        "n_best": 1,
        "largest_chunk": 32,
        "max_source_length": 64,
    }
    (folder / "export.json").write_text(json.dumps(manifest))
    return folder


def test_a_killed_worker_loses_nothing_and_a_second_run_goes_on(model, tmp_path):
    pytest.importorskip("ray")
    texts = {
        "a.txt": [f"busy line {i}" for i in range(16)],
        "b.txt": [f"line {i}" if i % 3 else "" for i in range(23)],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    output = tmp_path / "out"
    command = [sys.executable, "-m", "keras_transformer", "translate", f"--model={model}"]
    command += ["--engine=ray", "--workers=2", "--threads=1", "--chunk-lines=4", "--input"]
    command += [str(tmp_path / name) for name in texts] + [f"--output={output}"]
    package = pathlib.Path(__file__).parents[2]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package)},
    )
    deadline = time.monotonic() + 120
    while not list(output.glob(".parts/0/*.txt")):
        assert running.poll() is None and time.monotonic() < deadline, running.communicate()
        time.sleep(0.05)
    victim = processes_below(running.pid, b"ray::Worker")[0]
    os.kill(victim, signal.SIGKILL)
    assert not (output / "a.txt").exists()
    stdout, stderr = running.communicate(timeout=120)
    assert running.returncode == 0, stderr[-2000:]
    assert "a worker died" in stderr
    assert json.loads(stdout)["lines_translated"] == 39
    for name, lines in texts.items():
        assert (output / name).read_text() == "".join(line.upper() + "\n" for line in lines)
    # A second run finds that all is there, and starts nothing.
    inputs = [str(tmp_path / name) for name in texts]
    again = translate_corpus(model, inputs, output, workers=2, threads=1, chunk_lines=4)
    assert again["lines_translated"] == 0
