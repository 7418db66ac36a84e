"""How the speed of engines and trainers is measured: threads, turns, arithmetic, conditions."""

import concurrent.futures
import importlib.metadata
import importlib.util
import itertools
import os
import pathlib
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras

import keras_transformer
from benchmarks.command_line import log, markdown
from keras_transformer.base import options
from keras_transformer.base.errors import InputError, did_you_mean, installation, missing_package
from keras_transformer.engine.device import give_tensorflow
from keras_transformer.models.config import TransformerConfig

MAX_POSITIONS = 1024  # of a source and of a target, in tokens, that every engine has
# The threads of an engine spin for some milliseconds after its last work: they must not take a
# core from the next one.
_PAUSE_SECONDS = 0.05
# At least: a single call of 20 ms took 36 to 51 ms while the scheduler had its two threads on one
# core, where those of others had left them. Steady speed is what is compared.
_TURN_SECONDS = 0.5
_TRIAL_ROUNDS = 2  # of each setting


def use_threads(threads: int) -> None:
    """Gives TensorFlow its number of threads, unless it has started with another number."""
    check_positive(threads=threads)
    if keras.backend.backend() != "tensorflow":
        rule = "The benchmark runs on Keras' TensorFlow backend."
        raise InputError(f"{rule} Received: backend={keras.backend.backend()!r}.")
    import tensorflow as tf

    if tf.config.threading.get_intra_op_parallelism_threads() != threads:
        give_tensorflow(threads, 1)


def check_positive(**values: Any) -> None:
    """Raises `InputError` unless each value, or each of a list of values, is 1 or more."""
    for name, value in values.items():
        for number in (isinstance(value, (list, tuple)) and value) or [value]:
            options.check_positive(**{name: number})


def config_of(preset: str, vocabulary_size: int, **fields: Any) -> TransformerConfig:
    """A preset's configuration; raises `InputError` where it is none."""
    try:
        return TransformerConfig.from_preset(preset, vocabulary_size, **fields)
    except ValueError as error:
        raise InputError(str(error)) from None


SIZES = (
    "{config[num_encoder_layers]}+{config[num_decoder_layers]} layers of {config[model_dim]}/"
    "{config[intermediate_dim]}, vocabulary {config[vocabulary_size]}"
)
"""A model's sizes, with fields of a report in braces; see `report_table`."""


def grid(threads: int, batch: int) -> list[tuple[int, int]]:
    """Ways to use so many threads or fewer: parts of a batch at once, threads of each."""
    sizes = [size for size in range(1, threads + 1) if threads % size == 0]
    ways = itertools.product(sizes, sizes)
    return [(parts, size) for parts, size in ways if parts * size <= threads and parts <= batch]


def at_once(calls: Sequence[Callable[[Any], list]]) -> Callable[[Any], list]:
    """A function of a list of which each of the `calls` gets a part, in a thread of its own."""
    count, pool = len(calls), concurrent.futures.ThreadPoolExecutor(len(calls))

    def run(items):
        parts = [items[first::count] for first in range(count)]
        results = itertools.zip_longest(*pool.map(lambda call, part: call(part), calls, parts))
        return list(itertools.chain.from_iterable(results))[: len(items)]

    return run if count > 1 else calls[0]


class Trial(NamedTuple):
    """The best of an engine's settings: its name, its function, what that gives."""

    setting: str
    call: Callable[[], list]
    result: list
    tried: dict[str, float]  # the seconds of a call with each setting


def words(setting: Mapping[str, object]) -> str:
    """Name of a setting."""
    return ", ".join(f"{name}={value}" for name, value in setting.items()) or "one"


def at_its_best(calls: Mapping[str, Callable[[], list]]) -> Trial:
    """The fastest of an engine's functions, by setting, in a short trial; the only one without."""
    results = {setting: call() for setting, call in calls.items()}  # compiles, warms up
    seconds = in_turns(calls, _TRIAL_ROUNDS) if len(calls) > 1 else {}
    tried = {setting: round(min(times), 6) for setting, times in seconds.items()}
    best = min(tried or calls, key=lambda setting: tried.get(setting, 0.0))
    return Trial(best, calls[best], results[best], tried)


