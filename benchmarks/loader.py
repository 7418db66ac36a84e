"""Memory and speed of the loader on made-up text that does not fit into memory.

python -m benchmarks.loader read --lines 20000000 --folder DIR
python -m benchmarks.loader start --lines 20000000 --folder DIR --sample 100000
python -m benchmarks.loader write --lines 4000000 --folder DIR
"""

import pathlib
import shutil
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil

from benchmarks import command_line
from benchmarks.command_line import log
from keras_transformer.engine.device import device_plan
from keras_transformer.text import tokenizer as tokenizer_module
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.hosts import SINGLE_HOST
from keras_transformer.training.preparing import prepare, resume
from keras_transformer.training.recipe_texts import RecipeTexts

_WORDS = 20_000
_CHUNK = 100_000


def write(lines: int, folder: pathlib.Path, corpora: int = 1) -> None:
    """Writes pairs of made-up sentences of 3 to 20 words, of which some words are frequent.

    Args:
        lines: Number of pairs in all.
        folder: Directory to write train.a, train.b, train1.a and so on to, and val.a, val.b.
        corpora: Number of corpora, each with twice the lines of the one before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(_WORDS)]
    sizes = {f"{i or ''}": lines * 2**i // (2**corpora - 1) for i in range(corpora)}
    for name, side in ((name, side) for name in sizes for side in "ab"):
        with open(folder / f"train{name}.{side}", "w", encoding="utf-8") as file:
            for start in range(0, sizes[name], _CHUNK):
                count = min(_CHUNK, sizes[name] - start)
                lengths = rng.integers(3, 21, count)
                chosen = (_WORDS * rng.random(lengths.sum()) ** 3).astype(int)
                for ids in np.split(chosen, np.cumsum(lengths)[:-1]):
                    file.write(" ".join([words[i] for i in ids.tolist()]) + "\n")
    for side in "ab":
        with open(folder / f"train.{side}", encoding="utf-8") as text:
            (folder / f"val.{side}").write_text("".join(next(text) for _ in range(1000)))


class Memory(threading.Thread):
    """Watches this process: GiB that it `held` at most, and `resident`, with pages of mapped files.

    The system takes back pages of mapped files when it needs them.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.stopped = {"held": 0.0, "resident": 0.0}, threading.Event()
        self.start()

    def run(self):
        while not self.stopped.wait(0.05):
            memory = psutil.Process().memory_info()
            sizes = {"held": memory.rss - memory.shared, "resident": memory.rss}
            self.peak = {k: max(round(v / 2**30, 3), self.peak[k]) for k, v in sizes.items()}


def _recipe(lines, folder, corpora, text):
    """Returns a recipe of made-up text, which is written unless it is there."""
    if not (folder / "val.b").exists():
        write(lines, folder, corpora)
    data: dict[str, Any] = {
        "folder": str(folder),
        "train": {"source": "train.a", "target": "train.b"},
        "validation": {"source": "val.a", "target": "val.b"},
    }
    if corpora > 1:
        data["noise"] = {"upper_case": 0.05, "typos": 0.05, "subwords": 0.1}
        data["train"] = [
            {"name": f"corpus{i}", "source": f"train{i or ''}.a", "target": f"train{i or ''}.b"}
            | {"tag": f"c{i}", "weight": 2.0 / 2**i}
            for i in range(corpora)
        ]
    return Recipe.from_dict({"data": data, "text": text})


def read(lines: int, folder: pathlib.Path, batches: int = 2000, corpora: int = 1) -> dict[str, Any]:
    """Peaks of memory, and pairs per second, of what `train` does before the first step.

    Writes made-up text unless it is there, learns a vocabulary from a sample, and goes through
    checksums, ids, plans of epochs and batches. Imports count, too.

    Args:
        lines: Number of pairs.
        folder: Directory of the text.
        batches: Number of batches to make of each of two epochs.
        corpora: Number of corpora; several have different sizes, weights and tags, and noise.
    """
    text = {"vocabulary_size": 8000, "sample_sentences": 100_000}
    recipe = _recipe(lines, folder, corpora, text)
    memory = Memory()
    time.sleep(0.2)
    report: dict[str, Any] = {"lines": lines, "peak_gib": {"imports": memory.peak}, "seconds": {}}
    start = time.perf_counter()

    def note(stage):
        nonlocal start
        report["peak_gib"][stage] = memory.peak
        report["seconds"][stage] = round(time.perf_counter() - start, 1)
        log(f"{stage}: {memory.peak}")
        start = time.perf_counter()

    texts = RecipeTexts(recipe)
    tokenizers = texts.tokenizers()
    note("vocabulary")
    datasets, reports = texts.datasets(tokenizers)
    dataset = datasets["train"]
    note("ids")
    for epoch in range(2):
        pairs = 0
        for number, ((source_ids, _), *_) in enumerate(dataset.batches(epoch)):
            if not number:  # The plan of the epoch is made.
                first = time.perf_counter()
            pairs += int(np.count_nonzero(source_ids[:, 0]))
            if number >= batches:
                break
        report["pairs_per_second"] = round(pairs / (time.perf_counter() - first))
        note(f"epoch {epoch + 1}")
    memory.stopped.set()
    return {
        **report,
        "pairs": reports["train"].kept,
        "non_padding_tokens": dataset.real_tokens,
        "steps_per_epoch": dataset.steps_per_epoch,
    }


def start(
    lines: int,
    folder: pathlib.Path,
    corpora: int = 1,
    sample: int | None = None,
    held_out: bool = False,
) -> dict[str, Any]:
    """Seconds and peak of memory from the files of a run to its batches, without the model.

    Measures a new run, which learns a vocabulary, and then the same run when it is resumed.

    Args:
        lines: Number of pairs.
        folder: Directory of the text; its `run` is removed first.
        corpora: Number of corpora, see `read`.
        sample: Number of sentences that the vocabulary is learned from; by default all, in memory.
        held_out: Whether the validation set is one of 50 pairs instead of a file.
    """
    shutil.rmtree(folder / "run", ignore_errors=True)
    text = {"vocabulary_size": 8000, "sample_sentences": sample}
    recipe = _recipe(lines, folder, corpora, text)
    if held_out:
        values = recipe.to_dict()
        values["data"] |= {"validation": {}, "hold_out_every": 50}
        recipe = Recipe.from_dict(values)
    seconds, train_model = {}, tokenizer_module.train_model

    def timed(name, call, *arguments, **options):
        begin = time.perf_counter()
        result = call(*arguments, **options)
        seconds[name] = round(time.perf_counter() - begin, 1)
        return result

    memory, path = Memory(), RunFolder(folder / "run")
    # SentencePiece's own time, to subtract it.
    tokenizer_module.train_model = lambda *texts, **options: timed(
        "sentencepiece", train_model, *texts, **options
    )
    try:
        new = timed("new", prepare, recipe, path, SINGLE_HOST, device_plan())
    finally:
        tokenizer_module.train_model = train_model
    path.create(recipe.to_dict(), new.tokenizers, new.digests)
    report = {"lines": lines, "pairs": new.reports["train"].kept, "peak_gib": {"new": memory.peak}}
    del new
    timed("resumed", resume, recipe, path, SINGLE_HOST, device_plan())
    memory.stopped.set()
    report["peak_gib"]["both"] = memory.peak
    return {**report, "seconds": seconds}


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(read, start, write, arguments=arguments)


if __name__ == "__main__":
    main()
