"""Speed of decoding: engines side by side, each at its best setting, on one machine.

pip install ".[peers]"
python -m benchmarks.decode --batch-sizes 1 32
python -m benchmarks.decode --model RUN --source FILE --exports EXPORT EXPORT --call-sizes 0 32
"""

import functools
import itertools
import operator
import os
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from benchmarks import command_line, measure
from benchmarks.command_line import Report, log
from benchmarks.engines import Artifact, choose_engines
from keras_transformer.decoding import DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.files import read_lines
from keras_transformer.ids import EOS_ID, UNK_ID
from keras_transformer.models import Transformer


def forced(
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
) -> Report:
    """Tokens per second on random sentences with random weights; `text --help` for a text.

    All settings of an engine are tried first: how its work is put on the threads, what it computes
    in. The fastest takes part in alternating rounds. Each engine's figures have the `setting`, the
    seconds of those `tried`, the median `rate`, `ratio`: the median of the rounds' ratios of its
    time to the time of the first engine, the `reference`, and `same`: the share of sentences with
    the translation of the reference.

    Args:
        preset: Preset of the model's sizes.
        width: Width of the model instead of the preset's; inner layers are 4 times as wide.
        vocabulary_size: Size of the vocabulary.
        length: Number of source tokens, EOS included.
        steps: Number of tokens of each translation; no id ends a sentence.
        batch_sizes: Numbers of sentences, a row each.
        beam_sizes: Beam sizes, a row each; 1 is greedy search.
        rounds: Timed rounds.
        threads: Largest number of threads of an engine.
        engines: Some of ours, ctranslate2, ctranslate2_int8, keras_hub; by default the installed.
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
            # The work must be what it is said to be.
            lengths = {len(ids) for ids in trials[name].result}
            if lengths != {steps}:
                raise RuntimeError(f"{name} took {sorted(lengths)} steps instead of {steps}.")
        rows.append(_row(trials, rounds, batch, beam_size, steps))
    report = measure.environment_info(model.config, rounds, threads, chosen, absent)
    report |= {"preset": preset, "length": length, "steps": steps, "unit": "tokens", "rows": rows}
    return Report(report, table(report))


def text(
    model: str,
    source: str,
    exports: Sequence[str] = (),
    length_penalty: float | None = None,
    batch_sizes: Sequence[int] = (0, 8, 16, 32, 64),
    beam_sizes: Sequence[int] = (4,),
    call_sizes: Sequence[int] = (0,),
    rounds: int = 5,
    threads: int = 2,
    engines: Sequence[str] | None = None,
) -> Report:
    """Sentences per second of a run and its exports on a text, tokenization included.

    Blank lines are skipped. Settings and figures are those of random sentences; the batch size is a
    part of the setting.

    Args:
        model: Run directory.
        source: Text to translate.
        exports: Exports of the run, which take part under the names of their directories.
        length_penalty: Length penalty; by default the run's.
        batch_sizes: Batch sizes to try; 0 is the engine's own.
        beam_sizes: Beam sizes, a row each.
        call_sizes: Numbers of sentences per call, a row each; 0 is the whole text.
        rounds: Timed rounds.
        threads: Largest number of threads of an engine.
        engines: Some of ours, litert, litert_int8, ctranslate2, ctranslate2_int8; by default all
            that are installed.
    """
    from keras_transformer.training import RunFolder

    measure.check_positive(beam_sizes=beam_sizes, rounds=rounds)
    chosen, absent = choose_engines(engines, of_text=True)
    folder = RunFolder.existing(model)
    sentences = [line for line in read_lines(source) if line.strip()]
    if not sentences:
        raise InputError(f"{source}: expected sentences. Received: only blank lines.")
    if length_penalty is None:
        length_penalty = folder.recipe().decoding.length_penalty
    DecodingOptions(beam_sizes[0], length_penalty)  # Checks both.
    measure.use_threads(threads)
    text_engine, rows = folder.engine(), []
    made = {name: engine(text_engine.model, text_engine) for name, engine in chosen.items()}
    made |= {os.path.basename(path): Artifact(path, threads) for path in exports}
    for beam_size in beam_sizes:
        translators = {
            name: {
                _words({"batch_size": size or "its own", **setting}): functools.partial(
                    translate, batch_size=size or None
                )
                for setting in engine.settings(threads, len(sentences))
                for translate in [engine.of_text(beam_size, length_penalty, **setting)]
                for size in batch_sizes
            }
            for name, engine in made.items()
        }
        for call_size in (size or len(sentences) for size in call_sizes):
            trials = {}
            for name, calls in translators.items():
                whole = {
                    setting: functools.partial(_in_calls, translate, sentences, call_size)
                    for setting, translate in calls.items()
                }
                trials[name] = measure.at_its_best(whole)
                log(f"{name}, calls of {call_size}: {trials[name].setting}")
            row = _row(trials, rounds, len(sentences), beam_size)
            rows.append({"call_size": call_size, **row})
    report = measure.environment_info(text_engine.model.config, rounds, threads, made, absent)
    report |= {"run": str(model), "source": str(source), "length_penalty": length_penalty}
    report |= {"unit": "sentences", "rows": rows}
    return Report(report, table(report))


def _in_calls(translate, sentences, size):
    """Translations of a text in calls of `size` sentences."""
    parts = (sentences[start : start + size] for start in range(0, len(sentences), size))
    return [translation for part in parts for translation in translate(part)]


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
    """Returns a report as a table with its conditions."""
    rows = []
    for row in report["rows"]:
        search = "greedy" if row["beam_size"] == 1 else f"beam {row['beam_size']}"
        calls = {"sentences per call": f"{row['call_size']:,}"} if "call_size" in row else {}
        for name, engine in row["engines"].items():
            rows.append(
                {
                    **(calls or {"sentences": f"{row['sentences']:,}"}),
                    "search": search,
                    "engine": name,
                    f"{report['unit']}/s": f"{engine['rate']:,.0f}",
                    "ratio": f"{engine['ratio']:.2f}",
                    f"same as {report['reference']}": f"{engine['same']:.1%}",
                    "setting": engine["setting"],
                }
            )
    random = "{preset}, sources of {length} tokens, {steps} forced steps."
    what = random if report["unit"] == "tokens" else "{source}, length penalty {length_penalty}."
    return measure.report_table(rows, report, what)


def main(arguments: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    default = text if {"--model", "--source"} & {*words} else forced
    command_line.run(forced, text, arguments=words, default=default)


if __name__ == "__main__":
    main()
