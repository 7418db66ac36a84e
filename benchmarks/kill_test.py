"""Kills a training at random moments, resumes it, and compares it with an unbroken one.

    python -m benchmarks.kill_test --kills 20 --folder FOLDER

Six short epochs with averaged weights, early stopping and checkpoints between steps, each time in a
process of its own that ends by SIGKILL. `model.keras`, the last checkpoint and `history.csv` (times
aside) must be equal bit for bit. The result is JSON on stdout; the exit code is 1 if anything
differs.
"""

import argparse
import csv
import io
import json
import os
import pathlib
import random
import signal
import sys
import time
import traceback
import zipfile

import h5py
import yaml

from keras_transformer.data.dates import date_corpus
from keras_transformer.training import Recipe, RunFolder, train

TIMES = {"seconds", "tokens_per_second"}
_TRAINING = {
    "epochs": 6,
    "batch_tokens": 1024,
    "warmup_steps": 20,
    "learning_rate_scale": 2.0,
    "ema_momentum": 0.95,
    "early_stopping_patience": 2,
    "average_epochs": 2,
    "checkpoint_every_minutes": 0.005,
    "sample_translations": 0,
    "jit_compile": False,  # Each process would compile for longer than it trains.
}


def write_inputs(folder, pairs, held_out, vocabulary_size, training, **sections):
    """Writes dates of the demo, and a recipe that trains a small model on them; returns its path.

    Args:
        folder: `pathlib.Path` to make.
        pairs: Training pairs.
        held_out: Validation pairs.
        vocabulary_size: Ids of the vocabulary.
        training: The recipe's `training`, beside one batch shape.
        **sections: Other sections of the recipe.
    """
    folder.mkdir(parents=True, exist_ok=True)
    corpus = date_corpus(num_train=pairs, num_held_out=held_out)
    for name in ("train_source", "train_target", "held_out_source", "held_out_target"):
        text = "".join(line + "\n" for line in getattr(corpus, name))
        (folder / name).write_text(text, encoding="utf-8")
    sizes = dict(model_dim=32, num_heads=2, intermediate_dim=64, dropout=0.1)
    recipe = {
        "data": {
            "folder": str(folder),
            "train": {"source": "train_source", "target": "train_target"},
            "validation": {"source": "held_out_source", "target": "held_out_target"},
        },
        "text": {"vocabulary_size": vocabulary_size},
        "model": {**sizes, "num_encoder_layers": 1, "num_decoder_layers": 1},
        "training": {"max_shapes": 1, **training},
        **sections,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def start(recipe, run, log):
    """Starts the training, or goes on with it, in a new process, whose id it gives.

    A copy of this process, which has imported TensorFlow but never used it: so it starts at once.
    """
    process = os.fork()
    if process:
        return process
    try:
        with open(log, "ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        begun = (run / "recipe.yaml").exists()
        train(Recipe.load(recipe), run, resume=begun, overwrite=not begun)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(process, seconds=float("inf")):
    """Waits for a process so many seconds at most, and says whether it has ended."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            if status:
                sys.exit(f"a training failed with status {status}; see its log")
            return True
        if time.monotonic() > end:
            return False
        time.sleep(0.01)


def arrays(file):
    """The content of every array in a `.keras` file, by name."""
    with zipfile.ZipFile(file) as archive:
        weights = h5py.File(io.BytesIO(archive.read("model.weights.h5")), "r")
    found = {}
    weights.visititems(
        lambda name, item: (
            found.update({name: item[()].tobytes()}) if isinstance(item, h5py.Dataset) else None
        )
    )
    return found


def what_is_left(run):
    """Returns everything that must be equal: weights, the last checkpoint, the history."""
    folder = RunFolder(run)
    with open(folder.history_file, newline="", encoding="utf-8") as file:
        history = list(csv.DictReader(file))  # as text
    return {
        "model.keras": arrays(folder.model_file),
        "last checkpoint": arrays(folder.checkpoint_file(folder.checkpoint_epochs()[-1])),
        "history.csv": [{k: v for k, v in row.items() if k not in TIMES} for row in history],
    }


def kill_test(folder, kills, seed=1):
    """Trains once without kills, and then with them until there were enough.

    Args:
        folder: `pathlib.Path` for texts, runs and logs.
        kills: How many processes are killed, each after a time drawn evenly from 0 to what the
            whole training takes.
        seed: Seed of the times.

    Returns:
        A dict fit for JSON: `equal`; `rounds`, what was equal in each training that was killed and
        resumed to its end; `kills`, after how many seconds of its own a process was killed, and
        what was in `checkpoints/` then.
    """
    draw = random.Random(seed)
    recipe = write_inputs(folder / "inputs", 600, 100, 300, _TRAINING)
    begin = time.monotonic()
    ended(start(recipe, folder / "unbroken", folder / "unbroken.log"))
    whole = time.monotonic() - begin
    expected, killed, rounds = what_is_left(folder / "unbroken"), [], []
    while len(killed) < kills:
        run = folder / f"killed-{len(rounds)}"
        while True:
            seconds = draw.uniform(0, whole) if len(killed) < kills else float("inf")
            process = start(recipe, run, folder / "killed.log")
            if ended(process, seconds):
                break
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            files = sorted(file.name for file in (run / "checkpoints").glob("*"))
            killed.append({"seconds": round(seconds, 1), "checkpoints": files})
        found = what_is_left(run)
        rounds.append({name: expected[name] == found[name] for name in expected})
    return {
        "equal": all(all(each.values()) for each in rounds),
        "rounds": rounds,
        "epochs": len(expected["history.csv"]),
        "unbroken_seconds": round(whole, 1),
        "kills": killed,
    }


def main():
    """Parses the options, runs the test, prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kill_test", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = kill_test(options.folder, options.kills, options.seed)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["equal"] else 1)


if __name__ == "__main__":
    main()
