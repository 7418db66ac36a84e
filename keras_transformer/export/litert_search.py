"""Greedy and beam search as LiteRT runs them: two loops, one inside the other.

`WHILE` copies its whole state at each turn, and the keys and values of all past tokens are the
most of it. So the inner loop takes `_BLOCK` steps in which the past is no state but an invariant,
which is not copied, and new keys and values go to a small recent part. The outer loop puts the
recent part behind the past: what is attended to grows with the translation, and no size depends
on how long it may become.
"""

from typing import NamedTuple

import numpy as np

from keras_transformer.config import PAD_ID
from keras_transformer.export.litert_model import (
    HIDDEN,
    Attention,
    FeedForward,
    Norm,
    Residual,
    array,
)
from keras_transformer.export.litert_strategies import Beam, Greedy, write

_BLOCK = 8


class Search:
    """From ids to hypotheses with the weights of a `Transformer` as constants.

    Args:
        model: `Transformer` with float32 weights.
        options: `Options`.
        source_length: The most columns that the source ids of any search in the file have.
    """

    def __init__(self, model, options, source_length):
        config = self.config = model.config
        self.options = options
        self.scale = np.float32(config.model_dim**0.5)
        self.source_table = array(model.source_embedding.embeddings)
        self.target_table = array(model.target_embedding.embeddings)
        projection = model.output_projection
        self.output_matrix = (
            self.target_table
            if projection is None
            else np.ascontiguousarray(array(projection.kernel).T)
        )
        # As many rows on both sides, so that two sinusoidal tables are one.
        most = max(source_length, options.room)
        self.source_positions = _positions(model, model.source_positions, most)
        self.target_positions = _positions(model, model.target_positions, most)
        first = config.normalize_first
        self.encoder = [_EncoderBlock.of(each, first) for each in model.encoder.blocks]
        self.decoder = [_DecoderBlock.of(each, first) for each in model.decoder.blocks]
        self.ends = [
            Norm.of(each.final_norm) if first else lambda rows: rows
            for each in (model.encoder, model.decoder)
        ]

    def __call__(self, source_ids):
        """Searches; `source_ids` int32 `(batch, source)`, padded with 0."""
        import tensorflow as tf

        memory = self._encode(source_ids)
        lengths = tf.reduce_sum(tf.cast(source_ids != PAD_ID, tf.int32), axis=1)
        options = self.options
        limits = tf.cast(tf.cast(lengths, tf.float32) * options.ratio, tf.int32) + options.extra
        limits = tf.where(lengths > 0, tf.minimum(limits, options.room), 0)
        strategy = Greedy if options.beam_size == 1 else Beam
        strategy = strategy(options, tf.expand_dims(limits, 1))
        return strategy.result(self._loop(strategy, memory))

    def _encode(self, source_ids):
        import tensorflow as tf

        width = self.config.model_dim
        length = source_ids.shape[1]
        if length is None:
            length = tf.shape(source_ids)[1]
        rows = tf.gather(self.source_table, tf.reshape(source_ids, (-1,))) * self.scale
        # Looked up by what is no constant for the converter: one table, and in as few bits as the
        # weights, instead of an array for each length.
        places = tf.range(length) + tf.minimum(source_ids[0], 0)
        positions = tf.gather(self.source_positions, places)
        rows = tf.reshape(rows, (-1, length, width)) + positions
        rows = tf.reshape(rows, (-1, width))
        bias = tf.cast(source_ids == PAD_ID, tf.float32) * HIDDEN
        bias = tf.reshape(bias, (-1, 1, 1, length))
        for block in self.encoder:
            rows = block(rows, length, bias)
        rows = self.ends[0](rows)
        return [each.cross_attention.keys_and_values(rows, length) for each in self.decoder], bias

    def _loop(self, strategy, memory):
        """The outer loop: blocks of steps, each behind a longer past."""
        import tensorflow as tf

        empty, hidden, zero = self._empty(strategy.limits)
        # The past begins with a block that nothing sees: XNNPACK takes no tensor of size 0.
        past = [(empty, empty) for _ in self.decoder]
        state = (tf.zeros((), tf.int32), strategy.begin(zero), past, hidden)

        def unfinished(position, chosen, *_):
            return tf.logical_and(tf.reduce_any(chosen["running"]), position < self.options.room)

        def block(position, chosen, past, past_bias):
            recent = [(empty, empty)] * len(past), hidden
            inner = (position, tf.zeros((), tf.int32), chosen, *recent, past_bias)
            position, _, chosen, new, new_bias, past_bias = tf.while_loop(
                lambda position, place, chosen, *_: tf.logical_and(
                    unfinished(position, chosen), place < _BLOCK
                ),
                lambda *state: self._advance(strategy, past, memory, *state),
                inner,
                parallel_iterations=1,
            )
            past = [
                tuple(tf.concat(each, axis=2) for each in zip(old, more, strict=True))
                for old, more in zip(past, new, strict=True)
            ]
            return position, chosen, past, tf.concat([past_bias, new_bias], axis=2)

        shapes = tf.nest.map_structure(lambda each: each.shape, state)
        grows = tf.TensorShape((None, self.config.num_heads, None, self.config.key_dim))
        bias_grows = tf.TensorShape((None, self.options.beam_size, None))
        shapes = (*shapes[:2], [(grows, grows) for _ in past], bias_grows)
        return tf.while_loop(
            unfinished, block, state, shape_invariants=shapes, parallel_iterations=1
        )[1]

    def _empty(self, limits):
        """Keys of an empty block, the bias that hides them, and zeros `(batch, 1)`."""
        import tensorflow as tf

        config, slots = self.config, _BLOCK * self.options.beam_size
        # Of the batch's size, from an input: sizes computed from shapes would be dynamic.
        zero = tf.cast(tf.minimum(limits, 0), tf.float32)
        empty = tf.reshape(zero, (-1, 1, 1, 1)) + tf.zeros((1, config.num_heads, slots, 1))
        empty = empty + tf.zeros((1, 1, 1, config.key_dim))
        hidden = tf.fill((1, self.options.beam_size, slots), HIDDEN)
        return empty, tf.expand_dims(zero, 2) + hidden, zero

    def _advance(self, strategy, past, memory, position, place, chosen, new, new_bias, past_bias):
        """One turn of the inner loop."""
        import tensorflow as tf

        parts = [(past, past_bias), (new, new_bias), memory]
        logits, new, new_bias = self._step(position, place, chosen["newest"], *parts)
        chosen, parents = strategy.choose(position, chosen, *logits)
        if parents is not None:
            new_bias, past_bias = (
                tf.gather(each, parents, batch_dims=1) for each in (new_bias, past_bias)
            )
        return position + 1, place + 1, chosen, new, new_bias, past_bias

    def _step(self, position, place, newest, past, recent, memory):
        """Scores what may follow; new keys and values are written at `place` of the recent part."""
        import tensorflow as tf

        (past, past_bias), (new, new_bias), (memory, memory_bias) = past, recent, memory
        beams = self.options.beam_size
        rows = tf.gather(self.target_table, tf.reshape(newest, (-1,))) * self.scale
        rows = rows + tf.gather(self.target_positions, tf.reshape(position, (1,)))
        slot = place * beams
        own = np.where(np.eye(beams, dtype=bool), 0.0, HIDDEN).astype("float32")[None]
        # Of the batch's size: the least of anything here is HIDDEN.
        own = tf.maximum(tf.minimum(new_bias[:, :, :beams], HIDDEN), own)
        new_bias = write(new_bias, own, (0, 0, slot))
        bias = [tf.expand_dims(each, 1) for each in (new_bias, past_bias)]
        written = []
        for block, old, recent, source in zip(self.decoder, past, new, memory, strict=True):
            rows, recent = block.step(rows, beams, slot, old, recent, bias, source, memory_bias)
            written.append(recent)
        # The converter would multiply the last normalization into the output matrix, which is then
        # no more the table of embeddings and is stored beside it. It does not see through this.
        rows = tf.maximum(self.ends[1](rows), -3e38)
        return self._logits(rows), written, new_bias

    def _logits(self, rows):
        """Logits of what may be chosen, and those of the forbidden ids, which count in the sum."""
        import tensorflow as tf

        forbidden = list(self.options.forbidden_ids)
        bias = np.zeros(len(self.output_matrix), "float32")
        bias[forbidden] = HIDDEN
        allowed = tf.matmul(rows, tf.constant(self.output_matrix), transpose_b=True) + bias
        others = tf.matmul(rows, tf.constant(self.output_matrix[forbidden]), transpose_b=True)
        return allowed, others


