"""Text to text or to labels in LiteRT's graph, by tensorflow-text's custom operations."""

import functools
from collections.abc import Callable

import numpy as np
import sentencepiece
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2 as schema

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.decoding.engine import ClassifierEngine
from keras_transformer.errors import InputError, missing_package
from keras_transformer.export.litert.file import traced
from keras_transformer.export.litert.model import (
    HIDDEN,
    array,
    encoded_rows,
    position_table,
    project,
)
from keras_transformer.export.saved_model.batches import labelled
from keras_transformer.text.graph import one_a_word
from keras_transformer.text.tokenizer import has_whole_words
from keras_transformer.text.vocabulary import SPACE, parsed

# Name of the first of 256 pieces for bytes.
_BYTE = "<0x00>"
# Characters that the operations turn into `SPACE` after all rules.
_WHITE = " \t\r\n"


def text_to_text(
    search: Callable, source_tokenizer, target_tokenizer, max_source_length: int
) -> Callable:
    """A search with the tokenizers around it, from `text` to `translation` and `score`.

    Sizes depend on the texts, so that LiteRT's own kernels run the encoder; the search runs on
    XNNPACK as it does on ids. It gives `ids` and `score`, both with an axis of hypotheses or
    without one. A text is cut at `max_source_length` tokens, its end included.

    Raises:
        InputError: A tokenizer falls back to bytes, which these operations do not.
    """
    source, target = TextOperations(source_tokenizer), TextOperations(target_tokenizer)

    def translate(text):
        found = search(source.ids(text, max_source_length))
        return {"translation": target.texts(found["ids"]), "score": found["score"]}

    return translate


class TextOperations:
    """One side's tokenizer in the graph."""

    def __init__(self, tokenizer):
        import tensorflow_text

        pieces = tokenizer.pieces_of(range(tokenizer.vocabulary_size))
        if _BYTE in pieces:
            raise InputError(
                "tensorflow-text's operations for LiteRT know no byte fallback: this run's "
                "tokenizer needs it. Export ids alone (--ids-only)."
            )
        self._space_id = pieces.index(SPACE) if SPACE in pieces else -1
        self._make = tensorflow_text.FastSentencepieceTokenizer
        self._model_bytes = without_needless_rules(tokenizer.model_bytes)

    def _operations(self):
        # Made where it is used: the model is then a constant of that graph, and no input.
        return self._make(self._model_bytes)

    def ids(self, text, max_length):
        """Int32 `(batch, longest)`, padded with 0; a text without tokens gives padding alone."""
        ragged = self._operations().tokenize(text)
        if has_whole_words(self._model_bytes):
            ragged = one_a_word(ragged)
        splits = ragged.row_splits
        lengths = tf.minimum(splits[1:] - splits[:-1], max_length - 1)
        ends = tf.expand_dims(tf.where(lengths > 0, lengths, -1), 1)
        places = tf.expand_dims(tf.range(tf.reduce_max(lengths) + 1), 0)
        # The end of the last text reads one value past all: there is one more.
        values = tf.concat([ragged.values, [PAD_ID]], axis=0)
        last = tf.shape(values)[0] - 1
        found = tf.gather(values, tf.minimum(tf.expand_dims(splits[:-1], 1) + places, last))
        found = tf.where(places < ends, found, PAD_ID)
        return tf.where(tf.equal(places, ends), EOS_ID, found)

    def texts(self, ids):
        """Strings, of the shape of `ids` without its last axis."""
        rows = tf.reshape(ids, (-1, ids.shape[-1]))
        kept = tf.logical_and(rows != PAD_ID, tf.logical_and(rows != BOS_ID, rows != EOS_ID))
        # SentencePiece takes away all spaces at the beginning, these operations only the first.
        begun = tf.cumsum(tf.cast(tf.logical_and(kept, rows != self._space_id), tf.int32), axis=1)
        kept = tf.logical_and(kept, begun > 0)
        rows, kept = self._with_space_before_unknown(rows, kept)
        counts = tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)
        values = tf.gather_nd(rows, tf.where(kept))
        splits = tf.concat([[0], tf.cumsum(counts)], axis=0)
        texts = self._operations().detokenize(
            tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        )
        # LiteRT's detokenizer leaves its output's shape as it was, of one string, whatever it
        # holds. Strings are gathered by place, and what is gathered has the shape of the places.
        places = tf.cumsum(tf.ones_like(counts)) - 1
        return tf.gather(texts, tf.reshape(places, (-1, *ids.shape[1:-1])))

    def _with_space_before_unknown(self, rows, kept):
        """Both with one more column: a space before texts that begin with the unknown piece.

        These operations take a space away at the beginning, even that of the unknown piece itself.
        """
        if self._space_id < 0:
            return rows, kept
        first = tf.logical_and(kept, tf.equal(tf.cumsum(tf.cast(kept, tf.int32), axis=1), 1))
        unknown = tf.logical_and(first, tf.equal(rows, UNK_ID))
        unknown = tf.reduce_any(unknown, axis=1, keepdims=True)
        space = tf.zeros_like(rows[:, :1]) + self._space_id
        return tf.concat([space, rows], axis=1), tf.concat([unknown, kept], axis=1)


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
        return labelled(engine.labels, probabilities, present > 0)

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


