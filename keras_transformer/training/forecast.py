"""Forecast of a training before its first step: lengths, batches, operations, time, memory."""

import time
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.config import RecurrentConfig, TransformerConfig
from keras_transformer.data import ParallelDataset
from keras_transformer.training.recipe import TrainingSection

_BAR = 40
_MATRIX_SIZE = 1024
# Trainings reach between all and a third of the rate of one large product.
_SLOWEST_SHARE = 3


def forecast(
    config: TransformerConfig | RecurrentConfig,
    parameters: int,
    dataset: ParallelDataset,
    training: TrainingSection,
) -> dict[str, Any]:
    """Returns the size of a training, as a dict fit for JSON.

    Args:
        config: The model's sizes.
        parameters: Number of its parameters.
        dataset: The training pairs in batches.
        training: The recipe's `training`.

    Returns:
        `pairs_by_length`: number of pairs for each batch shape `(rows, length)`;
        `real_token_share`; `parameters`; `floating_point_operations` of the matrix products to the
        end of the training, forwards and backwards, padding not counted (three passes forwards, as
        in the paper's table 2); `matrix_product_gflops`: the machine's rate now, in float32;
        `minutes`: least and most, from that rate; `memory_gib`: weights, gradients and
        the optimizer's state with the largest batch's activations, roughly.
    """
    lengths = dataset.pairs.source_lengths, dataset.pairs.target_lengths + 1
    each = config.multiply_adds(*(side.astype("float64") for side in lengths))
    passes = dataset.copies * training.epochs
    operations = 3 * 2 * float(np.sum(each)) * passes
    rate = _matrix_product_rate()
    least = operations / rate / 60
    counts = np.bincount(
        np.searchsorted([length for _, length in dataset.shapes], np.maximum(*lengths)),
        minlength=len(dataset.shapes),
    )
    return {
        "pairs_by_length": [
            {"rows": rows, "length": length, "pairs": int(count)}
            for (rows, length), count in zip(dataset.shapes, counts, strict=True)
        ],
        "steps_per_epoch": dataset.steps_per_epoch,
        "epochs": training.epochs,
        "real_token_share": round(dataset.real_token_share, 4),
        "parameters": parameters,
        "floating_point_operations": float(f"{operations:.3g}"),
        "matrix_product_gflops": round(rate / 1e9),
        "minutes": [round(least, 1), round(_SLOWEST_SHARE * least, 1)],
        "memory_gib": round(_memory(config, parameters, dataset, training) / 2**30, 1),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """Returns a forecast as lines of text, with a histogram of the lengths."""
    most = max(row["pairs"] for row in found["pairs_by_length"])
    histogram = [
        f"  up to {row['length']:4d} tokens: {row['pairs']:9,d} pairs, {row['rows']:5d} a batch "
        + "#" * round(_BAR * row["pairs"] / most)
        for row in found["pairs_by_length"]
    ]
    least, largest = found["minutes"]
    return [
        *histogram,
        f"{found['parameters']:,} parameters, {found['epochs']} epochs of "
        f"{found['steps_per_epoch']:,} steps, {found['real_token_share']:.1%} real tokens",
        f"{found['floating_point_operations']:.2e} floating-point operations: {least:g} to "
        f"{largest:g} minutes at this machine's {found['matrix_product_gflops']:,} GFLOP/s",
        f"about {found['memory_gib']:g} GiB of memory",
    ]


def _matrix_product_rate():
    """Operations a second of a large float32 product, the best of a few tries."""
    matrix = ops.ones((_MATRIX_SIZE, _MATRIX_SIZE), "float32")
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        ops.convert_to_numpy(ops.matmul(matrix, matrix))
        best = min(best, time.perf_counter() - start)
    return 2 * _MATRIX_SIZE**3 / best


def _memory(config, parameters, dataset, training):
    # Weights, gradients, two moments; an average; accumulated gradients.
    copies = 4 + (training.ema_momentum is not None) + (training.accumulation_steps > 1)
    activations = max(
        dataset.copies * rows * length * config.activations(length)
        for rows, length in dataset.shapes
    )
    return 4 * (copies * parameters + activations)
