"""Memory and speed of the loader on made-up text that does not fit into memory.

python -m benchmarks.loader read --lines 20000000 --folder DIR
python -m benchmarks.loader write --lines 4000000 --folder DIR
"""

import pathlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil

from benchmarks import command_line
from benchmarks.command_line import log
from keras_transformer.training import Recipe
from keras_transformer.training.corpus import Corpus

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


def read(lines: int, folder: pathlib.Path, batches: int = 2000, corpora: int = 1) -> dict[str, Any]:
    """Peaks of memory, and pairs per second, of what `train` does before the first step.

    Writes made-up text unless it is there, learns a vocabulary from a sample, and goes through
    checksums, ids, plans of epochs and batches, with `data.cache`. Imports count, too.

    Args:
        lines: Number of pairs.
        folder: Directory of the text and the cache.
        batches: Number of batches to make of each of two epochs.
        corpora: Number of corpora; several have different sizes, weights and tags, and noise.
    """
    if not (folder / "val.b").exists():
        write(lines, folder, corpora)
    data: dict[str, Any] = {
        "folder": str(folder),
        "train": {"source": "train.a", "target": "train.b"},
        "validation": {"source": "val.a", "target": "val.b"},
        "cache": str(folder / "cache"),
    }
    if corpora > 1:
        data["noise"] = {"upper_case": 0.05, "typos": 0.05, "subwords": 0.1}
        data["train"] = [
            {"name": f"corpus{i}", "source": f"train{i or ''}.a", "target": f"train{i or ''}.b"}
            | {"tag": f"c{i}", "weight": 2.0 / 2**i}
            for i in range(corpora)
        ]
    text = {"vocabulary_size": 8000, "sample_sentences": 100_000}
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

    corpus = Corpus(Recipe.from_dict({"data": data, "text": text}))
    tokenizers = corpus.tokenizers()
    note("vocabulary")
    datasets, reports = corpus.datasets(tokenizers)
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
    on_disk = sum(file.stat().st_size for file in (folder / "cache").rglob("*") if file.is_file())
    return {
        **report,
        "pairs": reports["train"].kept,
        "non_padding_tokens": dataset.real_tokens,
        "steps_per_epoch": dataset.steps_per_epoch,
        "cache_gib": round(on_disk / 2**30, 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(read, write, arguments=arguments)


if __name__ == "__main__":
    main()
