"""Tokens of languages inside the graph of a SavedModel."""

import tensorflow as tf

from keras_transformer.base.ids import PAD_ID
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.text.languages import Direction, DirectionTable

_LISTED = 20  # names in the message about an unknown language


class GraphLanguages:
    """Looks up the inputs `source_language` and `target_language` in a `DirectionTable`.

    Args:
        engine: Engine of the trained model.

    Attributes:
        inputs: Names of the inputs; empty for a model without them.
        num_added: Maximum number of ids around a source.
    """

    def __init__(self, engine: ModelEngine):
        self._engine, languages = engine, engine.languages
        self.inputs: tuple[str, ...] = ()
        self.num_added = 0
        self._table = DirectionTable([], Direction())
        if languages is not None and languages.inputs:
            self.inputs, self.num_added = languages.inputs, languages.num_added
            id_of = engine.source_tokenizer.id_of, engine.target_tokenizer.id_of
            self._table = languages.table(*id_of)

    def direction(self, text: tf.Tensor, **inputs: tf.Tensor) -> Direction:
        """Returns the direction of texts, with int32 columns `(batch, 1)` instead of ids.

        Each input is string `(batch,)`. An empty name is allowed where a text may begin with a
        token itself. The columns of a source are ragged, because such a text gets no token.
        """
        languages, rows = self._engine.languages, {}
        for name in self.inputs:
            message = f"`{name}` must have a value for each text."
            tf.debugging.assert_equal(tf.size(inputs[name]), tf.size(text), message)
            rows[name] = self._rows(name, inputs[name])
        if languages is None:
            return Direction()
        prefix, suffix, target_prefix = (
            tuple(_column(ids, rows[f"{side}_language"]) for ids in arrays)
            for arrays, side in zip(self._table.ids[:3], languages.sides, strict=True)
        )
        return Direction(tuple(map(_ragged, prefix)), tuple(map(_ragged, suffix)), target_prefix)

    def _rows(self, name, spellings):
        """Returns the row of each spelling in the table, and the row after the last one for ""."""
        spellings = tf.strings.regex_replace(tf.strings.strip(spellings), "_", "-")
        known_names = [*self._table.names, *([""] if self._engine.directions.have_tags else [])]
        # --> [batch, names]
        is_equal = tf.equal(tf.expand_dims(tf.strings.lower(spellings), 1), known_names)
        listed = ", ".join([*self._engine.languages.tokens][:_LISTED])
        message = f"`{name}` must be one of {listed}."
        tf.debugging.assert_equal(tf.reduce_all(tf.reduce_any(is_equal, axis=1)), True, message)
        return tf.argmax(tf.cast(is_equal, tf.int32), axis=1)


def _column(ids, rows):
    """Returns an id for each row, `PAD_ID` for the row after the last one."""
    return tf.expand_dims(tf.gather(tf.constant([*ids, PAD_ID], tf.int32), rows), 1)


def _ragged(column):
    """Returns a column without `PAD_ID`."""
    return tf.ragged.boolean_mask(column, column != PAD_ID)
