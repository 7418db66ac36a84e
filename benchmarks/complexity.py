"""Time and memory of a layer against length and width: the paper's Table 1, measured.

    pip install ".[jax,plots]"
    KERAS_BACKEND=jax python -m benchmarks.complexity --plot complexity.png
    KERAS_BACKEND=jax python -m benchmarks.complexity --causal --widths 64 --lengths 2048 8192

Reference: Vaswani et al. 2017, section 4 (arXiv:1706.03762).
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from benchmarks import command_line
from benchmarks.command_line import Panel, Report, log, markdown
from keras_transformer.base.errors import InputError
from keras_transformer.layers import MultiHeadAttention

KERNEL = 3
WINDOW = 32
# Per layer: operations, operations that must follow one another, longest path between positions.
ORDERS = {
    "self-attention": ("n²·d", "1", "1"),
    "restricted": ("r·n·d", "1", "n/r"),
    "recurrent": ("n·d²", "n", "n"),
    "convolutional": ("k·n·d²", "1", "log_k(n)"),
}
# Without the fusions of a library whose buffers XLA does not count.
COMPILER_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}


def layer_of(kind: str, width: int, causal: bool) -> tuple[keras.layers.Layer, Any]:
    """Returns a layer, and a function from one sequence to the arguments of its call."""
    if kind in ("self-attention", "restricted"):
        window = WINDOW + 1 if kind == "restricted" else None  # WINDOW tokens to each side
        layer = MultiHeadAttention(4, width // 4, sliding_window=window)
        return layer, lambda sequence: dict(query=sequence, value=sequence, use_causal_mask=causal)
    if kind == "recurrent":
        layer = keras.layers.GRU(width, return_sequences=True)
        return layer, lambda sequence: {"sequences": sequence}
    return keras.layers.Conv1D(width, KERNEL, padding="same"), lambda sequence: {"inputs": sequence}


def measured(
    kind: str, width: int, length: int, rounds: int, causal: bool = False
) -> dict[str, Any]:
    """Milliseconds and MiB of one layer on one sequence."""
    import jax

    layer, arguments_of = layer_of(kind, width, causal)
    sequence = np.random.default_rng(1).normal(size=(1, length, width)).astype("float32")
    layer(**arguments_of(sequence[:, :2]))  # builds it
    values = [weight.value for weight in layer.trainable_variables]
    others = [weight.value for weight in layer.non_trainable_variables]

    def forward(values, sequence):
        return layer.stateless_call(values, others, **arguments_of(sequence))[0]

    lowered = jax.jit(forward).lower(values, sequence)
    compiled: Any = lowered.compile(compiler_options=dict(COMPILER_OPTIONS))
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        jax.block_until_ready(compiled(values, sequence))
        seconds.append(time.perf_counter() - start)
    return {
        "layer": kind,
        "width": width,
        "length": length,
        "milliseconds": 1000 * statistics.median(seconds[1:]),
        "mebibytes": compiled.memory_analysis().temp_size_in_bytes / 2**20,
    }


def crossover(rows: Sequence[dict], width: int) -> int | None:
    """Length from which self-attention takes longer than the GRU, interpolated; None if never."""
    of_width = [row for row in rows if row["width"] == width]
    times = {(row["layer"], row["length"]): row["milliseconds"] for row in of_width}
    lengths = sorted({length for _, length in times})
    gaps = [np.log(times["self-attention", n] / times["recurrent", n]) for n in lengths]
    indices = range(len(gaps))
    slower = next((index for index in indices if min(gaps[index:]) > 0), None)
    if not slower:
        return lengths[0] if slower == 0 else None
    share = gaps[slower - 1] / (gaps[slower - 1] - gaps[slower])
    low, high = np.log([lengths[slower - 1], lengths[slower]])
    return round(float(np.exp(low + share * (high - low))))


def layers(
    widths: Sequence[int] = (64, 128, 256, 512),
    lengths: Sequence[int] = (16, 32, 64, 128, 256, 512, 1024, 2048),
    rounds: int = 7,
    causal: bool = False,
    plot: str | None = None,
) -> Report:
    """Time and memory of four layers on one sequence, forward, compiled by XLA.

    Self-attention with four heads, its projections included; self-attention restricted to 32
    tokens to each side; a GRU; a convolution of three positions. Memory is what XLA needs in
    addition to inputs, outputs and weights. Needs the JAX backend.

    Args:
        widths: Widths of a layer.
        lengths: Lengths of a sequence.
        rounds: Timed calls, of which the median counts.
        causal: Restrict attention to earlier tokens, as in a decoder.
        plot: PNG file of time and memory over the length.
    """
    if keras.backend.backend() != "jax":
        raise InputError("XLA tells its memory only on the JAX backend: set KERAS_BACKEND=jax.")
    rows: list[dict] = []
    for width, length in itertools.product(widths, sorted(lengths)):
        rows += [measured(kind, width, length, rounds, causal) for kind in ORDERS]
        log(f"width {width}, length {length}")
    if plot is not None:
        panels = []
        for width, unit in itertools.product(widths, ("milliseconds", "mebibytes")):
            lines = {
                f"{kind}, {order}": {
                    row["length"]: row[unit]
                    for row in rows
                    # A zero has no place on a logarithmic axis.
                    if (row["layer"], row["width"]) == (kind, width) and row[unit] > 0
                }
                for kind, (order, _, _) in ORDERS.items()
            }
            title = f"d = {width} (dotted: n = d)"
            panels.append(Panel(lines, "length n", unit, title, mark=width, logarithmic=True))
        command_line.plot(plot, *panels, rows=2)
    crossovers = {str(width): crossover(rows, width) for width in widths}
    table = markdown([{"width d": "slower than the GRU from", **crossovers}])
    return Report({"orders": ORDERS, "crossover": crossovers, "rows": rows}, table)


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(layers, arguments=arguments)


if __name__ == "__main__":
    main()
