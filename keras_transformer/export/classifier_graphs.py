"""The graphs of an exported classifier, from `text` to `label` and `probabilities`."""

import numpy as np
import tensorflow as tf

from keras_transformer.config import PAD_ID
from keras_transformer.decoding.engine import ClassifierEngine, label_probabilities
from keras_transformer.export.litert.file import traced
from keras_transformer.export.litert.model import (
    HIDDEN,
    array,
    encoded_rows,
    position_table,
    project,
)
from keras_transformer.export.litert.text import TextOperations
from keras_transformer.export.saved_model.batches import in_chunks, longest_first, pad_ids
from keras_transformer.export.saved_model.signatures import Signatures, not_blank, with_xla


class LabelSignature(Signatures):
    """The signature of a SavedModel, with the tokenizer and the compiled model in it."""

    def __init__(self, engine: ClassifierEngine):
        super().__init__(engine, beam_size=1, length_penalty=0.0)  # No search is made.
        self._run = with_xla(lambda ids: label_probabilities(engine.model, ids), ("int32", 2))

    def _serving_default(self, text):
        ids, labels = self._ids(text, "source"), self._engine.labels
        present = not_blank(text, ids)

        def call(chosen):
            found = self._run(pad_ids(ids, chosen, self._source_lengths))
            return {"probabilities": found[: tf.size(chosen)]}

        nothing = {"probabilities": tf.zeros([tf.size(text), len(labels)])}
        found = in_chunks(longest_first(present, ids.row_lengths()), call, nothing)
        return _labelled(labels, found["probabilities"], present)


def litert_function(engine: ClassifierEngine):
    """The concrete function of a LiteRT file, with its weights as constants."""
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
        probabilities = tf.nn.softmax(logits) * tf.expand_dims(present, 1)
        return _labelled(engine.labels, probabilities, present > 0)

    return traced(classify, tf.TensorSpec((None,), tf.string, name="text"))


def _pooled(pooling, hidden, is_real):
    """`layers.MaskedPooling` of a text that is not blank."""
    hiding = (1.0 - is_real) * HIDDEN
    if pooling.mode == "max":
        return tf.reduce_max(hidden + hiding, axis=1)
    if pooling.mode == "mean":
        count = tf.maximum(tf.reduce_sum(is_real, axis=1), 1.0)
        return tf.reduce_sum(hidden * is_real, axis=1) / count
    kernel = np.reshape(array(pooling.score.kernel), (-1,))
    scores = tf.reduce_sum(hidden * kernel, axis=2, keepdims=True) + hiding
    return tf.reduce_sum(tf.nn.softmax(scores, axis=1) * hidden, axis=1)


def _labelled(labels, probabilities, present):
    best = tf.argmax(probabilities, axis=1, output_type=tf.int32)
    best = tf.where(present, best, len(labels))
    return {"label": tf.gather(tf.constant([*labels, ""]), best), "probabilities": probabilities}
