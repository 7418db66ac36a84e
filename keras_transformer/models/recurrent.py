"""The recurrent encoder-decoder, without attention and with it."""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.layers import Attention, masks
from keras_transformer.layers.kv_cache import of_parents
from keras_transformer.layers.projection import Projection
from keras_transformer.models.config import RecurrentConfig
from keras_transformer.models.sequence_model import SequenceModel


class Memory(NamedTuple):
    """The encoded source for each step of the decoder; `()` without attention.

    Attributes:
        key: Float `(batch, source, features)`, projected for the attention's score.
        value: Float `(batch, source, model_dim)`.
        mask: Bool `(batch, 1, source)`, True = not padding.
    """

    key: keras.KerasTensor
    value: keras.KerasTensor
    mask: keras.KerasTensor


class RecurrentCache(NamedTuple):
    """Everything that a decoding step reads in addition to its ids.

    Attributes:
        states: Float `(batch, beams, model_dim)` each: the cells' states, and the last output with
            input feeding.
        memory: `Memory`, held once per sentence, or `()`.
    """

    states: tuple[keras.KerasTensor, ...]
    memory: Memory | tuple[()]

    def extended(self, capacity: int) -> "RecurrentCache":
        """Returns itself: a state has no length."""
        return self

    def reorder(self, parents: keras.KerasTensor) -> "RecurrentCache":
        """Lets each hypothesis continue another one; see `DecodingCache.reorder`."""
        return self._replace(states=tuple(of_parents(state, parents) for state in self.states))


