"""Alignment of a source and its translation in LiteRT's operations."""

import tensorflow as tf

from keras_transformer.ids import BOS_ID
from keras_transformer.impossible import HIDDEN
from keras_transformer.layers.positions import position_table
from keras_transformer.litert.mixers import mix_sequence
from keras_transformer.litert.model import (
    add,
    attention_scores,
    embed_sequences,
    encode,
    feed_forward,
    pre_norm,
    read_source,
    within_window,
)


class LiteRTAlignment:
    """Alignment by one pass over a source and its translation, as in `search.score_targets`.

    Args:
        model: `Transformer` with float32 weights.
        max_length: Maximum number of tokens of a source or a translation in any signature.
    """

    def __init__(self, model, max_length: int):
        self.model, width = model, model.config.model_dim
        self.source_positions = position_table(model.source_positions, max_length, width)
        self.target_positions = position_table(model.target_positions, max_length, width)

    def __call__(self, source_ids, target_ids):
        """Takes int32 `(batch, source)` and `(batch, target)`, with EOS, padded with 0.

        Returns `alignment`, `(batch, target, source)`: the mean of the last layer's heads.
        """
        model = self.model
        source, source_bias = encode(model, source_ids, self.source_positions)
        steps = target_ids.shape[1]
        begin = tf.minimum(target_ids[:, :1], 0) + BOS_ID
        decoder_ids = tf.concat([begin, target_ids[:, :-1]], axis=1)
        rows = embed_sequences(model.target_embedding, decoder_ids, self.target_positions)
        # From an input: the converter would store a constant of `steps` squared.
        indices = tf.range(steps) + tf.minimum(target_ids[0], 0)
        distance = tf.expand_dims(indices, 0) - tf.expand_dims(indices, 1)  # --> [query, key]
        causal_bias = tf.cast(tf.minimum(tf.maximum(distance, 0), 1), tf.float32) * HIDDEN
        causal_bias = within_window(
            model.config, tf.reshape(causal_bias, (1, 1, steps, steps)), indices, indices
        )

        def mixed(block, rows):
            norm = block.token_mixer_norm
            hidden = pre_norm(block, norm, rows)
            outputs = mix_sequence(block.token_mixer, hidden, steps, causal_bias)
            return add(block, norm, rows, outputs)

        *blocks, last = zip(model.decoder.blocks, source, strict=True)
        for block, keys_values in blocks:
            rows = read_source(block, mixed(block, rows), steps, keys_values, source_bias)
            rows = feed_forward(block, rows)
        block, (keys, _) = last
        rows = pre_norm(block, block.cross_attention_norm, mixed(block, rows))
        (scores,) = attention_scores(block.cross_attention, rows, steps, [keys], [source_bias])
        return {"alignment": tf.reduce_mean(tf.nn.softmax(scores), axis=1)}
