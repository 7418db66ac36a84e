"""Time per sentence as `max_length` grows, with translations of 20 tokens.

    python export/max_length_growth.py --model RUN --source FILE

The same lines with each limit, in turns, each translation made to have 20 tokens; greedy search and
beam 4. JSON on stdout: medians of the rounds, and of the rounds' ratios to the first limit.
"""

import argparse
import functools
import json
import math
import statistics

from keras_transformer import Translator
from keras_transformer.benchmark.measure import in_turns, ratio
from keras_transformer.config import EOS_ID
from keras_transformer.files import read_lines

TOKENS = 20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--max-lengths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    lines = read_lines(options.source)
    translator = Translator.load(options.model)
    # EOS is sure to come as soon as it may. Not by a bias above 0 on it: what could still win by
    # that would be searched to the limit.
    ids = range(translator.engine.target_tokenizer.vocabulary_size)
    bias = {token: -1e4 for token in ids if token != EOS_ID}
    ended = {"min_length": TOKENS, "max_length_ratio": math.inf, "logit_bias": bias}
    translate = functools.partial(translator.translate, lines, length_penalty=0.0, **ended)
    for beam_size in options.beam_sizes:
        calls = {
            limit: functools.partial(translate, beam_size=beam_size, max_length=limit)
            for limit in options.max_lengths
        }
        for call in calls.values():  # compiles
            assert all(len(found.tokens) == TOKENS for found in call())
        seconds = in_turns(calls, options.rounds)
        medians = {limit: statistics.median(each) for limit, each in seconds.items()}
        first = seconds[options.max_lengths[0]]
        report = {
            "beam_size": beam_size,
            "milliseconds_per_sentence": {
                limit: round(1000 * each / len(lines), 2) for limit, each in medians.items()
            },
            "growth": {limit: ratio(first, each) for limit, each in seconds.items()},
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
