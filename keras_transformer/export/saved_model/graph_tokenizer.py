"""Tokenizer in TensorFlow operations, so that an exported graph takes and returns text."""

import hashlib
import importlib.machinery
import importlib.metadata
import os
import re

import tensorflow as tf

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.text.tokenizer import Tokenizer

SPACES = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"
"""Characters that `str.strip` removes; RE2's `\\s` knows only ASCII."""


class GraphTokenizer(tf.Module):
    """A `Tokenizer` inside a TensorFlow graph, with the same ids and the same text.

    The model is a constant of the graph. So a SavedModel with this module needs no other file, and
    its loader imports (or links) only TensorFlow and tensorflow-text. `tf.saved_model.load` can
    load it, and TensorFlow 1 sessions, as in TensorFlow Serving.

    Raises:
        ImportError: tensorflow-text is missing or built for another TensorFlow.
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._tensorflow_text = _import_tensorflow_text()
        self._model_bytes = tokenizer.model_bytes
        self._whole_words = tokenizer.whole_words
        tags = "|".join(map(re.escape, tokenizer.tag_tokens.values()))
        self._tag = f"^{SPACES}({tags}){SPACES}" if tags else None
        self._known_ids = tokenizer.vocabulary_size if tokenizer.has_unknown_pieces else None
        digest = hashlib.sha256(tokenizer.model_bytes).hexdigest()
        self._node_name = f"sentencepiece_{digest[:16]}"

    def _operations(self):
        # Made for each use, so that the model is a node of the graph that uses it. An attribute
        # would be a resource that the eager kernel cache owns. `tf.random.set_seed`, which
        # `keras.utils.set_random_seed` calls, empties that cache: "Resource does not exist".
        # In eager mode the cache makes the second use cheap.
        #
        # Named after the model: if two functions of a SavedModel have nodes of the same name, the
        # loader gives both the model of the first.
        #
        # Not FastSentencepieceTokenizer, which has no byte fallback and returns the unknown id.
        return self._tensorflow_text.SentencepieceTokenizer(
            self._model_bytes, out_type=tf.int32, name=self._node_name
        )

    def tokenize(
        self, texts: tf.Tensor, add_bos: bool = False, add_eos: bool = False
    ) -> tf.RaggedTensor:
        """Returns the ids of each text.

        Args:
            texts: string `(batch,)`, UTF-8. A wrong byte becomes the unknown id, or with byte
                fallback the three bytes of U+FFFD.
            add_bos: Python bool, whether ids begin with `BOS_ID`.
            add_eos: Python bool, whether ids end with `EOS_ID`.

        Returns:
            int32 `tf.RaggedTensor` `(batch, (length))`.
        """
        texts = tf.convert_to_tensor(texts, tf.string)
        if self._tag is not None:
            texts = tf.strings.regex_replace(texts, self._tag, r"\1 ", replace_global=False)
        ids = self._operations().tokenize(texts)
        if self._whole_words:
            ids = one_per_word(ids)
        if self._known_ids is not None:
            known_or_unknown = tf.where(ids.values < self._known_ids, ids.values, UNK_ID)
            ids = ids.with_values(known_or_unknown)
        column = [tf.size(texts), 1]
        parts = [tf.fill(column, BOS_ID)] if add_bos else []
        parts.append(ids)
        if add_eos:
            parts.append(tf.fill(column, EOS_ID))
        return tf.concat(parts, axis=1) if len(parts) > 1 else ids

    def detokenize(self, ids: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        """Returns the text of each row of ids, up to `EOS_ID`, without `PAD_ID` and `BOS_ID`.

        Args:
            ids: Integers `(batch, length)`, ragged or dense. The operation fails for an id outside
                the vocabulary.

        Returns:
            string `(batch,)`.
        """
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(default_value=EOS_ID)
        ids = tf.cast(ids, tf.int32)
        has_ended = tf.cumsum(tf.cast(ids == EOS_ID, tf.int32), axis=1) > 0
        keep = ~has_ended & (ids != PAD_ID) & (ids != BOS_ID)
        return self._operations().detokenize(tf.ragged.boolean_mask(ids, keep))


def one_per_word(ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """Converts SentencePiece's ids to one unknown token per unknown word; see `Tokenizer`."""
    is_known = tf.not_equal(ids.values, UNK_ID)
    # No text begins with an unknown token, so the first token of the next text does not matter.
    becomes = tf.concat([tf.logical_not(is_known[1:]), [False]], axis=0)
    values = tf.boolean_mask(tf.where(becomes[: tf.size(is_known)], UNK_ID, ids.values), is_known)
    before = tf.cumsum(tf.cast(is_known, ids.row_splits.dtype))
    splits = tf.gather(tf.concat([[0], before], axis=0), ids.row_splits)
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def load_operations() -> str:
    """Loads tensorflow-text's operations of SentencePiece; returns the path of their shared object.

    `import tensorflow_text` would import Keras, which takes seconds.

    Raises:
        InputError: tensorflow-text is missing, or was compiled for another TensorFlow.
    """
    package = importlib.machinery.PathFinder.find_spec("tensorflow_text")
    if package is None or not package.submodule_search_locations:
        raise InputError(_missing_tensorflow_text())
    folder = os.path.join(package.submodule_search_locations[0], "python", "ops")
    path = os.path.join(folder, "_sentencepiece_tokenizer.so")
    try:
        tf.load_op_library(path)
    except tf.errors.OpError as error:  # an undefined symbol
        raise InputError(_missing_tensorflow_text()) from error
    return path


def _import_tensorflow_text():
    try:
        import tensorflow_text
    # A build for another TensorFlow can import its Python files but not load its operations.
    except (ImportError, tf.errors.OpError) as error:
        raise ImportError(_missing_tensorflow_text()) from error
    return tensorflow_text


def _missing_tensorflow_text():
    """Returns the message of a tensorflow-text that is missing or made for another TensorFlow."""
    minor_version = ".".join(tf.__version__.split(".")[:2])
    return (
        "Texts in a SavedModel need tensorflow-text with TensorFlow's minor version. "
        f"Received: TensorFlow {tf.__version__}, tensorflow-text {_version('tensorflow-text')}. "
        f'Run pip install "tensorflow-text=={minor_version}.*", or export to litert or ctranslate2.'
    )


def _version(distribution):
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
