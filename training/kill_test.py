"""Kills a training at random moments, resumes it, and compares it with an unbroken one.

    python training/kill_test.py --kills 20 --folder FOLDER

Six short epochs with averaged weights and early stopping, each time in a process of its own that
ends by SIGKILL. `model.keras`, the last checkpoint and `history.csv` (times aside) must be equal
bit for bit. The result is JSON on stdout; the exit code is 1 if anything differs.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time

TIMES = {"seconds", "tokens_per_second"}


def write_inputs(folder):
    """Writes the dates of the demo and a recipe that trains on them for six epochs."""
    import yaml

    from keras_transformer.data.dates import date_corpus

    folder.mkdir(parents=True, exist_ok=True)
    corpus = date_corpus(num_train=3000, num_held_out=200)
    for name in ("train_source", "train_target", "held_out_source", "held_out_target"):
        text = "".join(line + "\n" for line in getattr(corpus, name))
        (folder / name).write_text(text, encoding="utf-8")
    recipe = {
        "data": {
            "folder": str(folder),
            "train": {"source": "train_source", "target": "train_target"},
            "validation": {"source": "held_out_source", "target": "held_out_target"},
        },
        "text": {"vocabulary_size": 300},
        "model": {
            "model_dim": 32,
            "num_heads": 2,
            "intermediate_dim": 64,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "dropout": 0.1,
        },
        "training": {
            "epochs": 6,
            "batch_tokens": 1024,
            "max_shapes": 2,
            "warmup_steps": 100,
            "ema_momentum": 0.95,
            "early_stopping_patience": 2,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def start(recipe, run, log):
    """Starts the training, or goes on with it."""
    command = [
        sys.executable,
        "-m",
        "keras_transformer",
        "train",
        str(recipe),
        "--output",
        str(run),
    ]
    if (run / "recipe.yaml").exists():
        command.append("--resume")
    elif run.exists():
        command.append("--overwrite")
    return subprocess.Popen(command, stdout=log, stderr=log)


def what_is_left(run):
    """The best model's and the last checkpoint's arrays, and the history without times."""
    import numpy as np

    from keras_transformer.training import RunFolder
    from keras_transformer.training.run_folder import load_model

    folder = RunFolder(run)
    last = load_model(folder.checkpoint_file(folder.checkpoint_epochs()[-1]), compile=True)
    arrays = {
        "model.keras": folder.model().weights,
        # Weights, averages, moments, steps: all but what each epoch gives new values.
        "last checkpoint": [*last.weights, *last.optimizer.variables],
    }
    history = [
        {key: value for key, value in row.items() if key not in TIMES} for row in folder.history()
    ]
    bits = {name: [np.asarray(each).tobytes() for each in some] for name, some in arrays.items()}
    return {**bits, "history.csv": history}


def kill_test(folder, kills, seed=1):
    """Trains once without kills, and then with them until there were enough.

    Args:
        folder: `pathlib.Path` for texts, runs and logs.
        kills: How many processes are killed, each after a time drawn evenly from 0 to what the
            whole training takes.
        seed: Of those times.

    Returns:
        A dict fit for JSON: `rounds`, what was equal in each training that was killed and resumed
        to its end; `kills`, after how many seconds of its own a process was killed, and which
        checkpoints there were.
    """
    draw = random.Random(seed)
    recipe = write_inputs(folder / "inputs")
    begin = time.monotonic()
    with open(folder / "unbroken.log", "wb") as log:
        if start(recipe, folder / "unbroken", log).wait() != 0:
            sys.exit(f"the training failed: {folder / 'unbroken.log'}")
    whole = time.monotonic() - begin
    expected, killed, rounds = what_is_left(folder / "unbroken"), [], []
    with open(folder / "killed.log", "wb") as log:
        while len(killed) < kills:
            run = folder / f"killed-{len(rounds)}"
            while (moment := train_for(draw, whole, recipe, run, log, kills - len(killed))) != 0:
                killed.append(moment)
            found = what_is_left(run)
            rounds.append({name: expected[name] == found[name] for name in expected})
    return {
        "equal": all(all(each.values()) for each in rounds),
        "rounds": rounds,
        "epochs": len(expected["history.csv"]),
        "unbroken_seconds": round(whole, 1),
        "kills": killed,
    }


def train_for(draw, whole, recipe, run, log, kills):
    """Trains for a random time; gives what there was when the process was killed, 0 if it ended."""
    seconds = draw.uniform(0, whole)
    process = start(recipe, run, log)
    try:
        code = process.wait(seconds if kills else None)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        files = sorted(file.name for file in (run / "checkpoints").glob("*"))
        return {"seconds": round(seconds, 1), "checkpoints": files}
    if code != 0:
        sys.exit(f"the training failed: {log.name}")
    return 0


def main():
    """Parses the options, runs the test, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = kill_test(options.folder, options.kills, options.seed)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["equal"] else 1)


if __name__ == "__main__":
    main()
