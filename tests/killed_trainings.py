"""Small trainings in processes of their own, on one host or on two, and what they leave."""

import contextlib
import csv
import io
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from typing import Any

import h5py
import keras
import pytest
from jax_processes import jax_environment
from small_corpus import recipe_values, write_corpus, write_recipe

from keras_transformer.training import Recipe, RunFolder, loop

Path = pathlib.Path
TIMES = {"seconds", "tokens_per_second"}
LONGEST_SECONDS = 60
ONE_HOST = {"epochs": 8, "batch_tokens": 256, "warmup_steps": 20, "learning_rate": 0.08}
ONE_HOST |= {"ema_momentum": 0.95, "early_stopping_patience": 2, "average_epochs": 2}
ONE_HOST |= {"steps_per_epoch": 3, "sample_translations": 0}
ONE_HOST["jit_compile"] = False  # Each process would compile for longer than it trains.
# As the tests have them: sums in another order would round differently.
THREADS = {"TF_NUM_INTRAOP_THREADS": "2", "TF_NUM_INTEROP_THREADS": "2"}
SEVERAL_HOSTS = {"batch_tokens": 250, "warmup_steps": 100, "ema_momentum": 0.95}
SEVERAL_HOSTS |= {"select_by": "bleu", "sample_translations": 1}
# At a high rate the rounding of a sum over two hosts grows to another training.
SEVERAL_HOSTS["learning_rate"] = 0.0018


def write_inputs(folder: Path, training: dict[str, Any]) -> Path:
    """Writes texts, and a recipe that trains a small model on them; returns the recipe's path."""
    values = recipe_values(write_corpus(folder), **training)
    values["model"] |= {"model_dim": 32, "intermediate_dim": 64, "dropout": 0.1}
    return write_recipe(folder / "recipe.yaml", values)


def begin(recipe: Path, run: Path, *options: str, log: str = "", **environment: str):
    """Starts or resumes a training in a new process; its messages go to `RUN.log`."""
    resume = "--resume" if (run / "recipe.yaml").exists() else "--overwrite"
    command = [sys.executable, "-m", "keras_transformer", "train", str(recipe)]
    command += ["--output", str(run), resume, *options]
    with open(f"{run}{log}.log", "a") as file:
        environment = {**os.environ, **environment}
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment)


def finish(*processes):
    """Waits for trainings, which must end well."""
    assert not any([process.wait() for process in processes]), "a training failed; see its log"


def wait(processes, is_done):
    """Waits until something is there, or a training has ended."""
    while not is_done():
        if any(process.poll() is not None for process in processes):
            return finish(*processes)
        time.sleep(0.02)


@contextlib.contextmanager
def copied(run: Path, copy: Path, epoch: int, batch: int, ends: bool = False):
    """Copies a run's folder after a batch of an epoch, from 0: a kill would leave the copy.

    The training goes on, or ends there.
    """
    callbacks_of = loop.callbacks_of

    class EndedError(Exception):
        pass

    class Copy(keras.callbacks.Callback):
        def on_epoch_begin(self, number, logs=None):
            self.epoch = number

        def on_train_batch_end(self, number, logs=None):
            if (self.epoch, number) == (epoch, batch):
                shutil.copytree(run, copy)
                if ends:
                    raise EndedError

    with contextlib.suppress(EndedError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "callbacks_of", lambda run: [*callbacks_of(run), Copy()])
        yield


def check_markers(run: Path) -> None:
    """Checks a run as a kill left it: a file with its name is whole, a marker comes last.

    The checkpoint of an epoch marks the epoch's history, samples and model; the metrics mark the
    end of the training.
    """
    folder = RunFolder(run)
    for file in run.rglob("[!.]*"):
        if file.suffix == ".keras":
            with zipfile.ZipFile(file) as archive:
                assert archive.testzip() is None, file
        elif file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
    epochs, rows = folder.checkpoint_epochs(), folder.history()
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1))
    if epochs:
        assert len(rows) in (epochs[-1], epochs[-1] + 1)
        if Recipe.of_run(folder).training.sample_translations:
            assert len(re.findall("^epoch", folder.samples(), re.MULTILINE)) >= epochs[-1]
        assert folder.model_file.exists() or any(
            map(Path.exists, map(folder.candidate_file, range(1, epochs[-1] + 1)))
        )
    if folder.metrics_file.exists():
        assert folder.model_file.exists() and len(rows) == epochs[-1]


def run_content(run: Path) -> dict[str, Any]:
    """Everything that resumption keeps: arrays of the model and the last checkpoint, history."""
    folder = RunFolder(run)
    with open(folder.history_file, newline="", encoding="utf-8") as file:
        history = list(csv.DictReader(file))  # as text
    return {
        "model.keras": _arrays(folder.model_file),
        "last checkpoint": _arrays(folder.checkpoint_file(folder.checkpoint_epochs()[-1])),
        "history.csv": [{k: v for k, v in row.items() if k not in TIMES} for row in history],
    }


def _arrays(path):
    """Bytes of all arrays in a `.keras` file, by name."""
    arrays: dict[str, bytes] = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[()].tobytes()

    with zipfile.ZipFile(path) as archive:
        with h5py.File(io.BytesIO(archive.read("model.weights.h5")), "r") as weights:
            weights.visititems(add)
    return arrays


def begin_hosts(recipe: Path, run: Path, hosts: int, *options: str, devices: int = 1) -> list:
    """Starts or resumes a training over several hosts, a process each."""
    addresses = []
    for _ in range(hosts):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{free.getsockname()[1]}")
    # Each process compiles for longer than it trains.
    environment = {**jax_environment(*sys.path), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    several = [] if hosts * devices == 1 else ["--hosts", ",".join(addresses), "--host-index"]
    of_host = [[*several, str(index)] if several else [] for index in range(hosts)]
    return [
        begin(recipe, run, *options, *words, log=f"-{index}", **environment)
        for index, words in enumerate(of_host)
    ]


def kill_host(recipe: Path, run: Path, *options: str) -> tuple[int | None, list[str], float]:
    """Kills the second of two hosts after an epoch; exit code, lines and seconds of the first."""
    processes = begin_hosts(recipe, run, 2, *options)
    wait(processes, lambda: list((run / "checkpoints").glob("epoch-*.keras")))
    processes[1].kill()
    start, code = time.monotonic(), None
    try:
        code = processes[0].wait(2 * LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        processes[0].kill()
    seconds = time.monotonic() - start
    for process in processes:
        process.wait()
    lines = Path(f"{run}-0.log").read_text(encoding="utf-8").splitlines()
    return code, [line for line in lines if "another host has ended" in line], seconds


def losses(run: Path) -> list[tuple[float, float]]:
    """Losses of training and validation of each epoch."""
    return [(row["loss"], row["val_loss"]) for row in RunFolder(run).history()]


def largest_difference(expected: Path, run: Path) -> float:
    """Largest relative difference of a run's losses from the expected run's, in its epochs."""
    pairs = zip(losses(expected), losses(run), strict=False)
    return max(abs(a - b) / abs(a) for row in pairs for a, b in zip(*row, strict=True))
