"""Greedy and beam search as LiteRT runs them: two loops, one inside the other.

`WHILE` copies its whole state at each iteration, and most of the state would be the keys and values
of past tokens. So the inner loop takes `_BLOCK_STEPS` steps in which the past is an invariant,
which is not copied. New keys and values go to a small recent part. The outer loop appends the
recent part to the past: it grows with the translation, and no size depends on the longest possible
translation.

A step chooses tokens as `decoding`'s greedy and beam search do, without their options, in LiteRT's
operations. Gathers by sentence are one operation (`batch_dims`) that needs no size. Only a product
and a few reductions go over the vocabulary. `decoding`'s own strategies under `loop.advance` can be
converted too and give equal translations. But greedy search in int8 took 3.7 times as long with
them (192 sentences of Multi30k, 2.55 M parameters, two threads).
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.base.impossible import HIDDEN, NEG_INF
from keras_transformer.decoding.beam import BeamRules, Extensions, Finished
from keras_transformer.decoding.constraints import length_limits
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.decoding.selection import block_size
from keras_transformer.export.litert.matrices import Matrix
from keras_transformer.export.litert.mixers import search_mixer, write
from keras_transformer.export.litert.model import (
    add,
    as_float32,
    captured,
    embed,
    encode,
    feed_forward,
    normalize,
    pre_norm,
    read_source,
    row_matrix,
    within_window,
)
from keras_transformer.layers.positions import position_table

_BLOCK_STEPS = 8
_LOWEST = tf.float32.min / 2  # Half, because its sum with a score is finite.


class BlockState(NamedTuple):
    """State of the outer loop, between two blocks of steps.

    `mixers.AttentionSteps` explains the entries of the past and of the recent steps.
    """

    position: tf.Tensor  # int32 []: number of tokens written so far
    choice: Any  # `GreedyState` or `BeamState`
    pasts: list[Any]  # for each decoder block the past of its mixer
    past_bias: tf.Tensor  # [batch, beams, past entries]: hides other hypotheses' entries


class StepState(NamedTuple):
    """State of the inner loop, for which the pasts are constants."""

    position: tf.Tensor
    index: tf.Tensor  # int32 []: number of steps of this block
    choice: Any
    mixed: list[Any]  # for each decoder block the state of its mixer that a step changes
    recent_bias: tf.Tensor  # [batch, beams, recent entries], like `past_bias`
    past_bias: tf.Tensor


class LiteRTSearch:
    """Search from ids to hypotheses, with the weights of a `Transformer` as constants.

    Args:
        model: `Transformer` with float32 weights.
        options: The search uses `beam_size`, `n_best`, `length_penalty`, `length_normalization`,
            `word_penalty`, `early_stopping`, `max_length`, `max_length_ratio`, `banned_ids` and
            `allow_unknown`, and ignores the other options. With `shortlist` a call also takes the
            candidates of a batch.
        source_length: Maximum number of columns of the source ids of any search in the file.
        is_forced: Whether a call takes `forced_ids`.
    """

    def __init__(
        self, model, options: DecodingOptions, source_length: int, is_forced: bool = False
    ):
        self.model, self.options = model, options
        unknown = () if options.allow_unknown else (UNK_ID,)
        self.forbidden_ids = [PAD_ID, BOS_ID, *unknown, *options.banned_ids]
        self.output_matrix = output_matrix(model)  # [vocabulary, model_dim]
        self.forbidden_matrix = self.output_matrix.rows_at(self.forbidden_ids)
        self.output_bias = np.zeros(self.output_matrix.shape[0], "float32")
        if model.output_bias is not None:
            self.output_bias = as_float32(model.output_bias)
        self.bias = self.output_bias.copy()
        self.bias[self.forbidden_ids] = HIDDEN
        # Both sides have the same number of rows, so that equal sinusoidal tables are stored once.
        # A forced token has a position, too.
        sizes = max(source_length, options.max_length + is_forced), model.config.model_dim
        self.source_positions = position_table(model.source_positions, *sizes)
        self.target_positions = position_table(model.target_positions, *sizes)

    def __call__(self, source_ids, candidates=None, candidate_bias=None, forced_ids=None):
        """Searches.

        Args:
            source_ids: Int32 `(batch, source)`, padded with 0.
            candidates: Int32 `(count,)`: ids that a sentence of the batch may choose.
            candidate_bias: Float32 `(batch, count)`: 0 for the candidates of a sentence, -1e9 for
                candidates of other sentences.
            forced_ids: Int32 `(batch,)`: ids that the decoder reads after BOS, before a
                translation.
        """
        source = encode(self.model, source_ids, self.source_positions)
        lengths = tf.reduce_sum(tf.cast(source_ids != PAD_ID, tf.int32), axis=1)
        options = self.options
        bounds = options.max_length_ratio, options.length_margin, options.max_length
        limits = tf.expand_dims(length_limits(lengths, *bounds), 1)
        tokens, logits = AllTokens(), self._logits_of_all
        if candidates is not None:
            bias = tf.gather(candidate_bias, _sentences(limits, options.beam_size))
            tokens, logits = CandidateTokens(candidates), self._logits_of(candidates, bias)
        strategy = (LiteRTGreedy if options.beam_size == 1 else LiteRTBeam)(options, limits, tokens)
        if forced_ids is not None:
            strategy = AfterForced(strategy, forced_ids)
        return strategy.result(self._loop(strategy, logits, source))

    def _loop(self, strategy, logits, source):
        """Runs the outer loop: blocks of steps, with a past that each block makes longer."""
        beams, limits = self.options.beam_size, strategy.limits
        # The batch's size comes from an input: sizes computed from shapes would be dynamic.
        zero = tf.cast(tf.minimum(limits, 0), tf.float32)  # --> [batch, 1]
        hidden = tf.expand_dims(zero, 2) + tf.fill((1, beams, _BLOCK_STEPS * beams), HIDDEN)
        mixers = [
            search_mixer(block.token_mixer, zero, beams, _BLOCK_STEPS)
            for block in self.model.decoder.blocks
        ]
        pasts, past_shapes = zip(*(mixer.start() for mixer in mixers), strict=True)
        choice, past_bias = strategy.begin(zero), hidden[:, :, :beams]
        state = BlockState(tf.zeros((), tf.int32), choice, list(pasts), past_bias)

        def unfinished(state):
            return tf.reduce_any(state.choice.running) & (state.position < strategy.num_steps)

        def block(outer):
            first, pasts = tf.zeros((), tf.int32), outer.pasts
            mixed = [mixer.begin_block(past) for mixer, past in zip(mixers, pasts, strict=True)]
            start = StepState(outer.position, first, outer.choice, mixed, hidden, outer.past_bias)
            inner = _while(
                lambda inner: unfinished(inner) & (inner.index < _BLOCK_STEPS),
                lambda inner: self._advance(strategy, logits, mixers, pasts, source, inner),
                start,
            )
            ends = zip(mixers, pasts, inner.mixed, strict=True)
            next_pasts = [mixer.end_block(past, mixed) for mixer, past, mixed in ends]
            past_bias = tf.concat([inner.past_bias, inner.recent_bias], axis=2)
            return BlockState(inner.position, inner.choice, next_pasts, past_bias)

        shapes = BlockState(
            state.position.shape,
            tf.nest.map_structure(lambda tensor: tensor.shape, choice),
            list(past_shapes),
            tf.TensorShape((limits.shape[0], beams, None)),
        )
        return _while(unfinished, block, state, shapes).choice

    def _advance(self, strategy, logits, mixers, pasts, source, state: StepState) -> StepState:
        """Runs the body of the inner loop: one step of all blocks, and the choice of tokens."""
        beams, position = self.options.beam_size, state.position
        rows = embed(self.model.target_embedding, state.choice.newest)
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
        rows = self._final_rows(rows)
        forbidden_logits = self._logits_of_forbidden(rows)
        choice, parents = strategy.choose(position, state.choice, logits(rows), forbidden_logits)
        past_bias = state.past_bias
        if parents is not None:
            recent_bias, past_bias = (
                tf.gather(bias, parents, batch_dims=1) for bias in (recent_bias, past_bias)
            )
            mixed = [mixer.reorder(x, parents) for mixer, x in zip(mixers, mixed, strict=True)]
        return StepState(position + 1, state.index + 1, choice, mixed, recent_bias, past_bias)

    def _with_newest(self, recent_bias, slot):
        """Lets each hypothesis see its own entry of a step, which is written at `slot`."""
        beams = self.options.beam_size
        bias = np.where(np.eye(beams, dtype=bool), 0.0, HIDDEN).astype("float32")[None]
        # Gives the bias the batch's size: every value of `recent_bias` is at least HIDDEN.
        bias = tf.maximum(tf.minimum(recent_bias[:, :, :beams], HIDDEN), bias)
        return write(recent_bias, bias, (0, 0, slot))

    def _within_window(self, state, recent_bias):
        """Returns the biases of the recent steps and of the past, `(batch, 1, beams, entries)`."""
        beams, config = self.options.beam_size, self.model.config
        # The step of each entry; the past begins with a hidden step.
        recent_steps = state.position - state.index + tf.range(_BLOCK_STEPS * beams) // beams
        past_steps = tf.range(tf.shape(state.past_bias)[2]) // beams - 1
        query_step = tf.reshape(state.position, (1,))
        return [
            tf.expand_dims(within_window(config, bias, query_step, entry_steps), 1)
            for bias, entry_steps in ((recent_bias, recent_steps), (state.past_bias, past_steps))
        ]

    def _final_rows(self, rows):
        if self.model.config.normalize_first:
            rows = normalize(self.model.decoder.final_norm, rows)
        # The converter would multiply the last normalization into the output matrix. The file would
        # then hold this matrix in addition to the table of embeddings. `maximum` prevents it.
        return tf.maximum(rows, _LOWEST)

    def _logits_of_all(self, rows):
        """Returns the logits of the vocabulary; forbidden ids get `HIDDEN`."""
        return tf.matmul(rows, captured(self.output_matrix), transpose_b=True) + self.bias

    def _logits_of(self, candidates, candidate_bias):
        """Returns the function from rows to the logits of candidates, `(batch * beams, count)`."""
        bias = candidate_bias + tf.gather(self.bias, candidates)

        def logits(rows):
            # Inside the loop, where `GraphQuantizer` sees the product. Copying int8 rows takes a
            # tenth of its time.
            matrix = tf.gather(captured(self.output_matrix), candidates)
            return tf.matmul(rows, matrix, transpose_b=True) + bias

        return logits

    def _logits_of_forbidden(self, rows):
        """Returns logits that count in the softmax's sum."""
        logits = tf.matmul(rows, tf.constant(self.forbidden_matrix), transpose_b=True)
        return logits + self.output_bias[self.forbidden_ids]


