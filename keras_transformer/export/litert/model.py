"""A `Transformer` in the operations that LiteRT runs fast: its encoder and one decoding step.

The same arithmetic as the model's own, in other operations:

- every product with weights is one of a matrix of rows (`FULLY_CONNECTED`, which dynamic-range
  quantization turns to int8); Keras' general products become `BATCH_MATMUL`, which stays float;
- masks are added, not selected: XNNPACK has no `SELECT` and an addition is part of its graphs.
  LiteRT computes in float32 whatever the weights are, so that -1e9 hides a score and overflows
  nothing;
- no size is computed from a tensor's shape: it would make the tensors that depend on it dynamic,
  which XNNPACK does not take. All sizes follow from the inputs' sizes.

Rows are float `(batch · count, width)`: `count` of each sentence, one after the other.
"""

import math

import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.ids import BOS_ID, PAD_ID, UNK_ID
from keras_transformer.layers.ssru import scan

HIDDEN = -1e9
"""Added to the score of a key or token that may not be attended to or chosen."""


def array(variable) -> np.ndarray:
    """A weight as a float32 array, also while a graph is traced."""
    with tf.init_scope():
        return np.asarray(ops.convert_to_numpy(variable), "float32")


def project(rows, *projections, scale: float = 1.0):
    """Projects rows several times; the outputs lie side by side.

    A projection is a `Dense`, or one into heads or out of them.
    """
    biases = [_bias(each) for each in projections]
    kernels = [
        array(each.kernel).reshape(-1, bias.size)
        for each, bias in zip(projections, biases, strict=True)
    ]
    matrix = np.ascontiguousarray(np.concatenate(kernels, axis=1).T) * np.float32(scale)
    bias = np.concatenate(biases) * np.float32(scale)
    return tf.matmul(rows, tf.constant(matrix), transpose_b=True) + bias


def _bias(projection):
    if projection.bias is None:
        return np.zeros(projection.kernel.shape[-1], "float32")
    return array(projection.bias).reshape(-1)


def keys_and_values(layer, rows, count):
    """Keys and values of an attention layer by head, `(batch, heads, count, key_dim)` each."""
    heads = layer.num_kv_heads
    both = project(rows, *layer.projections[1:3])  # --> [batch * count, 2 * heads * key_dim]
    parts = tf.split(both, 2, axis=1)
    return tuple(_by_head(part, count, heads, layer.key_dim) for part in parts)


def _by_head(rows, count, heads, width):
    return tf.transpose(tf.reshape(rows, (-1, count, heads, width)), (0, 2, 1, 3))


