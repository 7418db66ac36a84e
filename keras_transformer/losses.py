"""Label-smoothed cross-entropy over the non-padding tokens of a batch."""

from typing import Any, Literal

import keras
from keras import ops

from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.options import check_choice, check_ids, check_rate, values_of
from keras_transformer.layers.masks import fits, vocabulary_mask


def token_losses(
    labels: keras.KerasTensor, logits: keras.KerasTensor, label_smoothing: float = 0.0
) -> keras.KerasTensor:
    """Computes the cross-entropy of each position against a smoothed one-hot distribution.

    The target distribution gives `1 - label_smoothing` to the label and spreads
    `label_smoothing` evenly over the whole vocabulary, the label included.

    Args:
        labels: Integer `(batch, length)`.
        logits: Float `(batch, length, vocabulary)`.
        label_smoothing: In [0, 1).

    Returns:
        Float32 `(batch, length)`, in nats.
    """
    # float32: a bfloat16 sum over thousands of exponentials keeps two or three digits.
    logits = ops.cast(logits, "float32")
    log_sum = ops.logsumexp(logits, axis=-1)
    # A comparison, whose gradient is one fused pass over the logits. The gradient of a gather
    # would be a scatter into a second array of the logits' size.
    is_label = ops.equal(
        ops.expand_dims(labels, -1), ops.arange(logits.shape[-1], dtype=labels.dtype)
    )
    label_logit = ops.sum(ops.where(is_label, logits, 0.0), axis=-1)
    losses = log_sum - (1.0 - label_smoothing) * label_logit
    if label_smoothing:
        losses = losses - label_smoothing * ops.mean(logits, axis=-1)
    return losses


def labels_and_weights(
    y_true: keras.KerasTensor,
    y_pred: keras.KerasTensor,
    ignore_id: int,
    sample_weight: keras.KerasTensor | None = None,
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Returns labels and their weights: 0 for `ignore_id`, otherwise 1, times the sample weight.

    Args:
        y_true: Integer `(batch, length)`.
        y_pred: Logits, float `(batch, length, vocabulary)`.
        ignore_id: Id of ignored labels.
        sample_weight: Float `(batch,)`, `(batch, 1)` or `(batch, length)`, or `None`.

    Returns:
        Int32 and float32 `(batch, length)`. A label outside the vocabulary, other than `ignore_id`,
        has the weight NaN where labels have no values yet.

    Raises:
        ValueError: Labels are float, have another shape, or are outside the vocabulary.
    """
    *axes, vocabulary_size = y_pred.shape
    values = values_of(y_true)
    check_ids("y_true", y_true if values is None else values[values != ignore_id], vocabulary_size)
    labels = ops.cast(y_true, "int32")
    _check_shape("y_true", labels.shape, axes)
    is_counted = ops.not_equal(labels, ignore_id)
    weights = ops.cast(is_counted, "float32")
    if values is None:
        is_label = ops.logical_or(
            ops.logical_not(is_counted), vocabulary_mask(y_true, vocabulary_size)
        )
        weights = ops.where(is_label, weights, float("nan"))
    if sample_weight is None:
        return labels, weights
    sample_weight = ops.cast(sample_weight, "float32")
    _check_shape("sample_weight", sample_weight.shape, axes[:1], (axes[0], 1)[: len(axes)], axes)
    if len(sample_weight.shape) < len(axes):
        sample_weight = ops.expand_dims(sample_weight, 1)
    return labels, weights * sample_weight


def _check_shape(name, shape, *full_shapes):
    if not any(fits(shape, full_shape) for full_shape in full_shapes):
        shapes = " or ".join(str(tuple(full_shape)) for full_shape in full_shapes)
        rule = f"`{name}` must have the shape {shapes} for these logits."
        raise ValueError(f"{rule} Received: {name} of shape {tuple(shape)}.")


@keras.saving.register_keras_serializable(package="keras_transformer")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Mean label-smoothed cross-entropy of the non-padding tokens, from logits.

    The sum over all tokens except padding is divided by their number, so that padding does not
    change the loss. The loss is computed in float32 under every dtype policy. Labels stay integers.

    Args:
        label_smoothing: Probability spread evenly over the vocabulary, in [0, 1).
        ignore_id: Ignored label, by default padding. To ignore `<unk>` too, which no search writes,
            make it `ignore_id` in the labels, as `ParallelDataset` does.
        reduction: `"sum_over_batch_size"` divides by the number of tokens. `"sum"` returns the
            sum, for gradients accumulated over several batches.

    Call arguments:
        y_true: Integer `(batch, length)`.
        y_pred: Logits, float `(batch, length, vocabulary)`.
        sample_weight: Weight of each sentence `(batch,)` or each token `(batch, length)`.

    Returns:
        Float32 scalar in nats per token; 0 if all labels are ignored. NaN in a compiled call if a
        label is outside the vocabulary and is not `ignore_id`.

    Raises:
        ValueError: `label_smoothing` is outside [0, 1). Labels are float, have another shape, or
            one is outside the vocabulary and is not `ignore_id`.

    Reference: Szegedy et al. 2016, section 7 (arXiv:1512.00567); Vaswani et al. 2017,
    section 5.4.
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        ignore_id: int = PAD_ID,
        name: str = "smoothed_cross_entropy",
        reduction: Literal["sum_over_batch_size", "sum"] = "sum_over_batch_size",
        **kwargs: Any,
    ):
        check_choice("reduction", reduction, ("sum_over_batch_size", "sum"))
        super().__init__(name=name, reduction=reduction, **kwargs)
        check_rate("label_smoothing", label_smoothing)
        self.label_smoothing = label_smoothing
        self.ignore_id = ignore_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Replaces Keras' `__call__`, which would turn the labels into floats.
        with keras.name_scope(self.name):
            total, count = self.sum_and_count(y_true, y_pred, sample_weight)
            return total if self.reduction == "sum" else ops.divide_no_nan(total, count)

    def call(self, y_true, y_pred):
        return self(y_true, y_pred)

    def sum_and_count(
        self,
        y_true: keras.KerasTensor,
        y_pred: keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
    ) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Returns the sum of the losses and the number (weight) of the tokens, float32 scalars.

        Sums over several batches or hosts are divided once, at the end.
        """
        labels, weights = labels_and_weights(y_true, y_pred, self.ignore_id, sample_weight)
        losses = token_losses(labels, y_pred, self.label_smoothing)  # --> [batch, length]
        return ops.sum(losses * weights), ops.sum(weights)

    def get_config(self):
        return {
            "name": self.name,
            "label_smoothing": self.label_smoothing,
            "ignore_id": self.ignore_id,
            "reduction": self.reduction,
        }