def output_matrix(model) -> Matrix:
    """Returns the rows whose products with a hidden vector are logits."""
    if model.output_projection is None:
        return row_matrix(model.target_embedding.embeddings)
    kernel = model.output_projection.kernel
    shape = kernel.shape[1], kernel.shape[0]
    return Matrix(
        ("columns", id(kernel)), shape, lambda: [np.ascontiguousarray(as_float32(kernel).T)]
    )


class AllTokens:
    """Tokens that logits are for: the vocabulary's."""

    def to_ids(self, tokens):
        """Returns the ids at indices of logits."""
        return tokens

    def extensions(self, logits, forbidden_logits, totals):
        """Returns the `2 · beams` best extensions of each sentence.

        Args:
            logits: Float32 `(batch * beams, vocabulary)`.
            forbidden_logits: Float32 `(batch * beams, forbidden)`.
            totals: Float32 `(batch, beams)`.

        Returns:
            Their totals in falling order, the hypotheses that they extend and their tokens, all
            `(batch, 2 * beams)`.
        """
        beams = totals.shape[1]
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
        return values, block_indices // number, block_indices % number * size + indices % size


class CandidateTokens:
    """Tokens that logits are for: candidates, int32 `(count,)`."""

    def __init__(self, candidates):
        self._candidates = candidates

    def to_ids(self, tokens):
        return tf.gather(self._candidates, tokens)

    def extensions(self, logits, forbidden_logits, totals):
        beams = totals.shape[1]
        largest = tf.reduce_max(logits, axis=1, keepdims=True)
        offsets = totals - tf.reshape(_log_sum(logits, forbidden_logits, largest), (-1, beams))
        # A row is short here, and its length is unknown.
        values, tokens = tf.math.top_k(logits, 2 * beams)  # --> [batch * beams, 2 * beams]
        values = tf.where(values > HIDDEN / 2, values, NEG_INF)  # A sentence may have very few.
        values = tf.reshape(values, (-1, beams, 2 * beams)) + tf.expand_dims(offsets, 2)
        values, indices = tf.math.top_k(tf.reshape(values, (-1, 2 * beams * beams)), 2 * beams)
        tokens = _pick(tf.reshape(tokens, (-1, 2 * beams * beams)), indices)
        return values, indices // (2 * beams), self.to_ids(tokens)


