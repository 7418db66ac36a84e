"""Compares the translations of a run with those of its conversion to CTranslate2.

    pip install ".[peers]"
    keras-transformer export --model RUN --format ctranslate2 --output CONVERTED
    python export/ctranslate2_parity.py --model RUN --converted CONVERTED --source FILE

Greedy search and beam search, both without a length penalty (the two engines define it
differently) and with the same limit on the length. Where the two differ, both translations are
scored by the model in one pass: equally probable ones, up to 1e-4 nats, are a tie. JSON on stdout;
the exit code is 1 if greedy search differs anywhere without a tie, or beam search on more than 1%.
"""

import argparse
import json
import math
import sys

import ctranslate2

from keras_transformer import Translator

TIE = 1e-4
LONGEST = 128


def theirs(folder, sentences, beam_size):
    """Translations as lists of pieces."""
    translator = ctranslate2.Translator(folder, compute_type="float32", intra_threads=2)
    results = translator.translate_batch(
        sentences,
        beam_size=beam_size,
        length_penalty=0,
        min_decoding_length=0,
        max_decoding_length=LONGEST,
        max_batch_size=32,
    )
    return [result.hypotheses[0] for result in results]


def compare(translator, folder, texts, beam_size):
    """What is equal, what is a tie, and what is neither."""
    ours = translator.translate(
        texts,
        beam_size=beam_size,
        length_penalty=0.0,
        max_length=LONGEST,
        max_length_ratio=math.inf,
    )
    tokenizer = translator.engine.source_tokenizer
    others = theirs(folder, [tokenizer.pieces(text) for text in texts], beam_size)
    vocabulary = tokenizer.pieces_of(range(tokenizer.vocabulary_size))
    id_of = {piece: id for id, piece in enumerate(vocabulary)}
    ties, different = [], []
    for text, our, pieces in zip(texts, ours, others, strict=True):
        if [token for token in our.tokens if token != "</s>"] == pieces:
            continue
        ids = [id_of[piece] for piece in (*pieces, "</s>")]
        (scored,) = translator.score([text], [ids])
        difference = our.log_probability - scored.log_probability
        found = {
            "source": text,
            "ours": our.text,
            "theirs": scored.text,
            "ours_more_probable_by_nats": round(difference, 6),
        }
        (ties if abs(difference) <= TIE else different).append(found)
    return {
        "sentences": len(texts),
        "equal": len(texts) - len(ties) - len(different),
        "ties": ties,
        "different": different,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--converted", required=True, metavar="DIR")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--beam-size", type=int, default=4)
    options = parser.parse_args()
    translator = Translator.load(options.model)
    with open(options.source, encoding="utf-8") as file:
        texts = file.read().splitlines()
    greedy = compare(translator, options.converted, texts, 1)
    beam = compare(translator, options.converted, texts, options.beam_size)
    print(json.dumps({"greedy": greedy, f"beam_{options.beam_size}": beam}, indent=2))
    sys.exit(bool(greedy["different"]) or len(beam["different"]) > 0.01 * len(texts))


if __name__ == "__main__":
    main()
