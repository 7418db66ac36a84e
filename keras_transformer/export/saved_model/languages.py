"""Tokens of languages inside the graph of a SavedModel."""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.ids import PAD_ID

_LISTED = 20  # names in the message about an unknown language


class GraphDirections(NamedTuple):
    """What the model reads because of the languages of a batch of texts.

    Attributes:
        before: Ragged int32 `(batch, (tokens))`: ids before those of the sources.
        after: Ragged int32 `(batch, (tokens))`: ids after the ends of the sources.
        forced_ids: Int32 `(batch,)`: ids that the decoder reads before a translation; None for a
            model without such ids.
    """

    before: tf.RaggedTensor
    after: tf.RaggedTensor
    forced_ids: tf.Tensor | None


class GraphLanguages:
    """Converts the inputs `source_language` and `target_language` to ids.

    Args:
        engine: Engine of the trained model.

    Attributes:
        inputs: Names of the inputs; empty for a model without them.
        num_before: Maximum number of ids before a source.
        num_added: Maximum number of ids around a source.
        are_forced: Whether the decoder reads an id before a translation.
    """

    def __init__(self, engine: ModelEngine):
        self._engine, languages = engine, engine.languages
        self.inputs: tuple[str, ...] = ()
        self._before = self._after = self._forced = None
        self.num_added = 0
        if languages is not None and languages.inputs:
            self.inputs, self.num_added = languages.inputs, languages.num_added
            self._before, self._after = languages.before, languages.after
            self._forced = languages.forced
        self.num_before = int(self._before is not None)
        self.are_forced = self._forced is not None

    def directions(self, text: tf.Tensor, **inputs: tf.Tensor) -> GraphDirections:
        """Returns the directions of texts; each input is string `(batch,)`.

        An empty name is allowed where a text may begin with a token itself.
        """
        count = tf.size(text)
        none = tf.RaggedTensor.from_row_lengths(
            tf.zeros([0], tf.int32), tf.zeros([count], tf.int64)
        )
        for name in self.inputs:
            message = f"`{name}` must have a value for each text."
            tf.debugging.assert_equal(tf.size(inputs[name]), count, message)
        before, after = (
            none if side is None else self._source_ids(side, inputs[f"{side}_language"])
            for side in (self._before, self._after)
        )
        forced_ids = None
        if (side := self._forced) is not None:
            forced_ids = self._ids(side, inputs[f"{side}_language"], self._engine.target_tokenizer)
        return GraphDirections(before, after, forced_ids)

    def _source_ids(self, side, names):
        ids = tf.expand_dims(self._ids(side, names, self._engine.source_tokenizer), 1)
        return tf.ragged.boolean_mask(ids, ids != PAD_ID)

    def _ids(self, side, names, tokenizer):
        """Returns the id of each language, `PAD_ID` for an empty name.

        The graph holds a table of the codes that may be typed, because it cannot compare codes.
        """
        languages, engine = self._engine.languages, self._engine
        names = tf.strings.lower(tf.strings.regex_replace(tf.strings.strip(names), "_", "-"))
        spellings = languages.spellings.items()
        codes = {name: code for name, code in spellings if code in languages.tokens}
        ids = [tokenizer.id_of(languages.tokens[code]) for code in codes.values()]
        known_names = [*codes, *([""] if engine.has_language_tags else [])]
        is_equal = tf.equal(tf.expand_dims(names, 1), known_names)  # --> [batch, names]
        listed = ", ".join([*languages.tokens][:_LISTED])
        message = f"`{side}_language` must be one of {listed}."
        tf.debugging.assert_equal(tf.reduce_all(tf.reduce_any(is_equal, axis=1)), True, message)
        ids = tf.constant([*ids, PAD_ID][: len(known_names)], tf.int32)
        return tf.gather(ids, tf.argmax(tf.cast(is_equal, tf.int32), axis=1))
