"""Greedy and beam search as LiteRT runs them: two loops, one inside the other.

`WHILE` copies its whole state at each iteration, and most of the state would be the keys and values
of past tokens. So the inner loop takes `_BLOCK` steps in which the past is an invariant, which is
not copied. New keys and values go to a small recent part. The outer loop appends the recent part to
the past: it grows with the translation, and no size depends on the longest possible translation.

A step chooses tokens as `decoding`'s greedy and beam search do, without their options, in LiteRT's
operations. Gathers by sentence are one operation (`batch_dims`) that needs no size. Only a product
and a few reductions go over the vocabulary. `decoding`'s own strategies under `loop.advance` can be
converted too and give equal translations. But greedy search in int8 took 3.7 times as long with
them (192 sentences of Multi30k, 2.55 M parameters, two threads).
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.constraints import length_limits
from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.results import NEG_INF
from keras_transformer.decoding.selection import block_size
from keras_transformer.export.litert.mixers import search_mixer, write
from keras_transformer.export.litert.model import (
    HIDDEN,
    add,
    array,
    embed,
    encode,
    feed_forward,
    normalize,
    pre_norm,
    read_source,
    within_window,
)
from keras_transformer.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.layers.positions import position_table

_BLOCK = 8


class SearchState(NamedTuple):
    """State of the inner loop.

    Entries of the past and of the recent steps are those of `mixers.AttentionSteps`.
    """

    position: tf.Tensor  # int32 []: number of tokens written so far
    index: tf.Tensor  # int32 []: number of steps of this block
    choice: dict[str, tf.Tensor]  # state of the strategy
    mixed: list[Any]  # for each decoder block the state of its mixer that a step changes
    recent_bias: tf.Tensor  # [batch, beams, recent entries]: hides other hypotheses' entries
    past_bias: tf.Tensor  # [batch, beams, past entries]


class LiteRTSearch:
    """Search from ids to hypotheses, with the weights of a `Transformer` as constants.

    Args:
        model: `Transformer` with float32 weights.
        options: The search uses `beam_size`, `n_best`, `length_penalty`, `length_normalization`,
            `word_penalty`, `early_stopping`, `max_length`, `max_length_ratio`, `banned_ids` and
            `allow_unknown`, and ignores the other options.
        source_length: Maximum number of columns of the source ids of any search in the file.
    """

    def __init__(self, model, options: DecodingOptions, source_length: int):
        self.model, self.options = model, options
        unknown = () if options.allow_unknown else (UNK_ID,)
        self.forbidden_ids = [PAD_ID, BOS_ID, *unknown, *options.banned_ids]
        table, projection = array(model.target_embedding.embeddings), model.output_projection
        if projection is not None:
            table = np.ascontiguousarray(array(projection.kernel).T)
        self.output_matrix = table  # [vocabulary, model_dim]
        # Both sides have the same number of rows, so that equal sinusoidal tables are stored once.
        sizes = max(source_length, options.max_length), model.config.model_dim
        self.source_positions = position_table(model.source_positions, *sizes)
        self.target_positions = position_table(model.target_positions, *sizes)

    def __call__(self, source_ids):
        """Searches; `source_ids` int32 `(batch, source)`, padded with 0."""
        source = encode(self.model, source_ids, self.source_positions)
        lengths = tf.reduce_sum(tf.cast(source_ids != PAD_ID, tf.int32), axis=1)
        options = self.options
        bounds = options.max_length_ratio, options.length_margin, options.max_length
        limits = tf.expand_dims(length_limits(lengths, *bounds), 1)
        strategy = (LiteRTGreedy if options.beam_size == 1 else LiteRTBeam)(options, limits)
        return strategy.result(self._loop(strategy, source))

    def _loop(self, strategy, source):
        """Runs the outer loop: blocks of steps, with a past that each block makes longer."""
        beams, limits = self.options.beam_size, strategy.limits
        # The batch's size comes from an input: sizes computed from shapes would be dynamic.
        zero = tf.cast(tf.minimum(limits, 0), tf.float32)  # --> [batch, 1]
        hidden = tf.expand_dims(zero, 2) + tf.fill((1, beams, _BLOCK * beams), HIDDEN)
        mixers = [
            search_mixer(block.token_mixer, zero, beams, _BLOCK)
            for block in self.model.decoder.blocks
        ]
        pasts, past_shapes = zip(*(mixer.start() for mixer in mixers), strict=True)
        state = tf.zeros((), tf.int32), strategy.begin(zero), list(pasts), hidden[:, :, :beams]

        def unfinished(position, choice, *_):
            return tf.reduce_any(choice["running"]) & (position < self.options.max_length)

        def block(position, choice, pasts, past_bias):
            mixed = [mixer.begin_block(past) for mixer, past in zip(mixers, pasts, strict=True)]
            inner = SearchState(position, tf.zeros((), tf.int32), choice, mixed, hidden, past_bias)
            inner = tf.while_loop(
                lambda position, index, choice, *_: unfinished(position, choice) & (index < _BLOCK),
                lambda *fields: tuple(
                    self._advance(strategy, mixers, pasts, source, SearchState(*fields))
                ),
                tuple(inner),
                parallel_iterations=1,
            )
            inner = SearchState(*inner)
            ends = zip(mixers, pasts, inner.mixed, strict=True)
            pasts = [mixer.end_block(past, mixed) for mixer, past, mixed in ends]
            past_bias = tf.concat([inner.past_bias, inner.recent_bias], axis=2)
            return inner.position, inner.choice, pasts, past_bias

        shapes = tf.nest.map_structure(lambda tensor: tensor.shape, state[:2])
        bias_shape = tf.TensorShape((limits.shape[0], beams, None))
        return tf.while_loop(
            unfinished,
            block,
            state,
            shape_invariants=(*shapes, list(past_shapes), bias_shape),
            parallel_iterations=1,
        )[1]

    def _advance(self, strategy, mixers, pasts, source, state: SearchState) -> SearchState:
        """Runs the body of the inner loop: one step of all blocks, and the choice of tokens."""
        beams, position = self.options.beam_size, state.position
        rows = embed(self.model.target_embedding, state.choice["newest"])
        # --> [batch * beams, model_dim]
        rows = rows + tf.gather(self.target_positions, tf.reshape(position, (1,)))
        slot = state.index * beams
        recent_bias = self._with_newest(state.recent_bias, slot)
        bias = self._within_window(state, recent_bias)
        all_keys_values, source_bias = source
        mixed = []
        for block, mixer, past, mixer_state, keys_values in zip(
            self.model.decoder.blocks, mixers, pasts, state.mixed, all_keys_values, strict=True
        ):
            norm = block.token_mixer_norm
            outputs, mixer_state = mixer.step(
                pre_norm(block, norm, rows), past, mixer_state, slot, bias
            )
            mixed.append(mixer_state)
            rows = add(block, norm, rows, outputs)
            rows = read_source(block, rows, beams, keys_values, source_bias)
            rows = feed_forward(block, rows)
        choice, parents = strategy.choose(position, state.choice, *self._logits(rows))
        past_bias = state.past_bias
        if parents is not None:
            recent_bias, past_bias = (
                tf.gather(bias, parents, batch_dims=1) for bias in (recent_bias, past_bias)
            )
            mixed = [mixer.reorder(x, parents) for mixer, x in zip(mixers, mixed, strict=True)]
        return SearchState(position + 1, state.index + 1, choice, mixed, recent_bias, past_bias)

    def _with_newest(self, recent_bias, slot):
        """Lets each hypothesis see its own entry of a step, which is written at `slot`."""
        beams = self.options.beam_size
        bias = np.where(np.eye(beams, dtype=bool), 0.0, HIDDEN).astype("float32")[None]
        # Gives it the batch's size: every value of `recent_bias` is at least HIDDEN.
        bias = tf.maximum(tf.minimum(recent_bias[:, :, :beams], HIDDEN), bias)
        return write(recent_bias, bias, (0, 0, slot))

    def _within_window(self, state, recent_bias):
        """Returns the biases of the recent steps and of the past, `(batch, 1, beams, entries)`."""
        beams, config = self.options.beam_size, self.model.config
        # The step of each entry; the past begins with a hidden step.
        recent_steps = state.position - state.index + tf.range(_BLOCK * beams) // beams
        past_steps = tf.range(tf.shape(state.past_bias)[2]) // beams - 1
        query_step = tf.reshape(state.position, (1,))
        return [
            tf.expand_dims(within_window(config, bias, query_step, entry_steps), 1)
            for bias, entry_steps in ((recent_bias, recent_steps), (state.past_bias, past_steps))
        ]

    def _logits(self, rows):
        """Returns logits of allowed ids, and of forbidden ids, which count in the softmax's sum."""
        if self.model.config.normalize_first:
            rows = normalize(self.model.decoder.final_norm, rows)
        # The converter would multiply the last normalization into the output matrix. The file would
        # then hold this matrix in addition to the table of embeddings. `maximum` prevents it.
        rows = tf.maximum(rows, -3e38)
        forbidden_ids, output_bias = self.forbidden_ids, self.model.output_bias
        output_bias = (
            np.zeros(len(self.output_matrix), "float32")
            if output_bias is None
            else array(output_bias)
        )
        bias = output_bias.copy()
        bias[forbidden_ids] = HIDDEN
        allowed_logits = tf.matmul(rows, tf.constant(self.output_matrix), transpose_b=True) + bias
        forbidden_logits = tf.matmul(
            rows, tf.constant(self.output_matrix[forbidden_ids]), transpose_b=True
        )
        return allowed_logits, forbidden_logits + output_bias[forbidden_ids]