def _sentences(limits, beams):
    """Returns the sentence of each hypothesis, int32 `(batch * beams,)`; limits `(batch, 1)`."""
    # The number of rows comes from a tensor: sizes computed from shapes would be dynamic.
    ones = tf.minimum(tf.maximum(limits, 1), 1) + tf.zeros((1, beams), tf.int32)
    return (tf.cumsum(tf.reshape(ones, (-1,))) - 1) // beams


def _while(condition, body, state, shapes=None):
    """Returns the last state of `tf.while_loop`; the state is one structure of tensors."""
    return tf.while_loop(
        condition,
        lambda state: (body(state),),
        (state,),
        shape_invariants=None if shapes is None else (shapes,),
        parallel_iterations=1,
    )[0]


class GreedyState(NamedTuple):
    newest: tf.Tensor  # int32 [batch, 1], like `lengths`
    running: tf.Tensor  # bool [batch, 1]
    ids: tf.Tensor  # int32 [batch, 1, max_length]
    totals: tf.Tensor  # float32 [batch, 1]: log-probabilities
    lengths: tf.Tensor


class LiteRTGreedy:
    """Greedy search: takes the most probable token at each step.

    Strategies have three methods. `begin` returns the first state, a named tuple with `newest`
    and `running`. `choose` returns the next state and the hypothesis that each hypothesis
    continues. `result` returns the hypotheses. `limits`, int32 `(batch, 1)`, are the maximum
    numbers of tokens of the translations, `num_steps` is the maximum number of steps.
    """

    def __init__(self, options, limits, tokens=None):
        self.options, self.limits, self.tokens = options, limits, tokens or AllTokens()
        self.num_steps = options.max_length

    def begin(self, zero) -> GreedyState:
        zeros = tf.cast(zero, tf.int32)
        ids = tf.expand_dims(zeros, 2) + tf.zeros((1, 1, self.options.max_length), tf.int32)
        return GreedyState(zeros + BOS_ID, self.limits > 0, ids, zero, zeros)

    def choose(self, position, state, logits, forbidden_logits):
        tokens = tf.argmax(logits, axis=-1, output_type=tf.int32)
        tokens = tf.expand_dims(self.tokens.to_ids(tokens), 1)  # --> [batch, 1]
        largest = tf.reduce_max(logits, axis=-1, keepdims=True)
        log_probabilities = largest - _log_sum(logits, forbidden_logits, largest)
        tokens = tf.where(state.running, tokens, PAD_ID)
        next_state = GreedyState(
            tokens,
            state.running & (tokens != EOS_ID) & (position + 1 < self.limits),
            write(state.ids, tf.expand_dims(tokens, 2), (0, 0, position)),
            state.totals + tf.where(state.running, log_probabilities, 0.0),
            state.lengths + tf.cast(state.running, tf.int32),
        )
        return next_state, None

    def result(self, state):
        scores = self.options.ranking.score(state.totals, state.lengths)
        return {
            "ids": state.ids[:, 0],
            "score": scores[:, 0],
            "log_probability": state.totals[:, 0],
        }


