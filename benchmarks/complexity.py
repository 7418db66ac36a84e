"""Time and memory of a layer against length and width: the paper's Table 1, measured.

    pip install ".[jax,plots]"
    KERAS_BACKEND=jax python -m benchmarks.complexity --plot complexity.png
    KERAS_BACKEND=jax python -m benchmarks.complexity --causal --widths 64 --lengths 2048 8192
    KERAS_BACKEND=jax python -m benchmarks.complexity --costs

A layer reads one sequence, forwards, compiled by XLA: self-attention (four heads, its projections
included), self-attention restricted to a neighbourhood of 32 tokens to each side, a GRU, a
convolution of three positions. Memory is what XLA says it needs beside inputs, outputs and
weights. The crossover of a width is the length from which self-attention takes longer than the GRU.
With `--causal` both
kinds of self-attention see what came before alone, as in a decoder. `--costs` gives the
floating-point operations of the paper's two trainings instead, from their configurations: its
Table 2 estimates them from time and hardware. JSON on stdout.

Reference: Vaswani et al. 2017, sections 4 and 6.1 (arXiv:1706.03762).
"""

import argparse
import itertools
import json
import statistics
import sys
import time

import keras
import numpy as np

from benchmarks.measure import multiply_adds, subplots
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.models.config import TransformerConfig

KERNEL = 3
WINDOW = 32
# Per layer: operations, those that must follow one another, the longest path between two positions.
ORDERS = {
    "self-attention": ("n²·d", "1", "1"),
    "restricted": ("r·n·d", "1", "n/r"),
    "recurrent": ("n·d²", "n", "n"),
    "convolutional": ("k·n·d²", "1", "log_k(n)"),
}
# Section 5.1 to 5.4: batches of 25,000 source and as many target tokens.
TRAININGS = {"transformer_base": (100_000, 3.3e18), "transformer_big": (300_000, 2.3e19)}
BATCH_TOKENS, SENTENCE, VOCABULARY = 25_000, 25, 37_000
# Without the fusions of a library whose buffers XLA does not count.
COMPILER_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}


def layer_of(kind, width, causal=False):
    """The layer and its call's arguments, from one sequence."""
    if kind in ("self-attention", "restricted"):
        window = WINDOW + 1 if kind == "restricted" else None  # WINDOW tokens to each side
        layer = MultiHeadAttention(4, width // 4, sliding_window=window)
        return layer, lambda sequence: dict(query=sequence, value=sequence, use_causal_mask=causal)
    if kind == "recurrent":
        layer = keras.layers.GRU(width, return_sequences=True)
        return layer, lambda sequence: {"sequences": sequence}
    return keras.layers.Conv1D(width, KERNEL, padding="same"), lambda sequence: {"inputs": sequence}


def measured(kind, width, length, rounds, causal=False):
    """Milliseconds and MiB of one layer on one sequence."""
    import jax

    layer, called_with = layer_of(kind, width, causal)
    sequence = np.random.default_rng(1).normal(size=(1, length, width)).astype("float32")
    layer(**called_with(sequence[:, :2]))  # builds it
    values = [weight.value for weight in layer.trainable_variables]
    others = [weight.value for weight in layer.non_trainable_variables]

    def run(values, sequence):
        return layer.stateless_call(values, others, **called_with(sequence))[0]

    compiled = jax.jit(run).lower(values, sequence).compile(compiler_options=COMPILER_OPTIONS)
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        jax.block_until_ready(compiled(values, sequence))
        seconds.append(time.perf_counter() - start)
    memory = compiled.memory_analysis().temp_size_in_bytes
    return {
        "layer": kind,
        "width": width,
        "length": length,
        "milliseconds": 1000 * statistics.median(seconds[1:]),
        "mebibytes": memory / 2**20,
    }


def crossover(rows, width):
    """The length from which self-attention takes longer than the GRU, between two measured ones.

    None if it never does.
    """
    own = [row for row in rows if row["width"] == width]
    times = {
        kind: {row["length"]: row["milliseconds"] for row in own if row["layer"] == kind}
        for kind in ("self-attention", "recurrent")
    }
    lengths = sorted(times["recurrent"])
    gaps = [np.log(times["self-attention"][n] / times["recurrent"][n]) for n in lengths]
    slower = next((i for i in range(len(gaps)) if all(gap > 0 for gap in gaps[i:])), None)
    if not slower:
        return lengths[0] if slower == 0 else None
    before, after = slower - 1, slower
    share = gaps[before] / (gaps[before] - gaps[after])
    low, high = np.log([lengths[before], lengths[after]])
    return round(float(np.exp(low + share * (high - low))))


def plot(rows, widths, path):
    """Time and memory over the length, a column for each width."""
    figure, axes = subplots(2, len(widths), size=(3.4 * len(widths), 6), sharex=True, sharey="row")
    for column, width in enumerate(widths):
        for axis, unit in zip(axes[:, column], ("milliseconds", "mebibytes"), strict=True):
            for kind, (operations, _, _) in ORDERS.items():
                own = [row for row in rows if (row["layer"], row["width"]) == (kind, width)]
                # A zero has no place on a logarithmic axis.
                points = [(row["length"], row[unit]) for row in own if row[unit] > 0]
                axis.loglog(*zip(*points, strict=True), marker=".", label=f"{kind}, {operations}")
            axis.axvline(width, color="gray", linestyle=":")
            axis.set_xscale("log", base=2)
        axes[0, column].set_title(f"d = {width} (dotted: n = d)")
        axes[1, column].set_xlabel("length n")
    axes[0, 0].set_ylabel("ms")
    axes[1, 0].set_ylabel("MiB")
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=100)


def costs():
    """Floating-point operations of the paper's trainings, three passes' worth a step."""
    found = {}
    for preset, (steps, published) in TRAININGS.items():
        config = TransformerConfig.from_preset(preset, VOCABULARY)
        pairs = steps * BATCH_TOKENS / SENTENCE
        operations = 3 * 2 * multiply_adds(config, SENTENCE, SENTENCE) * pairs
        found[preset] = {"steps": steps, "operations": operations, "published": published}
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.complexity", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--lengths", type=int, nargs="+", default=[2**i for i in range(4, 12)])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plot", metavar="FILE", help="PNG to write; needs the extra `plots`")
    parser.add_argument("--causal", action="store_true", help="attention to what came before")
    parser.add_argument("--costs", action="store_true", help="the operations of the trainings")
    options = parser.parse_args(arguments)
    if options.costs:
        print(json.dumps(costs(), indent=2))
        return
    if keras.backend.backend() != "jax":
        parser.error("XLA's memory is known on the JAX backend alone: set KERAS_BACKEND=jax")
    rows = []
    for width, length in itertools.product(options.widths, sorted(options.lengths)):
        for kind in ORDERS:
            rows.append(measured(kind, width, length, options.rounds, options.causal))
        print(f"width {width}, length {length}", file=sys.stderr)
    if options.plot:
        plot(rows, options.widths, options.plot)
    report = {
        "orders": ORDERS,
        "crossover": {str(width): crossover(rows, width) for width in options.widths},
        "rows": rows,
    }
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
