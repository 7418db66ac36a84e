"""Trains on one host and on two, on this machine; kills one of two, resumes, and compares.

    KERAS_BACKEND=jax python -m benchmarks.hosts_test --folder FOLDER

Each process is one of `keras-transformer train`; 200 steps on dates. What is compared: the loss of
each epoch of one host and of two; of two hosts and of one with the batch in halves on two devices,
which must be equal to the last bit; how long a host outlives the other one, and what it says; the
losses of two hosts that were killed and resumed. The result is JSON on stdout; the exit code is 1
if losses differ by more than 1e-6, or a host lives for more than a minute.
"""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from benchmarks import kill_test
from keras_transformer.training import RunFolder

SAME = 1e-6
MINUTE = 60


def write_inputs(folder, epochs, pairs):
    """Writes dates, and a recipe with dropout and batches that two hosts do not divide."""
    training = {
        "epochs": epochs,
        "batch_tokens": 500,
        "warmup_steps": 100,
        # At a high rate the rounding of a sum over two hosts grows to another training.
        "learning_rate_scale": 0.1,
        "ema_momentum": 0.95,
        "select_by": "bleu",
        "sample_translations": 1,
        "checkpoint_every_minutes": 0.02,
    }
    limits = {"max_source_length": 48, "max_target_length": 32}
    return kill_test.write_inputs(folder, pairs, 50, 200, training, decoding=limits)


def start(recipe, run, hosts, *options, devices=1):
    """A process for each of so many hosts of so many devices; their messages go beside the run."""
    addresses = []
    for _ in range(hosts):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{free.getsockname()[1]}")
    command = [sys.executable, "-m", "keras_transformer", "train", str(recipe)]
    command += ["--output", str(run), *options]
    processes = []
    for index in range(hosts):
        several = ["--hosts", ",".join(addresses), "--host-index", str(index)]
        several *= hosts * devices > 1
        with open(run.with_name(f"{run.name}-{index}.log"), "w") as log:
            flags = f"--xla_force_host_platform_device_count={devices}"
            environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
            asked = dict(stdout=subprocess.DEVNULL, stderr=log, env=environment)
            processes.append(subprocess.Popen([*command, *several], **asked))
    return processes


def finish(processes):
    """Waits for all, which must end well."""
    if any([process.wait() for process in processes]):
        sys.exit("a training failed; see its log")


def kill_one(recipe, run, victim, *options):
    """Kills one of two hosts after the first epoch, and gives what the other one does."""
    processes = start(recipe, run, 2, *options)
    while not list((run / "checkpoints").glob("epoch-*.keras")):
        time.sleep(0.1)
        if any(process.poll() is not None for process in processes):
            sys.exit("a training failed; see its log")
    processes[victim].send_signal(signal.SIGKILL)
    begin, other = time.monotonic(), processes[1 - victim]
    try:
        code = other.wait(2 * MINUTE)
    except subprocess.TimeoutExpired:
        other.kill()
        code = None
    for process in processes:
        process.wait()
    log = run.with_name(f"{run.name}-{1 - victim}.log").read_text(encoding="utf-8")
    said = [line for line in log.splitlines() if "another host has ended" in line]
    seconds = round(time.monotonic() - begin, 1)
    return {"victim": victim, "seconds": seconds, "exit_code": code, "said": said}


def losses(run):
    """`(loss, val_loss)` of each epoch."""
    return [(row["loss"], row["val_loss"]) for row in RunFolder(run).history()]


def largest_difference(expected, found):
    """Relative, over all losses of two runs."""
    pairs = zip(expected, found, strict=True)
    return max(abs(a - b) / abs(a) for one, other in pairs for a, b in zip(one, other, strict=True))


def hosts_test(folder, epochs=12, pairs=430, victims=(0, 1)):
    """Runs all, and gives a dict fit for JSON."""
    recipe = write_inputs(folder / "inputs", epochs, pairs)
    for name, hosts, devices in (("one", 1, 1), ("two", 2, 1), ("halves", 1, 2)):
        finish(start(recipe, folder / name, hosts, devices=devices))
    expected, two = losses(folder / "one"), losses(folder / "two")
    metrics = RunFolder(folder / "one").metrics()
    report = {
        "steps": epochs * metrics["steps_per_epoch"],
        "shapes": metrics["shapes"],
        "two_hosts": largest_difference(expected, two),
        "two_hosts_beside_halves": largest_difference(losses(folder / "halves"), two),
        "killed": [],
    }
    for victim in victims:
        run = folder / f"killed-{victim}"
        found = kill_one(recipe, run, victim)
        finish(start(recipe, run, 2, "--resume"))
        found["resumed"] = largest_difference(expected, losses(run))
        report["killed"].append(found)
    return report


def holds(report):
    """Returns True where the report keeps the promise."""
    differences = [report["two_hosts"], *(each["resumed"] for each in report["killed"])]
    ended = all(
        each["said"] and each["exit_code"] not in (0, None) and each["seconds"] < MINUTE
        for each in report["killed"]
    )
    return max(differences) <= SAME and not report["two_hosts_beside_halves"] and ended


def main():
    """Parses the options, runs the test, prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hosts_test", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=430)
    options = parser.parse_args()
    report = hosts_test(options.folder, options.epochs, options.pairs)
    print(json.dumps(report, indent=2))
    sys.exit(0 if holds(report) else 1)


if __name__ == "__main__":
    main()