class BeamState(NamedTuple):
    newest: tf.Tensor  # int32 [batch, beams]
    running: tf.Tensor  # bool [batch, 1]
    live_ids: tf.Tensor  # int32 [batch, beams, max_length]
    live_totals: tf.Tensor  # float32 [batch, beams]
    finished: Finished


def _pick(values, indices):
    """Returns `values[b, indices[b, i]]`."""
    return tf.gather(values, indices, batch_dims=1, axis=1)


class LiteRTBeam(BeamRules):
    """Beam search as in `decoding.beam.Beam`: live hypotheses, and a list of finished ones."""

    # The rules are `Beam`'s. Its state and its gathers are not: gathers that need the batch's size
    # would make tensors dynamic, and `WHILE` would copy the log-probabilities of all tokens.
    take = staticmethod(_pick)

    def __init__(self, options, limits, tokens=None):
        super().__init__(options.beam_size, options.ranking, options.n_best, options.early_stopping)
        self.options, self.limits, self.tokens = options, limits, tokens or AllTokens()
        self.num_steps = options.max_length

    def begin(self, zero) -> BeamState:
        beams = self.beams
        zeros = tf.cast(zero, tf.int32) + tf.zeros((1, beams), tf.int32)
        empty = tf.expand_dims(zeros, 2) + tf.zeros((1, 1, self.options.max_length), tf.int32)
        # All hypotheses begin alike: only the first may be extended.
        live_totals = zero + np.array([[0.0] + [NEG_INF] * (beams - 1)], "float32")
        totals = tf.cast(zeros, tf.float32)
        finished = Finished(empty, totals, totals + NEG_INF)
        return BeamState(zeros + BOS_ID, self.limits > 0, empty, live_totals, finished)

    def choose(self, position, state, logits, forbidden_logits):
        running, length = state.running, position + 1
        totals, parents, tokens = self.tokens.extensions(
            logits, forbidden_logits, state.live_totals
        )  # --> [batch, 2 * beams]
        extensions = Extensions(tokens, parents, tf.maximum(totals, NEG_INF))
        extensions = self.with_places(extensions, state.finished)
        best = extensions.first(self.beams)  # An end counts if it is among the best `beams`.
        ended = Finished(
            _extended(state.live_ids, best.parents, best.tokens, position),
            best.totals,
            self.end_scores(best, running, length, EOS_ID),
        )
        finished = self.with_ended(state.finished, ended)
        live = self.continuing(extensions, EOS_ID)  # --> [batch, beams]
        best_total = tf.reduce_max(live.totals, axis=1)
        can_win = self.can_win(best_total, finished, length + 1, self.limits[:, 0])  # --> [batch]
        # Ended sentences stay as they were.
        unmoved = np.arange(self.beams, dtype="int32")[None]
        parents = tf.where(running, live.parents, unmoved)
        tokens = tf.where(running, live.tokens, PAD_ID)
        next_state = BeamState(
            tokens,
            running & (length < self.limits) & tf.expand_dims(can_win, 1),
            _extended(state.live_ids, parents, tokens, position),
            tf.where(running, live.totals, state.live_totals),
            finished,
        )
        return next_state, parents

    def result(self, state):
        lengths = tf.reduce_sum(tf.cast(state.live_ids != PAD_ID, tf.int32), axis=2)
        scores = self.ranking.score(state.live_totals, lengths)  # --> [batch, beams]
        scores = tf.where(state.live_totals > NEG_INF / 2, scores, NEG_INF)
        live = Finished(state.live_ids, state.live_totals, scores)
        best = self.results(state.finished, live, lengths, self.limits)  # --> [batch, n_best]
        return {
            "ids": tf.where(tf.expand_dims(best.is_filled, 2), best.ids, PAD_ID),
            "score": tf.where(best.is_filled, best.scores, -np.inf),
            "log_probability": tf.where(best.is_filled, best.log_probabilities, 0.0),
        }