class _Cell:
    """A function `(inputs, states) -> (outputs, states)` as `keras.layers.RNN` takes a cell."""

    def __init__(self, step, width, states, compute_dtype):
        self.call = step
        self.state_size, self.output_size = [width] * states, width
        self.compute_dtype = compute_dtype

    def __call__(self, inputs, states):
        return self.call(inputs, states)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RecurrentTranslator(SequenceModel):
    """Encoder and decoder of GRU or LSTM cells, from ids to logits; called as `Transformer` is.

    Decoding and training call one function for a step, so that they cannot differ.

    References: Sutskever et al. 2014 (arXiv:1409.3215), without attention; Bahdanau et al. 2014
    (arXiv:1409.0473); Luong et al. 2015 (arXiv:1508.04025). Unlike theirs, embeddings and logits
    may share a table, and the output of a step is one layer with tanh, as in Luong's.

    Example:

    >>> model = RecurrentTranslator(RecurrentConfig(vocabulary_size=100, model_dim=32))
    >>> ids = keras.ops.ones((2, 7), dtype="int32")
    >>> tuple(model((ids, ids)).shape)
    (2, 7, 100)
    """

    config_class = RecurrentConfig
    config: RecurrentConfig

    def _make_layers(self):
        self._make_translation_tables()
        config, policy, width = self.config, self.dtype_policy, self.config.model_dim
        lstm = config.cell == "lstm"
        layer = keras.layers.LSTM if lstm else keras.layers.GRU
        self.encoder_layers = [
            keras.layers.Bidirectional(
                layer(width // 2, return_sequences=True, return_state=True, dtype=policy),
                dtype=policy,
                name=f"encoder_{number}",
            )
            for number in range(config.num_encoder_layers)
        ]
        cell = keras.layers.LSTMCell if lstm else keras.layers.GRUCell
        self.cells = [
            cell(width, dtype=policy, name=f"decoder_{number}")
            for number in range(config.num_decoder_layers)
        ]
        self._states_per_cell = 2 if lstm else 1
        self.start = keras.layers.Dense(
            width * self._states_per_cell * len(self.cells), "tanh", dtype=policy, name="start"
        )
        self.attention = None
        if config.score is not None:
            self.attention = Attention(config.score, width, dtype=policy, name="attention")
        self.output_layer = Projection("btd,du->btu", (None, width), dtype=policy, name="readout")
        self.dropout = self._dropout()

    def build(self, input_shape=None):
        if self.built:
            return
        config, width = self.config, self.config.model_dim
        self._build_for_width(self.source_embedding, self.target_embedding, self.output_projection)
        self._build_for_width(self.dropout)
        for layer in self.encoder_layers:
            layer.build((None, None, width))
        input_width = width  # The embedded token is always an input.
        if config.attention == "bahdanau":
            input_width += width
        if config.input_feeding:
            input_width += width
        for cell in self.cells:
            cell.build((None, input_width))
            input_width = width  # The next cell reads the output of this one.
            cell.output_shape = (None, width)  # Keras' cells compute none for `summary`.
        self.start.build((None, width))
        if self.attention is not None:
            self.attention.build((None, None, width), (None, None, width))
        self.output_layer.build((None, None, width * (1 + len(config.heads_of("cross")))))
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> keras.KerasTensor:
        source_ids, target_ids = self._sequences(inputs)
        states, memory = self._encode(source_ids, 1, training)
        outputs, _ = self._read(target_ids, states, memory, training)
        return self._logits(self.dropout(outputs, training=training))

    def call_with_attention(
        self, source_ids: keras.KerasTensor, target_ids: keras.KerasTensor
    ) -> tuple[keras.KerasTensor, tuple[keras.KerasTensor, ...]]:
        """Calls the model and keeps its attention of one head, `()` without attention."""
        states, memory = self._encode(source_ids, 1)
        outputs, attention = self._read(target_ids, states, memory)
        attention = () if self.attention is None else (ops.expand_dims(attention, 1),)
        return ops.cast(self._logits(outputs), "float32"), attention

    def _encode(self, source_ids, beams, training=None):
        """Computes the decoder's first states, `(batch, beams, model_dim)`, and its `Memory`."""
        mask = masks.padding_mask(source_ids)
        hidden, last = self.source_embedding(source_ids), ()
        for layer in self.encoder_layers:
            hidden = self.dropout(hidden, training=training)
            # Where the mask says False a state stays as it is: padding has no effect.
            hidden, *last = layer(hidden, mask=mask, training=training)
        # The hidden state of each direction: the first of an LSTM's two states.
        last = ops.concatenate(last[:: self._states_per_cell], axis=1)  # --> [batch, model_dim]
        count = self._states_per_cell * len(self.cells)
        states = ops.split(ops.expand_dims(self.start(last), 1), count, axis=2)
        if self.config.input_feeding:
            states.append(ops.zeros_like(states[0]))
        shape = (ops.shape(source_ids)[0], beams, self.config.model_dim)
        states = tuple(ops.broadcast_to(state, shape) for state in states)
        if self.attention is None:
            return states, ()
        return states, Memory(self.attention.project_key(hidden), hidden, ops.expand_dims(mask, 1))

    def _read(self, target_ids, states, memory, training=None):
        """Computes the output after each token, `(batch, target, model_dim)`, and attention."""
        embedded = self.dropout(self.target_embedding(target_ids), training=training)
        width = self.config.model_dim

        def step(embedded, states):  # embedded: [batch, model_dim]
            arguments = ops.expand_dims(embedded, 1), tuple(states), memory
            output, attention, states = self._step(*arguments)
            return ops.concatenate([output, attention], axis=2)[:, 0], list(states)

        # Keras' loop over time: `ops.scan` has no gradient in TensorFlow's XLA. The layer has no
        # weights, so that it can be made here and thrown away.
        cell = _Cell(step, width, len(states), self.compute_dtype)
        loop = keras.layers.RNN(cell, return_sequences=True, dtype=self.dtype_policy)
        outputs = loop(
            embedded, initial_state=list(states)
        )  # --> [batch, target, model_dim + source]
        return outputs[:, :, :width], outputs[:, :, width:]

    def _step(self, embedded, states, memory):
        """Reads one more token of each hypothesis: output, attention and states.

        Shapes are `(batch, beams, model_dim)`; the attention's shape is `(batch, beams, source)`,
        with a source of length 0 where the model has no attention.
        """
        config, inputs = self.config, [embedded]
        if config.input_feeding:
            *states, last_output = states
            inputs.append(last_output)
        weights = ops.zeros((*ops.shape(embedded)[:2], 0), self.compute_dtype)
        if config.attention == "bahdanau":
            context, weights = self._attend(states[-self._states_per_cell], memory)
            inputs.append(context)
        hidden, next_states = ops.concatenate(inputs, axis=2), []
        for number, cell in enumerate(self.cells):
            first = number * self._states_per_cell
            cell_states = states[first : first + self._states_per_cell]
            hidden, cell_states = self._apply_cell(cell, hidden, cell_states)
            next_states += cell_states
        if config.attention == "luong":
            context, weights = self._attend(hidden, memory)
        features = [hidden] if self.attention is None else [hidden, context]
        output = ops.tanh(self.output_layer(ops.concatenate(features, axis=2)))
        if config.input_feeding:
            next_states.append(output)
        return output, weights, tuple(next_states)

    def _attend(self, query, memory):
        return self.attention.attend(query, memory.key, memory.value, memory.mask)

    def _apply_cell(self, cell, inputs, states):
        """Applies a cell, which takes rows, to `(batch, beams, features)`."""
        shape = (*ops.shape(inputs)[:2], self.config.model_dim)
        rows = [ops.reshape(array, (-1, array.shape[2])) for array in (inputs, *states)]
        output, states = cell(rows[0], rows[1:])
        return ops.reshape(output, shape), [ops.reshape(state, shape) for state in states]

    def start_decoding(
        self,
        source_ids: keras.KerasTensor,
        max_length: int | keras.KerasTensor,
        num_beams: int = 1,
    ) -> RecurrentCache:
        """Encodes and makes the cache of the first `step`; see `DecodingModel.start_decoding`."""
        states, memory = self._encode(source_ids, num_beams)
        return RecurrentCache(states, memory)

    def step(
        self, ids: keras.KerasTensor, cache: RecurrentCache
    ) -> tuple[keras.KerasTensor, RecurrentCache]:
        """Scores the continuations of each hypothesis after one token, integer `(batch, beams)`."""
        width = self.config.model_dim

        def of_width(tensor):
            # Arrays from a compiled function may have lost the static size of an axis.
            return ops.reshape(tensor, (*ops.shape(tensor)[:2], width))

        memory = cache.memory
        if isinstance(memory, Memory):
            memory = memory._replace(key=of_width(memory.key), value=of_width(memory.value))
        states = tuple(map(of_width, cache.states))
        output, _, states = self._step(self.target_embedding(ids), states, memory)
        return ops.cast(self._logits(output), "float32"), cache._replace(states=states)
