"""Adam that notes how large the gradients are."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class MeasuredAdam(keras.optimizers.Adam):
    """Keras' Adam with the norm of all gradients of its last step, before they are clipped.

    Attributes:
        gradient_norm: Float32 variable. Of accumulated gradients that of their mean.
    """

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.gradient_norm = self.add_variable((), dtype="float32", name="gradient_norm")

    def _clip_gradients(self, grads):
        # Here, and not in `apply`: accumulated gradients are together here, unscaled ones too.
        squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in grads if g is not None]
        self.gradient_norm.assign(ops.sqrt(sum(squares)))
        return super()._clip_gradients(grads)
