"""Loss, token accuracy and perplexity, over non-padding tokens only.

Each is updated with `y_true`, integer `(batch, length)`, `y_pred`, logits
`(batch, length, vocabulary)`, and `sample_weight`, `(batch,)` or `(batch, length)`. Other shapes,
float labels and labels outside the vocabulary, except `ignore_id`, raise a `ValueError`; in a
compiled call a label outside the vocabulary makes the result NaN.
"""

import keras
from keras import ops

from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.options import check_rate
from keras_transformer.losses import labels_and_weights, token_losses


class _TokenMean(keras.metrics.Metric):
    """A sum and a count over non-padding tokens; subclasses say what is summed."""

    def __init__(self, ignore_id: int = PAD_ID, name: str | None = None, dtype: str | None = None):
        super().__init__(name=name, dtype=dtype)
        self.ignore_id = ignore_id
        # float32 whatever the policy: bfloat16 cannot count past 256.
        self._total = self.add_variable((), "zeros", dtype="float32", name="total")
        self._count = self.add_variable((), "zeros", dtype="float32", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, weights = labels_and_weights(y_true, y_pred, self.ignore_id, sample_weight)
        self._total.assign_add(ops.sum(self._values(labels, y_pred) * weights))
        self._count.assign_add(ops.sum(weights))

    def result(self):
        return ops.divide_no_nan(
            ops.convert_to_tensor(self._total), ops.convert_to_tensor(self._count)
        )

    def get_config(self):
        return {**super().get_config(), "ignore_id": self.ignore_id}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenLoss(_TokenMean):
    """Mean label-smoothed cross-entropy of the non-padding tokens of all batches.

    Keras' own `loss` weights the batches' losses by their rows, not by their tokens. With a token
    budget it depends on how the sentences were batched. This metric has the name `loss` and comes
    later in the logs, so that progress bar, history and callbacks have this value instead. It
    leaves out the losses of layers (`add_loss`, regularizers).

    Args:
        label_smoothing: See `SmoothedCrossEntropy`.
        ignore_id: Label that does not count.
        name: Name in the logs.

    Returns:
        Float32 scalar in nats per token; 0 before any non-padding token.

    Raises:
        ValueError: `label_smoothing` is outside [0, 1).
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        ignore_id: int = PAD_ID,
        name: str = "loss",
        dtype: str | None = None,
    ):
        super().__init__(ignore_id, name, dtype)
        check_rate("label_smoothing", label_smoothing)
        self.label_smoothing = label_smoothing

    def _values(self, labels, logits):
        return token_losses(labels, logits, self.label_smoothing)

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(_TokenMean):
    """Share of the non-padding tokens whose largest logit is the label's.

    Args:
        ignore_id: Label that does not count.
        name: Name in the logs.

    Returns:
        Float32 scalar in [0, 1]; 0 before any non-padding token.
    """

    def __init__(self, ignore_id: int = PAD_ID, name: str = "token_accuracy", dtype=None):
        super().__init__(ignore_id, name, dtype)

    def _values(self, labels, logits):
        # A label is the first largest if each logit is smaller, or is equal and comes later. This
        # is one pass with a byte per logit; `argmax` would write indices of the logits' size.
        labels = ops.expand_dims(labels, -1)
        logit = ops.take_along_axis(logits, ops.maximum(labels, 0), axis=-1)
        comes_later = ops.arange(logits.shape[-1], dtype="int32") >= labels
        loses = ops.logical_or(logits < logit, ops.logical_and(logits <= logit, comes_later))
        return ops.cast(ops.all(loses, axis=-1), "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(_TokenMean):
    """`exp` of the mean cross-entropy of the non-padding tokens, without label smoothing.

    Args:
        ignore_id: Label that does not count.
        name: Name in the logs.

    Returns:
        Float32 scalar, 1 or more; 1 before any non-padding token.
    """

    def __init__(self, ignore_id: int = PAD_ID, name: str = "perplexity", dtype=None):
        super().__init__(ignore_id, name, dtype)

    def _values(self, labels, logits):
        return token_losses(labels, logits)

    def result(self):
        return ops.exp(super().result())
