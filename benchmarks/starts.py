"""Starts: seconds from a fresh process until the first translation, stage by stage.

    python -m benchmarks.starts RUN SAVED_MODEL LITERT CTRANSLATE2 --rounds 3

Each model is loaded and translates one sentence in processes of its own, in turns. The first round
fills the compilation cache and does not count. stdout gets JSON, medians: seconds of `import keras`
by itself, and for each model of the whole process, of its load with all imports, of the first
translation and of a second one.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

_STAGES = """
import json, sys, time
times = [time.perf_counter()]
def done():
    times.append(time.perf_counter())
from keras_transformer.engine.compilation_cache import enable_compilation_cache
from keras_transformer.engine.translator import Translator
enable_compilation_cache()
translator = Translator.load(sys.argv[1])
done()
for _ in range(2):
    translator.translate([sys.argv[2]])
    done()
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""
_NAMES = ("load", "first", "second")


def seconds_of(program, *arguments):
    """Seconds of a Python program in a process of its own, and the last line that it prints."""
    started = time.perf_counter()
    command = [sys.executable, "-c", program, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        sys.exit(finished.stderr[-2000:])
    return time.perf_counter() - started, finished.stdout.strip().rpartition("\n")[2]


def round_of(models, sentence):
    """Seconds by model and stage."""
    found = {"import keras": {"process": seconds_of("import keras")[0]}}
    for model in models:
        whole, stages = seconds_of(_STAGES, model, sentence)
        found[model] = {"process": whole, **dict(zip(_NAMES, json.loads(stages), strict=True))}
    return found


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.starts", description=__doc__.split("\n")[0]
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="runs and exports")
    parser.add_argument("--sentence", default="A man plays the guitar.")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = [round_of(options.models, options.sentence) for _ in range(options.rounds + 1)][1:]
    report = {
        model: {
            stage: round(statistics.median(each[model][stage] for each in rounds), 2)
            for stage in stages
        }
        for model, stages in rounds[0].items()
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
