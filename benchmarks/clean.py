"""What `keras-transformer clean` finds in a corpus of which half of the lines are damaged.

    python -m benchmarks.clean --data PATH/TO/multi30k --other PATH/TO/spanish.es --work DIR

Damages every second training line on average, each in one of eleven ways, cleans the pairs, and
tells for each kind the share that was dropped. With `--lines 4000000` it cleans made-up pairs
instead, for time and memory. JSON on stdout.
"""

import argparse
import collections
import json
import pathlib
import random
import resource
import subprocess
import sys
import time

from keras_transformer.data import read_lines, read_pairs

_SIGNS = "*#|-_=+/<>0123456789 "


def _damage(pairs, test, other):
    """Yields each pair, half of them damaged, and the kind of the damage, or None."""
    rng, fair = random.Random(11), collections.deque(maxlen=200)

    def number(source, target):
        years = f"19{rng.randrange(50):02d}", f"19{rng.randrange(50, 100)}"
        return f"{source[:-1]} in {years[0]}.", f"{target[:-1]} im Jahr {years[1]}."

    def letters(text):
        return "".join(chr(0x430 + ord(each) % 32) if each.isalpha() else each for each in text)

    def near(source, target):
        source, target = rng.choice(fair)
        return source.upper(), target.rstrip(".") + " !"

    kinds = {
        "another sentence's translation": lambda s, t: (s, rng.choice(pairs)[1]),
        "most of the target missing": lambda s, t: (s, t[: len(t) // 5]),
        "copy of the source": lambda s, t: (s, s),
        "target in another language": lambda s, t: (s, rng.choice(other)),
        "UTF-8 read as Latin-1": lambda s, t: (s, f"{t} Schön!".encode().decode("latin-1")),
        "another year": number,
        "URL on one side": lambda s, t: (f"{s} www.shop-{rng.randrange(999)}.com", t),
        "signs for the target": lambda s, t: (s, "".join(rng.choices(_SIGNS, k=40))),
        "target in another script": lambda s, t: (s, letters(t)),
        "near-duplicate": near,
        "sentence of the test set": lambda s, t: rng.choice(test),
    }
    for pair in pairs:
        kind = rng.choice(list(kinds)) if fair and rng.random() < 0.5 else None
        if kind is None:
            fair.append(pair)
        yield (pair if kind is None else kinds[kind](*pair)), kind


def _measured(corpus, output, *options):
    """Runs the command; the peak is that of its largest process, or of this small one.

    Linux counts the memory of what calls `exec` as that of the program that follows.
    """
    started = time.monotonic()
    command = [sys.executable, "-m", "keras_transformer", "clean", *corpus, "--output", output]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True)
    (row,) = json.loads(done.stdout)["corpora"]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return {**row, "seconds": round(time.monotonic() - started, 1), "peak_mb": peak}


def _write_made_up(corpus, lines):
    """Writes sentences of 3 to 20 made-up words; a hundredth of them is repeated."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(20_000)]
    with open(corpus[0], "w") as sources, open(corpus[1], "w") as targets:
        for number in range(lines):
            if number % 100 or not number:
                chosen = rng.choices(words, k=rng.randint(3, 20))
            sources.write(" ".join(chosen) + ".\n")
            targets.write(" ".join(reversed(chosen)) + ".\n")


def _of_damaged(data, other, work):
    pairs = list(zip(*read_pairs(data / "train.en", data / "train.de"), strict=True))
    held_out = [data / f"test_2016_flickr.{side}" for side in ("en", "de")]
    test = list(zip(*read_pairs(*held_out), strict=True))
    other = [line for line in read_lines(other) if len(line) > 30]
    damaged, kinds = zip(*_damage(pairs, test, other), strict=True)
    corpus = work / "train.en", work / "train.de"
    for path, side in zip(corpus, zip(*damaged, strict=True), strict=True):
        path.write_text("".join(text + "\n" for text in side), encoding="utf-8")
    languages = ["--source-language", "en", "--target-language", "de", "--target-scripts", "Latin"]
    found = _measured(corpus, work / "cleaned", *languages, "--held-out", *held_out)
    left = iter(zip(*read_pairs(*(work / "cleaned" / each.name for each in corpus)), strict=True))
    dropped, total, following = collections.Counter(), collections.Counter(kinds), next(left, None)
    for pair, kind in zip(damaged, kinds, strict=True):
        if pair == following:
            following = next(left, None)
        else:
            dropped[kind] += 1
    assert following is None, "the pairs that are left must keep their order"
    fair = dropped.pop(None, 0)
    right = dropped.total()
    shares = {kind: round(dropped[kind] / total[kind], 4) for kind in sorted(filter(None, total))}
    whole = {
        "precision": round(right / (right + fair), 4),
        "recall": round(right / (total.total() - total[None]), 4),
    }
    return {**found, "fair_pairs_dropped": fair, "fair_pairs": total[None], **whole, **shares}


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clean", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=pathlib.Path, help="the folder of Multi30k")
    parser.add_argument("--other", type=pathlib.Path, help="sentences of a third language")
    parser.add_argument("--lines", type=int, help="pairs to make up instead")
    parser.add_argument("--work", required=True, type=pathlib.Path, help="an empty folder")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.lines is not None:
        corpus = options.work / "train.a", options.work / "train.b"
        _write_made_up(corpus, options.lines)
        found = _measured(corpus, options.work / "cleaned", "--without", "ratio")
    else:
        found = _of_damaged(options.data, options.other, options.work)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
