"""A `Transformer` in the operations that LiteRT runs fast: its encoder and one decoding step.

The arithmetic is the model's own, in other operations:

- Every product with weights multiplies a matrix of rows (`FULLY_CONNECTED`), which dynamic-range
  quantization turns to int8. Keras' general products become `BATCH_MATMUL`, which stays float.
- Masks are added, not selected: XNNPACK has no `SELECT`, but additions. LiteRT computes in float32
  whatever the weights are, so that -1e9 hides a score and never overflows.
- No size is computed from a tensor's shape: it would make the tensors that depend on it dynamic,
  which XNNPACK does not take. All sizes follow from the inputs' sizes.

Rows are float `(batch · count, width)`: `count` rows of the first sentence, then of the second.
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
    """Projects rows several times, and concatenates the outputs.

    A projection is a `Dense`, or an `EinsumDense` into heads or out of them.
    """
    biases = [_bias(projection) for projection in projections]
    kernels = [
        array(projection.kernel).reshape(-1, bias.size)
        for projection, bias in zip(projections, biases, strict=True)
    ]
    matrix = np.ascontiguousarray(np.concatenate(kernels, axis=1).T) * np.float32(scale)
    bias = np.concatenate(biases) * np.float32(scale)
    return tf.matmul(rows, tf.constant(matrix), transpose_b=True) + bias


def _bias(projection):
    if projection.bias is None:
        return np.zeros(projection.kernel.shape[-1], "float32")
    return array(projection.bias).reshape(-1)


def keys_and_values(layer, rows, count):
    """Projects rows to keys and values of an attention layer, `(batch, heads, count, key_dim)`."""
    heads = layer.num_kv_heads
    projected = project(rows, *layer.projections[1:3])  # --> [batch * count, 2 * heads * key_dim]
    parts = tf.split(projected, 2, axis=1)
    return tuple(_by_head(part, count, heads, layer.key_dim) for part in parts)


def _by_head(rows, count, heads, width):
    return tf.transpose(tf.reshape(rows, (-1, count, heads, width)), (0, 2, 1, 3))


def _of_each_head(layer, shared):
    """Repeats the keys or values that heads share, for each head."""
    if layer.num_kv_heads == layer.num_heads:
        return shared
    group = layer.num_heads // layer.num_kv_heads
    return tf.gather(shared, np.arange(layer.num_heads) // group, axis=1)


def attend(layer, rows, count, parts, bias):
    """Attends from rows to `parts`, pairs of keys and values by head; returns rows.

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
    """Computes scores before the softmax for each part, `(batch, heads, count, positions)`."""
    query = project(rows, layer.projections[0], scale=1.0 / math.sqrt(layer.key_dim))
    query = _by_head(query, count, layer.num_heads, layer.key_dim)
    return [
        tf.matmul(query, _of_each_head(layer, key), transpose_b=True) + part_bias
        for key, part_bias in zip(keys, bias, strict=True)
    ]


def _over_parts(scores, values):
    """Attends over all parts without concatenating them: one softmax from the parts' sums."""
    largest = tf.reduce_max(scores[0], axis=-1, keepdims=True)
    for part_scores in scores[1:]:
        largest = tf.maximum(largest, tf.reduce_max(part_scores, axis=-1, keepdims=True))
    weights = [tf.exp(part_scores - largest) for part_scores in scores]
    total = sum(tf.reduce_sum(part_weights, axis=-1, keepdims=True) for part_weights in weights)
    output = sum(
        tf.matmul(part_weights, value) for part_weights, value in zip(weights, values, strict=True)
    )
    return output / total


def normalize(layer, rows):
    """Layer normalization of rows."""
    centred = rows - tf.reduce_mean(rows, axis=-1, keepdims=True)
    variance = tf.reduce_mean(centred * centred, axis=-1, keepdims=True)
    scaled = centred * tf.math.rsqrt(variance + layer.epsilon)
    return scaled * array(layer.gamma) + array(layer.beta)


def residual(block, norm, rows, sublayer):
    """Adds a sublayer's outputs to rows; normalizes before the sublayer or after the sum."""
    if block.normalize_first:
        return rows + sublayer(normalize(norm, rows))
    return normalize(norm, rows + sublayer(rows))


def encode(model, source_ids, positions):
    """Encodes int32 `(batch, source)`, padded with 0.

    Returns for each decoder block the keys and values of the source, and the bias of
    `encoded_rows` that hides its padding.
    """
    rows, bias = encoded_rows(model, source_ids, positions)
    layers = [block.cross_attention for block in model.decoder.blocks]
    return [keys_and_values(layer, rows, _length(source_ids)) for layer in layers], bias


def encoded_rows(model, source_ids, positions):
    """Returns the encoder's output as rows, and the bias that hides padding.

    The bias is `(batch, 1, 1, source)`. `positions` has as many rows as the longest search needs.
    """
    config, length = model.config, _length(source_ids)
    # Pieces that an imported vocabulary lacks have larger ids.
    source_ids = tf.where(source_ids < config.vocabulary_size, source_ids, UNK_ID)
    rows = embed_sequences(model.source_embedding, source_ids, positions)
    bias = tf.cast(source_ids == PAD_ID, tf.float32) * HIDDEN
    bias = tf.reshape(bias, (-1, 1, 1, length))
    indices = tf.range(length)
    window_bias = within_window(config, bias, indices, indices)
    for block in model.encoder.blocks:
        rows = self_attend(block, rows, length, lambda keys_values: [keys_values], [window_bias])
        rows = _fed(block, rows)
    if config.normalize_first:
        rows = normalize(model.encoder.final_norm, rows)
    return rows, bias


