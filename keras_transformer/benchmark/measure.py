"""How speed is measured: threads, turns, arithmetic."""

import os
import pathlib
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.errors import InputError

MAX_POSITIONS = 1024
"""Longest source and longest target, in tokens, that every engine has positions for."""

_MATRIX_SIZE = 2048
# The threads of an engine spin for some milliseconds after its last work: they must not take a
# core from the next one.
_PAUSE_SECONDS = 0.05
# A turn lasts at least this long: measured, a single call of 20 ms took 36 to 51 ms while the
# scheduler had its two threads on one core, where those of others had left them. Steady speed is
# what is compared.
_TURN_SECONDS = 0.5


def use_threads(threads: int) -> None:
    """Gives TensorFlow its number of threads, if it has not begun with another one."""
    check_positive(threads=threads)
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            "The benchmark runs on Keras' TensorFlow backend. "
            f"Received: backend={keras.backend.backend()!r}."
        )
    import tensorflow as tf

    begun = tf.config.threading.get_intra_op_parallelism_threads()
    if begun == threads:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError:
        raise InputError(
            "`threads` must be set before TensorFlow's first operation. "
            f"Received: threads={threads}, TensorFlow runs with {begun or 'its default'}."
        ) from None


def check_positive(**values: int | Sequence[int]) -> None:
    """Raises `InputError` unless each value, or each of a list of values, is 1 or more."""
    for name, value in values.items():
        each = value if isinstance(value, (list, tuple)) else [value]
        if not each or any(isinstance(x, bool) or not isinstance(x, int) or x < 1 for x in each):
            raise InputError(f"`{name}` must be positive integers. Received: {name}={value!r}.")


def in_turns(calls: Mapping[str, Callable], rounds: int) -> dict[str, list[float]]:
    """The seconds a call of each of some functions, which are warm, in each round.

    A turn is as many calls as fill half a second; each round begins with another function.
    """
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


def ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Median over the rounds of how many times faster ours is."""
    return round(statistics.median(b / a for a, b in zip(ours, peer, strict=True)), 3)


def matrix_product() -> tuple[Callable, int]:
    """A function that multiplies two float32 matrices, and its floating-point operations."""
    import tensorflow as tf

    left, right = (tf.random.normal((_MATRIX_SIZE, _MATRIX_SIZE)) for _ in range(2))
    return lambda: (left @ right).numpy(), 2 * _MATRIX_SIZE**3


def multiply_adds(
    config: TransformerConfig, batch: int, beams: int, source_length: int, steps: int
) -> int:
    """Multiply-adds of the matrix products that a forced search needs, two operations each.

    The encoder and the projection of its output to keys and values count once a sentence, a
    step once for each hypothesis; step `t` attends to `t` tokens. Padding, and what attention
    computes and then masks, do not count: this is the work, not what an engine makes of it.
    """
    width, source = config.model_dim, source_length
    square, feed_forward = width**2, 2 * width * config.intermediate_dim
    # Query, key, value and output of each token; scores and weighted sums of each pair.
    encoder_block = source * (4 * square + feed_forward) + 2 * source**2 * width
    cross_key_value = 2 * source * square
    # Self-attention as above; of cross-attention the query and the output.
    step_of_block = 6 * square + feed_forward + 2 * source * width
    pairs = steps * (steps + 1) // 2
    decoder_block = steps * step_of_block + 2 * pairs * width
    logits = steps * width * config.output_vocabulary_size
    once = config.num_encoder_layers * encoder_block + config.num_decoder_layers * cross_key_value
    each_beam = config.num_decoder_layers * decoder_block + logits
    return batch * (once + beams * each_beam)


def machine() -> dict[str, str | int | None]:
    """The processor and its number of cores."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return {"processor": name[1].strip() if name else platform.machine(), "cores": os.cpu_count()}
