"""What a GPU does: commands, training and its levers, decoding, tests; also PyTorch's part.

bash benchmarks/gpu.sh wheels FOLDER
bash benchmarks/gpu.sh --wheels FOLDER --text FOLDER
python -m benchmarks.gpu --small

`gpu.sh` sets Keras' backend, installs the wheels and calls this program. Each part is a process
with a limit of time, and writes each figure into `gpu.json` at once.
"""

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from benchmarks import command_line, measure
from benchmarks.command_line import Report, log, markdown
from benchmarks.decode import random_sentences
from benchmarks.engines import Ours
from benchmarks.gpu_levers import measure_levers
from benchmarks.gpu_real import measure_commands
from benchmarks.trainers import TRAINERS, Torch
from keras_transformer.base import options as options_of
from keras_transformer.base.errors import InputError, first_line
from keras_transformer.base.files import write_whole
from keras_transformer.base.ids import EOS_ID, UNK_ID
from keras_transformer.data import EncodedPairs, ParallelDataset
from keras_transformer.models import Transformer
from keras_transformer.models.config import TransformerConfig

ROOT = pathlib.Path(__file__).parents[1]
OUTPUT = pathlib.Path(os.environ.get("OUT") or ROOT / "runs/gpu")

PEAKS = {"NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H200": 989.4}
"""TFLOP/s of products of bfloat16 by JAX' name of the card: data sheets, without sparsity."""

SECONDS = {"real": 200, "training": 110, "levers": 90, "decoding": 100, "tests": 120}
"""Limits of the parts, the most important first."""

ALL_SECONDS = 450
"""Limit of all parts together; a part that comes late has what is left."""

_MOST_PROCESSES = 14  # of tests, which share the GPU
# XLA computes products of float32 in TF32 by default, which is too rough for the tests. Without a
# search for the fastest kernels it compiles sooner.
_TEST_ENVIRONMENT = {
    "JAX_PLATFORMS": "cuda,cpu",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",
}


_EPOCHS = 30  # of the part real
_SLOWNESS = 4  # of a few cores that compile, as factor of the limits


class Sizes(NamedTuple):
    """What is measured.

    Attributes:
        config: Sizes of the model.
        rows: Sentences of a training step.
        length: Longest sentence of a training step, EOS included.
        steps: Training steps per round.
        rounds: Timed rounds.
        searches: Numbers of sentences that are decoded at once, by precision.
        tokens: Tokens of a source and of its translation, in decoding.
        tests: Files and folders of tests.
    """

    config: TransformerConfig
    rows: int
    length: int
    steps: int
    rounds: int
    searches: Mapping[str, tuple[int, ...]]
    tokens: int
    tests: tuple[str, ...]


FULL = Sizes(
    TransformerConfig.from_preset("transformer_base", 32_000),
    rows=390,  # 24,960 positions per side; table 3 of the paper has batches of 25,000 tokens
    length=64,
    steps=20,
    rounds=5,
    searches={"mixed_bfloat16": (512, 32), "float32": (512,)},
    tokens=32,
    tests=("tests/layers", "tests/models", "tests/test_losses.py", "tests/decoding"),
)
SMALL = Sizes(
    TransformerConfig(101, 16, 2, 24, num_encoder_layers=1, num_decoder_layers=1),
    rows=5,
    length=8,
    steps=2,
    rounds=2,
    searches={"mixed_bfloat16": (2,), "float32": (2,)},
    tokens=4,
    tests=("tests/test_losses.py",),
)


class CompiledTorch(Torch):
    """`torch.nn.Transformer` at its best, on the GPU if PyTorch has one."""

    precision = "mixed_bfloat16"
    note = "`nn.Transformer` with `torch.compile`, `torch.autocast` to bfloat16 and fused Adam"

    def __init__(self, config: TransformerConfig):
        import torch

        super().__init__(config)
        # Inductor's code for a CPU takes a minute, even for a tiny net.
        has_gpu = torch.cuda.is_available()
        self.device, self.compiler = ("cuda", "inductor") if has_gpu else ("cpu", "aot_eager")


