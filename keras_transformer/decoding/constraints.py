"""Constraints of a search: lengths, forced tokens, biases, no repeated n-grams."""

from typing import NamedTuple

from keras import KerasTensor, ops

from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.base.impossible import NEG_INF
from keras_transformer.layers import masks


class Constraints(NamedTuple):
    """Rules for the hypotheses of each sentence; the Python values decide what is traced.

    Attributes:
        max_lengths: Int32 `(batch,)`: maximum numbers of tokens of translations, including EOS. The
            search loop stops there; `constrain` ignores it.
        min_lengths: Int32 `(batch,)`: minimum numbers of tokens, including EOS.
        prefixes: Int32 `(batch, prefix)`: target prefixes, padded with 0; a row of padding forces
            nothing.
        logit_bias: Float32 `(vocabulary,)`, in nats: added to the logits before choosing. Below
            `NEG_INF / 2` it bans the id.
        no_repeat_ngram_size: No n-gram of this many tokens occurs twice; 0 allows all n-grams.
        forbidden_ids: Ids that are never chosen.
        end_id: Id that ends a hypothesis; a negative id ends none.
        phrases: Int32 `(batch, phrases, length)`: ids that a hypothesis must contain in a row
            before it may end, padded with 0. Only for `ConstrainedBeam`.
    """

    max_lengths: KerasTensor
    min_lengths: KerasTensor | None = None
    prefixes: KerasTensor | None = None
    logit_bias: KerasTensor | None = None
    no_repeat_ngram_size: int = 0
    forbidden_ids: tuple[int, ...] = (PAD_ID, BOS_ID)
    end_id: int = EOS_ID
    phrases: KerasTensor | None = None

    @property
    def changed_ids(self) -> int | None:
        """Number of first ids that `constrain` may change; None if it may change any id."""
        if self.logit_bias is not None or self.prefixes is not None or self.no_repeat_ngram_size:
            return None
        return max((*self.forbidden_ids, self.end_id)) + 1

    @property
    def forced_lengths(self) -> KerasTensor:
        """Number of tokens of each prefix, int32 `(batch,)`."""
        if self.prefixes is None:
            return ops.zeros_like(self.max_lengths)
        return ops.sum(ops.cast(masks.padding_mask(self.prefixes), "int32"), axis=1)


def floor_to_int32(numbers):
    """Rounds float numbers of tokens down to int32, where a large ratio would overflow."""
    return ops.cast(ops.minimum(numbers, 2.0**24), "int32")


def length_limits(lengths, ratio, margin, max_length):
    """Returns maximum numbers of tokens: `ratio · lengths + margin`, up to `max_length`.

    `lengths` and the result are int32 `(batch,)`. Lengths do not include padding, and a source
    without tokens gets 0. The margin may be `(batch,)`.
    """
    limits = floor_to_int32(ops.cast(lengths, "float32") * ratio + ops.cast(margin, "float32"))
    return ops.where(lengths > 0, ops.minimum(limits, max_length), 0)


def constrain(logits, ids, position, constraints: Constraints):
    """Sets the logits of tokens that may not follow a hypothesis to `NEG_INF`.

    A token forced by a prefix overrides all other constraints: only it is allowed, with its own
    logit. After the prefix the other constraints apply, and the prefix's n-grams count as used.

    Args:
        logits: Float32 `(batch, beams, vocabulary)`. Probabilities are still computed from these
            logits; the result is only for choosing.
        ids: Int32 `(batch, beams, capacity)`: tokens of each hypothesis in its first `position`
            places; further places are ignored.
        position: Int scalar: number of tokens of each hypothesis, at most `capacity`.
        constraints: Limits and rules of each sentence, `Constraints`.
    """
    ngram_size, prefixes = constraints.no_repeat_ngram_size, constraints.prefixes
    vocabulary = ops.arange(logits.shape[-1], dtype="int32")
    allowed = logits
    if constraints.logit_bias is not None:
        logit_bias = ops.convert_to_tensor(constraints.logit_bias, "float32")
        if logit_bias.shape[0] not in (None, logits.shape[-1]):
            rule = f"`logit_bias` must have a number for each of {logits.shape[-1]} logits."
            raise ValueError(f"{rule} Received: {logit_bias.shape[0]} numbers.")
        allowed = ops.where(logit_bias < NEG_INF / 2, NEG_INF, allowed + logit_bias)
    for forbidden in constraints.forbidden_ids:
        allowed = ops.where(vocabulary == forbidden, NEG_INF, allowed)
    if constraints.min_lengths is not None:
        is_too_short = position + 1 < constraints.min_lengths
        is_too_short = ops.expand_dims(is_too_short, (1, 2))  # --> [batch, 1, 1]
        allowed = ops.where(is_too_short & (vocabulary == constraints.end_id), NEG_INF, allowed)
    if ngram_size > 0:
        repeated = _repeated(ids, position, ngram_size, logits.shape[-1])
        allowed = ops.where(repeated, NEG_INF, allowed)
    if prefixes is not None:
        batch, width = ops.shape(prefixes)
        # One more column of padding, which positions after the end read.
        padded = ops.pad(prefixes, ((0, 0), (0, 1)))
        token = ops.slice(padded, (0, ops.minimum(position, width)), (batch, 1))
        token = ops.expand_dims(token, 1)  # --> [batch, 1, 1]
        forced = ops.where(vocabulary == token, logits, NEG_INF)
        allowed = ops.where(token != PAD_ID, forced, allowed)
    return allowed


def _repeated(ids, position, size, vocabulary_size):
    """Returns a mask of tokens that would repeat an n-gram of `size` tokens of the hypothesis.

    Each earlier position is compared with the last `size - 1` tokens; the token after a match is
    scattered into a mask. So no array of `capacity` times the vocabulary is built. Padding is never
    marked. Reference: Paulus et al. 2017, section 2.5 (arXiv:1705.04304).
    """
    batch, beams, capacity = ops.shape(ids)
    context = size - 1
    # Padded, so that each position begins a window, even if the capacity is smaller than an n-gram.
    padded = ops.pad(ids, ((0, 0), (0, 0), (0, context)))
    # Before the first complete n-gram the start is negative, and no window is complete either.
    start = ops.maximum(position - context, 0)
    newest = ops.slice(padded, (0, 0, start), (batch, beams, context))
    match = ops.arange(capacity, dtype="int32") + context < position  # --> [capacity]
    for k in range(context):
        match = match & (padded[:, :, k : k + capacity] == newest[:, :, k : k + 1])
    # All windows write True; windows that do not match write into the column of padding. If they
    # wrote False, the last window that writes the same token would win.
    tokens = ops.where(match, padded[:, :, context:], PAD_ID)  # --> [batch, beams, capacity]
    rows = ops.expand_dims(ops.arange(batch * beams, dtype="int32"), 1)
    rows = ops.reshape(ops.broadcast_to(rows, (batch * beams, capacity)), (-1,))
    mask = ops.scatter_update(
        ops.zeros((batch * beams, vocabulary_size), "bool"),
        ops.stack([rows, ops.reshape(tokens, (-1,))], axis=1),
        ops.ones_like(rows, dtype="bool"),
    )
    mask = mask & (ops.arange(vocabulary_size, dtype="int32") != PAD_ID)
    return ops.reshape(mask, (batch, beams, vocabulary_size))
