"""Decodes with each engine that is installed, side by side, and gives their speed.

    pip install ".[peers]"
    python -m benchmarks.decode --batch-sizes 1 32
    python -m benchmarks.decode --model RUN --source FILE --exports FOLDER...

Random sentences, each forced to the same number of steps; with `--model` and `--source`, a text
with a trained run. Each engine's settings are tried first, and the fastest is taken. A table on
stderr, JSON on stdout.
"""

import argparse
import functools
import itertools
import operator
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from benchmarks import measure
from benchmarks.engines import Artifact, choose_engines
from keras_transformer.cli.arguments import Row, add_options
from keras_transformer.decoding import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines
from keras_transformer.ids import EOS_ID, UNK_ID
from keras_transformer.models import Transformer

_FORCED_ALONE = ("preset", "width", "vocabulary_size", "length", "steps")
_OPTIONS: tuple[Row, ...] = (
    ("preset", str, "NAME", "default: transformer_base"),
    ("width", int, "N", "model_dim; intermediate_dim is 4 times as wide; default: the preset's"),
    ("vocabulary_size", int, "N", "default: 8000"),
    ("length", int, "N", "tokens of a source; default: 32"),
    ("steps", int, "N", "tokens of a translation; default: 32"),
    (
        "batch_sizes",
        [int],
        "N",
        "a row each, default: 1 8 32; with --model each engine takes its fastest, 0 is what it "
        "takes by itself, default: 0 8 16 32 64",
    ),
    (
        "beam_sizes",
        [int],
        "N",
        "1 is greedy search; default: 1 4; with --model one of them, default: 4",
    ),
    (
        "call_sizes",
        [int],
        "N",
        "a row each: sentences of a call, 0 for the whole text, with --model, default: 0",
    ),
    ("rounds", int, "N", "default: 5"),
    ("threads", int, "N", "most that an engine may use; default: 2"),
    (
        "engines",
        [str],
        "NAME",
        "of ours, litert, litert_int8, ctranslate2, ctranslate2_int8, keras_hub; default: those "
        "installed",
    ),
    ("exports", [str], "PATH", "exports of the run, to be measured beside it, with --model"),
    ("model", str, "RUN", "a run folder, with --source; default: a preset"),
    ("source", str, "FILE", "the text to translate with --model; default: random sentences"),
    ("length_penalty", float, "A", "with --model; default: the recipe's"),
)


