"""From padded source ids to hypotheses: encode once, then one search loop."""

from keras import ops

from keras_transformer import masks
from keras_transformer.decoding.beam import beam_search
from keras_transformer.decoding.greedy import greedy_search
from keras_transformer.decoding.hypotheses import length_penalty

_ROOM_MULTIPLE = 16


def length_limits(source_ids, max_length):
    """Tokens that each translation may have: twice its source's and 10 more.

    Args:
        source_ids: Integer `(batch, source)`.
        max_length: No limit is larger.

    Returns:
        Int32 `(batch,)`; 0 for a row of padding. A limit depends on the row's own tokens
        alone, not on the padding that its batch-mates need.
    """
    lengths = ops.sum(ops.cast(masks.padding_mask(source_ids), "int32"), axis=1)
    limits = ops.minimum(2 * lengths + 10, max_length)
    return ops.where(lengths > 0, limits, 0)


def _room(padded_source_length, max_length):
    """The largest limit that a padded source can have, rounded up to a multiple of 16."""
    room = 2 * padded_source_length + 10
    room = (room + _ROOM_MULTIPLE - 1) // _ROOM_MULTIPLE * _ROOM_MULTIPLE
    if isinstance(room, int):
        return min(room, max_length)
    return ops.minimum(room, max_length)


def search(model, source_ids, beam_size=4, alpha=0.6, n_best=1, max_length=256):
    """Translates ids, by beam search or (`beam_size=1`) by greedy search.

    Args:
        model: A `Transformer`, or anything with its `start_decoding`, `step` and `reorder`.
        source_ids: Integer `(batch, source)`, padded with 0. A row of padding gives nothing.
        beam_size: Hypotheses that stay alive.
        alpha: Exponent of the length penalty. It ranks the hypotheses of a beam; of greedy
            search it changes the score alone.
        n_best: Hypotheses to return, at most `beam_size`.
        max_length: Most tokens of a translation, whatever its source.

    Returns:
        `Hypotheses`.
    """
    limits = length_limits(source_ids, max_length)
    room = _room(ops.shape(source_ids)[1], max_length)
    cache = model.start_decoding(source_ids, room, beam_size)
    if beam_size == 1:
        greedy = greedy_search(model.step, cache, limits, room)
        lengths = ops.sum(ops.cast(masks.padding_mask(greedy.ids), "int32"), axis=-1)
        return greedy._replace(scores=greedy.scores / length_penalty(lengths, alpha))
    return beam_search(
        model.step, model.reorder, cache, limits, room, beam_size, alpha=alpha, n_best=n_best
    )
