"""Compares the translations of an exported artifact with those of the run that it was made from.

    python -m benchmarks.parity --model RUN --artifact EXPORT --source FILE
    python -m benchmarks.parity --model RUN --translations FILE --source FILE --beam-sizes 4

The artifact is anything that `Translator.load` reads, a SavedModel or a LiteRT file, or an export
to CTranslate2, which is verified on the text as it was when it was made: without a length penalty,
which that engine defines otherwise. `--translations` takes what another program, the C client for
one, made of the source. Beam sizes are 1 and the artifact's (CTranslate2's: 4) by default.

Where a translation differs, the live model scores both in one pass. A difference is a tie where
rounding may have decided: of beam search, scores within 1e-4; of greedy search, log-probabilities
within 1e-4 at the first token that differs. JSON on stdout; the exit code is 1 if anything differs
without being a tie, as an export in fewer bits may.
"""

import argparse
import json
import pathlib
import sys

from keras_transformer import Translator
from keras_transformer.data import read_lines
from keras_transformer.errors import InputError, VerificationError
from keras_transformer.export.ctranslate2.verification import TIE, distance, verify_ctranslate2


def compare(live, texts, translations, beam_size, length_penalty):
    """What is equal, what is a tie, and what is neither.

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
        nats = distance(ours, scored, 1) if beam_size == 1 else ours.score - scored.score
        found = {"source": text, "live": ours.text, "artifact": theirs, "distance": nats}
        (ties if abs(nats) <= TIE else different).append(found)
    equal = len(texts) - len(others)
    return {"sentences": len(texts), "equal": equal, "ties": ties, "different": different}


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
    if options.artifact and (pathlib.Path(options.artifact) / "model.bin").exists():
        beam_size = max(options.beam_sizes or [4])
        report = verify_ctranslate2(options.artifact, live.engine, beam_size, texts)
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    artifact = Translator.load(options.artifact) if options.artifact else None
    fixed = {**live.defaults, **((artifact.engine.manifest or {}) if artifact else {})}
    penalty = fixed["length_penalty"]
    report = {}
    for beam_size in options.beam_sizes or sorted({1, fixed["beam_size"]}):
        if artifact is None:
            translations = read_lines(options.translations)
        else:
            found = artifact.translate(texts, beam_size=beam_size)
            translations = [each.text for each in found]
        report[f"beam_{beam_size}"] = compare(live, texts, translations, beam_size, penalty)
    print(json.dumps(report, indent=2, ensure_ascii=False))
    sys.exit(any(each["different"] for each in report.values()))


if __name__ == "__main__":
    try:
        main()
    except (InputError, VerificationError) as error:
        print(f"parity: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, VerificationError) else 2)
