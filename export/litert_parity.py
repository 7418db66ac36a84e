"""Compares the translations of a LiteRT export with those of the run that it was made from.

    python export/litert_parity.py --model RUN --exported FOLDER/model_ids.tflite --source FILE

For greedy search and for the export's beam: how many translations are equal. Of each that is not,
`gap` is by how much the live model prefers its own token at the first place where the two differ
(greedy search: below 1e-4 rounding decided, whatever came of it), or the difference of the two
scores (beam search). JSON on stdout; exit code 1 if a float32 export differs by more than that.
"""

import argparse
import json
import sys

from keras_transformer import Translator
from keras_transformer.files import read_lines

_TIE = 1e-4


def compare(live, found, lines, beam_size, length_penalty):
    """A dict: counts, and the translations that differ."""
    options = {"beam_size": beam_size, "length_penalty": length_penalty}
    translations = (each.translate(lines, **options) for each in (live, found))
    pairs = list(zip(lines, *translations, strict=True))
    different = [
        {
            "source": line,
            "live": a.text,
            "exported": b.text,
            "gap": gap(live, line, a, b, beam_size),
        }
        for line, a, b in pairs
        if a.text != b.text
    ]
    equal = [abs(a.score - b.score) for _, a, b in pairs if a.text == b.text]
    return {
        "sentences": len(lines),
        "equal": len(equal),
        "near_ties": sum(each["gap"] < _TIE for each in different),
        "largest_score_difference_of_equal_ones": max(equal, default=0.0),
        "different": different,
    }


def gap(live, line, ours, theirs, beam_size):
    """How far the live model is from the export's choice, in nats (greedy) or of score."""
    if beam_size > 1:
        return abs(ours.score - theirs.score)
    tokenizer = live.engine.target_tokenizer
    ids = theirs.ids or (*tokenizer.tokenize([theirs.text])[0], ours.ids[-1])
    first, second = live.score([line] * 2, [list(ours.ids), list(ids)])
    place = next(i for i, (a, b) in enumerate(zip(ours.ids, ids, strict=False)) if a != b)
    return first.token_log_probabilities[place] - second.token_log_probabilities[place]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--exported", required=True)
    parser.add_argument("--source", required=True)
    options = parser.parse_args()
    lines = read_lines(options.source)
    live, found = Translator.load(options.model), Translator.load(options.exported)
    manifest = found.engine.manifest
    report = {
        f"beam {beam_size}": compare(live, found, lines, beam_size, manifest["length_penalty"])
        for beam_size in sorted({1, manifest["beam_size"]})
    }
    print(json.dumps(report, indent=2, ensure_ascii=False))
    exact = all(each["equal"] + each["near_ties"] == len(lines) for each in report.values())
    sys.exit(0 if exact or manifest["quantize"] != "none" else 1)


if __name__ == "__main__":
    main()