# A search for greedy and one for beam, with two tokenizers each.
@functools.lru_cache(maxsize=2)
def without_needless_rules(model_bytes: bytes) -> bytes:
    """Makes a tokenizer smaller for tensorflow-text's operations, without a change of ids.

    SentencePiece's rule sets cover all of Unicode, 225,276 rules in 240 kB; a vocabulary of
    European languages needs a hundredth of them. A rule from characters that are in no piece to
    others that are in none changes nothing: the piece for the unknown stands for either, and once
    for several in a row.

    Takes and gives a serialized SentencePiece model. Raises `InputError` where SentencePiece is
    too old to list its rules; a newer one comes with the extra `litert`.
    """
    model = parsed(bytes(model_bytes))
    specification = model.normalizer_spec
    if not specification.precompiled_charsmap:
        return model_bytes
    if not hasattr(sentencepiece.SentencePieceNormalizer, "Decompile"):
        raise missing_package("A newer SentencePiece", "sentencepiece", "litert")
    rules = sentencepiece.SentencePieceNormalizer(model_proto=model_bytes).Decompile()
    kinds = schema.ModelProto.SentencePiece
    pieces = (
        each.piece for each in model.pieces if each.type in (kinds.NORMAL, kinds.USER_DEFINED)
    )
    kept = needed_rules(rules, {SPACE, *_WHITE}.union(*pieces))
    if len(kept) in (0, len(rules)):
        return model_bytes
    smaller = schema.NormalizerSpec.FromString(
        sentencepiece.SentencePieceNormalizer(norm_map=kept).serialized_normalizer_spec()
    )
    specification.precompiled_charsmap = smaller.precompiled_charsmap
    return model.SerializeToString()


def needed_rules(rules: list[tuple[str, str]], known: set[str]) -> list[tuple[str, str]]:
    """The rules without which some text would get other ids.

    A rule is what is replaced and by what; at each place of a text the longest that fits is taken.
    `known` are the characters that tokens are made of.

    Example:

    >>> needed_rules([("Ａ", "A"), ("ｶ", "カ")], {"A"})
    [('Ａ', 'A')]
    """
    needed, others = [], []
    for rule in rules:
        foreign = rule[1] and known.isdisjoint(rule[0]) and known.isdisjoint(rule[1])
        (others if foreign else needed).append(rule)
    while True:
        # Where a rule for several characters is missing, one that begins among them would act.
        first = {source[0] for source, _ in needed}
        hidden = {rule for rule in others if len(rule[0]) > 1 and not first.isdisjoint(rule[0])}
        if not hidden:
            return needed
        needed += hidden
        others = [rule for rule in others if rule not in hidden]
