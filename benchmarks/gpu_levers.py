"""What could make a training step faster on a GPU: one figure for each change of it."""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import keras
import numpy as np

from keras_transformer.base.errors import first_line
from keras_transformer.base.ids import PAD_ID
from keras_transformer.data import ParallelDataset
from keras_transformer.models import Transformer
from keras_transformer.models.config import TransformerConfig
from keras_transformer.training import compile_model
from keras_transformer.training.recipe_sections import TrainingSection

_CHUNKS = 8
_SMOOTHING = 0.1


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    yield


@contextlib.contextmanager
def _rbg() -> Iterator[None]:
    """Dropout of XLA's own generator instead of Threefry."""
    import jax
    from keras.src.backend.jax import random

    def dropout(inputs, rate, noise_shape=None, seed=None):
        half = jax.numpy.asarray(random.jax_draw_seed(seed), "uint32")
        key = jax.random.wrap_key_data(jax.numpy.concatenate([half, half]), impl="rbg")
        mask = jax.random.bernoulli(key, 1.0 - rate, inputs.shape)
        return jax.numpy.where(mask, inputs / (1.0 - rate), 0).astype(inputs.dtype)

    with mock.patch.object(random, "dropout", dropout):
        yield


@contextlib.contextmanager
def _fused_attention() -> Iterator[None]:
    """cuDNN's attention, which has no dropout of weights; XLA's where there is no GPU."""
    import jax

    from keras_transformer.layers.multi_head_attention import MultiHeadAttention

    backend = "cudnn" if jax.default_backend() == "gpu" else None

    def attend(self, query, key_value, mask=None, training=None, positions=None):
        key, value = key_value
        axes = (query, (0, 2, 1, 3)), (key, (0, 3, 1, 2)), (value, (0, 2, 1, 3))
        arrays = [keras.ops.transpose(array, order) for array, order in axes]
        if mask is not None:
            lengths = arrays[0].shape[1], arrays[1].shape[1]
            mask = keras.ops.broadcast_to(mask, (arrays[0].shape[0], 1, *lengths))
        heads = jax.nn.dot_product_attention(*arrays, mask=mask, implementation=backend)
        return heads, None

    with mock.patch.object(MultiHeadAttention, "attend", attend):
        yield


def _half_loss(model: Any) -> Callable[..., Any]:
    """Exponentials in the precision of the logits, sums in float32."""
    from jax import numpy as jnp

    def loss(labels, logits):
        greatest = jnp.max(logits, axis=-1, keepdims=True)
        sums = jnp.sum(jnp.exp(logits - greatest), axis=-1, dtype="float32")
        is_label = labels[..., None] == jnp.arange(logits.shape[-1])
        of_label = jnp.sum(jnp.where(is_label, logits, 0), axis=-1, dtype="float32")
        means = jnp.mean(logits, axis=-1, dtype="float32")
        log_sums = jnp.log(sums) + greatest[..., 0].astype("float32")
        return _mean(labels, log_sums, of_label, means)

    return loss


def _chunked_loss(model: Any) -> Callable[..., Any]:
    """The loss of hidden states, whose logits exist for a part of the vocabulary at a time."""
    import jax
    from jax import numpy as jnp

    def loss(labels, hidden):
        table = jnp.asarray(model.target_embedding.embeddings.value, hidden.dtype)
        size = table.shape[0]
        rows = -(-size // _CHUNKS)
        table = jnp.pad(table, ((0, rows * _CHUNKS - size), (0, 0)))
        chunks = table.reshape(_CHUNKS, rows, -1), jnp.arange(_CHUNKS) * rows

        @jax.checkpoint
        def add(sums, chunk):
            part, first = chunk
            ids = first + jnp.arange(rows)
            logits = jnp.einsum("bld,vd->blv", hidden, part).astype("float32")
            real = jnp.where(ids < size, logits, -jnp.inf)
            log_sum, of_label, total = sums
            log_sum = jnp.logaddexp(log_sum, jax.nn.logsumexp(real, axis=-1))
            is_label = labels[..., None] == ids
            of_label += jnp.sum(jnp.where(is_label, logits, 0), axis=-1)
            return (log_sum, of_label, total + jnp.sum(logits, axis=-1)), None

        zeros = jnp.zeros(labels.shape, "float32")
        start = jnp.full(labels.shape, -jnp.inf), zeros, zeros
        (log_sums, of_label, totals), _ = jax.lax.scan(add, start, chunks)
        return _mean(labels, log_sums, of_label, totals / size)

    return loss


def _mean(labels, log_sums, of_label, means):
    losses = log_sums - (1 - _SMOOTHING) * of_label - _SMOOTHING * means
    weights = (labels != PAD_ID).astype("float32")
    return keras.ops.sum(losses * weights) / keras.ops.sum(weights)


class _Hidden(Transformer):
    """A model whose outputs are its last hidden states."""

    def _logits(self, hidden):
        return hidden


class Lever(NamedTuple):
    """A change of a training step.

    Attributes:
        note: The change in words.
        scope: Context in which the step is traced.
        loss: Maker of another loss, without metrics; None: the package's own with its metrics.
        model: Class of the model.
        fields: Changed fields of the configuration.
        options: Options of XLA's compiler.
    """

    note: str
    scope: Callable[[], contextlib.AbstractContextManager[None]] = _unchanged
    loss: Callable[[Any], Callable[..., Any]] | None = None
    model: type[Transformer] = Transformer
    fields: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}