def _length(source_ids):
    length = source_ids.shape[1]
    return tf.shape(source_ids)[1] if length is None else length


def within_window(config, bias, queries, keys):
    """Adds to a bias what hides the keys outside the sliding window.

    Positions are int32 `(query,)` and `(key,)`. The bias is broadcastable to `(…, query, key)`.
    """
    if config.sliding_window is None:
        return bias
    distance = tf.abs(tf.expand_dims(queries, 1) - tf.expand_dims(keys, 0))
    return bias + tf.cast(distance >= config.sliding_window, tf.float32) * HIDDEN


def embed(embedding, ids):
    """Looks up the scaled rows of a `TokenEmbedding`."""
    table = array(embedding.embeddings)
    return tf.gather(table, tf.reshape(ids, (-1,))) * np.float32(table.shape[1] ** 0.5)


def embed_sequences(embedding, ids, positions):
    """Embeds sequences, int32 `(batch, length)`, and adds a table's positions; returns rows."""
    length, width = _length(ids), positions.shape[1]
    # The places depend on an input, because the converter would store an array of float32 for each
    # length. So there is one table, in as few bits as the weights.
    indices = tf.range(length) + tf.minimum(ids[0], 0)
    rows = tf.reshape(embed(embedding, ids), (-1, length, width)) + tf.gather(positions, indices)
    return tf.reshape(rows, (-1, width))


def position_table(model, layer, length) -> np.ndarray:
    """Returns the vectors that a layer of positions adds, `(length, model_dim)`."""
    if layer is None:
        return np.zeros((length, model.config.model_dim), "float32")
    length = min(length, model.config.position_limit or length)
    return array(layer(ops.zeros((1, length, model.config.model_dim))))[0]


def decoder_block(block, rows, beams, store, bias, source, source_bias):
    """Runs one step of a decoder block over rows of `beams` hypotheses of each sentence.

    `store` takes the step's keys and values, and returns all parts to attend to. `bias` belongs to
    these parts. For an SSRU, `store` is `advance` of `recur`. `source` are the keys and values of
    the source.
    """

    def cross_attention(queries):
        return attend(block.cross_attention, queries, beams, [source], [source_bias])

    rows = self_attend(block, rows, beams, store, bias)
    return _fed(block, residual(block, block.cross_attention_norm, rows, cross_attention))


def _fed(block, rows):
    layer, (inner, outer) = block.feed_forward, block.feed_forward.projections

    def feed_forward(inputs):
        return project(layer.activation(project(inputs, inner)), outer)

    return residual(block, block.feed_forward_norm, rows, feed_forward)


def self_attend(block, rows, beams, store, bias):
    """Runs the first sublayer of a decoder block or an encoder block."""
    if block.self_attention is None:
        return residual(
            block, block.ssru_norm, rows, lambda inputs: recur(block.ssru, inputs, store)
        )

    def self_attention(inputs):
        parts = store(keys_and_values(block.self_attention, inputs, beams))
        return attend(block.self_attention, inputs, beams, parts, bias)

    return residual(block, block.self_attention_norm, rows, self_attention)


def recur(layer, rows, advance):
    """Runs an `SSRU` over rows; `advance` computes cells from forget gates and gated inputs."""
    forget = tf.sigmoid(project(rows, layer.forget_dense))
    gated_inputs = (1.0 - forget) * project(rows, layer.input_dense)
    cells = tf.nn.relu(advance(forget, gated_inputs))
    return cells if layer.output_dense is None else project(cells, layer.output_dense)


class LiteRTAlignment:
    """Alignment by one pass over a source and its translation, as in `search.score_targets`.

    Args:
        model: `Transformer` with float32 weights.
        max_length: Maximum number of tokens of a source or a translation in any signature.
    """

    def __init__(self, model, max_length: int):
        self.model = model
        self.source_positions = position_table(model, model.source_positions, max_length)
        self.target_positions = position_table(model, model.target_positions, max_length)

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
        store = (
            self._scanned(steps)
            if model.config.decoder == "ssru"
            else lambda keys_values: [keys_values]
        )
        *blocks, last = zip(model.decoder.blocks, source, strict=True)
        for block, source_cache in blocks:
            rows = decoder_block(
                block, rows, steps, store, [causal_bias], source_cache, source_bias
            )
        block, (keys, _) = last
        rows = self_attend(block, rows, steps, store, [causal_bias])
        rows = normalize(block.cross_attention_norm, rows) if block.normalize_first else rows
        (scores,) = attention_scores(block.cross_attention, rows, steps, [keys], [source_bias])
        return {"alignment": tf.reduce_mean(tf.nn.softmax(scores), axis=1)}

    @staticmethod
    def _scanned(steps):
        """Returns `store` of an SSRU, which computes the cells of all steps."""

        def advance(forget, gated_inputs):
            width = forget.shape[1]
            parts = (tf.reshape(rows, (-1, steps, width)) for rows in (forget, gated_inputs))
            return tf.reshape(scan(*parts), (-1, width))

        return advance
