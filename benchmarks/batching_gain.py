"""Gain of dynamic batching: one server with it and one without, loaded in turns.

    python -m benchmarks.batching_gain --model DIR --text FILE --signature greedy

Both are `keras-transformer serve` with the same options but for `--max-batch-size 1` in the second.
Each is loaded by 32 clients that wait for their answers, before what counts so long that every
program it needs is compiled. stdout gets JSON: sentences a second of each round, and the ratios
of the rounds.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


class Server:
    """`keras-transformer serve` on a free port."""

    def __init__(self, model, log, *options):
        self._log = pathlib.Path(log)
        command = [sys.executable, "-m", "keras_transformer", "serve", "--model", model]
        command += ["--name", "measured", "--port", "0", *options]
        with open(log, "wb") as file:
            self._process = subprocess.Popen(command, stderr=file)
        self.url = self._started()

    def _started(self):
        while self._process.poll() is None:
            found = re.search(r"http://\S+", self._log.read_text(errors="replace"))
            if found and self._is_ready(found.group()):
                return found.group()
            time.sleep(0.2)
        sys.exit(self._log.read_text(errors="replace")[-2000:])

    @staticmethod
    def _is_ready(url):
        try:
            with urllib.request.urlopen(url.split("/v1/")[0] + "/readyz"):
                return True
        except urllib.error.HTTPError:
            return False

    def load(self, options, *more):
        """The report of one load test."""
        command = [sys.executable, "-m", "benchmarks.load_test", "--url", self.url]
        command += ["--text", options.text, "--signature", options.signature, *map(str, more)]
        finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(finished.stdout)

    def stop(self):
        self._process.terminate()
        self._process.wait()


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batching_gain", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--signature", default="serving_default")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        batching = Server(options.model, f"{folder}/batching")
        alone = Server(options.model, f"{folder}/alone", "--max-batch-size", "1")
        try:
            for sentences in (1, 2, 4, 8, 16, 32):
                batching.load(options, "--clients", 2, "--sentences", sentences, "--requests", 24)
            rounds = []
            for _ in range(options.rounds + 1):
                load = ("--clients", options.clients, "--seconds", options.seconds)
                rounds.append([server.load(options, *load) for server in (batching, alone)])
        finally:
            batching.stop()
            alone.stop()
    rounds = rounds[1:]  # In the first one, what is left is compiled.
    rates = [[report["sentences_per_second"] for report in pair] for pair in rounds]
    ratios = [round(one / other, 2) for one, other in rates]
    print(
        json.dumps(
            {
                "signature": options.signature,
                "clients": options.clients,
                "batching": [one for one, _ in rates],
                "one_by_one": [other for _, other in rates],
                "ratios": ratios,
                "median_ratio": statistics.median(ratios),
                "milliseconds": [pair[0]["milliseconds"] for pair in rounds],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