def in_turns(calls: Mapping[str, Callable], rounds: int) -> dict[str, list[float]]:
    """The seconds a call of some warm functions in each round, which begins with another one."""
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(_PAUSE_SECONDS)
            start, count, elapsed = time.perf_counter(), 0, 0.0
            while elapsed < _TURN_SECONDS:
                calls[name]()
                count += 1
                elapsed = time.perf_counter() - start
            seconds[name].append(elapsed / count)
    return seconds


def side_by_side(
    trials: Mapping[str, Trial], rounds: int, amounts: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Figures of each engine at its best setting, in alternating rounds.

    Args:
        trials: Results of `at_its_best`, by engine; the first is the reference.
        rounds: Timed rounds.
        amounts: Sentences or tokens of a call, by engine.

    Returns:
        By engine, the `setting`, the seconds of those `tried`, the `seconds` of the rounds, the
        median `rate` per second, and `ratio`: the median of the rounds' ratios of its time per
        sentence or token to the reference's.
    """
    seconds = in_turns({name: trial.call for name, trial in trials.items()}, rounds)
    reference = next(iter(trials))
    figures = {}
    for name, trial in trials.items():
        share = amounts[reference] / amounts[name]
        times = zip(seconds[name], seconds[reference], strict=True)
        figures[name] = {
            "setting": trial.setting,
            "rate": round(amounts[name] / statistics.median(seconds[name]), 2),
            "ratio": round(statistics.median(time / base * share for time, base in times), 3),
            "seconds": [round(time, 6) for time in seconds[name]],
            "tried": trial.tried,
        }
    return figures


def machine() -> dict[str, str | int | None]:
    """The processor and its number of cores."""
    file = pathlib.Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {"processor": name[1].strip() if name else platform.machine(), "cores": os.cpu_count()}


def choose(names: Iterable[str] | None, allowed: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Returns engines or trainers by name; by default all whose `package` is installed.

    The extra `peers` brings all packages. `what` is the name of the option.
    """
    if names is None:
        installed = {name for name in allowed if importlib.util.find_spec(allowed[name].package)}
        if absent := sorted(allowed.keys() - installed):
            log(f"not installed: {', '.join(absent)} ({installation('peers')})")
        return {name: engine for name, engine in allowed.items() if name in installed}
    names = list(names)
    for name in names or [""]:
        if name not in allowed or names.count(name) > 1:
            rule = f"`{what}` must be of {', '.join(allowed)}, with no name twice."
            hint = did_you_mean(name, list(allowed)) if name not in allowed else ""
            raise InputError(f"{rule} Received: {name!r}.{hint}")
        if importlib.util.find_spec(allowed[name].package) is None:
            raise missing_package(name, allowed[name].package, "peers")
    return {name: allowed[name] for name in names}


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns the installed version of each package, by the name under which it is imported."""
    ours = {"keras_transformer": keras_transformer.__version__}  # its distribution has another name
    return {name: ours.get(name) or importlib.metadata.version(name) for name in sorted(packages)}


def environment_info(
    config: TransformerConfig,
    rounds: int,
    threads: int,
    chosen: Mapping[str, Any],
) -> dict[str, Any]:
    """Text of a report below its rows."""
    packages = {"keras", "tensorflow", *(engine.package for engine in chosen.values())}
    return {
        "config": config.to_dict(),
        "rounds": rounds,
        "threads": threads,
        "machine": machine(),
        "versions": versions(packages),
        "reference": next(iter(chosen)),
        "notes": {name: engine.note for name, engine in chosen.items()},
    }


def report_table(rows: Sequence[Mapping[str, object]], report: Mapping[str, Any], what: str) -> str:
    """Returns a table, and below it the conditions of the measurement.

    `what` was measured, with fields of the report in braces.
    """
    turns = (
        "Medians of {rounds} interleaved rounds, each engine with the fastest setting of at most "
        "{threads} threads; a ratio above 1 says that {reference} is faster."
    )
    versions = ", ".join(" ".join(pair) for pair in report["versions"].items())
    lines = [markdown(rows), "", f"{what} {turns}".format(**report)]
    lines += [f"{report['machine']['processor']}, {report['machine']['cores']} cores; {versions}."]
    lines += [f"- {name}: {note}." for name, note in report["notes"].items()]
    return "\n".join(lines)
