"""Plans of a device: its shapes, rows and lengths; and the threads of TensorFlow.

`inputs.py` has the numbers of a CPU. There a program compiles in a second, and padding costs time
in every step: many shapes. On a GPU a program takes many seconds to compile, and padding and rows
cost next to nothing: few shapes.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from keras_transformer.base.errors import InputError, print_message

_MEMORY_SHARE = 0.5  # of a device's memory, for a search: an estimate needs room
_UNKNOWN_MEMORY = 8 * 2**30  # TensorFlow does not tell


@dataclasses.dataclass(frozen=True)
class DevicePlan:
    """Shapes and batches that suit a device; by default those for a CPU.

    Recipes (`training.max_shapes`, `training.batch_tokens`) and options (`batch_size`) precede it.

    Attributes:
        training_shapes: Maximum number of batch shapes in training.
        validation_shapes: Maximum number of batch shapes in validation.
        batch_tokens: Maximum number of positions of a training batch on each side.
        rows: Numbers of rows that a batch of a search may have, in ascending order. Empty: few
            rows, by the width of the model; see `inputs.batch_rows`.
        hypotheses: Hypotheses of all sentences of a batch, if `rows` is empty; None: the number of
            rows does not depend on them.
        search_lengths: Maximum number of source lengths of one call; None: any number.
        first_capacity: Tokens of the first loop of a search; None: 32.
        can_shrink: Whether a batch continues with fewer rows when sentences have ended.
        workers: Number of batches that are searched at once.
        lines_at_once: Number of lines of a stream that are translated together.
        memory: Bytes that a search may use.
        scored_logits: Logits that a batch of scoring may have, except that it has at least one
            pair; None: any number.
    """

    training_shapes: int = 8
    validation_shapes: int = 4
    batch_tokens: int = 4096
    rows: tuple[int, ...] = ()
    hypotheses: int | None = None
    search_lengths: int | None = None
    first_capacity: int | None = None
    can_shrink: bool = True
    workers: int = 2
    lines_at_once: int = 1024
    memory: int = 0
    scored_logits: int | None = None

    @property
    def has_few_programs(self) -> bool:
        """True where a program takes so long to compile that padding is cheaper."""
        return self.search_lengths is not None

    def rows_for(self, count: int, row_bytes: int) -> int:
        """Returns the smallest number of rows that holds `count` sentences and fits into memory.

        Args:
            count: Number of sentences.
            row_bytes: Memory of a sentence.
        """
        fitting = [size for size in self.rows if size * row_bytes <= self.memory] or self.rows[:1]
        return next((size for size in fitting if size >= count), fitting[-1])

    def lengths_for(self, lengths: Sequence[int]) -> list[int]:
        """Chooses at most `search_lengths` of the lengths of batches, with the least padding.

        The longest is always chosen.
        """
        counts, limit = Counter(lengths), self.search_lengths
        *shorter, longest = sorted(counts)
        if limit is None or len(counts) <= limit:
            return [*shorter, longest]

        def columns(chosen):
            return sum(
                count * min(size for size in chosen if size >= length)
                for length, count in counts.items()
            )

        choices = itertools.combinations(shorter, limit - 1)
        return list(min(((*choice, longest) for choice in choices), key=columns))


def search_bytes(config: Any, beams: int, columns: int, capacity: int, is_half: bool) -> int:
    """Estimates the memory of a sentence in a search, from above.

    Args:
        config: Configuration of the model.
        beams: Number of hypotheses.
        columns: Number of source tokens.
        capacity: Maximum number of tokens of a translation.
        is_half: Whether a number has two bytes, not four.
    """
    width, size = config.model_dim, 2 if is_half else 4
    layers = config.num_decoder_layers or 1
    # Keys and values, of a step and of the next.
    cache = 2 * layers * 2 * beams * capacity * width * size
    source = columns * width * size * (2 * layers + 8)
    logits = 4 * 4 * beams * config.output_vocabulary_size  # with the passes over them
    return cache + source + logits


CPU = DevicePlan()
LARGE_MODEL_ON_CPU = DevicePlan(
    hypotheses=64,
    first_capacity=128,
    can_shrink=False,
    workers=1,
    lines_at_once=256,
    scored_logits=1 << 25,
)
"""Plan for a model of hundreds of millions of parameters, whose weights fill most of the memory.

A step reads all weights, which keeps all cores busy: a second batch beside it gains nothing. Forty
sentences took 0.69 of the time with 64 hypotheses instead of 16 (600 million parameters), and
0.2 GB more. A program with one loop takes a third of the memory and of the time to compile.
"""


def accelerator(memory: int | None = None) -> DevicePlan:
    """Returns the plan of a device that is not a CPU.

    Args:
        memory: Bytes of the device's memory, if they are known.
    """
    return DevicePlan(
        training_shapes=2,
        validation_shapes=1,
        batch_tokens=25_000,  # as in the paper
        rows=(1, 16, 128, 512, 1024, 2048),
        search_lengths=2,
        # Each loop of a search is compiled; longer caches cost little.
        first_capacity=64,
        can_shrink=False,
        workers=1,
        lines_at_once=8192,
        memory=int(_MEMORY_SHARE * (memory or _UNKNOWN_MEMORY)),
    )


@functools.cache
def device_plan() -> DevicePlan:
    """Returns the plan of the device that Keras' backend computes on."""
    import keras

    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # Of physical devices, because a list of logical ones starts TensorFlow.
        kinds = {device.device_type for device in tf.config.get_visible_devices()}
        return accelerator() if kinds & {"GPU", "TPU"} else CPU
    if backend == "jax":
        import jax

        device = jax.local_devices()[0]
        if device.platform != "cpu":
            return accelerator((device.memory_stats() or {}).get("bytes_limit"))
    return CPU


def warn_of_wrong_sums() -> None:
    """Writes a line to stderr if JAX's compiled sums of products are wrong on this processor.

    XLA passes them to a library, YNNPACK, which left out rows of some sizes in JAX 0.10.2 to 0.12.
    """
    import keras

    if keras.backend.backend() != "jax":
        return
    import jax
    import numpy as np

    def squares(rows):
        return jax.vmap(lambda row: jax.numpy.sum((np.eye(3, dtype="float32") @ row) ** 2))(rows)

    numbers = np.arange(32_769, dtype="float32")  # a size at which the last row was wrong
    rows = np.stack([numbers, 0 * numbers, 0 * numbers], axis=1)
    if not np.allclose(jax.jit(squares)(rows), numbers**2, rtol=1e-5):
        problem = f"JAX {jax.__version__} computes some sums of products wrong on this processor"
        advice = "To be sure, set XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type="
        print_message(f"{problem}. No training here was seen to differ. {advice}")


def give_tensorflow(threads: int, operations: int | None = None) -> None:
    """Sets TensorFlow's threads per operation, and `operations` that run at once.

    By default as many operations run at once as an operation has threads, unless their number is
    set already. Raises `InputError` if TensorFlow has started with other threads.
    """
    import tensorflow as tf

    threading = tf.config.threading
    try:
        threading.set_intra_op_parallelism_threads(threads)
        set_already = threading.get_inter_op_parallelism_threads()
        threading.set_inter_op_parallelism_threads(operations or set_already or threads)
    except RuntimeError:
        current = threading.get_intra_op_parallelism_threads() or "its default"
        rule = "`threads` must be set before TensorFlow's first operation."
        received = f"threads={threads}, TensorFlow runs with {current}"
        raise InputError(f"{rule} Received: {received}.") from None
