"""Loss, metrics and optimizer of a training, and moving averages of weights."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.base.ids import BOS_ID
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy, TokenLoss
from keras_transformer.schedules import TransformerSchedule
from keras_transformer.training.recipe_sections import WARMUP_STEPS, TrainingSection


def compile_model(model: keras.Model, training: TrainingSection) -> None:
    """Calls `model.compile` with the loss, metrics and optimizer of a recipe's `training`."""
    accumulation_steps = training.accumulation_steps
    optimizer = AdamWithGradientNorm(
        schedule_of(training, model.config.model_dim),
        beta_1=0.9,
        beta_2=0.98,
        epsilon=1e-9,
        global_clipnorm=training.clip_norm,
        use_ema=training.ema_momentum is not None,
        ema_momentum=training.ema_momentum or 0.0,
        gradient_accumulation_steps=accumulation_steps if accumulation_steps > 1 else None,
    )
    smoothing, ignored = training.label_smoothing, model.config.ignore_id
    options: dict[str, Any] = {"label_smoothing": smoothing, "ignore_id": ignored}
    options["reduction"] = "sum" if accumulation_steps > 1 else "sum_over_batch_size"
    model.compile(
        optimizer=optimizer,
        loss=SmoothedCrossEntropy(**options),
        metrics=[TokenLoss(smoothing, ignored), TokenAccuracy(ignored), Perplexity(ignored)],
        jit_compile=training.jit_compile,
    )


def schedule_of(training: TrainingSection, model_dim: int) -> TransformerSchedule:
    """Returns the learning rate of a recipe's `training`, for a width of the model."""
    warmup_steps = training.warmup_steps or WARMUP_STEPS
    peak = training.learning_rate or (model_dim * WARMUP_STEPS) ** -0.5
    scale = peak * (model_dim * warmup_steps) ** 0.5
    return TransformerSchedule(model_dim, warmup_steps, scale, training.accumulation_steps)


def warmup_advice(training: TrainingSection, steps: int) -> str | None:
    """Returns a line for a training that ends within its warm-up.

    Args:
        training: Options of the training, with its warm-up.
        steps: Number of optimizer steps in all.
    """
    if steps >= (warmup_steps := training.warmup_steps or WARMUP_STEPS):
        return None
    epochs = -(-2 * warmup_steps * training.epochs // steps)
    return (
        f"The training has only {steps} optimizer steps in all, but "
        f"training.warmup_steps={warmup_steps}: the learning rate will not reach its peak. "
        f"Values that fit: training.epochs={epochs}, or training.warmup_steps=null."
    )


# The name in checkpoints.
@keras.saving.register_keras_serializable(package="keras_transformer", name="AdamWithGradientNorm")
class AdamWithGradientNorm(keras.optimizers.Adam):
    """Keras' Adam that measures the norm of its gradients, and averages weights after each step.

    The norm is computed over all gradients of the last step, before clipping. With accumulated
    gradients, the moving average (`use_ema`) changes once per optimizer step. Keras' own average
    changes after each batch, so that it lags behind the last step.

    Attributes:
        gradient_norm: Float32 variable; the norm of the mean of accumulated gradients.
    """

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.gradient_norm = self.add_variable((), dtype="float32", name="gradient_norm")

    def _clip_gradients(self, grads):
        # Not in `apply`: here gradients are accumulated, and without the loss scale.
        squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in grads if g is not None]
        self.gradient_norm.assign(ops.sqrt(sum(squares)))
        return super()._clip_gradients(grads)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        # In batches whose gradients are only accumulated, Keras does not call this method
        # (TensorFlow), or undoes its changes (JAX).
        super()._backend_update_step(grads, trainable_variables, learning_rate)
        if self.use_ema:  # Keras applies constraints later, and the average would miss them.
            for variable in self._trainable_variables:
                if variable.constraint is not None:
                    variable.assign(variable.constraint(variable))
        super()._update_model_variables_moving_average(self._trainable_variables)

    def _update_model_variables_moving_average(self, trainable_variables):
        """Does nothing, because Keras calls it per batch; `_backend_update_step` averages."""


def keep_zero_start(model: keras.Model) -> None:
    """Lets training keep the embedding of BOS at zero if it is zero, as in a model of Marian."""
    table = getattr(getattr(model, "target_embedding", None), "embeddings", None)
    if table is None or np.any(ops.convert_to_numpy(table)[BOS_ID]):
        return
    table.constraint = _ZeroStart()


class _ZeroStart(keras.constraints.Constraint):
    """Sets the row of BOS to zero."""

    def __call__(self, w):
        is_other_row = ops.arange(ops.shape(w)[0]) != BOS_ID
        return w * ops.cast(is_other_row, w.dtype)[:, None]


def inner_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """Returns a compiled model's optimizer, without the `LossScaleOptimizer` around it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


@contextlib.contextmanager
def averaged_weights(model: keras.Model) -> Iterator[None]:
    """Replaces the model's weights by the optimizer's averages inside a `with` block.

    Afterwards the model has exactly its weights again. Without averages (`use_ema`) nothing
    changes.
    """
    # Not `keras.callbacks.SwapEMAWeights`: it swaps by sums, which round. Half of the weights would
    # change, so that a run with other samples or plots would end with other weights.
    optimizer = inner_optimizer(model)
    if not optimizer.use_ema:
        yield
        return
    weights = [ops.convert_to_numpy(weight) for weight in model.trainable_variables]
    try:
        optimizer.finalize_variable_values(model.trainable_variables)
        if keras.backend.backend() == "jax":
            # Copies, because a step donates its arrays, which the averages would share.
            for variable in model.trainable_variables:
                variable.assign(np.array(ops.convert_to_numpy(variable)))
        yield
    finally:
        for variable, weight in zip(model.trainable_variables, weights, strict=True):
            variable.assign(weight)
