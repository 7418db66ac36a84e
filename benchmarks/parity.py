"""Compares the translations of an exported artifact with those of the run that it was made from.

    python -m benchmarks.parity --model RUN --artifact EXPORT --source FILE
    python -m benchmarks.parity --model RUN --translations FILE --source FILE --beam-sizes 4

The artifact is anything that `Translator.load` reads. `--translations` takes what another program,
the C client for one, made of the source. Beam sizes are 1 and the artifact's by default.

Where a translation differs, the live model scores both in one pass. A difference is a tie where
rounding may have decided: of beam search, scores within 1e-4; of greedy search, log-probabilities
within 1e-4 at the first token that differs. JSON on stdout; the exit code is 1 if anything differs
without being a tie, as an export in fewer bits may.
"""

import argparse
import itertools
import json
import sys

from keras_transformer import Translator
from keras_transformer.data import read_lines
from keras_transformer.errors import InputError

TIE = 1e-4
"""Nats by which two hypotheses may differ for rounding to decide between them."""


def compare(live, texts, translations, beam_size, length_penalty):
    """Counts equal translations, ties and other differences.

    Args:
        live: `Translator` of the run.
        texts: A list of strings.
        translations: A list of as many strings, what the artifact gives.
        beam_size: 1 is greedy search.
        length_penalty: As the artifact has it.

    Returns:
        A dict fit for JSON.
    """
    options = {"beam_size": beam_size, "length_penalty": length_penalty}
    expected = live.translate(texts, long_input="truncate", **options)
    pairs = zip(texts, expected, translations, strict=True)
    others = [(text, ours, theirs) for text, ours, theirs in pairs if ours.text != theirs]
    ties, different = [], []
    for text, ours, theirs in others:
        (scored,) = live.score([text], [theirs], length_penalty=length_penalty)
        nats = first_difference(ours, scored) if beam_size == 1 else ours.score - scored.score
        found = {"source": text, "live": ours.text, "artifact": theirs, "distance": nats}
        (ties if abs(nats) <= TIE else different).append(found)
    equal = len(texts) - len(others)
    return {"sentences": len(texts), "equal": equal, "ties": ties, "different": different}


def first_difference(ours, theirs):
    """Returns how much more probable the first other token of the live model's is, in nats."""
    columns = (zip(each.ids, each.token_log_probabilities, strict=True) for each in (ours, theirs))
    for (id, value), (other_id, other) in itertools.zip_longest(*columns, fillvalue=(None, 0.0)):
        if id != other_id:
            return value - other
    return 0.0


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parity", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", required=True, metavar="RUN")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--artifact", metavar="PATH")
    given.add_argument("--translations", metavar="FILE")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--beam-sizes", type=int, nargs="+", metavar="N")
    options = parser.parse_args()
    live = Translator.load(options.model)
    texts = read_lines(options.source)
    artifact = Translator.load(options.artifact) if options.artifact else None
    fixed = {**live.defaults, **((artifact.engine.manifest or {}) if artifact else {})}
    penalty = fixed["length_penalty"]
    report = {}
    for beam_size in options.beam_sizes or sorted({1, fixed["beam_size"]}):
        if artifact is None:
            translations = read_lines(options.translations)
        else:
            found = artifact.translate(texts, beam_size=beam_size, long_input="truncate")
            translations = [each.text for each in found]
        report[f"beam_{beam_size}"] = compare(live, texts, translations, beam_size, penalty)
    print(json.dumps(report, indent=2, ensure_ascii=False))
    sys.exit(any(each["different"] for each in report.values()))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"parity: {error}", file=sys.stderr)
        sys.exit(2)
