"""How the speed of engines and trainers is measured: threads, turns, arithmetic, conditions."""

import concurrent.futures
import importlib.metadata
import importlib.util
import itertools
import os
import pathlib
import platform
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras

import keras_transformer
from benchmarks.command_line import markdown
from keras_transformer import options
from keras_transformer.engine.translator import give_tensorflow
from keras_transformer.errors import InputError, did_you_mean, installation
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
    """Gives TensorFlow its number of threads, if it has not begun with another one."""
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
        for each in (isinstance(value, (list, tuple)) and value) or [value]:
            options.check_positive(**{name: each})


def config_of(preset: str, vocabulary_size: int, **fields: Any) -> TransformerConfig:
    """A preset's configuration; raises `InputError` where it is none."""
    try:
        return TransformerConfig.from_preset(preset, vocabulary_size, **fields)
    except ValueError as error:
        raise InputError(str(error)) from None


def grid(threads: int, batch: int) -> list[tuple[int, int]]:
    """Ways to use so many threads or fewer: parts of a batch at once, threads of each."""
    sizes = [each for each in range(1, threads + 1) if threads % each == 0]
    return [(n, each) for n in sizes for each in sizes if n * each <= threads and n <= batch]


def at_once(calls: Sequence[Callable[[Any], list]]) -> Callable[[Any], list]:
    """A function of a list of which each of the `calls` gets a part, in a thread of its own."""
    count, pool = len(calls), concurrent.futures.ThreadPoolExecutor(len(calls))

    def run(items):
        parts = [items[first::count] for first in range(count)]
        found = pool.map(lambda call, part: call(part), calls, parts)
        return [each for row in itertools.zip_longest(*found) for each in row][: len(items)]

    return run if count > 1 else calls[0]


class Trial(NamedTuple):
    """The best of an engine's settings: its name, its function, what that gives."""

    setting: str
    call: Callable[[], list]
    result: list
    tried: dict[str, float]  # the seconds of a call with each setting


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


def machine() -> dict[str, str | int | None]:
    """The processor and its number of cores."""
    file = pathlib.Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {"processor": name[1].strip() if name else platform.machine(), "cores": os.cpu_count()}


def choose(
    names: Iterable[str] | None, allowed: Mapping[str, Any], rule: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Some of the `allowed` by name, or all, and the extras that bring those not installed.

    Args:
        names: None for all.
        allowed: What has a `package` that it needs and the `extra` that brings it, by name.
        rule: What an error begins with, before the names.
    """
    names = list(allowed if names is None else names)
    rule = f"{rule} {', '.join(allowed)}, each named once."
    chosen, not_installed = {}, {}
    for name in names or [""]:
        if name not in allowed or names.count(name) > 1:
            hint = did_you_mean(name, list(allowed)) if name not in allowed else ""
            raise InputError(f"{rule} Received: engine={name!r}.{hint}")
        if importlib.util.find_spec(allowed[name].package) is None:
            not_installed[name] = allowed[name].extra
        else:
            chosen[name] = allowed[name]
    return chosen, not_installed


def _version(package):
    """The installed version of a package, by the name under which it is imported."""
    if package == "keras_transformer":  # its distribution has another name
        return keras_transformer.__version__
    return importlib.metadata.version(package)


def environment_info(
    config: TransformerConfig,
    rounds: int,
    threads: int,
    chosen: Mapping[str, Any],
    absent: Mapping[str, str],
) -> dict[str, Any]:
    """What a report says beside its rows."""
    packages = {"keras", "tensorflow", *(engine.package for engine in chosen.values())}
    return {
        "config": config.to_dict(),
        "rounds": rounds,
        "threads": threads,
        "machine": machine(),
        "versions": {name: _version(name) for name in sorted(packages)},
        "reference": next(iter(chosen)),
        "notes": {name: engine.note for name, engine in chosen.items()},
        "not_installed": dict(absent),
    }


def report_table(rows: Sequence[Mapping[str, str]], report: Mapping[str, Any], what: str) -> str:
    """Returns a table, and below it the conditions of the measurement.

    `what` was measured, with fields of the report in braces.
    """
    turns = (
        "Medians of {rounds} rounds in turns, each engine with the fastest setting of at most "
        "{threads} threads; a ratio above 1 says that {reference} is faster."
    )
    versions = ", ".join(" ".join(pair) for pair in report["versions"].items())
    lines = [markdown(rows), "", f"{what} {turns}".format(**report)]
    lines += [f"{report['machine']['processor']}, {report['machine']['cores']} cores; {versions}."]
    lines += [f"- {name}: {note}." for name, note in report["notes"].items()]
    for name, extra in report["not_installed"].items():
        lines.append(f"- not installed: {name} ({installation(extra)}).")
    return "\n".join(lines)
