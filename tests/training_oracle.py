"""A training once more: NumPy's steps of Adam on gradients of Keras' own cross-entropy.

`training_of` knows each field of a recipe's section `training` that a formula has.
"""

import dataclasses
import functools

import keras
import numpy as np
import reference
from keras import ops


@dataclasses.dataclass
class Epoch:
    """What a run keeps of an epoch: a row of its history, its last weights, and what it saves."""

    row: dict
    weights: list
    saved: list


def training_of(model, start, datasets, training):
    """Yields the epochs of a training of `model`, whose trainable variables begin with `start`."""
    assign(model, start)
    weights, average = [w.astype("float64") for w in start], None
    moments, squares = ([np.zeros_like(w) for w in weights] for _ in range(2))
    epochs: list[Epoch] = []
    step = 0
    steps = datasets["train"].steps_per_epoch // training.accumulation_steps * training.epochs
    schedule = functools.partial(rate_of, training, steps, model.config.model_dim)
    for number in range(1, training.epochs + 1):
        batches, total, count = [*datasets["train"].batches(number - 1)], 0.0, 0
        for first in range(0, len(batches), training.accumulation_steps):
            parts = batches[first : first + training.accumulation_steps]
            losses, tokens, gradients = gradients_of(model, parts, training.label_smoothing)
            total, count, step = total + losses, count + tokens, step + 1
            norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))
            scale = min(1.0, (training.clip_norm or np.inf) / norm)
            weights = [*weights]  # An earlier epoch keeps its own.
            for index, gradient in enumerate(gradients):
                gradient = scale * gradient
                moments[index] = 0.9 * moments[index] + 0.1 * gradient
                squares[index] = 0.98 * squares[index] + 0.02 * gradient**2
                mean, square = moments[index] / (1 - 0.9**step), squares[index] / (1 - 0.98**step)
                change = schedule(step) * mean / (np.sqrt(square) + 1e-9)
                weights[index] = weights[index] - change
            assign(model, weights)
            momentum = training.ema_momentum or 0.0
            pairs = zip(average or weights, weights, strict=True)  # The first step begins it.
            average = [momentum * old + (1 - momentum) * new for old, new in pairs]
        row = {"epoch": number, "loss": total / count, "gradient_norm": norm}
        row["learning_rate"] = schedule(step + 1)
        saved = weights if training.ema_momentum is None else average
        assign(model, saved)
        row |= validation_of(model, datasets["validation"], training.label_smoothing)
        assign(model, weights)
        epochs.append(Epoch(row, weights, saved))
        yield epochs[-1]
        best = epochs.index(best_of(epochs, training.select_by))
        if training.early_stopping_patience == number - 1 - best:
            return


def model_of_the_end(epochs, training):
    """The weights of the model that a training ends with."""
    if training.average_epochs is None:
        return best_of(epochs, training.select_by).saved
    last = [epoch.saved for epoch in epochs[-training.average_epochs :]]
    return [np.mean(weights, axis=0) for weights in zip(*last, strict=True)]


def best_of(epochs, select_by):
    if select_by == "loss":
        return min(epochs, key=lambda epoch: epoch.row["val_loss"])
    name = {"accuracy": "val_token_accuracy"}.get(select_by, f"val_{select_by}")
    return max(epochs, key=lambda epoch: (epoch.row[name], -epoch.row["val_loss"]))


def rate_of(training, steps, width, step):
    """Linear growth to the peak, then its fall with the root of the step, which counts from 1."""
    warmup = training.warmup_steps or min(max(steps // 10, 1), 4000)
    peak = training.learning_rate or (4000 * width) ** -0.5
    return peak * min(step / warmup, (warmup / step) ** 0.5)


def gradients_of(model, batches, smoothing):
    """The sum of the losses of tokens, their number, and the gradients of their mean."""
    import tensorflow as tf

    variables, total, count = model.trainable_variables, 0.0, 0
    with tf.GradientTape() as tape:
        for inputs, labels, *_ in batches:
            logits = model(inputs, training=True)
            one_hot = ops.one_hot(labels, logits.shape[-1])
            target = (1 - smoothing) * one_hot + smoothing / logits.shape[-1]
            losses = ops.categorical_crossentropy(target, logits, from_logits=True)
            total += ops.sum(ops.where(labels > 0, losses, 0.0))
            count += int(np.sum(labels > 0))
        mean = total / count
    gradients = tape.gradient(mean, [variable.value for variable in variables])
    return float(total), count, [np.asarray(tf.convert_to_tensor(g), "float64") for g in gradients]


def validation_of(model, dataset, smoothing):
    """Loss, accuracy and perplexity of a dataset's tokens."""
    sums = np.zeros(4)
    for inputs, labels in dataset.batches(0):
        logits, tokens = reference.float64(model(inputs)), np.sum(labels > 0)
        means = [reference.smoothed_loss(labels, logits, share) for share in (smoothing, 0.0)]
        right = np.sum((logits.argmax(-1) == labels) & (labels > 0))
        sums += [means[0] * tokens, means[1] * tokens, right, tokens]
    loss, plain, accuracy = sums[:3] / sums[3]
    row = {"val_loss": loss, "val_token_accuracy": accuracy, "val_perplexity": np.exp(plain)}
    return {name: float(value) for name, value in row.items()}


def assign(model, weights):
    for variable, weight in zip(model.trainable_variables, weights, strict=True):
        variable.assign(weight.astype(keras.backend.standardize_dtype(variable.dtype)))