class Generate:
    """`generate` of transformers' Marian of the same sizes, with random weights, in bfloat16.

    Args:
        config: Sizes of the model.
        tokens: Tokens of a source, and steps.
    """

    def __init__(self, config: TransformerConfig, tokens: int):
        import torch
        from transformers import MarianConfig, MarianMTModel

        self._torch, self._tokens, self._size = torch, tokens, config.vocabulary_size
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        sides = {
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in (
                ("layers", getattr(config, f"num_{side}_layers")),
                ("attention_heads", config.num_heads),
                ("ffn_dim", config.intermediate_dim),
            )
        }
        ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
        sizes = {"vocab_size": config.vocabulary_size, "d_model": config.model_dim, **sides}
        model = MarianMTModel(MarianConfig(**sizes, **ids, scale_embedding=True))
        self._model = model.to(self._device, torch.bfloat16).eval()

    def measured(self, way: str, sentences: int, beam_size: int, rounds: int) -> dict[str, Any]:
        """Returns the seconds of forced steps, and the rate in tokens per second."""
        torch, steps = self._torch, self._tokens
        ids = torch.tensor(random_sentences(self._size, sentences, steps)).to(self._device)
        options: dict[str, Any] = {
            "max_new_tokens": steps,
            "min_new_tokens": steps,
            "num_beams": beam_size,
        }
        if way != "eager":
            options["cache_implementation"] = "static"
            if self._device == "cuda":  # generate compiles its step there
                torch._dynamo.config.cache_size_limit = 64
        seconds = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            with torch.inference_mode():
                result = self._model.generate(ids, do_sample=False, **options)
            if self._device == "cuda":
                torch.cuda.synchronize()
            seconds.append(round(time.perf_counter() - start, 6))
        if result.shape[1] != steps + 1:
            raise RuntimeError(f"Expected {steps} steps. Received: {result.shape[1] - 1}.")
        median = statistics.median(seconds[1:])
        rate = round(sentences * steps / median, 1)
        return {"rate": rate, "seconds": seconds[1:], "first": seconds[0]}


class Results:
    """`gpu.json`: figures by part, complete after each change."""

    def __init__(self, folder: pathlib.Path):
        self.path = folder / "gpu.json"

    def read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}

    def add(self, part: str, **figures: Any) -> None:
        """Adds figures of a part; a figure of the same name is replaced."""
        results = self.read()
        results[part] = {**results.get(part, {}), **figures}
        write_whole(self.path, json.dumps(results, indent=2) + "\n")


def everything(
    small: bool = False,
    output: pathlib.Path = OUTPUT,
    parts: Sequence[str] = tuple(SECONDS),
    text: pathlib.Path | None = None,
) -> Report:
    """Runs parts, one after the other, each in its limit of seconds.

    Args:
        small: Tiny sizes, on a CPU or a GPU.
        output: Directory of `gpu.json` and of a log of each part.
        parts: Names of parts, in the order in which they run.
        text: Directory with train*, val* and test* in .en and .de for the part real; by default
            made-up words.
    """
    for part in parts:
        options_of.check_choice("parts", part, tuple(SECONDS))
    slowness = _SLOWNESS if small else 1
    end = time.monotonic() + slowness * ALL_SECONDS
    sizes, device = _sizes(small), _device(small)
    output = output.resolve()
    # The process of a part does not survive this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    output.mkdir(parents=True, exist_ok=True)
    results = Results(output)
    results.path.unlink(missing_ok=True)
    packages = {"keras", "keras_transformer", "jax", "numpy"}
    packages |= {name for name in ("torch",) if importlib.util.find_spec(name)}
    results.add(
        "conditions",
        small=small,
        device=device.device_kind,
        peak_tflops=PEAKS.get(device.device_kind),
        machine=measure.machine(),
        versions=measure.versions(packages),
        config=sizes.config.to_dict(),
    )
    options = ["--output", str(output), *(["--small"] if small else [])]
    for part in parts:
        seconds = min(slowness * SECONDS[part], end - time.monotonic())
        if part == "tests":
            processes = 1 if small else min(_MOST_PROCESSES, os.cpu_count() or 1)
            words = ["-v", "-n", str(processes), "--slow", "-m", "not tensorflow"]
            words += ["-p", "no:cacheprovider"]
            environment = _TEST_ENVIRONMENT if device.platform == "gpu" else {}
            _run(results, part, ["pytest", *words, *sizes.tests], seconds, environment)
            counts = outcomes(_log_of(results, part).read_text("utf-8", "replace"))
            results.add(part, **counts)
            continue
        of_text = ["--text", str(text.resolve())] if part == "real" and text else []
        _run(results, part, ["benchmarks.gpu", part, *options, *of_text], seconds)
    figures = results.read()
    table = report_table(figures)
    errors = [f"{part}: {figures[part]['error']}" for part in parts if figures[part]["error"]]
    if errors:
        log(table)
        raise InputError(f"{results.path} is incomplete. {'; '.join(errors)}")
    return Report(figures, table)


