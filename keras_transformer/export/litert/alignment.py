"""Alignment of a source and its translation in LiteRT's operations."""

import tensorflow as tf

from keras_transformer.base.ids import BOS_ID
from keras_transformer.base.impossible import HIDDEN
from keras_transformer.export.litert.mixers import mix_sequence
from keras_transformer.export.litert.model import (
    add,
    attention_scores,
    embed_sequences,
    encode,
    feed_forward,
    indices_of,
    pre_norm,
    read_source,
    within_window,
)
from keras_transformer.layers.positions import position_table


class LiteRTAlignment:
    """Alignment by one pass over a source and its translation, as in `search.score_targets`.

    Args:
        model: `Transformer` with float32 weights.
        longest: Maximum number of tokens of a source or a translation. If it is the number of
            positions of the searches in a file, equal tables of positions are stored once.
    """

    def __init__(self, model, longest: int):
        self.model, self.longest, width = model, longest, model.config.model_dim
        self.source_positions = position_table(model.source_positions, longest, width)
        self.target_positions = position_table(model.target_positions, longest, width)

    def __call__(self, source_ids, target_ids):
        """Takes int32 `(batch, source)` and `(batch, target)`, with EOS, padded with 0.

        A batch of one pair may have any lengths: sizes that are unknown when the function is
        traced. Returns `alignment`, `(batch, target, source)`: the mean of the last layer's heads.
        """
        model = self.model
        source, source_bias = encode(model, source_ids, self.source_positions)
        steps = -1 if target_ids.shape[1] is None else target_ids.shape[1]
        begin = tf.minimum(target_ids[:, :1], 0) + BOS_ID
        decoder_ids = tf.concat([begin, target_ids[:, :-1]], axis=1)
        rows = embed_sequences(model.target_embedding, decoder_ids, self.target_positions)
        indices = indices_of(target_ids)
        distance = tf.expand_dims(indices, 0) - tf.expand_dims(indices, 1)  # --> [query, key]
        causal_bias = tf.cast(tf.minimum(tf.maximum(distance, 0), 1), tf.float32) * HIDDEN
        causal_bias = tf.expand_dims(tf.expand_dims(causal_bias, 0), 0)
        causal_bias = within_window(model.config, causal_bias, indices, indices)

        def mixed(block, rows):
            norm = block.token_mixer_norm
            hidden = pre_norm(block, norm, rows)
            outputs = mix_sequence(block.token_mixer, hidden, steps, causal_bias, self.longest)
            return add(block, norm, rows, outputs)

        *blocks, last = zip(model.decoder.blocks, source, strict=True)
        for block, keys_values in blocks:
            rows = read_source(block, mixed(block, rows), steps, keys_values, source_bias)
            rows = feed_forward(block, rows)
        block, (keys, _) = last
        rows = pre_norm(block, block.cross_attention_norm, mixed(block, rows))
        (scores,) = attention_scores(block.cross_attention, rows, steps, [keys], [source_bias])
        return {"alignment": tf.reduce_mean(tf.nn.softmax(scores), axis=1)}
