"""Compares the translations of a run with those of its conversion to CTranslate2.

    pip install ".[peers]"
    keras-transformer export --model RUN --format ctranslate2 --output CONVERTED
    python export/ctranslate2_parity.py --model RUN --converted CONVERTED --source FILE

What the export was verified with, on another text: greedy search and beam search, both without a
length penalty (the two engines define it differently) and with the same limit on the length. JSON
on stdout; the exit code is 1 if greedy search differs anywhere without a tie, or beam search on
more than 1%.
"""

import argparse
import json
import sys

from keras_transformer import Translator
from keras_transformer.errors import VerificationError
from keras_transformer.export.ctranslate2_verification import verify_ctranslate2
from keras_transformer.files import read_lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--converted", required=True, metavar="DIR")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--beam-size", type=int, default=4)
    options = parser.parse_args()
    engine = Translator.load(options.model).engine
    texts = read_lines(options.source)
    try:
        report = verify_ctranslate2(options.converted, engine, options.beam_size, texts)
    except VerificationError as error:
        sys.exit(f"ctranslate2_parity: {error}")
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