def training(small: bool = False, output: pathlib.Path = OUTPUT) -> dict[str, Any]:
    """Trains one net in bfloat16, with `model.fit` and with PyTorch, interleaved.

    Rates are non-padding tokens of both sides per second; ratios and other figures are those of
    `measure.side_by_side`.

    Args:
        small: Tiny sizes, on a CPU or a GPU.
        output: Directory of `gpu.json`.
    """
    sizes, device, results = _sizes(small), _device(small), Results(output)
    dataset = _dataset(sizes)
    tokens, flops = dataset.real_tokens, step_flops(sizes.config, sizes.rows, sizes.length)
    results.add("training", rows=sizes.rows, length=sizes.length, steps=sizes.steps)
    results.add("training", tokens_per_step=tokens / sizes.steps, flops_per_step=flops)
    trials, figures, errors = {}, {}, []
    for name, trainer in {"ours": TRAINERS["ours_bfloat16"], "torch": CompiledTorch}.items():
        try:
            one = trainer(sizes.config)
            call = one.steps(dataset, sizes.steps, **one.settings()[0])
            trial, seconds = _compiled(call)
        except Exception as error:  # The other trainer's figures are worth as much without it.
            errors.append(f"{name}: {first_line(error)}")
            continue
        trials[name] = trial
        figures[name] = {"note": trainer.note, "parameters": one.parameters}
        figures[name] |= {"compile_seconds": seconds, "loss": trial.result[0]}
        # One trainer first, because the next one may not end in time.
        rates = measure.side_by_side({name: trial}, 2, {name: tokens})[name]
        figures[name] |= _speed(rates, flops * sizes.steps, device, name)
        results.add("training", trainers=figures)
    if len({row["parameters"] for row in figures.values()}) > 1:
        raise RuntimeError(f"The nets must have equally many parameters. Received: {figures}.")
    if trials:
        together = measure.side_by_side(trials, sizes.rounds, dict.fromkeys(trials, tokens))
        for name, rates in together.items():
            figures[name] |= _speed(rates, flops * sizes.steps, device, name)
            figures[name]["ratio"] = rates["ratio"]
        results.add("training", trainers=figures)
    if errors:
        raise InputError("; ".join(errors))
    return results.read()["training"]


def real(
    small: bool = False, output: pathlib.Path = OUTPUT, text: pathlib.Path | None = None
) -> dict[str, Any]:
    """Trains, evaluates, exports and translates with the commands, each twice, in new processes.

    Args:
        small: Tiny sizes, on a CPU or a GPU.
        output: Directory of `gpu.json`.
        text: Directory with train*, val* and test* in .en and .de; by default made-up words.
    """
    _device(small)
    results = Results(output)
    write = functools.partial(results.add, "real")
    write(text="made-up words" if text is None else text.name)
    with tempfile.TemporaryDirectory() as work:
        epochs = 2 if small else _EPOCHS
        errors = measure_commands(pathlib.Path(work), text, epochs, small, write)
    if errors:
        raise InputError("; ".join(errors))
    return results.read()["real"]


def levers(small: bool = False, output: pathlib.Path = OUTPUT) -> dict[str, Any]:
    """Trains with one change of the step after the other, in bfloat16.

    Args:
        small: Tiny sizes, on a CPU or a GPU.
        output: Directory of `gpu.json`.
    """
    sizes, device, results = _sizes(small), _device(small), Results(output)
    dataset = _dataset(sizes)
    flops = step_flops(sizes.config, sizes.rows, sizes.length) * sizes.steps
    peak = PEAKS.get(device.device_kind)

    def write(figures):
        for row in figures.values():
            if row["seconds"]:
                row["tflops"] = round(flops / statistics.median(row["seconds"]) / 1e12, 4)
                row["share_of_peak"] = peak and round(row["tflops"] / peak, 4)
        results.add("levers", levers=figures)

    if errors := measure_levers(sizes.config, dataset, sizes.rounds, write):
        raise InputError("; ".join(errors))
    return results.read()["levers"]