def benchmark_decode(
    preset: str = "transformer_base",
    width: int | None = None,
    vocabulary_size: int = 8000,
    length: int = 32,
    steps: int = 32,
    batch_sizes: Sequence[int] = (1, 8, 32),
    beam_sizes: Sequence[int] = (1, 4),
    rounds: int = 5,
    threads: int = 2,
    engines: Sequence[str] | None = None,
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Tokens per second of each engine on random sentences, each at its best setting.

    For each row all settings of an engine are tried first (how its work is put on the threads, what
    it computes in); the fastest takes part in the alternating rounds.

    Args (the others are options of the program):
        length: Tokens of a source, including EOS.
        steps: Tokens of a translation; no id ends a sentence.
        log: Function called with a line for each step of the work.

    Returns:
        A dict fit for JSON. Of each engine the `setting`, the seconds of those `tried`, the median
        `rate` of the rounds, `ratio`: the median of the rounds' ratios of its time to that of the
        first engine, the `reference`, and `same`: the share of sentences translated as by that.
    """
    measure.check_positive(
        length=length, steps=steps, rounds=rounds, vocabulary_size=vocabulary_size
    )
    measure.check_positive(batch_sizes=batch_sizes, beam_sizes=beam_sizes)
    if max(length, steps) > measure.MAX_POSITIONS:
        rule = f"`length` and `steps` must be at most {measure.MAX_POSITIONS}."
        raise InputError(f"{rule} Received: length={length}, steps={steps}.")
    if vocabulary_size <= UNK_ID + 1:
        rule = f"`vocabulary_size` must be more than {UNK_ID + 1}, the special ids."
        raise InputError(f"{rule} Received: vocabulary_size={vocabulary_size}.")
    chosen, absent = choose_engines(engines)
    measure.use_threads(threads)
    sizes = {} if width is None else {"model_dim": width, "intermediate_dim": 4 * width}
    model = random_model(preset, vocabulary_size, **sizes)
    made, rows = {name: engine(model) for name, engine in chosen.items()}, []
    for batch, beam_size in itertools.product(batch_sizes, beam_sizes):
        trials, source_ids = {}, random_sentences(vocabulary_size, batch, length)
        for name, engine in made.items():
            settings = engine.settings(threads, batch)
            calls = {_words(s): engine.forced(source_ids, beam_size, steps, **s) for s in settings}
            trials[name] = measure.at_its_best(calls)
            log(f"{batch} sentences, beam {beam_size}: {name}: {trials[name].setting}")
            # It shows that the work is what it is said to be.
            lengths = {len(ids) for ids in trials[name].result}
            if lengths != {steps}:
                raise RuntimeError(f"{name} took {sorted(lengths)} steps instead of {steps}.")
        rows.append(_row(trials, rounds, batch, beam_size, steps))
    report = measure.environment_info(model.config, rounds, threads, chosen, absent)
    asked = {"preset": preset, "length": length, "steps": steps}
    return {**asked, "unit": "tokens", **report, "rows": rows}


def benchmark_corpus(
    run_folder: str | os.PathLike,
    source_file: str | os.PathLike,
    beam_size: int = 4,
    length_penalty: float | None = None,
    batch_sizes: Sequence[int] = (0, 8, 16, 32, 64),
    call_sizes: Sequence[int] = (0,),
    rounds: int = 5,
    threads: int = 2,
    engines: Sequence[str] | None = None,
    exports: Sequence[str | os.PathLike] = (),
    log: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Sentences per second of each engine on a text, tokenization included; as `benchmark_decode`.

    Blank lines are left out. The text is translated in one call (0) or in calls of so many
    sentences, as they come. The batch size is a part of each engine's setting, 0 for its own; the
    length penalty is the recipe's by default. `exports` of the run take part under the names of
    their folders.
    """
    from keras_transformer.training import RunFolder

    measure.check_positive(beam_size=beam_size, rounds=rounds)
    chosen, absent = choose_engines(engines, of_text=True)
    folder = RunFolder.existing(run_folder)
    sentences = [line for line in read_lines(source_file) if line.strip()]
    if not sentences:
        raise InputError(f"{source_file}: expected sentences. Received: blank lines alone.")
    if length_penalty is None:
        length_penalty = folder.recipe().decoding.length_penalty
    DecodingOptions(beam_size, length_penalty)  # Checks both.
    measure.use_threads(threads)
    text_engine, rows = folder.engine(), []
    made_engines = {name: engine(text_engine.model, text_engine) for name, engine in chosen.items()}
    made_engines |= {os.path.basename(path): Artifact(path, threads) for path in exports}
    made_calls = {
        name: {
            _words({"batch_size": size or "its own", **setting}): functools.partial(
                translate, batch_size=size or None
            )
            for setting in made.settings(threads, len(sentences))
            for translate in [made.of_text(beam_size, length_penalty, **setting)]
            for size in batch_sizes
        }
        for name, made in made_engines.items()
    }
    for call_size in call_sizes:
        trials = {}
        for name, calls in made_calls.items():
            whole = {
                setting: functools.partial(_in_calls, call, sentences, call_size)
                for setting, call in calls.items()
            }
            trials[name] = measure.at_its_best(whole)
            log(f"{name}, calls of {call_size or len(sentences)}: {trials[name].setting}")
        row = _row(trials, rounds, len(sentences), beam_size)
        rows.append({"call_size": call_size or len(sentences), **row})
    config = text_engine.model.config
    report = measure.environment_info(config, rounds, threads, made_engines, absent)
    asked = {"run": str(run_folder), "source": str(source_file), "length_penalty": length_penalty}
    return {**asked, "unit": "sentences", **report, "rows": rows}


def _in_calls(translate, sentences, call_size):
    """Translations of a text in calls of so many sentences, 0 for one call."""
    size = call_size or len(sentences)
    parts = (sentences[start : start + size] for start in range(0, len(sentences), size))
    return [text for part in parts for text in translate(part)]


def random_model(preset: str, vocabulary_size: int, **sizes: int) -> Transformer:
    """A `Transformer` of a preset's sizes, always with the same weights."""
    keras.utils.set_random_seed(1)
    return Transformer(measure.config_of(preset, vocabulary_size, **sizes))


def random_sentences(vocabulary_size: int, batch: int, length: int) -> list[list[int]]:
    """Source ids, a list for each sentence, always the same ones."""
    rng = np.random.default_rng(2)
    ids = rng.integers(UNK_ID + 1, vocabulary_size, (batch, length))
    ids[:, -1] = EOS_ID
    return ids.tolist()


def _words(setting):
    return ", ".join(f"{name}={value}" for name, value in setting.items())


def _row(trials: dict[str, measure.Trial], rounds, sentences, beam_size, tokens=1):
    """Each engine at its best setting, in alternating rounds."""
    seconds = measure.in_turns({name: trial.call for name, trial in trials.items()}, rounds)
    reference, engines = next(iter(trials)), {}
    for name, times in seconds.items():
        same = map(operator.eq, trials[reference].result, trials[name].result)
        engines[name] = {
            "setting": trials[name].setting,
            "rate": round(sentences * tokens / statistics.median(times), 2),
            "ratio": round(statistics.median(map(operator.truediv, times, seconds[reference])), 3),
            "same": round(statistics.mean(same), 4),
            "seconds": [round(each, 6) for each in times],
            "tried": trials[name].tried,
        }
    return {"sentences": sentences, "beam_size": beam_size, "engines": engines}


def table(report: dict[str, Any]) -> str:
    """A report as a Markdown table, and below it what one must know to read it."""
    rates = [f"{report['unit']}/s", "ratio", f"same as {report['reference']}", "setting"]
    rows = [["sentences", "search", "engine", *rates]]
    if report["unit"] == "sentences":
        rows[0][0] = "sentences of a call"
    for row in report["rows"]:
        search = "greedy" if row["beam_size"] == 1 else f"beam {row['beam_size']}"
        for name, engine in row["engines"].items():
            forms = (("rate", ",.0f"), ("ratio", ".2f"), ("same", ".1%"))
            found = [format(engine[key], form) for key, form in forms]
            count = row.get("call_size", row["sentences"])
            rows.append([f"{count:,}", search, name, *found, engine["setting"]])
    random = "{preset}, sources of {length} tokens, {steps} forced steps."
    what = random if report["unit"] == "tokens" else "{source}, length penalty {length_penalty}."
    return measure.markdown(rows, report, what)


def _measured(**values):
    """The report of what was asked for."""
    if "model" in values or "source" in values:
        return benchmark_corpus(**_corpus_arguments(values))
    for name in ("length_penalty", "call_sizes"):
        if name in values:
            raise InputError(f"--{name.replace('_', '-')} needs --model and --source.")
    return benchmark_decode(**values)


def _corpus_arguments(values):
    run, source = values.pop("model", None), values.pop("source", None)
    if run is None or source is None:
        raise InputError(
            f"--model and --source go together. Received: --model={run}, --source={source}."
        )
    for name in _FORCED_ALONE:
        if name in values:
            raise InputError(f"--{name.replace('_', '-')} does not go with --model.")
    beam_size, *others = values.pop("beam_sizes", [4])
    if others:
        received = [beam_size, *others]
        raise InputError(f"--model takes one beam size. Received: --beam-sizes={received}.")
    return {**values, "run_folder": run, "source_file": source, "beam_size": beam_size}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decode", description=__doc__.splitlines()[0]
    )
    add_options(parser, *_OPTIONS)
    measure.run(parser, _measured, table, arguments)


if __name__ == "__main__":
    main()
