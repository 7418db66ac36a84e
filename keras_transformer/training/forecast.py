"""Forecast of a training before its first step: lengths, batches, operations, time, memory."""

import time

import keras
import numpy as np
from keras import ops

from keras_transformer.data import ParallelDataset
from keras_transformer.training.recipe import TrainingSection

_BAR = 40
_MATRIX_SIZE = 1024
# Trainings reach between all and a third of the rate of one large product.
_SLOWEST_SHARE = 3


def forecast(model: keras.Model, dataset: ParallelDataset, training: TrainingSection) -> list[str]:
    """Returns the size of a training as lines of text, a histogram of the lengths first.

    Operations are those of the matrix products to the end of the training, padding not counted. The
    time follows from this machine's rate of one large float32 product, measured now. Memory is that
    of weights, gradients, the optimizer's state and the largest batch's activations, roughly.
    """
    config, parameters = model.config, model.count_params()
    operations, rate = count_operations(config, dataset, training), _matrix_product_rate()
    least = operations / rate / 60
    gib = _memory(config, parameters, dataset, training) / 2**30
    return [
        *_histogram(dataset),
        f"{parameters:,} parameters, {training.epochs} epochs of {dataset.steps_per_epoch:,} "
        f"steps, {dataset.real_token_share:.1%} real tokens",
        f"{operations:.2e} floating-point operations: {least:.1f} to {_SLOWEST_SHARE * least:.1f} "
        f"minutes at this machine's {rate / 1e9:,.0f} GFLOP/s",
        f"about {gib:.1f} GiB of memory",
    ]


def count_operations(config, dataset: ParallelDataset, training: TrainingSection) -> float:
    """Counts the floating-point operations of all epochs: three forward passes a step.

    Reference: Vaswani et al. 2017, table 2.
    """
    lengths = dataset.pairs.source_lengths, dataset.pairs.target_lengths + 1
    each = config.multiply_adds(*(side.astype("float64") for side in lengths))
    return 3 * 2 * float(np.sum(each)) * dataset.copies * training.epochs


def _histogram(dataset):
    lengths = np.maximum(dataset.pairs.source_lengths, dataset.pairs.target_lengths + 1)
    shapes = np.searchsorted([length for _, length in dataset.shapes], lengths)
    counts = np.bincount(shapes, minlength=len(dataset.shapes))
    return [
        f"  up to {length:4d} tokens: {count:9,d} pairs, {rows:5d} a batch "
        + "#" * round(_BAR * count / max(counts))
        for (rows, length), count in zip(dataset.shapes, counts, strict=True)
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
