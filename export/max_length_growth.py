"""Time per sentence as `max_length` grows, with translations of 20 tokens.

    python export/max_length_growth.py

Base size, random weights, 32 sentences of 20 tokens; each translation is made to have 20. The
limits take turns; a figure is the median of the rounds. JSON on stdout.
"""

import argparse
import json
import math
import statistics
import time

import keras
import numpy as np
from keras_transformer.decoding.settings import settings_of

from keras_transformer import Transformer
from keras_transformer.config import EOS_ID
from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.search import Search
from keras_transformer.decoding.shapes import pad
from keras_transformer.decoding.stages import Batch, Stages

TOKENS = 20


def batch_of(options, vocabulary_size, max_length, rows):
    """Random sources; an end that is sure to come as soon as it may."""
    rng = np.random.default_rng(3)
    source = rng.integers(4, vocabulary_size, (rows, TOKENS))
    source[:, -1] = EOS_ID
    # Not a bias above 0 on the end: what could still win by it would be searched to the limit.
    bias = np.full(vocabulary_size, -1e4, "float32")
    bias[EOS_ID] = 0
    settings = settings_of(options, max_length, rows, logit_bias=bias)
    return Batch(list(range(rows)), pad(source.tolist(), rows, 32), settings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="transformer_base")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--max-lengths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    model = Transformer.from_preset(options.preset, options.vocabulary_size)
    for beam_size in options.beam_sizes:
        decoding = DecodingOptions(
            beam_size=beam_size,
            length_penalty=0.0,
            min_length=TOKENS,
            max_length_ratio=math.inf,
        )
        runs = {}
        for limit in options.max_lengths:
            stages = Stages(Search(model, decoding), limit)
            batch = batch_of(decoding, options.vocabulary_size, limit, options.batch_size)
            runs[limit] = lambda stages=stages, batch=batch: dict(stages.run([batch]))
            for found in runs[limit]().values():  # compiles
                assert (found.ids[0] != 0).sum() == TOKENS
        seconds = {limit: [] for limit in runs}
        for _ in range(options.rounds):
            for limit, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[limit].append(time.perf_counter() - start)
        medians = {limit: statistics.median(each) for limit, each in seconds.items()}
        first = options.max_lengths[0]
        row = {
            "beam_size": beam_size,
            "milliseconds_per_sentence": {
                limit: round(1000 * each / options.batch_size, 2) for limit, each in medians.items()
            },
            "growth": {
                limit: round(
                    statistics.median(
                        b / a for a, b in zip(seconds[first], seconds[limit], strict=True)
                    ),
                    3,
                )
                for limit in medians
            },
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
