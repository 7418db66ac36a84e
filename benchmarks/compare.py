"""Trained runs side by side: BLEU by the length of the source, size and speed.

    pip install ".[plots]"
    python -m benchmarks.compare --run "no attention=runs/a" --run "Transformer=runs/b" \\
        --source FILE --reference FILE --plot compare.png

A Markdown table on stdout. Each run translates with its recipe's search, all runs in turns, as
often as `--rounds` says: words a second are those of its own translations, over the median of the
seconds. A group of lengths is scored by itself: its BLEU is that of a corpus of these sentences.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

from benchmarks.measure import subplots
from keras_transformer import Translator
from keras_transformer.data import read_pairs
from keras_transformer.training import RunFolder, evaluate

EDGES = (8, 11, 14, 18)


def groups_of(sources, edges):
    """The name and the places of each group of sources by their words, "≤ 8", "9–11", "> 11"."""
    bounds = [0, *edges, float("inf")]
    groups = {}
    for low, high in zip(bounds, bounds[1:], strict=False):
        name = f"> {low}" if high == bounds[-1] else f"{low + 1}–{high}" if low else f"≤ {high}"
        places = [i for i, text in enumerate(sources) if low < len(text.split()) <= high]
        if places:
            groups[name] = places
    return groups


def of_training(run):
    """Returns the size and the training of a run from its folder; nothing of an export."""
    if pathlib.Path(run, "export.json").exists():
        return {}
    folder = RunFolder.existing(run)
    history, metrics = folder.history(), folder.metrics()
    return {
        "parameters": folder.model().count_params(),
        "epochs": metrics["epochs"],
        "minutes": metrics["training_minutes"],
        "training_tokens_per_second": statistics.median(
            row["tokens_per_second"] for row in history
        ),
    }


def of_translations(translators, sources, references, edges, rounds):
    """BLEU and chrF of each translator, BLEU of each group, and words a second."""
    found, seconds = {}, {name: [] for name in translators}
    for turn in range(rounds + 1):
        for name, translator in translators.items():
            start = time.perf_counter()
            texts = [each.text for each in translator.translate(sources)]
            if turn:  # The first one also compiles.
                seconds[name].append(time.perf_counter() - start)
            found[name] = texts
        print(f"round {turn} of {rounds}", file=sys.stderr, flush=True)
    rows = {}
    for name, texts in found.items():
        words, scores = sum(len(text.split()) for text in texts), evaluate(texts, references)
        rows[name] = {"bleu": scores["bleu"], "chrf": scores["chrf"], "by_length": {}}
        if rounds:
            rows[name]["words_per_second"] = words / statistics.median(seconds[name])
        for group, places in groups_of(sources, edges).items():
            chosen = ([side[i] for i in places] for side in (texts, references))
            rows[name]["by_length"][group] = evaluate(*chosen)["bleu"]
    return rows


def table(rows):
    """Markdown: a row for each run."""
    groups = list(next(iter(rows.values()))["by_length"])
    columns = {
        "parameters": ("parameters", "{:,}"),
        "epochs": ("epochs", "{}"),
        "minutes": ("minutes", "{:.1f}"),
        "trained tokens/s": ("training_tokens_per_second", "{:,.0f}"),
        "words/s": ("words_per_second", "{:,.0f}"),
        "BLEU": ("bleu", "{:.2f}"),
        "chrF": ("chrf", "{:.2f}"),
    }
    names = [*columns, *(f"{group} words" for group in groups)]
    lines = ["| run | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for run, row in rows.items():
        cells = [form.format(row[key]) if key in row else "–" for key, form in columns.values()]
        cells += [f"{row['by_length'][group]:.2f}" for group in groups]
        lines.append(f"| {run} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows, path):
    """BLEU over the length of the source, a line for each run."""
    figure, [[axes]] = subplots(size=(6.4, 4.0))
    for run, row in rows.items():
        axes.plot(*zip(*row["by_length"].items(), strict=True), marker="o", label=run)
    axes.set(xlabel="words of the source", ylabel="BLEU")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def named(text):
    """`NAME=FOLDER` as a pair."""
    name, equals, folder = text.partition("=")
    if not equals or not name or not folder:
        raise argparse.ArgumentTypeError(f"must be NAME=FOLDER. Received: {text!r}")
    return name, folder


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--run", type=named, action="append", required=True, metavar="NAME=FOLDER", dest="runs"
    )
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--reference", required=True, metavar="FILE")
    parser.add_argument(
        "--edges", type=int, nargs="+", default=EDGES, help="most words of all groups but the last"
    )
    parser.add_argument("--rounds", type=int, default=3, help="0 measures no speed")
    parser.add_argument("--plot", metavar="FILE.png")
    parser.add_argument("--json", metavar="FILE.json", help="all figures")
    options = parser.parse_args(arguments)
    runs = dict(options.runs)
    sources, references = read_pairs(options.source, options.reference)
    translators = {name: Translator.load(folder) for name, folder in runs.items()}
    found = of_translations(translators, sources, references, options.edges, options.rounds)
    rows = {name: {**of_training(folder), **found[name]} for name, folder in runs.items()}
    print(table(rows))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
