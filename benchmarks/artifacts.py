"""A run and its exports: seconds to export, size, quality, speed, memory, seconds to start.

python -m benchmarks.artifacts --model RUN --source FILE --reference FILE --work DIR
"""

import json
import pathlib
import statistics
import time
from collections.abc import Sequence

from benchmarks import command_line
from benchmarks.command_line import Report, call, log, markdown
from keras_transformer.base.errors import InputError
from keras_transformer.data import read_pairs
from keras_transformer.training import evaluate

FORMATS = {
    "run": [],
    "SavedModel": ["saved_model"],
    "LiteRT float32": ["litert", "--quantize", "none"],
    "LiteRT float16": ["litert", "--quantize", "float16"],
    "LiteRT int8": ["litert", "--quantize", "int8"],
    "CTranslate2 float32": ["ctranslate2"],
    "CTranslate2 int8": ["ctranslate2", "--quantize", "int8"],
}
# Imports only what the artifact needs, so that load time and peak memory are the artifact's.
_CHILD = """
import json, sys, time
path, options, lines = json.load(sys.stdin)
start = time.perf_counter()
from keras_transformer.base.compilation_cache import enable_compilation_cache
from keras_transformer.engine.translator import Translator
enable_compilation_cache()
translator = Translator.load(path)
figures = {"load": time.perf_counter() - start}
def timed(calls):
    start = time.perf_counter()
    results = [result for call in calls for result in translator.translate(call, **options)]
    return time.perf_counter() - start, results
figures["first"], figures["second"] = (timed([lines[:1]])[0] for _ in range(2))
if len(lines) > 1:
    for name, calls in (("one by one", [[line] for line in lines[:100]]), ("text", [lines])):
        timed(calls)  # compiles
        rounds = [timed(calls) for _ in range(3)]
        figures[name] = len(rounds[0][1]) / sorted(seconds for seconds, _ in rounds)[1]
    figures["texts"] = [result.text for result in rounds[0][1]]
# Not `ru_maxrss`, which a process inherits from its parent.
status = open("/proc/self/status").read()
figures["peak"] = int(status.partition("VmHWM:")[2].split()[0]) / 1024
print(json.dumps(figures))
"""


def artifacts(
    model: str,
    source: str,
    reference: str,
    work: pathlib.Path,
    formats: Sequence[str] = tuple(FORMATS),
    beam_size: int = 4,
    rounds: int = 3,
) -> Report:
    """Table of a run and its exports, each opened by `Translator.load` in its own process.

    Sentences per second are medians of three rounds: the first 100 sentences one by one, then the
    text in one call. The seconds of a start are medians of further processes, which have a filled
    compilation cache: the whole process, its load with all imports, the first translation and the
    second translation of a sentence.

    Args:
        model: Run directory.
        source: Text to translate.
        reference: Its translation.
        work: Directory of the exports; an export that is there is not made again.
        formats: Names of rows.
        beam_size: Beam size of exports and searches.
        rounds: Starts of each artifact.
    """
    if unknown := set(formats) - set(FORMATS):
        raise InputError(f"`--formats` must be of {list(FORMATS)}. Received: {sorted(unknown)}.")
    lines, references = read_pairs(source, reference)
    work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in formats:
        path, seconds = work / name.replace(" ", "_"), None
        if name == "run":
            path = pathlib.Path(model)
        elif not path.exists():
            log(f"exporting {name}")
            beam = [] if "ctranslate2" in FORMATS[name] else ["--beam-size", beam_size]
            start = time.monotonic()
            call("export", "--model", model, "--output", path, "--format", *FORMATS[name], *beam)
            seconds = round(time.monotonic() - start, 1)
        figures = in_new_process(path, lines, beam_size=beam_size)
        starts = [in_new_process(path, lines[:1], beam_size=beam_size) for _ in range(rounds)]
        medians = {
            f"{stage} s": round(statistics.median(start[stage] for start in starts), 2)
            for stage in ("process", "load", "first", "second")
        }
        row = {
            "artifact": name,
            "export s": seconds,
            "MB": megabytes(path),
            "BLEU": round(evaluate(figures["texts"], references)["bleu"], 2),
            "sentences/s, one by one": round(figures["one by one"]),
            "sentences/s, text": round(figures["text"]),
            "peak MB": round(figures["peak"]),
        }
        rows.append({**row, **medians})
    start = time.perf_counter()
    call("-c", "import keras", module=None)
    log(f"`import keras` takes {time.perf_counter() - start:.1f} s.")
    return Report(rows, markdown(rows))


def megabytes(path: pathlib.Path) -> float:
    """Size of the files that translating needs."""
    if (path / "recipe.yaml").exists() or (path / "model.tflite").exists():
        patterns = [
            "model.keras",
            "model.tflite",
            "recipe.yaml",
            "*tokenizer.model",
            "shortlist.npy",
        ]
    else:
        patterns = ["**/*"]
    files = [file for pattern in patterns for file in path.glob(pattern) if file.is_file()]
    return round(sum(file.stat().st_size for file in files) / 1e6, 1)


def in_new_process(path: pathlib.Path, lines: Sequence[str], **options: int) -> dict:
    """Figures of a process that opens an artifact and translates lines."""
    start = time.perf_counter()
    asked = json.dumps([str(path), options, lines])
    figures = json.loads(call("-c", _CHILD, module=None, text=asked))
    return {"process": time.perf_counter() - start, **figures}


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(artifacts, arguments=arguments)


if __name__ == "__main__":
    main()