def _of_each_head(layer, shared):
    """Keys or values by head; what heads share is repeated."""
    if layer.num_kv_heads == layer.num_heads:
        return shared
    group = layer.num_heads // layer.num_kv_heads
    return tf.gather(shared, np.arange(layer.num_heads) // group, axis=1)


def attend(layer, rows, count, parts, bias):
    """Attends from rows to `parts`, pairs of keys and values by head; gives rows.

    `bias` is added to the scores of each part, broadcastable to `(batch, heads, count, positions)`.
    """
    scores = attention_scores(layer, rows, count, [key for key, _ in parts], bias)
    values = [_of_each_head(layer, value) for _, value in parts]
    if len(parts) == 1:
        outputs = tf.matmul(tf.nn.softmax(scores[0]), values[0])
    else:
        outputs = _over_parts(scores, values)
    outputs = tf.transpose(outputs, (0, 2, 1, 3))  # --> [batch, count, heads, key_dim]
    outputs = tf.reshape(outputs, (-1, layer.num_heads * layer.key_dim))
    return project(outputs, layer.projections[3])


def attention_scores(layer, rows, count, keys, bias):
    """Scores before the softmax for each of `keys`, `(batch, heads, count, positions)`."""
    query = project(rows, layer.projections[0], scale=1.0 / math.sqrt(layer.key_dim))
    query = _by_head(query, count, layer.num_heads, layer.key_dim)
    return [
        tf.matmul(query, _of_each_head(layer, key), transpose_b=True) + each
        for key, each in zip(keys, bias, strict=True)
    ]


def _over_parts(scores, values):
    """The softmax over all parts without putting them side by side: what a part weighs follows
    from its own largest score and sum."""
    largest = tf.reduce_max(scores[0], axis=-1, keepdims=True)
    for each in scores[1:]:
        largest = tf.maximum(largest, tf.reduce_max(each, axis=-1, keepdims=True))
    weights = [tf.exp(each - largest) for each in scores]
    total = sum(tf.reduce_sum(each, axis=-1, keepdims=True) for each in weights)
    output = sum(tf.matmul(each, value) for each, value in zip(weights, values, strict=True))
    return output / total


def normalize(layer, rows):
    """Layer normalization of rows."""
    centred = rows - tf.reduce_mean(rows, axis=-1, keepdims=True)
    variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
    scaled = centred * tf.math.rsqrt(variance + layer.epsilon)
    return scaled * array(layer.gamma) + array(layer.beta)


def residual(block, norm, rows, sublayer):
    """A sublayer of a block with its normalization, before it or after the sum."""
    if block.normalize_first:
        return rows + sublayer(normalize(norm, rows))
    return normalize(norm, rows + sublayer(rows))


def encode(model, source_ids, positions):
    """The encoder over int32 `(batch, source)`, padded with 0.

    Gives for each decoder block the keys and values of the source, and the bias that hides its
    padding, as `encoded_rows`.
    """
    rows, bias = encoded_rows(model, source_ids, positions)
    crossed = [each.cross_attention for each in model.decoder.blocks]
    return [keys_and_values(each, rows, _length(source_ids)) for each in crossed], bias


def encoded_rows(model, source_ids, positions):
    """The encoder's output as rows, and the bias that hides padding, `(batch, 1, 1, source)`.

    `positions` has as many rows as any search of the file needs.
    """
    config, length = model.config, _length(source_ids)
    # Pieces that an imported vocabulary lacks have larger ids.
    source_ids = tf.where(source_ids < config.vocabulary_size, source_ids, UNK_ID)
    rows = embed_sequences(model.source_embedding, source_ids, positions)
    bias = tf.cast(source_ids == PAD_ID, tf.float32) * HIDDEN
    bias = tf.reshape(bias, (-1, 1, 1, length))
    places = tf.range(length)
    seen = within_window(config, bias, places, places)
    for block in model.encoder.blocks:
        rows = self_attend(block, rows, length, lambda own: [own], [seen])
        rows = _fed(block, rows)
    if config.normalize_first:
        rows = normalize(model.encoder.final_norm, rows)
    return rows, bias


def _length(source_ids):
    length = source_ids.shape[1]
    return tf.shape(source_ids)[1] if length is None else length


def within_window(config, bias, queries, keys):
    """A bias that also hides the keys that are too far away; int32 positions `(query,)`, `(key,)`.

    The bias is broadcastable to `(…, query, key)`.
    """
    if config.sliding_window is None:
        return bias
    distance = tf.abs(tf.expand_dims(queries, 1) - tf.expand_dims(keys, 0))
    return bias + tf.cast(distance >= config.sliding_window, tf.float32) * HIDDEN


def embed(embedding, ids):
    """Rows of a `TokenEmbedding`, scaled."""
    table = array(embedding.embeddings)
    return tf.gather(table, tf.reshape(ids, (-1,))) * np.float32(table.shape[1] ** 0.5)


def embed_sequences(embedding, ids, positions):
    """Rows of sequences, int32 `(batch, length)`, with a table's positions added."""
    length, width = _length(ids), positions.shape[1]
    # Looked up by what is no constant for the converter: one table, and in as few bits as the
    # weights, instead of an array for each length.
    places = tf.range(length) + tf.minimum(ids[0], 0)
    rows = tf.reshape(embed(embedding, ids), (-1, length, width)) + tf.gather(positions, places)
    return tf.reshape(rows, (-1, width))


def position_table(model, layer, length) -> np.ndarray:
    """Vectors that a layer of positions adds, `(length, model_dim)`."""
    if layer is None:
        return np.zeros((length, model.config.model_dim), "float32")
    length = min(length, model.config.position_limit or length)
    return array(layer(ops.zeros((1, length, model.config.model_dim))))[0]


def decoder_block(block, rows, beams, store, bias, source, source_bias):
    """One step of a decoder block over rows of `beams` hypotheses of each sentence.

    `store` gives for the step's own keys and values all parts that are attended to, and `bias`
    belongs to these; of an SSRU it gives the cells, as `recur`. `source` are the keys and values
    of the source.
    """

    def cross_attention(x):
        return attend(block.cross_attention, x, beams, [source], [source_bias])

    rows = self_attend(block, rows, beams, store, bias)
    return _fed(block, residual(block, block.cross_attention_norm, rows, cross_attention))


def _fed(block, rows):
    layer, (inner, outer) = block.feed_forward, block.feed_forward.projections

    def feed_forward(x):
        return project(layer.activation(project(x, inner)), outer)

    return residual(block, block.feed_forward_norm, rows, feed_forward)


def self_attend(block, rows, beams, store, bias):
    """The first part of `decoder_block`, and of a block of the encoder."""
    if block.self_attention is None:
        return residual(block, block.ssru_norm, rows, lambda x: recur(block.ssru, x, store))

    def self_attention(x):
        parts = store(keys_and_values(block.self_attention, x, beams))
        return attend(block.self_attention, x, beams, parts, bias)

    return residual(block, block.self_attention_norm, rows, self_attention)


def recur(layer, rows, advance):
    """An `SSRU` over rows; `advance` gives the cells of forget gates and of what is added."""
    forget = tf.sigmoid(project(rows, layer.forget_dense))
    added = (1.0 - forget) * project(rows, layer.input_dense)
    cells = tf.nn.relu(advance(forget, added))
    return cells if layer.output_dense is None else project(cells, layer.output_dense)


class LiteRTAlignment:
    """One pass over a source and its translation, as `decoding.search.score_targets` makes it.

    Args:
        model: `Transformer` with float32 weights.
        most: The most tokens of a source and a translation of any signature in the file.
    """

    def __init__(self, model, most: int):
        self.model = model
        self.source_positions = position_table(model, model.source_positions, most)
        self.target_positions = position_table(model, model.target_positions, most)

    def __call__(self, source_ids, target_ids):
        """Int32 `(batch, source)` and `(batch, target)`, the ends included, padded with 0.

        Gives `alignment`, `(batch, target, source)`: the mean of the last layer's heads.
        """
        model = self.model
        source, source_bias = encode(model, source_ids, self.source_positions)
        steps = target_ids.shape[1]
        begin = tf.minimum(target_ids[:, :1], 0) + BOS_ID
        read = tf.concat([begin, target_ids[:, :-1]], axis=1)
        rows = embed_sequences(model.target_embedding, read, self.target_positions)
        # From an input: the converter would store a constant of `steps` squared.
        places = tf.range(steps) + tf.minimum(target_ids[0], 0)
        after = tf.expand_dims(places, 0) - tf.expand_dims(places, 1)  # --> [query, key]
        later = tf.cast(tf.minimum(tf.maximum(after, 0), 1), tf.float32) * HIDDEN
        later = within_window(model.config, tf.reshape(later, (1, 1, steps, steps)), places, places)
        store = self._scanned(steps) if model.config.decoder == "ssru" else lambda own: [own]
        *blocks, last = zip(model.decoder.blocks, source, strict=True)
        for block, crossed in blocks:
            rows = decoder_block(block, rows, steps, store, [later], crossed, source_bias)
        block, (keys, _) = last
        rows = self_attend(block, rows, steps, store, [later])
        rows = normalize(block.cross_attention_norm, rows) if block.normalize_first else rows
        (scores,) = attention_scores(block.cross_attention, rows, steps, [keys], [source_bias])
        return {"alignment": tf.reduce_mean(tf.nn.softmax(scores), axis=1)}

    @staticmethod
    def _scanned(steps):
        """`store` of an SSRU: the cells of all steps."""

        def advance(forget, added):
            width = forget.shape[1]
            parts = (tf.reshape(each, (-1, steps, width)) for each in (forget, added))
            return tf.reshape(scan(*parts), (-1, width))

        return advance
