"""Counts what JAX compiles for each command, from text files to an export, on any device.

KERAS_BACKEND=jax python -m benchmarks.compilations --folder FOLDER

On a GPU each program takes seconds before it first runs. On a CPU the count tells how many.
"""

import itertools
import json
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from benchmarks import command_line
from benchmarks.command_line import Report, log, markdown
from keras_transformer.base.errors import InputError
from keras_transformer.engine.device import CPU, accelerator, device_plan

Device = Literal["this", "cpu", "gpu"]
SECONDS = 0.2
"""A program that takes longer to compile counts."""

WORKS = ("train", "evaluate", "translate", "export")
_PARTS = {"train": 29_000, "val": 1_014, "test": 1_000}
_EVENT = "/jax/core/compile/backend_compile_duration"
_SYLLABLES = ["".join(letters) for letters in itertools.product("bdfglmnrst", "aeiou")]
_WORDS = ["".join(pair) for pair in itertools.product(_SYLLABLES, repeat=2)][::13]


def every_command(
    folder: pathlib.Path | None = None,
    lines: int = 3_000,
    device: Device = "this",
    small: bool = False,
) -> Report:
    """Counts the programs of `train`, `evaluate`, `translate` and `export`, each in a new process.

    Args:
        folder: Directory with train*, val* and test* in .en and .de; by default made-up words.
        lines: Training pairs to take, at most.
        device: Device whose shapes and rows are taken: this one, a CPU or a GPU.
        small: A model of one layer instead of `transformer_tiny`.
    """
    with tempfile.TemporaryDirectory() as work:
        base = pathlib.Path(work)
        write_corpus(base, folder, lines)
        rows = []
        for name in WORKS:
            options = [f"--device={device}", *["--small"] * small]
            text = command_line.call("one-command", name, work, *options, module=__spec__.name)
            rows.append({"command": name, **json.loads(text)})
            log(rows[-1])
    table = [{key: row[key] for key in ("command", "count", "seconds", "others")} for row in rows]
    return Report(rows, markdown(table))


def one_command(
    name: str,
    folder: pathlib.Path,
    /,
    device: Device = "this",
    small: bool = False,
    output: str = "run",
) -> dict[str, Any]:
    """Runs one command, and tells what it compiled.

    Args:
        name: Name of the command: train, evaluate, translate or export.
        folder: Directory with the texts, and after `train` with the run.
        device: Device whose shapes and rows are taken: this one, a CPU or a GPU.
        small: A model of one layer instead of `transformer_tiny`.
        output: Name of the run in the directory, which `train` makes.
    """
    if name not in WORKS:
        raise InputError(f"The command must be one of {', '.join(WORKS)}. Received: {name!r}.")
    import keras  # Late: the cache must be on before JAX is imported.

    if keras.backend.backend() != "jax":
        rule = "Programs are counted on Keras' JAX backend: set KERAS_BACKEND=jax"
        raise InputError(f"{rule}. Received: {keras.backend.backend()!r}.")
    import jax

    compiled: list[tuple[str, float]] = []
    starts: dict[int, float] = {}

    def begin(event, *_, **__):
        if event == _EVENT:
            starts[threading.get_ident()] = time.process_time()

    def end(event, duration_secs, fun_name="", **_):
        if event == _EVENT:
            # Other work on the machine lengthens only the one, several threads only the other.
            of_process = time.process_time() - starts.get(threading.get_ident(), 0.0)
            compiled.append((fun_name, min(duration_secs, of_process)))

    kept: list[str] = []

    def count(event, **_):
        if event == "/jax/compilation_cache/cache_hits":
            kept.append(event)

    jax.monitoring.register_event_listener(count)
    jax.monitoring.register_scalar_listener(begin)
    listener: Any = end
    jax.monitoring.register_event_duration_secs_listener(listener)
    start = time.perf_counter()
    plan = {"cpu": CPU, "gpu": accelerator()}.get(device) or device_plan()
    _WORKS[name](folder, folder / output, plan, small)
    long = [(program, round(seconds, 2)) for program, seconds in compiled if seconds > SECONDS]
    return {
        "count": len(long),
        "seconds": round(sum(seconds for _, seconds in long), 1),
        "others": len(compiled) - len(long),
        "programs_in_all": len(compiled),
        "read": len(kept),
        "all_seconds": round(time.perf_counter() - start, 1),
        "programs": long,
    }


def _train(folder, run, plan, small):
    from keras_transformer.training import Recipe
    from keras_transformer.training.loop import train

    sizes: dict[str, Any] = {"preset": "transformer_tiny", "normalize_first": True}
    if small:
        layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
        sizes = {"model_dim": 16, "num_heads": 2, "intermediate_dim": 24, **layers}
    values = {
        "data": {
            "folder": str(folder),
            "train": {"source": "train.en", "target": "train.de"},
            "validation": {"source": "val.en", "target": "val.de"},
        },
        "text": {"vocabulary_size": 200 if small else 2_000},
        "model": sizes,
        "training": {"epochs": 1, "select_by": "bleu", "warmup_steps": 10, "ema_momentum": 0.9},
    }
    train(Recipe.from_dict(values), run, plan=plan)


def _evaluate(folder, run, plan, small):
    from keras_transformer.engine.evaluation import evaluate_model

    evaluate_model(run, folder / "test.en", folder / "test.de", plan=plan)


def _translate(folder, run, plan, small):
    import io

    from keras_transformer import Translator
    from keras_transformer.cli.formats import as_text
    from keras_transformer.cli.lines import translate_lines

    translator = Translator.load(run, plan=plan)
    with open(folder / "test.en", "rb") as file:
        translate_lines(translator, file, io.StringIO(), as_text)


def _export(folder, run, plan, small):
    from keras_transformer.export import export_run

    export_run(run, folder / "exported", "hugging_face", plan=plan)


_WORKS = {"train": _train, "evaluate": _evaluate, "translate": _translate, "export": _export}


def write_corpus(
    base: pathlib.Path, folder: pathlib.Path | None, lines: int, held_out: int = 1_014
) -> None:
    """Writes train, val and test, made up or of the files of a folder, to `base`.

    They have at most so many `lines`, and `held_out` of val and test.
    """
    rng = np.random.default_rng(1)
    for part, count in _PARTS.items():
        count = min(count, lines if part == "train" else held_out)
        for side in ("en", "de"):
            if folder is None:
                # Multi30k's captions have 4 to 40 words, 12 on average.
                sizes = np.clip(rng.gamma(6.0, 2.0, count).astype(int), 4, 40)
                texts = [" ".join(rng.choice(_WORDS, size)) for size in sizes]
            else:
                file = min(folder.glob(f"{part}*.{side}"))
                texts = file.read_text("utf-8").split("\n")[:count]
            (base / f"{part}.{side}").write_text("".join(f"{text}\n" for text in texts), "utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    os.environ.setdefault("KERAS_TRANSFORMER_COMPILATION_CACHE", "off")
    command_line.run(every_command, one_command, arguments=arguments, default=every_command)


if __name__ == "__main__":
    main()
