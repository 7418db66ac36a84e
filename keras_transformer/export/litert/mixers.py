"""Mixers in LiteRT's operations: all positions at once, and in blocks of steps of a search.

Self-attention has operations of its own. Every other `layers.mixer.Mixer` computes its own `call`
and `step`, with projections that multiply rows.
"""

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from keras_transformer.export.litert.model import attend, by_sentence, keys_and_values, project
from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.mixer import Projections


def mix_sequence(layer, rows, count, bias, longest):
    """Applies a mixer to sequences of `count` rows, at most `longest`.

    `bias` hides what attention may not see.
    """
    if isinstance(layer, MultiHeadAttention):
        return attend(layer, rows, count, [keys_and_values(layer, rows, count)], [bias])
    inputs = by_sentence(rows, count, rows.shape[1])
    return _rows(layer.call(inputs, row_projections(layer), longest))


def row_projections(layer) -> Projections:
    """Returns the projections of a mixer as products of rows."""

    def of(inputs, projection):
        """Projects `(batch, count, …)`."""
        outputs = project(tf.reshape(inputs, (-1, np.prod(inputs.shape[2:]))), projection)
        count = -1 if inputs.shape[1] is None else inputs.shape[1]
        return by_sentence(outputs, count, outputs.shape[1])

    outer_layer = layer.outer_layer()
    return Projections(
        lambda inputs: tuple(of(inputs, projection) for projection in layer.inner_layers()),
        lambda outputs: outputs if outer_layer is None else of(outputs, outer_layer),
    )


def _rows(values):
    return tf.reshape(values, (-1, values.shape[2]))


def search_mixer(layer, zero, beams: int, block_length: int):
    """Returns the steps of a mixer: `AttentionSteps` or `StateSteps`.

    Args:
        layer: The block's first sublayer, a `Mixer`.
        zero: Float zeros `(batch, 1)` from an input, because sizes that are computed from shapes
            would be dynamic.
        beams: Number of hypotheses of a sentence.
        block_length: Number of steps of the inner loop.
    """
    kind = AttentionSteps if isinstance(layer, MultiHeadAttention) else StateSteps
    return kind(layer, zero, beams, block_length)


class AttentionSteps:
    """Steps of self-attention over two parts: the past and the recent steps.

    The past, keys and values `(batch, heads, entries, key_dim)`, is an invariant of the inner loop,
    whose steps write to the recent part. Between two blocks it is appended to the past.
    """

    def __init__(self, layer, zero, beams, block_length):
        self.layer, self.beams = layer, beams
        heads, width = layer.num_kv_heads, layer.key_dim
        self._empty = (
            tf.reshape(zero, (-1, 1, 1, 1))
            + tf.zeros((1, heads, block_length * beams, 1))
            + tf.zeros((1, 1, 1, width))
        )

    def start(self):
        """Returns the state before the first block, and its shapes in the outer loop.

        The past begins with a hidden step, because XNNPACK takes no tensor of size 0.
        """
        batch, heads, _, width = self._empty.shape
        first_step = self._empty[:, :, : self.beams]
        shape = tf.TensorShape((batch, heads, None, width))
        return (first_step, first_step), (shape, shape)

    def begin_block(self, past):
        """Returns the state that the inner loop changes."""
        return self._empty, self._empty

    def step(self, rows, past, recent, slot, bias):
        """Writes keys and values at `slot`; returns outputs and the next recent part.

        `bias` are the biases of the recent part and of the past.
        """
        entries = keys_and_values(self.layer, rows, self.beams)
        recent = tuple(
            write(part, entry, (0, 0, slot, 0)) for part, entry in zip(recent, entries, strict=True)
        )
        return attend(self.layer, rows, self.beams, [recent, past], bias), recent

    def reorder(self, recent, parents):
        """Returns the recent part as it is: the biases say whose entries it holds."""
        return recent

    def end_block(self, past, recent):
        """Returns the state before the next block."""
        return tuple(tf.concat(parts, axis=2) for parts in zip(past, recent, strict=True))


class StateSteps:
    """Steps of a mixer with a state of constant size for each hypothesis, such as an SSRU."""

    def __init__(self, layer, zero, beams, block_length):
        self.layer, self.beams, self._zero = layer, beams, zero
        self._projections = row_projections(layer)

    def start(self):
        def of_each_sentence(state):
            ones = [1] * (state.shape.rank - 1)
            return tf.cast(tf.reshape(self._zero, (-1, *ones)), state.dtype) + state

        state = tf.nest.map_structure(of_each_sentence, self.layer.start(1, self.beams, 0))
        return state, tf.nest.map_structure(lambda tensor: tensor.shape, state)

    def begin_block(self, state):
        return state

    def step(self, rows, _, state, slot, bias):
        inputs = tf.reshape(rows, (-1, self.beams, rows.shape[1]))
        outputs, state = self.layer.step(inputs, state, None, self._projections)
        return _rows(outputs), state

    def reorder(self, state, parents):
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, parents, batch_dims=1), state)

    def end_block(self, _, state):
        return state


def write(values, new, start):
    """Returns `values` with `new` written from `start` on."""
    return xla.dynamic_update_slice(values, new, tf.stack(list(start)))
