"""Glossaries, hard and soft: share of terms written, BLEU and speed, a Markdown table.

    python -m benchmarks.glossary --model RUN --source FILE --reference FILE --sentences 500

The terms are words of the references, drawn at random, as in Post and Vilar 2018: BLEU rises by
what they tell of the reference, and would fall if the rest of the sentence suffered. With
`--glossary` they are drawn from its terms that a source has with a translation in the reference, as
in Dinu et al. 2019; those of `keras-transformer glossary TRAIN.en TRAIN.de` will do, and
`--glossary-by annotations` shows them to a model that was trained with such a file. Each row is
searched twice; the second time counts, the first one compiles.
"""

import argparse
import random
import time

import regex

from keras_transformer import Translator
from keras_transformer.data import read_pairs
from keras_transformer.text.glossary import Glossary, annotate
from keras_transformer.training import evaluate

TERMS = ((1, 1), (2, 1), (4, 1), (1, 3))  # so many, of so many words each
_WORD = regex.compile(r"\w[\w-]*")


def terms_of(reference, count, words, rng):
    """Different terms of words in a row, fewer where the reference has no more."""
    found = [match.span() for match in _WORD.finditer(reference)]
    spans = zip(found, found[words - 1 :], strict=False)
    terms = sorted({reference[first[0] : last[1]] for first, last in spans})
    return rng.sample(terms, min(count, len(terms)))


def share_of(terms, texts, pattern=r"(?<!\w){}(?!\w)"):
    """Share of the terms that are in the texts, by default as whole words."""
    found = [
        bool(regex.search(pattern.format(regex.escape(term)), text))
        for each, text in zip(terms, texts, strict=True)
        for term in each
    ]
    return sum(found) / max(len(found), 1)


def rows(translator, sources, references, beam_size, terms=TERMS, glossary=None, by="constraints"):
    """Yields the cells of each row of the table."""
    rng = random.Random(1)

    def search(shown=sources, **phrases):
        for _ in range(2):
            begin = time.perf_counter()
            found = translator.translate(shown, beam_size=beam_size, **phrases)
            seconds = time.perf_counter() - begin
        texts = [each.text for each in found]
        return texts, f"{evaluate(texts, references)['bleu']:.1f}", f"{len(texts) / seconds:.0f}"

    plain, *figures = search()
    yield ["none", "", "", "", *figures]
    for count, words in terms:
        if glossary is None:
            drawn = [terms_of(each, count, words, rng) for each in references]
            texts, *figures = search(phrases=drawn)
        else:
            every = map(glossary.matches, sources, references)
            matches = [sorted(rng.sample(each, min(count, len(each)))) for each in every]
            drawn = [[match.translation for match in each] for each in matches]
            shown = list(map(annotate, sources, matches))
            texts, *figures = search(shown) if by == "annotations" else search(phrases=drawn)
        shares = share_of(drawn, plain), share_of(drawn, texts, "{}"), share_of(drawn, texts)
        yield [f"{count} of {words}", *(f"{each:.1%}" for each in shares), *figures]


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.glossary", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--reference", required=True, metavar="FILE")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--beam-size", type=int, default=8)
    parser.add_argument("--glossary", metavar="FILE", help="default: any words of the references")
    ways = ("constraints", "annotations")
    parser.add_argument("--glossary-by", choices=ways, default=ways[0])
    options = parser.parse_args()
    by = options.glossary_by
    if by == "annotations" and options.glossary is None:
        parser.error("--glossary-by annotations needs --glossary")
    terms, glossary = TERMS, None
    if options.glossary is not None:
        glossary, terms = Glossary.load(options.glossary), [each for each in TERMS if each[1] == 1]
    pairs = read_pairs(options.source, options.reference)
    sources, references = (side[: options.sentences] for side in pairs)
    print("| terms, words | without | with | as whole words | BLEU | sentences/s |")
    print("|---|---|---|---|---|---|")
    translator, size = Translator.load(options.model), options.beam_size
    for cells in rows(translator, sources, references, size, terms, glossary, by):
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
