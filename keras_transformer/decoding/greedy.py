"""Greedy search: the most probable token at each step."""

from keras import ops

from keras_transformer import masks
from keras_transformer.config import PAD_ID
from keras_transformer.decoding.hypotheses import IMPOSSIBLE, Hypotheses, length_penalty
from keras_transformer.selection import first_argmax


class Greedy:
    """Extends each sentence by its most probable token.

    Args:
        length_penalty: Exponent of the length penalty, which changes the score alone.
    """

    beams = 1

    def __init__(self, length_penalty=0.0):
        self.length_penalty = length_penalty

    def start(self, batch, capacity):
        return ()

    def pick(self, allowed, position):
        """The next token of each hypothesis, int32 `(batch, beams)`."""
        return first_argmax(allowed)

    def choose(self, state, logits, allowed, constraints):
        chosen = self.pick(allowed, state.position)
        # Where nothing is allowed, the hypothesis stays as it is, without an end.
        going = state.running & (_value_at(allowed, chosen) > IMPOSSIBLE / 2)
        gained = _value_at(logits, chosen) - ops.logsumexp(logits, axis=-1)
        chosen = ops.where(going, chosen, PAD_ID)
        position = state.position + 1
        limits = ops.expand_dims(constraints.max_lengths, 1)
        state = state._replace(
            position=position,
            newest=chosen,
            ids=_write(state.ids, chosen, state.position),
            token_log_probabilities=_write(
                state.token_log_probabilities, ops.where(going, gained, 0.0), state.position
            ),
            running=going & (chosen != constraints.end_id) & (position < limits),
        )
        return state, None

    def hypotheses(self, state, constraints):
        log_probabilities = ops.sum(state.token_log_probabilities, axis=2)
        lengths = ops.sum(ops.cast(masks.padding_mask(state.ids), "int32"), axis=2)
        scores = log_probabilities / length_penalty(lengths, self.length_penalty)
        return Hypotheses(state.ids, log_probabilities, scores, state.token_log_probabilities)


def _value_at(values, ids):
    return ops.take_along_axis(values, ops.expand_dims(ids, -1), axis=-1)[..., 0]


def _write(values, column, position):
    return ops.slice_update(values, (0, 0, position), ops.expand_dims(column, 2))
