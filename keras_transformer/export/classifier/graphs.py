"""The graphs of an exported classifier, from `text` to `label` and `probabilities`."""

import numpy as np
import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID
from keras_transformer.decoding.classifier import ClassifierEngine, label_probabilities
from keras_transformer.export.litert.model import (
    HIDDEN,
    array,
    encoded_rows,
    position_table,
    project,
)
from keras_transformer.export.saved_model.batches import (
    in_chunks,
    is_blank,
    longest_first,
    pad_ids,
)
from keras_transformer.inputs import length_buckets
from keras_transformer.labelling import FIRST_LABEL

_TEXT = tf.TensorSpec((None,), tf.string, name="text")


def saved_model_function(engine: ClassifierEngine):
    """The concrete function of a SavedModel, with the tokenizer and the compiled model in it.

    Texts are sorted by length, taken 32 at a time and padded to few shapes, for each of which XLA
    compiles a program.
    """
    from keras_transformer.text.graph import GraphTokenizer

    tokenizer = GraphTokenizer(engine.source_tokenizer)
    tokenize = tf.function(tokenizer.tokenize, [tf.TensorSpec((None,), tf.string)], autograph=False)
    buckets, longest = length_buckets(engine.max_source_length), engine.max_source_length

    @tf.function(
        input_signature=[tf.TensorSpec((None, None), tf.int32)], jit_compile=True, autograph=False
    )
    def run(ids):
        return label_probabilities(engine.model, ids)

    def classify(text):
        tokens = tokenize(text)[:, : longest - 1]
        present = (tokens.row_lengths() > 0) & ~is_blank(text)
        ids = tf.concat([tokens, tf.fill([tf.size(text), 1], EOS_ID)], axis=1)

        def call(chosen):
            found = run(pad_ids(ids, chosen, buckets))
            return {"probabilities": found[: tf.size(chosen)]}

        nothing = {"probabilities": tf.zeros([tf.size(text), len(engine.labels)])}
        found = in_chunks(longest_first(present, ids.row_lengths()), call, nothing)
        return _labelled(engine.labels, found["probabilities"], present)

    return tf.function(classify, [_TEXT], autograph=False).get_concrete_function()


def litert_function(engine: ClassifierEngine):
    """The concrete function of a LiteRT file, with its weights as constants."""
    from keras_transformer.export.litert.text import TextOperations

    model, operations = engine.model, TextOperations(engine.source_tokenizer)
    positions = position_table(model, model.source_positions, engine.max_source_length)

    def classify(text):
        ids = operations.ids(text, engine.max_source_length)
        length = tf.shape(ids)[1]
        rows, _ = encoded_rows(model, ids, positions)
        hidden = tf.reshape(rows, (-1, length, model.config.model_dim))
        is_real = tf.expand_dims(tf.cast(ids != PAD_ID, tf.float32), 2)  # --> [batch, length, 1]
        logits = project(_pooled(model.pooling, hidden, is_real), model.output_projection)
        present = tf.reduce_max(is_real, axis=(1, 2))  # --> [batch], 1 or 0
        probabilities = tf.nn.softmax(logits[:, FIRST_LABEL:]) * tf.expand_dims(present, 1)
        return _labelled(engine.labels, probabilities, present > 0)

    return tf.function(classify, [_TEXT], autograph=False).get_concrete_function()


def _pooled(pooling, hidden, is_real):
    """`layers.MaskedPooling` of a text that is not blank."""
    hiding = (1.0 - is_real) * HIDDEN
    if pooling.way == "max":
        return tf.reduce_max(hidden + hiding, axis=1)
    if pooling.way == "mean":
        count = tf.maximum(tf.reduce_sum(is_real, axis=1), 1.0)
        return tf.reduce_sum(hidden * is_real, axis=1) / count
    kernel = np.reshape(array(pooling.score.kernel), (-1,))
    scores = tf.reduce_sum(hidden * kernel, axis=2, keepdims=True) + hiding
    return tf.reduce_sum(tf.nn.softmax(scores, axis=1) * hidden, axis=1)


def _labelled(labels, probabilities, present):
    best = tf.argmax(probabilities, axis=1, output_type=tf.int32)
    best = tf.where(present, best, len(labels))
    return {"label": tf.gather(tf.constant([*labels, ""]), best), "probabilities": probabilities}