class _EncoderBlock(NamedTuple):
    attention: tuple
    feed_forward: tuple

    @classmethod
    def of(cls, block, first):
        return cls(
            (
                Residual(Norm.of(block.self_attention_norm), first),
                Attention.of(block.self_attention),
            ),
            (Residual(Norm.of(block.feed_forward_norm), first), FeedForward.of(block.feed_forward)),
        )

    def __call__(self, rows, length, bias):
        residual, attention = self.attention
        rows = residual(
            rows,
            lambda x: attention.attend(x, length, [attention.keys_and_values(x, length)], [bias]),
        )
        residual, feed = self.feed_forward
        return residual(rows, feed)


class _DecoderBlock(NamedTuple):
    self_attention: Attention
    cross_attention: Attention
    feed_forward: FeedForward
    residuals: tuple

    @classmethod
    def of(cls, block, first):
        norms = (block.self_attention_norm, block.cross_attention_norm, block.feed_forward_norm)
        return cls(
            Attention.of(block.self_attention),
            Attention.of(block.cross_attention),
            FeedForward.of(block.feed_forward),
            tuple(Residual(Norm.of(each), first) for each in norms),
        )

    def step(self, rows, beams, slot, past, recent, bias, memory, memory_bias):
        def attend(x):
            nonlocal recent
            new = self.self_attention.keys_and_values(x, beams)
            recent = tuple(
                write(each, more, (0, 0, slot, 0)) for each, more in zip(recent, new, strict=True)
            )
            return self.self_attention.attend(x, beams, [recent, past], bias)

        rows = self.residuals[0](rows, attend)
        rows = self.residuals[1](
            rows, lambda x: self.cross_attention.attend(x, beams, [memory], [memory_bias])
        )
        return self.residuals[2](rows, self.feed_forward), recent


def _positions(model, layer, length):
    from keras import ops

    if model.config.positions == "learned":
        length = min(length, model.config.max_length)
    zeros = ops.zeros((1, length, model.config.model_dim))
    return array(layer(zeros))[0]
