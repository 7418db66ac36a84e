"""Tests, training and decoding on a GPU, with JAX; training also with PyTorch.

bash benchmarks/gpu.sh wheels FOLDER
bash benchmarks/gpu.sh --wheels FOLDER
python -m benchmarks.gpu --small

`gpu.sh` sets Keras' backend, installs the wheels and calls this program. Each part is a process
with a limit of time, and writes each figure into `gpu.json` at once.
"""

import contextlib
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
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from benchmarks import command_line, measure
from benchmarks.command_line import Report, log, markdown
from benchmarks.decode import random_sentences
from benchmarks.engines import Ours
from benchmarks.trainers import TRAINERS, Torch
from keras_transformer.data import EncodedPairs, ParallelDataset
from keras_transformer.errors import InputError, first_line
from keras_transformer.files import write_whole
from keras_transformer.ids import EOS_ID, UNK_ID
from keras_transformer.models import Transformer
from keras_transformer.models.config import TransformerConfig

ROOT = pathlib.Path(__file__).parents[1]
OUTPUT = pathlib.Path(os.environ.get("OUT") or ROOT / "runs/gpu")

PEAKS = {"NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H200": 989.4}
"""TFLOP/s of products of bfloat16 by JAX' name of the card: data sheets, without sparsity."""

SECONDS = {"training": 190, "decoding": 140, "tests": 120}
"""Limits of the parts. Installing and starting need the rest of eight minutes."""

WHEELS = "keras namex optree pydantic pydantic_core annotated-types typing-inspection".split()
"""What this package needs without TensorFlow, and an installation of JAX and PyTorch lacks."""

MOST_MEGABYTES = 64
"""Of all that is brought along: wheels and the package as source."""

_SOURCES = ("keras_transformer", "benchmarks", "tests")
_PLATFORMS = ("2_28", "2_27", "2_17", "2014")  # pip takes only wheels of those that are named
_MOST_PROCESSES = 14  # of tests, which share the GPU
# XLA computes products of float32 in TF32 by default, which is too rough for the tests. Without a
# search for the fastest kernels it compiles sooner.
_TEST_ENVIRONMENT = {
    "JAX_PLATFORMS": "cuda,cpu",
    "JAX_DEFAULT_MATMUL_PRECISION": "highest",
    "XLA_FLAGS": "--xla_gpu_autotune_level=0",
}


class Sizes(NamedTuple):
    """What is measured.

    Attributes:
        config: Sizes of the model.
        rows: Sentences of a training step.
        length: Longest sentence of a training step, EOS included.
        steps: Training steps per round.
        rounds: Timed rounds.
        batch_sizes: Sentences that are decoded at once.
        tokens: Tokens of a source and of its translation, in decoding.
        tests: Files and folders of tests.
    """

    config: TransformerConfig
    rows: int
    length: int
    steps: int
    rounds: int
    batch_sizes: tuple[int, ...]
    tokens: int
    tests: tuple[str, ...]


FULL = Sizes(
    TransformerConfig.from_preset("transformer_base", 32_000),
    rows=390,  # 24,960 positions per side; table 3 of the paper has batches of 25,000 tokens
    length=64,
    steps=20,
    rounds=5,
    batch_sizes=(32, 128, 512),
    tokens=32,
    tests=("tests/layers", "tests/models", "tests/test_losses.py", "tests/decoding"),
)
SMALL = Sizes(
    TransformerConfig(101, 16, 2, 24, num_encoder_layers=1, num_decoder_layers=1),
    rows=5,
    length=8,
    steps=2,
    rounds=2,
    batch_sizes=(2,),
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


def everything(small: bool = False, output: pathlib.Path = OUTPUT) -> Report:
    """Runs all parts, one after the other: training, decoding, tests.

    Args:
        small: Tiny sizes, on a CPU or a GPU.
        output: Directory of `gpu.json` and of a log of each part.
    """
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
    for part in ("training", "decoding"):
        _run(results, part, ["benchmarks.gpu", part, *options])
    processes = 1 if small else min(_MOST_PROCESSES, os.cpu_count() or 1)
    options = ["-v", "-n", str(processes), "-m", "not tensorflow", "-p", "no:cacheprovider"]
    environment = _TEST_ENVIRONMENT if device.platform == "gpu" else {}
    _run(results, "tests", ["pytest", *options, *sizes.tests], environment)
    results.add("tests", **outcomes(_log_of(results, "tests").read_text("utf-8", "replace")))
    figures = results.read()
    table = report_table(figures)
    errors = [f"{part}: {figures[part]['error']}" for part in SECONDS if figures[part]["error"]]
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
    for precision in ("mixed_bfloat16", "float32"):
        keras.utils.set_random_seed(1)
        engine = Ours(Transformer(sizes.config, dtype=precision))
        for sentences, beam_size in itertools.product(sizes.batch_sizes, (1, 4)):
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
    return results.read()["decoding"]


def wheels(folder: pathlib.Path, /, python: str = "3.12") -> dict[str, Any]:
    """Gathers wheels, of the versions of this environment, for a machine without a network.

    They suit Linux on x86-64.

    Args:
        folder: Directory for the wheels.
        python: Version of Python on that machine.
    """
    if re.fullmatch(r"3\.\d+", python) is None:
        raise InputError(f"`--python` must be a version like 3.12. Received: {python!r}.")
    if any(folder.glob("*.whl")):
        raise InputError(f"{folder}: expected a folder without wheels. Choose another one.")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    options += ["--implementation=cp", f"--python-version={python}"]
    options += [f"--platform=manylinux_{name}_x86_64" for name in _PLATFORMS[:-1]]
    options += [f"--platform=manylinux{_PLATFORMS[-1]}_x86_64"]
    packages = [f"{name}=={version}" for name, version in measure.versions(WHEELS).items()]
    command_line.call("download", *options, *packages, module="pip")
    files = sorted(folder.glob("*.whl"))
    sources = [path for top in _SOURCES for path in (ROOT / top).rglob("*") if path.is_file()]
    megabytes = round(sum(path.stat().st_size for path in (*files, *sources)) / 2**20, 1)
    if megabytes > MOST_MEGABYTES:
        rule = f"Wheels and sources must have at most {MOST_MEGABYTES} MiB."
        raise InputError(f"{rule} Received: {megabytes} MiB.")
    return {"wheels": [path.name for path in files], "megabytes": megabytes}


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
    trainers = figures["training"].get("trainers", {})
    columns = "rate", "ratio", "tflops", "share_of_peak", "compile_seconds", "peak_memory_gib"
    rows = [
        {"trainer": name, **{column: row.get(column) for column in columns}}
        for name, row in trainers.items()
    ]
    tables = [markdown(rows)] if rows else []
    if rows := figures["decoding"].get("rows", []):
        tables.append(
            markdown(
                [{**row, "seconds": round(statistics.median(row["seconds"]), 6)} for row in rows]
            )
        )
    tests = figures["tests"]
    tables.append(f"{tests['passed']} tests passed; failed: {len(tests['failed'])}.")
    return "\n\n".join([f"{figures['conditions']['device']}, rates in tokens/s", *tables])


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


def _run(results, part, module, environment=None):
    """Runs a module in a process that is ended after the part's seconds."""
    log(f"{part}: at most {SECONDS[part]} s")
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
            if code := process.wait(SECONDS[part]):
                error = f"exit code {code}"
        except subprocess.TimeoutExpired:
            error = f"stopped after {SECONDS[part]} s"
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
        everything, training, decoding, wheels, arguments=arguments, default=everything
    )


if __name__ == "__main__":
    main()
