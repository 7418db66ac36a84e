"""Runs the commands of a how-to while the site is built: `%run ../_ext/terminal.py`.

Enters `docs/_work`, which holds parallel text, documents and a recipe, and makes a `%%bash` that
calls `keras-transformer` in this process, where TensorFlow is loaded already. With the argument
`trained` there is a run of the recipe, `runs/dates`, which the first page that asks for it trains.
"""

import contextlib
import datetime
import fcntl
import itertools
import logging
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import everyday
import numpy as np
from IPython import get_ipython

from keras_transformer.cli.dates import FIRST_DAY, write_date

FOLDER = pathlib.Path(__file__).parents[1] / "_work"
DOCUMENTS = FOLDER.parents[1] / "tests" / "data" / "documents"
RECIPE = """\
data:
  folder: text
  train: {source: train.written, target: train.iso}
  validation: {source: validation.written, target: validation.iso}

text: {vocabulary_size: 100, split_digits: true}

model:
  model_dim: 64
  num_heads: 4
  intermediate_dim: 128
  num_encoder_layers: 1
  num_decoder_layers: 1
  normalize_first: true

training:
  epochs: 5
  batch_tokens: 1024
  max_shapes: 1
  warmup_steps: 300
  learning_rate: 0.0072
  label_smoothing: 0.05
  ema_momentum: 0.99
  sample_translations: 0

decoding: {beam_size: 2, max_source_length: 48, max_target_length: 16}
"""


def make_dates(folder: pathlib.Path) -> None:
    """Writes dates in four languages, and in Italian; no day is in two files."""
    random = np.random.default_rng(0)
    days = random.permutation(36_000)
    folder.mkdir(exist_ok=True)
    first = 0
    for name, count in {
        "train": 7000,
        "validation": 100,
        "test": 100,
        "italian": 2000,
        "italian_validation": 100,
        "italian_test": 100,
    }.items():
        with open(folder / f"{name}.written", "w", encoding="utf-8") as written:
            with open(folder / f"{name}.iso", "w", encoding="utf-8") as iso:
                for number in days[first : first + count]:
                    day = FIRST_DAY + datetime.timedelta(days=int(number))
                    locale = (
                        "it"
                        if name.startswith("italian")
                        else random.choice(("en_GB", "de", "fr", "es"))
                    )
                    pattern = random.choice(("d MMMM y", "EEEE d MMMM y"))
                    print(write_date(day, locale, pattern), file=written)
                    print(day.isoformat(), file=iso)
        first += count


def make_sentences(folder: pathlib.Path) -> None:
    """Writes everyday sentences in English and German; no pair is in two files."""
    folder.mkdir(exist_ok=True)
    rows = iter(dict.fromkeys(itertools.islice(everyday.pairs(seed=0), 6000)))
    for name, count in {"test": 200, "validation": 200, "train": 5000}.items():
        chosen = list(itertools.islice(rows, count))
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in chosen)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def run(command: str) -> None:
    """Runs one command, with `<` and `>`, and shows what it says."""
    words = shlex.split(command, comments=True)
    if words[0] != "keras-transformer":
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        print(done.stdout, end="")
        assert done.returncode == 0, done.stderr
        return
    from keras_transformer.cli import main as cli

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(sys.stdout))
        if ">" in words:
            index = words.index(">")
            output = stack.enter_context(open(words[index + 1], "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(output))
            del words[index : index + 2]
        if "<" in words:
            index = words.index("<")
            before, sys.stdin = sys.stdin, stack.enter_context(open(words[index + 1]))
            stack.callback(setattr, sys, "stdin", before)
            del words[index : index + 2]
        code = cli.run(words[1:])
    assert code == 0, f"{command}: exit code {code}"


def bash(line: str, cell: str) -> None:
    """Runs the commands of a cell, one after the other."""
    for command in cell.replace("\\\n", " ").strip().split("\n"):
        if command and not command.startswith("#"):
            run(command)


TRAINED = FOLDER / "trained"


def train() -> None:
    """Trains the run of the recipe."""
    from keras_transformer.cli import main as cli

    said = FOLDER / "training.txt"
    with open(said, "w") as file:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            code = cli.run(["train", "recipe.yaml", "--output", "runs/dates", "--overwrite"])
    assert code == 0, said.read_text(encoding="utf-8")
    TRAINED.touch()


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Not by its level, which TensorFlow sets where it is imported at a prompt.
logging.getLogger("tensorflow").addFilter(lambda record: record.levelno >= logging.ERROR)
FOLDER.mkdir(exist_ok=True)
os.chdir(FOLDER)
with open("lock", "w") as lock:  # Pages are executed side by side.
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (FOLDER / "recipe.yaml").exists():
        make_dates(FOLDER / "text")
        make_sentences(FOLDER / "everyday")
        shutil.copytree(DOCUMENTS, FOLDER / "documents", dirs_exist_ok=True)
        (FOLDER / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    if "trained" in sys.argv[1:] and not TRAINED.exists():
        train()
get_ipython().register_magic_function(bash, "cell")
