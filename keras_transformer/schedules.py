"""The paper's learning rate."""

import numbers

import keras
from keras import ops

from keras_transformer.base.options import check


def _python_number(value):
    # A number of NumPy would not be saved, and would compute with tensors by itself.
    return int(value) if isinstance(value, numbers.Integral) else float(value)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """`scale · model_dim^-0.5 · min(step^-0.5, step · warmup_steps^-1.5)`.

    The rate grows linearly for `warmup_steps` steps, then falls with the square root of the
    step. Steps count from 1: Keras passes 0 for the first one.

    Args:
        model_dim: Width of the model.
        warmup_steps: Steps of linear growth.
        scale: Factor on the whole curve.
        accumulation_steps: Batches that the optimizer accumulates for one step. Keras counts
            batches, not steps, where it calls a schedule.

    Returns:
        Float32 scalar.

    Raises:
        ValueError: An argument is not positive.

    Reference: Vaswani et al. 2017, section 5.3, equation 3 (arXiv:1706.03762).

    Example:

    >>> schedule = TransformerSchedule(model_dim=256, warmup_steps=100)
    >>> round(float(schedule(99)), 6)  # the peak: 256^-0.5 · 100^-0.5
    0.00625
    """

    def __init__(
        self,
        model_dim: int,
        warmup_steps: int = 4000,
        scale: float = 1.0,
        accumulation_steps: int = 1,
    ):
        super().__init__()
        values = {"model_dim": model_dim, "warmup_steps": warmup_steps, "scale": scale}
        for name, value in values.items():
            check(name, value, "a positive number", numbers.Real)
        check("accumulation_steps", accumulation_steps, "a positive integer", numbers.Integral)
        self.model_dim, self.warmup_steps, self.scale = map(_python_number, values.values())
        self.accumulation_steps = int(accumulation_steps)

    def __call__(self, step: int | keras.KerasTensor) -> keras.KerasTensor:
        step = ops.convert_to_tensor(step)
        # Divided as integers: float32 has no odd numbers beyond 2**24.
        step = ops.cast(step // self.accumulation_steps, "float32") + 1.0
        growing = step * float(self.warmup_steps) ** -1.5
        return self.scale * self.model_dim**-0.5 * ops.minimum(ops.rsqrt(step), growing)

    def get_config(self):
        names = "model_dim", "warmup_steps", "scale", "accumulation_steps"
        return {name: getattr(self, name) for name in names}
