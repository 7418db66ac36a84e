"""A `Transformer`'s encoder and sublayers in the operations that LiteRT runs fast.

The arithmetic is the model's own, in other operations:

- Every product with weights multiplies a matrix of rows (`FULLY_CONNECTED`), which dynamic-range
  quantization turns to int8. Keras' general products become `BATCH_MATMUL`, which stays float.
- Masks are added, not selected: XNNPACK has no `SELECT`, but additions. LiteRT computes in float32
  whatever the weights are, so that -1e9 hides a score and never overflows.
- No size is computed from a tensor's shape: it would make the tensors that depend on it dynamic,
  which XNNPACK does not take. All sizes follow from the inputs' sizes.

Rows are float `(batch · count, width)`: `count` rows of the first sentence, then of the second. A
count of -1 means one sentence of any length.
"""

import math
import weakref

import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.base.ids import EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.impossible import HIDDEN
from keras_transformer.base.large_variables import row_blocks, zeros_without_memory
from keras_transformer.export.litert.file import MATRIX
from keras_transformer.export.litert.matrices import Matrix

MIN_CAPTURED = 1 << 16
"""Least size of a large matrix; see `captured`."""
_captured: weakref.WeakValueDictionary[tuple, tf.Tensor] = weakref.WeakValueDictionary()


def as_float32(variable) -> np.ndarray:
    """Returns a weight as a float32 array, also while a graph is traced."""
    with tf.init_scope():
        return np.asarray(ops.convert_to_numpy(variable), "float32")


def row_matrix(variable) -> Matrix:
    """Returns the rows of a variable, for `captured`."""
    return Matrix(("rows", id(variable)), variable.shape, lambda: row_blocks(variable))


def captured(matrix: Matrix):
    """Returns a matrix in a traced function.

    A graph is one protobuf message, which has at most 2 GiB, and TensorFlow's converter takes many
    times the memory of its constants. So the function captures a tensor that stands for a large
    matrix, and `file.convert` makes the matrix a constant again.
    """
    with tf.init_scope():
        values = matrix.array() if matrix.size < MIN_CAPTURED else None
    if values is not None:
        return tf.constant(values)
    with tf.init_scope():
        # A loop is traced several times: equal matrices are one tensor while a function lives.
        if (tensor := _captured.get(matrix.key)) is None:
            tensor = zeros_without_memory(matrix.shape)
            setattr(tensor, MATRIX, matrix)
            _captured[matrix.key] = tensor
        return tensor


def project(rows, *projections, scale: float = 1.0):
    """Projects rows several times, and concatenates the outputs.

    A projection is a `Dense`, or an `EinsumDense` into heads or out of them.
    """
    biases = [_bias(projection) for projection in projections]
    kernels = [projection.kernel for projection in projections]
    bias = np.concatenate(biases) * np.float32(scale)

    def read():
        pairs = zip(kernels, biases, strict=True)
        parts = [as_float32(kernel).reshape(-1, part.size) for kernel, part in pairs]
        yield np.ascontiguousarray(np.concatenate(parts, axis=1).T) * np.float32(scale)

    inputs = math.prod(kernels[0].shape) // biases[0].size
    key = ("product", scale, *map(id, kernels))
    matrix = Matrix(key, (bias.size, inputs), read)
    return tf.matmul(rows, captured(matrix), transpose_b=True) + bias


def _bias(projection):
    if projection.bias is None:
        return np.zeros(projection.kernel.shape[-1], "float32")
    return as_float32(projection.bias).reshape(-1)


def keys_and_values(layer, rows, count):
    """Projects rows to keys and values of an attention layer, `(batch, heads, count, key_dim)`."""
    heads = layer.num_kv_heads
    projected = project(rows, *layer.projections[1:3])  # --> [batch * count, 2 * heads * key_dim]
    parts = tf.split(projected, 2, axis=1)
    return tuple(_by_head(part, count, heads, layer.key_dim) for part in parts)


def _by_head(rows, count, heads, width):
    return tf.transpose(by_sentence(rows, count, heads, width), (0, 2, 1, 3))


def by_sentence(rows, count, *sizes):
    """Returns rows as `(batch, count, *sizes)`."""
    return tf.reshape(rows, (1 if count < 0 else -1, count, *sizes))


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
    return scaled * as_float32(layer.gamma) + as_float32(layer.beta)


def pre_norm(block, norm, rows):
    """Returns the inputs of a sublayer."""
    return normalize(norm, rows) if block.normalize_first else rows


def add(block, norm, rows, outputs):
    """Adds a sublayer's outputs to its inputs."""
    rows = rows + outputs
    return rows if block.normalize_first else normalize(norm, rows)


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

    The bias is `(batch, 1, 1, source)`; it also hides EOS from a model that reads sources without
    it. `positions` has as many rows as the longest search needs.
    """
    config, length = model.config, _length(source_ids)
    # Pieces that an imported vocabulary lacks have larger ids.
    source_ids = tf.where(source_ids < config.vocabulary_size, source_ids, UNK_ID)
    rows = embed_sequences(model.source_embedding, source_ids, positions)
    is_hidden = source_ids == PAD_ID
    if not config.source_eos:
        is_hidden |= source_ids == EOS_ID
    bias = tf.cast(is_hidden, tf.float32) * HIDDEN
    bias = tf.expand_dims(tf.expand_dims(bias, 1), 1)
    indices = indices_of(source_ids)
    window_bias = within_window(config, bias, indices, indices)
    for block in model.encoder.blocks:
        layer, norm = block.token_mixer, block.token_mixer_norm
        hidden = pre_norm(block, norm, rows)
        parts = [keys_and_values(layer, hidden, length)]
        rows = add(block, norm, rows, attend(layer, hidden, length, parts, [window_bias]))
        rows = feed_forward(block, rows)
    if config.normalize_first:
        rows = normalize(model.encoder.final_norm, rows)
    return rows, bias


def _length(ids):
    return -1 if ids.shape[1] is None else ids.shape[1]


def indices_of(ids):
    """Returns the indices of the positions of int32 `(batch, length)`, int32 `(length,)`.

    They depend on an input, because the converter would store an array of float32 for each length.
    """
    return tf.cumsum(tf.minimum(ids[0], 0) + 1) - 1


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
    rows = tf.gather(captured(row_matrix(embedding.embeddings)), tf.reshape(ids, (-1,)))
    return rows * np.float32(rows.shape[1] ** 0.5)


def embed_sequences(embedding, ids, positions):
    """Embeds sequences, int32 `(batch, length)`, and adds a table's positions; returns rows."""
    width = positions.shape[1]
    # There is one table for all lengths, in as few bits as the weights.
    rows = by_sentence(embed(embedding, ids), _length(ids), width)
    return tf.reshape(rows + tf.gather(positions, indices_of(ids)), (-1, width))


def read_source(block, rows, count, keys_values, bias):
    """Runs the attention to the source of a decoder block."""
    norm = block.cross_attention_norm
    hidden = pre_norm(block, norm, rows)
    outputs = attend(block.cross_attention, hidden, count, [keys_values], [bias])
    return add(block, norm, rows, outputs)


def feed_forward(block, rows):
    """Runs the last sublayer of a block."""
    layer, norm = block.feed_forward, block.feed_forward_norm
    inner, outer = layer.projections
    hidden = layer.activation(project(pre_norm(block, norm, rows), inner))
    return add(block, norm, rows, project(hidden, outer))