_NO_DROPOUT = dict.fromkeys(("dropout", "attention_dropout", "feed_forward_dropout"), 0.0)
_HIDE_LATENCY = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_enable_triton_gemm": False,
}
LEVERS = {
    "as trained": Lever("the package's step: its loss and metrics, Threefry"),
    "rbg": Lever("dropout of XLA's own generator", _rbg),
    "no dropout": Lever("no random numbers: what they cost at most", fields=_NO_DROPOUT),
    "bfloat16 loss": Lever("no metrics; exponentials in bfloat16, sums float32", loss=_half_loss),
    "chunked loss": Lever(
        f"no metrics; logits in {_CHUNKS} parts", _unchanged, _chunked_loss, _Hidden
    ),
    "fused attention": Lever("cuDNN's attention, without dropout of weights", _fused_attention),
    "latency hiding": Lever("XLA's scheduler, no Triton products", options=_HIDE_LATENCY),
}


class Step:
    """A traced training step with its state.

    Args:
        lever: The change.
        config: Sizes of the model.
        dtype: Policy of the model.
        batch: A batch of the only shape.
    """

    def __init__(self, lever: Lever, config: TransformerConfig, dtype: str, batch: Any):
        import jax

        keras.utils.set_random_seed(1)
        config = type(config).from_dict({**config.to_dict(), **lever.fields})
        model = lever.model(config, dtype=dtype)
        compile_model(model, TrainingSection())
        if lever.loss is not None:
            model.compile(optimizer=model.optimizer, loss=lever.loss(model), jit_compile=True)
        model.build()
        with lever.scope():
            model._symbolic_build(data_batch=batch)
            model.optimizer.build(model.trainable_variables)
            weights = model.trainable_variables, model.non_trainable_variables
            groups = *weights, model.optimizer.variables, model.metrics_variables
            self._state: Any = tuple([variable.value for variable in group] for group in groups)
            step: Any = jax.jit(model.train_step, donate_argnums=0)
            self._lowered = step.lower(self._state, batch)
        self._options, self._step = dict(lever.options), step

    def compile(self) -> float:
        """Compiles the step; returns the seconds."""
        start = time.perf_counter()
        self._step = self._lowered.compile(compiler_options=self._options)
        return time.perf_counter() - start

    def train(self, batches: list) -> tuple[float, float]:
        """Trains on batches; returns the last mean loss and the seconds."""
        start = time.perf_counter()
        for batch in batches:
            logs, self._state = self._step(self._state, batch)
        return float(logs["loss"]), time.perf_counter() - start


def measure_levers(
    config: TransformerConfig,
    dataset: ParallelDataset,
    rounds: int,
    write: Callable[[dict[str, Any]], None],
) -> list[str]:
    """Measures each lever in turn; returns a line for each that failed.

    Args:
        config: Sizes of the model.
        dataset: Batches of one shape.
        rounds: Number of rounds.
        write: Function that gets the figures after each change of them.
    """
    batches = list(dataset.batches(0))
    figures: dict[str, Any] = {}
    steps, errors = {}, []
    with concurrent.futures.ThreadPoolExecutor(len(LEVERS)) as pool:
        compiling = {}
        for name, lever in LEVERS.items():
            try:
                steps[name] = Step(lever, config, "mixed_bfloat16", batches[0])
                compiling[name] = pool.submit(steps[name].compile)
            except Exception as error:
                errors.append(f"{name}: {first_line(error)}")
        for name, future in compiling.items():
            try:
                seconds = future.result()
                loss, _ = steps[name].train(batches)  # warms up
            except Exception as error:
                errors.append(f"{name}: {first_line(error)}")
                steps.pop(name)
                continue
            figures[name] = {"note": LEVERS[name].note, "compile_seconds": round(seconds, 2)}
            figures[name] |= {"loss": round(loss, 4), "seconds": []}
            write(figures)
    for _ in range(rounds):
        for name, step in steps.items():
            figures[name]["seconds"].append(round(step.train(batches)[1], 6))
            median = float(np.median(figures[name]["seconds"]))
            figures[name]["rate"] = round(dataset.real_tokens / median, 1)
            write(figures)
    return errors