class LiteRTGreedy:
    """Greedy search: takes the most probable token at each step.

    Both strategies have three methods. `begin` returns the first state, a dict with `newest` and
    `running`. `choose` returns the next state and the hypothesis that each hypothesis continues.
    `result` returns the hypotheses. `limits`, int32 `(batch, 1)`, are the maximum numbers of
    tokens of the translations.
    """

    def __init__(self, options, limits):
        self.options, self.limits = options, limits

    def begin(self, zero):
        zeros = tf.cast(zero, tf.int32)
        return {
            "newest": zeros + BOS_ID,
            "running": self.limits > 0,
            "ids": tf.expand_dims(zeros, 2) + tf.zeros((1, 1, self.options.max_length), tf.int32),
            "total": zero,
            "length": zeros,
        }

    def choose(self, position, state, logits, forbidden_logits):
        tokens = tf.argmax(logits, axis=-1, output_type=tf.int32)[:, None]  # --> [batch, 1]
        largest = tf.reduce_max(logits, axis=-1, keepdims=True)
        step_log_probability = tf.where(
            state["running"], largest - _log_sum(logits, forbidden_logits, largest), 0.0
        )
        tokens = tf.where(state["running"], tokens, PAD_ID)
        return {
            "newest": tokens,
            "running": state["running"] & (tokens != EOS_ID) & (position + 1 < self.limits),
            "ids": write(state["ids"], tf.expand_dims(tokens, 2), (0, 0, position)),
            "total": state["total"] + step_log_probability,
            "length": state["length"] + tf.cast(state["running"], tf.int32),
        }, None

    def result(self, state):
        score = self.options.ranking.score(state["total"], state["length"])
        return {
            "ids": state["ids"][:, 0],
            "score": score[:, 0],
            "log_probability": state["total"][:, 0],
        }


