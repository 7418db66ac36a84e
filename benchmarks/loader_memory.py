"""The memory that the loader takes of a corpus which does not fit in it.

    python -m benchmarks.loader_memory --lines 20000000 --folder FOLDER

Writes so many pairs of made-up sentences, learns a vocabulary from a sample of them, and goes
through what `keras-transformer train` does with `data.cache` and `text.sample_sentences`: digests,
ids, the plan of an epoch, batches. Nothing is trained. With `--corpora` they are of so many
corpora, of different sizes and weights, with tags and noise. JSON on stdout. The peaks are those of
the whole process, imports included: `held` is its own memory, `resident` also the pages of the
mapped files, which the system takes back when it needs them.
"""

import argparse
import json
import pathlib
import re
import resource
import sys
import threading
import time

import numpy as np

from keras_transformer.training import Recipe
from keras_transformer.training.corpus import Corpus

_WORDS = 20_000
_CHUNK = 100_000
_SIDES = (("source", "a"), ("target", "b"))


def write_corpus(folder, lines, corpora=1):
    """Sentences of 3 to 20 words, of which a few are frequent; no two files are alike.

    Of several corpora each has twice the lines of the one before.
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
        text = (folder / f"train.{side}").open(encoding="utf-8")
        (folder / f"val.{side}").write_text("".join(next(text) for _ in range(1000)))


class Memory(threading.Thread):
    """Looks again and again at what this process holds, and remembers the most."""

    def __init__(self):
        super().__init__(daemon=True)
        self.held = 0.0
        self.start()

    def run(self):
        while True:
            status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
            held = int(re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)[1])
            self.held = max(self.held, held)
            time.sleep(0.05)

    def peak(self):
        """GiB so far."""
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"held": round(self.held / 2**20, 3), "resident": round(resident / 2**20, 3)}


def measure(folder, lines, batches, corpora=1):
    """Goes through the loader and gives a dict fit for JSON."""
    if not (folder / "val.b").exists():
        write_corpus(folder, lines, corpora)
    values = {
        "data": {
            "folder": str(folder),
            "train": {"source": "train.a", "target": "train.b"},
            "validation": {"source": "val.a", "target": "val.b"},
            "cache": str(folder / "cache"),
        },
        "text": {"vocabulary_size": 8000, "sample_sentences": 100_000},
    }
    if corpora > 1:
        values["data"]["noise"] = {"upper_case": 0.05, "typos": 0.05, "subwords": 0.1}
        values["data"]["train"] = [
            {
                **{side: f"train{i or ''}.{name}" for side, name in _SIDES},
                **{"name": f"corpus{i}", "tag": f"c{i}", "weight": 2.0 / 2**i},
            }
            for i in range(corpora)
        ]
    memory = Memory()
    time.sleep(0.2)
    recipe = Recipe.from_dict(values)
    report = {"lines": lines, "peak_gib": {"imports": memory.peak()}}

    def note(stage, begin):
        report["peak_gib"][stage] = memory.peak()
        report.setdefault("seconds", {})[stage] = round(time.perf_counter() - begin, 1)
        print(stage, report["peak_gib"][stage], file=sys.stderr, flush=True)
        return time.perf_counter()

    begin = time.perf_counter()
    corpus = Corpus(recipe)
    tokenizers = corpus.tokenizers()
    begin = note("vocabulary", begin)
    datasets, reports = corpus.datasets(tokenizers)
    begin = note("ids", begin)
    dataset = datasets["train"]
    for epoch in range(2):
        rows = 0
        for number, ((source_ids, _), _) in enumerate(dataset.batches(epoch)):
            rows += np.count_nonzero(source_ids[:, 0])
            if number >= batches:
                break
            if not number:  # The plan of the epoch is made.
                made = time.perf_counter()
        report["lines_per_second"] = round(rows / (time.perf_counter() - made))
        begin = note(f"epoch {epoch + 1}", begin)
    on_disk = sum(file.stat().st_size for file in (folder / "cache").rglob("*") if file.is_file())
    return {
        **report,
        "kept": reports["train"].kept,
        "real_tokens": dataset.real_tokens,
        "steps_per_epoch": dataset.steps_per_epoch,
        "cache_gib": round(on_disk / 2**30, 2),
    }


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loader_memory", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--lines", type=int, default=20_000_000)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--batches", type=int, default=2000, help="made of each of two epochs")
    parser.add_argument("--corpora", type=int, default=1, help="training corpora of the text")
    options = parser.parse_args()
    print(json.dumps(measure(**vars(options)), indent=2))


if __name__ == "__main__":
    main()
