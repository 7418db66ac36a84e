"""What careless text costs: BLEU on a test text as it is, and with each kind of noise, by run.

    python -m benchmarks.noise RUN RUN --source FILE --reference FILE

Each sentence is changed as `data.noise` changes a training pair, with one seed for all runs; where
that changes both sides, the reference is changed, too. BLEU is of lower-cased text: a translation
in capitals is right, but for its letters. stdout gets a Markdown table.

A vocabulary without capitals spells a text of them, and a model that has not read such texts may go
on up to its limit, which follows the number of letters. Here a translation of changed text may have
twice as many tokens as the longest one of the text as it is, and ten more.
"""

import argparse

from keras_transformer import Translator
from keras_transformer.data import read_pairs
from keras_transformer.data.noise import Noise, PairNoise
from keras_transformer.decoding.options import LENGTH_MARGIN
from keras_transformer.engine.compilation_cache import enable_compilation_cache
from keras_transformer.training import evaluate

KINDS = {
    "in capitals": "upper_case",
    "Title Case": "title_case",
    "typos": "typos",
    "no punctuation": "no_punctuation",
}
_SEED = 1


def texts(pairs):
    """Yields the name of each kind of text and its sources and references."""
    yield "as it is", *zip(*pairs, strict=True)
    for name, kind in KINDS.items():
        changed = PairNoise(Noise(**{kind: 1.0})).texts(pairs, _SEED)
        yield name, *zip(*changed, strict=True)


def main(arguments=None):
    """Parses the command line, translates, prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.noise", description=__doc__.splitlines()[0]
    )
    parser.add_argument("models", nargs="+", metavar="RUN", help="runs or CTranslate2 exports")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--reference", required=True, metavar="FILE")
    options = parser.parse_args(arguments)
    pairs = list(zip(*read_pairs(options.source, options.reference), strict=True))
    enable_compilation_cache()
    translators = {model: Translator.load(model) for model in options.models}
    print("| text | " + " | ".join(translators) + " |", flush=True)
    print("|---" * (len(translators) + 1) + "|")
    limits = {}
    for name, sources, references in texts(pairs):
        scores = []
        for model, translator in translators.items():
            found = translator.translate(list(sources), max_length=limits.get(model))
            longest = 2 * max(len(each.ids) for each in found) + LENGTH_MARGIN
            limits.setdefault(model, min(longest, translator.engine.max_target_length))
            found = [each.text for each in found]
            scores.append(f"{evaluate(found, references)['bleu_lowercase']:.2f}")
        print(f"| {name} | " + " | ".join(scores) + " |", flush=True)


if __name__ == "__main__":
    main()
