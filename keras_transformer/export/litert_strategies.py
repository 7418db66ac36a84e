"""Greedy and beam search in LiteRT's operations: what a step chooses from its logits.

The same choices as `decoding.Greedy` and `decoding.Beam` make, without their options: gathers by
sentence are one operation (`batch_dims`) that needs no size, and nothing but a product and a few
reductions goes over the vocabulary.

A strategy has `begin(zero)`, its first state, a dict with `newest` and `running` in it;
`choose(position, state, logits, others)`, the next one and the hypothesis that each one continues;
and `result(state)`, what was found.
"""

from typing import NamedTuple

import numpy as np

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.decoding.results import IMPOSSIBLE


class Options(NamedTuple):
    """What is fixed in a search.

    Attributes:
        beam_size: Hypotheses that stay alive; 1 is greedy search.
        length_penalty: Exponent of the length penalty.
        n_best: Hypotheses to return.
        room: Most tokens of a translation.
        ratio: Most tokens as a multiple of the source's, and `extra` more.
        extra: See `ratio`.
        end_id: Id that ends a hypothesis.
        forbidden_ids: Ids that are never chosen.
    """

    beam_size: int
    length_penalty: float
    n_best: int
    room: int
    ratio: float = 2.0
    extra: int = 10
    end_id: int = EOS_ID
    forbidden_ids: tuple = (PAD_ID, BOS_ID)


class Greedy:
    """The most probable token at each step, as `decoding.Greedy` finds it.

    Args:
        options: `Options`.
        limits: Int32 `(batch, 1)`, most tokens of each translation.
    """

    def __init__(self, options, limits):
        self.options, self.limits = options, limits

    def begin(self, zero):
        import tensorflow as tf

        zeros = tf.cast(zero, tf.int32)
        return {
            "newest": zeros + BOS_ID,
            "running": self.limits > 0,
            "ids": tf.expand_dims(zeros, 2) + tf.zeros((1, 1, self.options.room), tf.int32),
            "total": zero,
            "length": zeros,
        }

    def choose(self, position, state, logits, others):
        import tensorflow as tf

        chosen = tf.argmax(logits, axis=-1, output_type=tf.int32)[:, None]
        largest = tf.reduce_max(logits, axis=-1, keepdims=True)
        gained = tf.where(state["running"], largest - _log_sum(logits, others, largest), 0.0)
        chosen = tf.where(state["running"], chosen, PAD_ID)
        length = state["length"] + tf.cast(state["running"], tf.int32)
        running = state["running"] & (chosen != self.options.end_id) & (position + 1 < self.limits)
        ids = write(state["ids"], tf.expand_dims(chosen, 2), (0, 0, position))
        return {
            "newest": chosen,
            "running": running,
            "ids": ids,
            "total": state["total"] + gained,
            "length": length,
        }, None

    def result(self, state):
        penalty = _length_penalty(state["length"], self.options.length_penalty)
        return {
            "ids": state["ids"][:, 0],
            "score": (state["total"] / penalty)[:, 0],
            "log_probability": state["total"][:, 0],
        }


