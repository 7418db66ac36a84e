"""BLEU over beam sizes and length penalties: a Markdown table, and a plot.

    pip install ".[plots]"
    python -m benchmarks.beam_sweep --model RUN --source FILE --reference FILE --plot sweep.png

The penalty is tuned on one text (the validation text) and reported on another. Changing it needs
no new compilation, a beam size does. The table is on stdout; so are the length of the translations
over that of the references, which a penalty moves, and the words of the longest translation, which
show where a penalty is so large that the search prefers to repeat itself.
"""

import argparse
import json
import pathlib
import sys

from benchmarks.measure import subplots
from keras_transformer import Translator
from keras_transformer.data import read_pairs
from keras_transformer.training import evaluate

BEAMS = tuple(range(1, 13))
PENALTIES = (0.0, 0.3, 0.6, 0.9, 1.2, 1.5)


def sweep(translator, sources, references, beam_sizes, penalties):
    """`(beam size, penalty)` to BLEU and lengths; greedy search has one penalty."""
    results = {}
    for beam_size in beam_sizes:
        for penalty in penalties if beam_size > 1 else penalties[:1]:
            found = translator.translate(sources, beam_size=beam_size, length_penalty=penalty)
            texts = [each.text for each in found]
            words = [len(text.split()) for text in texts]
            results[beam_size, penalty] = {
                "bleu": evaluate(texts, references)["bleu"],
                "length_ratio": sum(words) / sum(len(text.split()) for text in references),
                "longest": max(words),
            }
            print(beam_size, penalty, results[beam_size, penalty], file=sys.stderr, flush=True)
    return results


def table(results, beam_sizes, penalties, field="bleu", digits=2):
    """Markdown: a row for each beam size, a column for each penalty."""
    lines = ["| beam | " + " | ".join(f"{penalty:g}" for penalty in penalties) + " |"]
    lines.append("|" + "---|" * (len(penalties) + 1))
    for beam_size in beam_sizes:
        cells = [
            # The penalty changes no ranking among one hypothesis.
            results.get((beam_size, penalty), results[beam_size, penalties[0]])[field]
            for penalty in penalties
        ]
        lines.append(
            f"| {beam_size} | " + " | ".join(f"{each:.{digits}f}" for each in cells) + " |"
        )
    return "\n".join(lines)


def plot(results, beam_sizes, penalties, path, title):
    """BLEU over the beam size, a line for each penalty."""
    figure, [[axes]] = subplots(size=(6.4, 4.0))
    from matplotlib import colormaps

    for place, penalty in enumerate(penalties):
        scores = [
            results.get((beam_size, penalty), results[beam_size, penalties[0]])["bleu"]
            for beam_size in beam_sizes
        ]
        axes.plot(
            beam_sizes,
            scores,
            marker="o",
            markersize=3,
            color=colormaps["viridis_r"]((place + 1) / len(penalties)),
            label=f"{penalty:g}",
        )
    axes.set(xlabel="beam size", ylabel="BLEU", title=title, xticks=beam_sizes)
    axes.grid(alpha=0.3)
    axes.legend(title="length penalty", ncols=2)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.beam_sweep", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--reference", required=True, metavar="FILE")
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=BEAMS)
    parser.add_argument("--penalties", type=float, nargs="+", default=PENALTIES)
    parser.add_argument("--plot", metavar="FILE.png")
    parser.add_argument("--json", metavar="FILE.json", help="all figures")
    options = parser.parse_args()
    sources, references = read_pairs(options.source, options.reference)
    translator = Translator.load(options.model)
    results = sweep(translator, sources, references, options.beam_sizes, options.penalties)
    for field, digits in (("bleu", 2), ("length_ratio", 3), ("longest", 0)):
        print(table(results, options.beam_sizes, options.penalties, field, digits), end="\n\n")
    if options.json:
        rows = [{"beam_size": b, "length_penalty": p, **r} for (b, p), r in results.items()]
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if options.plot:
        name = pathlib.Path(options.source).name
        plot(results, options.beam_sizes, options.penalties, options.plot, f"BLEU on {name}")


if __name__ == "__main__":
    main()