class AfterForced:
    """Strategy whose first step reads BOS and chooses nothing: the next step reads forced ids.

    Args:
        strategy: `LiteRTGreedy` or `LiteRTBeam`.
        forced_ids: Int32 `(batch,)`.
    """

    def __init__(self, strategy, forced_ids):
        self._strategy, self._forced_ids = strategy, tf.expand_dims(forced_ids, 1)
        self.limits, self.num_steps = strategy.limits, strategy.num_steps + 1
        self.begin, self.result = strategy.begin, strategy.result

    def choose(self, position, state, logits, forbidden_logits):
        is_first, number = tf.equal(position, 0), tf.maximum(position - 1, 0)
        beams = np.arange(self._strategy.options.beam_size, dtype="int32")[None]
        forced_ids = self._forced_ids + tf.zeros_like(beams)  # --> [batch, beams]
        chosen, parents = self._strategy.choose(number, state, logits, forbidden_logits)
        next_state = tf.nest.map_structure(
            lambda old, new: tf.where(is_first, old, new),
            state._replace(newest=forced_ids),
            chosen,
        )
        return next_state, None if parents is None else tf.where(is_first, beams, parents)


def _blocks(logits, rows):
    """Cuts logits into blocks; the blocks of the `rows` of a sentence follow one another."""
    length = logits.shape[1]
    size = block_size(length)
    padding = -length % size
    if padding:
        # Lower than any logit with any total, also `NEG_INF`: never chosen.
        logits = tf.pad(logits, ((0, 0), (0, padding)), constant_values=_LOWEST)
    return tf.reshape(logits, (-1, rows * (length + padding) // size, size))


def _extended(ids, parents, tokens, position):
    return write(_pick(ids, parents), tf.expand_dims(tokens, 2), (0, 0, position))


def _log_sum(logits, forbidden_logits, largest):
    allowed_sum = tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True)
    # Bounded: forbidden ids may be more probable than all allowed ids, but exp must not overflow.
    forbidden_logits = tf.reduce_sum(
        tf.exp(tf.minimum(forbidden_logits - largest, 80.0)), axis=-1, keepdims=True
    )
    return largest + tf.math.log(allowed_sum + forbidden_logits)
