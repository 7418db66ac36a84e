"""Time per sentence as `max_length` grows, of translations that end long before it.

    python export/max_length_growth.py --model RUN --source FILE

The same lines with each limit, in turns; greedy search and beam 4. JSON on stdout: medians of the
rounds, and the medians of the rounds' ratios to the first limit.
"""

import argparse
import functools
import json
import math
import statistics

from keras_transformer import Translator
from keras_transformer.benchmark.measure import in_turns, ratio
from keras_transformer.files import read_lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--max-lengths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    lines = read_lines(options.source)
    translate = functools.partial(
        Translator.load(options.model).translate, lines, max_length_ratio=math.inf
    )
    for beam_size in options.beam_sizes:
        calls = {
            limit: functools.partial(translate, beam_size=beam_size, max_length=limit)
            for limit in options.max_lengths
        }
        for call in calls.values():  # compiles
            call()
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
