"""Cold start of the server: seconds from the command until `/readyz` says 200.

    python -m benchmarks.cold_start SAVED_MODEL LITERT CTRANSLATE2 --rounds 3

Each export is started once before what counts, so that the compilation cache holds its programs.
stdout gets JSON: the seconds of that first start and of each round.
"""

import argparse
import json
import sys
import tempfile
import time

from benchmarks.batching_gain import Server


def seconds_until_ready(model):
    """Seconds until `keras-transformer serve` of a model answers; it is stopped then."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        server = Server(model, f"{folder}/log")
        seconds = time.monotonic() - started
        server.stop()
    print(f"{model}: {seconds:.1f} s", file=sys.stderr)
    return round(seconds, 1)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cold_start", description=__doc__.split("\n")[0]
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="exports, or folders of them")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report = {}
    for model in options.models:
        first = seconds_until_ready(model)
        rounds = [seconds_until_ready(model) for _ in range(options.rounds)]
        report[model] = {"first": first, "seconds": rounds}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