def decoding(small: bool = False, output: pathlib.Path = OUTPUT) -> dict[str, Any]:
    """Decodes random sentences greedily and with beam 4; no id ends a sentence.

    Args:
        small: Tiny sizes, on a CPU or a GPU.
        output: Directory of `gpu.json`.
    """
    sizes, results = _sizes(small), Results(output)
    _device(small)
    results.add("decoding", tokens=sizes.tokens)
    rows: list[dict[str, Any]] = []
    for precision, batch_sizes in sizes.searches.items():
        keras.utils.set_random_seed(1)
        engine = Ours(Transformer(sizes.config, dtype=precision))
        for sentences, beam_size in itertools.product(batch_sizes, (1, 4)):
            ids = random_sentences(sizes.config.vocabulary_size, sentences, sizes.tokens)
            trial, seconds = _compiled(engine.forced(ids, beam_size, sizes.tokens))
            if (lengths := {len(translation) for translation in trial.result[0]}) != {sizes.tokens}:
                raise RuntimeError(f"Expected {sizes.tokens} steps. Received: {sorted(lengths)}.")
            amounts = {"ours": sentences * sizes.tokens}
            rates = measure.side_by_side({"ours": trial}, sizes.rounds, amounts)["ours"]
            row = {"precision": precision, "sentences": sentences, "beam_size": beam_size}
            row |= {"rate": rates["rate"], "seconds": rates["seconds"]}
            rows.append({**row, "compile_seconds": seconds})
            # The peak so far: the batches grow.
            results.add("decoding", rows=rows, peak_memory_gib=_peak_memory("ours"))
    try:
        others = Generate(sizes.config, sizes.tokens)
    except ImportError as error:
        results.add("decoding", transformers=f"not measured: {first_line(error)}")
        return results.read()["decoding"]
    batch_sizes, theirs = sizes.searches["mixed_bfloat16"], []
    # Eager first: what is compiled may not end in time.
    for way in ("eager", "static cache, torch.compile"):
        for sentences, beam_size in itertools.product(batch_sizes, (1, 4)):
            other: dict[str, Any] = {"way": way, "sentences": sentences, "beam_size": beam_size}
            try:
                other |= others.measured(way, sentences, beam_size, sizes.rounds)
            except Exception as error:
                other["error"] = first_line(error)
            theirs.append(other)
            results.add("decoding", transformers=theirs)
    return results.read()["decoding"]


def step_flops(config: TransformerConfig, rows: int, length: int) -> int:
    """Floating-point operations of the products of a training step, forward and backward.

    Attention counts in full, with what its masks hide.
    """
    width, inner = config.model_dim, config.intermediate_dim
    # Multiplications for a position of each side: projections, feed-forward, scores and sums.
    encoder = 4 * width**2 + 2 * width * inner + 2 * length * width
    decoder = 8 * width**2 + 2 * width * inner + 4 * length * width
    blocks = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
    logits = width * config.output_vocabulary_size
    return 3 * 2 * rows * length * (blocks + logits)


def outcomes(text: str) -> dict[str, Any]:
    """Counts the results in what `pytest -v -n` has written so far, and names what failed."""
    lines = re.findall(r"^\[gw\d+\] \[ *\d+%\] ([A-Z]+) (.+?) *$", text, re.MULTILINE)
    by_outcome: dict[str, list[str]] = {"PASSED": [], "SKIPPED": [], "FAILED": [], "ERROR": []}
    for outcome, name in lines:
        by_outcome.setdefault(outcome, []).append(name)
    failed = by_outcome.pop("FAILED") + by_outcome.pop("ERROR")
    counts = {outcome.lower(): len(names) for outcome, names in by_outcome.items()}
    return {**counts, "failed": sorted(failed)}


def report_table(figures: Mapping[str, Any]) -> str:
    """Returns the figures of all parts as tables."""
    tables = [_commands_table(figures["real"])] if "real" in figures else []
    trainers = figures.get("training", {}).get("trainers", {})
    columns = "rate", "ratio", "tflops", "share_of_peak", "compile_seconds", "peak_memory_gib"
    rows = [
        {"trainer": name, **{column: row.get(column) for column in columns}}
        for name, row in trainers.items()
    ]
    tables += [markdown(rows)] if rows else []
    of_levers = "rate", "tflops", "share_of_peak", "compile_seconds", "note"
    rows = [
        {"lever": name, **{column: row.get(column) for column in of_levers}}
        for name, row in figures.get("levers", {}).get("levers", {}).items()
    ]
    tables += [markdown(rows)] if rows else []
    decoding = figures.get("decoding", {})
    if rows := decoding.get("rows", []):
        tables.append(
            markdown(
                [{**row, "seconds": round(statistics.median(row["seconds"]), 6)} for row in rows]
            )
        )
    if isinstance(theirs := decoding.get("transformers"), list):
        of_theirs = "way", "sentences", "beam_size", "rate", "first", "error"
        rows = [{column: row.get(column) for column in of_theirs} for row in theirs]
        tables.append("transformers' `generate`, bfloat16\n\n" + markdown(rows))
    if "passed" in (tests := figures.get("tests", {})):
        tables.append(f"{tests['passed']} tests passed; failed: {len(tests['failed'])}.")
    return "\n\n".join([f"{figures['conditions']['device']}, rates in tokens/s", *tables])