class Beam:
    """The search of `decoding.Beam`: a list of finished hypotheses beside those alive.

    Args:
        options: `Options`.
        limits: Int32 `(batch, 1)`, most tokens of each translation.
    """

    def __init__(self, options, limits):
        self.options, self.limits = options, limits

    def begin(self, zero):
        import tensorflow as tf

        beams, room = self.options.beam_size, self.options.room
        zeros = tf.cast(zero, tf.int32) + tf.zeros((1, beams), tf.int32)
        empty = tf.expand_dims(zeros, 2) + tf.zeros((1, 1, room), tf.int32)
        # All hypotheses begin alike: only the first may be extended.
        totals = zero + np.array([[0.0] + [IMPOSSIBLE] * (beams - 1)], "float32")
        return {
            "newest": zeros + BOS_ID,
            "running": self.limits > 0,
            "ids": empty,
            "totals": totals,
            "finished_ids": empty,
            "finished_totals": tf.cast(zeros, tf.float32),
            "finished_scores": tf.cast(zeros, tf.float32) + IMPOSSIBLE,
        }

    def choose(self, position, state, logits, others):
        import tensorflow as tf

        beams = self.options.beam_size
        running = state["running"]
        tokens, parents, totals = self._extensions(logits, others, state["totals"])
        exists = totals > IMPOSSIBLE / 2
        is_end = tokens == self.options.end_id
        length = position + 1
        penalty = _length_penalty(length, self.options.length_penalty)

        # An end counts if it is among the best `beams`.
        ended = running & exists[:, :beams] & is_end[:, :beams]
        ids = self._extended(state["ids"], parents[:, :beams], tokens[:, :beams], position)
        finished = _best_of(
            tf.concat(
                [
                    state["finished_scores"],
                    tf.where(ended, totals[:, :beams] / penalty, IMPOSSIBLE),
                ],
                1,
            ),
            beams,
            tf.concat([state["finished_ids"], ids], axis=1),
            tf.concat([state["finished_totals"], totals[:, :beams]], axis=1),
        )
        # What goes on: the first `beams` that do not end, in their order.
        going_on = exists & ~is_end
        rank = tf.cast(going_on, tf.float32) * (4.0 * beams) - np.arange(2 * beams, dtype="float32")
        _, kept = tf.math.top_k(rank, beams)
        alive = tf.where(_pick(going_on, kept), _pick(totals, kept), IMPOSSIBLE)
        parents, tokens = _pick(parents, kept), _pick(tokens, kept)
        limit_penalty = _length_penalty(self.limits[:, 0], self.options.length_penalty)
        best = tf.reduce_max(alive, axis=1)
        possible = tf.where(best > IMPOSSIBLE / 2, best / limit_penalty, IMPOSSIBLE)
        can_win = possible > finished[0][:, self.options.n_best - 1]
        # What has ended stays as it was.
        parents = tf.where(running, parents, np.arange(beams, dtype="int32")[None])
        tokens = tf.where(running, tokens, PAD_ID)
        return {
            "newest": tokens,
            "running": running & (length < self.limits) & tf.expand_dims(can_win, 1),
            "ids": self._extended(state["ids"], parents, tokens, position),
            "totals": tf.where(running, alive, state["totals"]),
            "finished_ids": finished[1],
            "finished_totals": finished[2],
            "finished_scores": finished[0],
        }, parents

    def _extensions(self, logits, others, totals):
        """Tokens, parents and totals of the `2 · beams` best extensions, best first."""
        import tensorflow as tf

        beams, count = self.options.beam_size, 2 * self.options.beam_size
        of_each = min(count, logits.shape[1])  # A small vocabulary has fewer.
        values, tokens = tf.math.top_k(logits, of_each)  # --> [batch * beams, of_each]
        log_sums = _log_sum(logits, others, values[:, :1])
        offsets = totals - tf.reshape(log_sums, (-1, beams))
        values = tf.reshape(values, (-1, beams, of_each)) + tf.expand_dims(offsets, 2)
        values, places = tf.math.top_k(tf.reshape(values, (-1, beams * of_each)), count)
        tokens = _pick(tf.reshape(tokens, (-1, beams * of_each)), places)
        return tokens, places // of_each, tf.maximum(values, IMPOSSIBLE)

    @staticmethod
    def _extended(ids, parents, tokens, position):
        import tensorflow as tf

        return write(_pick(ids, parents), tf.expand_dims(tokens, 2), (0, 0, position))

    def result(self, state):
        import tensorflow as tf

        beams, count = self.options.beam_size, self.options.n_best
        lengths = tf.reduce_sum(tf.cast(state["ids"] != PAD_ID, tf.int32), axis=2)
        scores = state["totals"] / _length_penalty(lengths, self.options.length_penalty)
        scores = tf.where(state["totals"] > IMPOSSIBLE / 2, scores, IMPOSSIBLE)
        scores, ids, totals = _best_of(scores, beams, state["ids"], state["totals"])
        # What ended first, then what did not, then the empty places.
        behind = tf.zeros_like(scores) + IMPOSSIBLE / 2
        rank, order = tf.math.top_k(tf.concat([state["finished_scores"], behind], axis=1), count)
        scores = _pick(tf.concat([state["finished_scores"], scores], axis=1), order)
        exists = scores > IMPOSSIBLE / 2
        ids = _pick(tf.concat([state["finished_ids"], ids], axis=1), order)
        totals = _pick(tf.concat([state["finished_totals"], totals], axis=1), order)
        return {
            "ids": tf.where(tf.expand_dims(exists, 2), ids, PAD_ID),
            "score": tf.where(exists, scores, -np.inf),
            "log_probability": tf.where(exists, totals, 0.0),
        }


def _pick(values, places):
    """`values[b, places[b, i]]`."""
    import tensorflow as tf

    return tf.gather(values, places, batch_dims=1, axis=1)


def _best_of(scores, count, *others):
    """The largest scores, and what belongs to them."""
    import tensorflow as tf

    scores, places = tf.math.top_k(scores, count)
    return (scores, *(_pick(each, places) for each in others))


def _log_sum(logits, others, largest):
    import tensorflow as tf

    total = tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True)
    # Bounded: what is forbidden may be more probable than all that is allowed, but exp must not
    # overflow.
    others = tf.reduce_sum(tf.exp(tf.minimum(others - largest, 80.0)), axis=-1, keepdims=True)
    return largest + tf.math.log(total + others)


def _length_penalty(length, exponent):
    import tensorflow as tf

    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** exponent


def write(values, new, start):
    """`values` with `new` written from `start` on."""
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla

    return xla.dynamic_update_slice(values, new, tf.stack(list(start)))