class Extensions(NamedTuple):
    """Live hypotheses with one more token, best first, tensors `[batch, count]`."""

    tokens: tf.Tensor  # int32
    parents: tf.Tensor  # int32: the extended hypotheses of the sentence
    totals: tf.Tensor  # float32: log-probabilities; NEG_INF = no extension

    @property
    def exist(self):
        return self.totals > NEG_INF / 2


class LiteRTBeam:
    """Beam search as in `decoding.beam.Beam`: live hypotheses, and a list of finished ones."""

    def __init__(self, options, limits):
        self.options, self.limits, self.ranking = options, limits, options.ranking

    def begin(self, zero):
        beams = self.options.beam_size
        zeros = tf.cast(zero, tf.int32) + tf.zeros((1, beams), tf.int32)
        empty = tf.expand_dims(zeros, 2) + tf.zeros((1, 1, self.options.max_length), tf.int32)
        return {
            "newest": zeros + BOS_ID,
            "running": self.limits > 0,
            "ids": empty,
            # All hypotheses begin alike: only the first may be extended.
            "live_totals": zero + np.array([[0.0] + [NEG_INF] * (beams - 1)], "float32"),
            "finished_ids": empty,
            "finished_totals": tf.cast(zeros, tf.float32),
            "finished_scores": tf.cast(zeros, tf.float32) + NEG_INF,
        }

    def choose(self, position, state, logits, forbidden_logits):
        running, length = state["running"], position + 1
        extensions = self._extend(state, logits, forbidden_logits)  # --> [batch, 2 * beams]
        finished = self._collect_finished(position, state, extensions)
        live = self._continue(extensions)  # --> [batch, beams]
        can_win = self._can_win(live.totals, finished["finished_scores"], length)  # --> [batch]
        # Ended sentences stay as they were.
        unmoved = np.arange(self.options.beam_size, dtype="int32")[None]
        parents = tf.where(running, live.parents, unmoved)
        tokens = tf.where(running, live.tokens, PAD_ID)
        return {
            "newest": tokens,
            "running": running & (length < self.limits) & tf.expand_dims(can_win, 1),
            "ids": _extended(state["ids"], parents, tokens, position),
            "live_totals": tf.where(running, live.totals, state["live_totals"]),
            **finished,
        }, parents

    def _extend(self, state, logits, forbidden_logits) -> Extensions:
        """Returns the best extensions of each sentence that have a place, `[batch, 2 * beams]`."""
        beams = self.options.beam_size
        best = self._extensions(logits, forbidden_logits, state["live_totals"])
        has_ended = tf.cast(state["finished_scores"] > NEG_INF / 2, tf.int32)
        num_finished = tf.reduce_sum(has_ended, axis=1, keepdims=True)
        num_places = self.ranking.num_places(beams, num_finished)
        has_place = np.arange(2 * beams, dtype="int32")[None] < num_places
        return best._replace(totals=tf.where(has_place, best.totals, NEG_INF))

    def _collect_finished(self, position, state, extensions):
        """Returns the finished hypotheses including new ones, `[batch, beams, …]`."""
        beams = self.options.beam_size
        # An end counts if it is among the best `beams`.
        ends_now = state["running"] & extensions.exist & (extensions.tokens == EOS_ID)
        tokens, parents, totals = (values[:, :beams] for values in extensions)
        ids = _extended(state["ids"], parents, tokens, position)
        scores = self.ranking.score(totals, position + 1)
        scores = tf.where(ends_now[:, :beams], scores, NEG_INF)
        finished_scores, finished_ids, finished_totals = _best_of(
            tf.concat([state["finished_scores"], scores], axis=1),
            beams,
            tf.concat([state["finished_ids"], ids], axis=1),
            tf.concat([state["finished_totals"], totals], axis=1),
        )
        return {
            "finished_ids": finished_ids,
            "finished_totals": finished_totals,
            "finished_scores": finished_scores,
        }

    def _continue(self, extensions) -> Extensions:
        """Returns the first extensions that do not end, in their order, `[batch, beams]`."""
        beams = self.options.beam_size
        is_live = extensions.exist & (extensions.tokens != EOS_ID)
        order = tf.cast(is_live, tf.float32) * (4.0 * beams)
        order -= np.arange(2 * beams, dtype="float32")
        _, indices = tf.math.top_k(order, beams)  # --> [batch, beams]
        live = Extensions(*(_pick(values, indices) for values in extensions))
        return live._replace(totals=tf.where(_pick(is_live, indices), live.totals, NEG_INF))

    def _can_win(self, live_totals, finished_scores, length):
        """Returns whether a live hypothesis can still become a result, bool `[batch]`."""
        best = tf.reduce_max(live_totals, axis=1)
        best_possible = self.ranking.best_possible(best, length + 1, self.limits[:, 0])
        best_possible = tf.where(best > NEG_INF / 2, best_possible, NEG_INF)
        can_win = best_possible > finished_scores[:, self.options.n_best - 1]
        if self.options.early_stopping:  # A place for a finished one is empty.
            can_win &= finished_scores[:, -1] < NEG_INF / 2
        return can_win

    def _extensions(self, logits, forbidden_logits, totals):
        """Returns the `2 · beams` best extensions of each sentence."""
        beams = self.options.beam_size
        # `TOPK_V2` is slow on long rows: it gets only the blocks with the largest maxima.
        blocks = _blocks(logits, beams)  # --> [batch, beams * number, size]
        size, number = blocks.shape[2], blocks.shape[1] // beams
        maxima = tf.reduce_max(blocks, axis=2)
        largest = tf.reduce_max(tf.reshape(maxima, (-1, number)), axis=1, keepdims=True)
        offsets = totals - tf.reshape(_log_sum(logits, forbidden_logits, largest), (-1, beams))
        maxima = tf.reshape(maxima, (-1, beams, number)) + tf.expand_dims(offsets, 2)
        maxima = tf.reshape(maxima, (-1, beams * number))
        _, block_indices = tf.math.top_k(maxima, min(2, number) * beams)
        # Sorted by index, so that the first of equal values wins.
        block_indices = -tf.math.top_k(-block_indices, block_indices.shape[1])[0]
        values = _pick(blocks, block_indices) + tf.expand_dims(
            _pick(offsets, block_indices // number), 2
        )
        values = tf.reshape(values, (-1, block_indices.shape[1] * size))
        values, indices = tf.math.top_k(values, 2 * beams)  # --> [batch, 2 * beams]
        block_indices = _pick(block_indices, indices // size)
        tokens = block_indices % number * size + indices % size
        return Extensions(tokens, block_indices // number, tf.maximum(values, NEG_INF))

    def result(self, state):
        beams, count = self.options.beam_size, self.options.n_best
        lengths = tf.reduce_sum(tf.cast(state["ids"] != PAD_ID, tf.int32), axis=2)
        live_totals = state["live_totals"]
        scores = self.ranking.score(live_totals, lengths)
        scores = tf.where(live_totals > NEG_INF / 2, scores, NEG_INF)
        scores, ids, totals, lengths = _best_of(scores, beams, state["ids"], live_totals, lengths)
        # Finished hypotheses first, then live ones, then empty places; except where the limit is an
        # end.
        ends = self.ranking.ends_at_limit & (lengths >= self.limits)
        rank = tf.where(ends, scores, NEG_INF / 2)
        rank = tf.concat([state["finished_scores"], rank], axis=1)  # --> [batch, 2 * beams]
        _, order = tf.math.top_k(rank, count)
        scores = _pick(tf.concat([state["finished_scores"], scores], axis=1), order)
        exists = scores > NEG_INF / 2
        ids = _pick(tf.concat([state["finished_ids"], ids], axis=1), order)
        totals = _pick(tf.concat([state["finished_totals"], totals], axis=1), order)
        return {
            "ids": tf.where(tf.expand_dims(exists, 2), ids, PAD_ID),
            "score": tf.where(exists, scores, -np.inf),
            "log_probability": tf.where(exists, totals, 0.0),
        }


def _blocks(logits, rows):
    """Cuts logits into blocks; the blocks of the `rows` of a sentence follow one another."""
    length = logits.shape[1]
    size = block_size(length)
    padding = -length % size
    if padding:
        # Lower than any logit with any total: never chosen.
        logits = tf.pad(logits, ((0, 0), (0, padding)), constant_values=-3e38)
    return tf.reshape(logits, (-1, rows * (length + padding) // size, size))


def _pick(values, indices):
    """`values[b, indices[b, i]]`."""
    return tf.gather(values, indices, batch_dims=1, axis=1)


def _extended(ids, parents, tokens, position):
    return write(_pick(ids, parents), tf.expand_dims(tokens, 2), (0, 0, position))


def _best_of(scores, count, *tensors):
    """Returns the largest `count` scores, and the entries of `tensors` at their indices."""
    scores, indices = tf.math.top_k(scores, count)
    return (scores, *(_pick(tensor, indices) for tensor in tensors))


def _log_sum(logits, forbidden_logits, largest):
    allowed_sum = tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True)
    # Bounded: forbidden ids may be more probable than all allowed ids, but exp must not overflow.
    forbidden_logits = tf.reduce_sum(
        tf.exp(tf.minimum(forbidden_logits - largest, 80.0)), axis=-1, keepdims=True
    )
    return largest + tf.math.log(allowed_sum + forbidden_logits)