def _commands_table(figures):
    """Returns the seconds of each command, in its first process and in another one."""
    seconds = {
        name: row["seconds"]
        for name, row in figures.items()
        if isinstance(row, dict) and "seconds" in row
    }
    rows = [{"command": name, "seconds": value} for name, value in seconds.items()]
    for name, row in (figures.get("same_weights") or {}).items():
        if isinstance(row, dict):
            rows.append({"command": f"{name}, first call", "seconds": row["first"]})
            rows.append({"command": f"{name}, later calls", "seconds": row["later"]})
    rows.append({"command": "BLEU", "seconds": figures.get("bleu")})
    return markdown(rows)


def _sizes(small):
    return SMALL if small else FULL


def _device(small):
    """JAX' device; raises `InputError` unless it is a GPU or small sizes will do."""
    if keras.backend.backend() != "jax":
        rule = "The program needs the JAX backend: call it by `bash benchmarks/gpu.sh`."
        raise InputError(f"{rule} Received: backend={keras.backend.backend()!r}.")
    import jax

    device = jax.devices()[0]
    if device.platform != "gpu" and not small:
        rule = "The program needs a GPU that JAX can use, or `--small`."
        raise InputError(f"{rule} Received: {device.device_kind}.")
    return device


def _run(results, part, module, seconds, environment=None):
    """Runs a module in a process that is ended after some seconds."""
    seconds = round(max(seconds, 0.1), 1)
    log(f"{part}: at most {seconds:g} s")
    start, error = time.perf_counter(), None
    with open(_log_of(results, part), "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        try:
            if code := process.wait(seconds):
                error = f"exit code {code}"
        except subprocess.TimeoutExpired:
            error = f"stopped after {seconds:g} s"
        finally:  # with all processes that it has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if error is not None:
        lines = _log_of(results, part).read_text("utf-8", "replace").split("\n")
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        error = f"{error}: {last_line}"
    results.add(part, process_seconds=round(time.perf_counter() - start, 1), error=error)


def _log_of(results, part):
    return results.path.with_name(f"{part}.log")


def _dataset(sizes):
    """As many batches of one shape as a round has steps, of sentences of random lengths."""
    rng = np.random.default_rng(1)
    # Up to a quarter of a row is padding, as in batches of a few shapes. EOS comes on top.
    lengths = rng.integers(sizes.length * 3 // 4, sizes.length, (2, sizes.steps * sizes.rows))
    ids_from, ids_to = UNK_ID + 1, sizes.config.vocabulary_size
    sources, targets = (
        [rng.integers(ids_from, ids_to, length).tolist() for length in side] for side in lengths
    )
    pairs = EncodedPairs.from_lists([[*ids, EOS_ID] for ids in sources], targets)
    return ParallelDataset(pairs, shapes=[(sizes.rows, sizes.length)])


def _compiled(call: Callable[[], Any]) -> tuple[measure.Trial, float]:
    """Calls a function twice; returns it with its first result, and the seconds of compiling."""
    seconds, results = [], []
    for _ in range(2):
        start = time.perf_counter()
        results.append(call())
        seconds.append(time.perf_counter() - start)
    return measure.Trial("one", call, results[:1], {}), round(seconds[0] - seconds[1], 2)


def _speed(rates, flops, device, name):
    """Figures of a trainer from those of `measure.side_by_side`."""
    tflops = flops / statistics.median(rates["seconds"]) / 1e12
    peak = PEAKS.get(device.device_kind)
    return {
        "rate": rates["rate"],
        "seconds": rates["seconds"],
        "tflops": round(tflops, 4),
        "share_of_peak": peak and round(tflops / peak, 4),
        "peak_memory_gib": _peak_memory(name),
    }


def _peak_memory(name):
    """GiB of the GPU that JAX or PyTorch has held at once in this process; None on a CPU."""
    if name == "torch":
        import torch

        size = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    else:
        import jax

        size = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return size and round(size / 2**30, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(
        everything, real, training, levers, decoding, arguments=arguments, default=everything
    )


if __name__ == "__main__":
    main()
