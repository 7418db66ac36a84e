"""What back-translated text is worth: half of the pairs with and without it, and all pairs.

    python -m benchmarks.synthesize --data PATH/TO/multi30k --recipe RECIPE.yaml --work DIR

Trains German to English on every second pair, back-translates the German of the others, and trains
English to German on the half, on the half with the synthetic pairs, and on all pairs, each with the
recipe's model and as many epochs. JSON on stdout: the scores of the three on the test text, whose
translations are in `DIR/*.test.de`, for `sacrebleu --paired-ar`. Run again, it goes on where it was
interrupted. `--set` changes the recipe, as for `train`.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from keras_transformer.data import read_pairs

_KEYS = "source", "target"
_SIDES = ("en", "de"), ("de", "en")
_TEST = "test_2016_flickr"


def _run(*arguments):
    command = [sys.executable, "-m", "keras_transformer", *map(str, arguments)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout or "{}")


def _write_halves(data, work):
    """Writes every second pair, and the German of the others as `mono.de`."""
    pairs = list(zip(*read_pairs(data / "train.en", data / "train.de"), strict=True))
    texts = {
        "half.en": [source for source, _ in pairs[::2]],
        "half.de": [target for _, target in pairs[::2]],
        "mono.de": [target for _, target in pairs[1::2]],
    }
    for name, lines in texts.items():
        (work / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _train(options, name, train, sides=("en", "de")):
    """Trains a run of a name, or goes on with it, where it is not whole yet."""
    run = options.work / name
    if not (run / "metrics.json").exists():
        validation = {
            key: str(options.data / f"val.{side}") for key, side in zip(_KEYS, sides, strict=True)
        }
        values = {"data.folder": "/", "data.train": train, "data.validation": validation}
        settings = [f"--set={key}={json.dumps(value)}" for key, value in values.items()]
        settings += [f"--set={each}" for each in options.set]
        resume = ["--resume"] if (run / "recipe.yaml").exists() else []
        command = [sys.executable, "-m", "keras_transformer", "train", options.recipe, *settings]
        subprocess.run([*command, "--output", run, *resume], stdout=sys.stderr, check=True)
    return run


def main() -> None:
    """Parses the command line, trains, measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.synthesize", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", required=True, type=pathlib.Path, help="the folder of Multi30k")
    parser.add_argument("--recipe", required=True, type=pathlib.Path, help="model and training")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="folder of the runs")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--sampling", action="store_true", help="top 10 instead of beam search")
    options = parser.parse_args()
    options.data, options.work = options.data.resolve(), options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    _write_halves(options.data, options.work)
    half, reverse = ([str(options.work / f"half.{side}") for side in each] for each in _SIDES)
    back = _train(options, "de-en", dict(zip(_KEYS, reverse, strict=True)), ("de", "en"))
    search = ["--sampling", "--top-k", 10] if options.sampling else []
    inputs = ["--input", options.work / "mono.de", "--output", options.work / "synthetic"]
    report = _run("synthesize", "--model", back, "--back", *inputs, *search)
    people = dict(zip(_KEYS, half, strict=True))
    every = dict(zip(_KEYS, (str(options.data / f"train.{s}") for s in ("en", "de")), strict=True))
    runs = [
        _train(options, "half", people),
        _train(options, "half-and-back", [{"name": "people", **people}, *report["train"]]),
        _train(options, "all", every),
    ]
    test = ["--source", options.data / f"{_TEST}.en", "--reference", options.data / f"{_TEST}.de"]
    scores = {
        run.name: _run("evaluate", "--model", run, *test, "--save", f"{run}.test.de")
        for run in runs
    }
    print(json.dumps(scores, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
