"""Likely causes of failed checks, from what the outputs depend on and what the layers received."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_transformer.analysis.decoder_check.calls import LayerCall

RANDOM = (
    "Dropout or noise is active at inference: a layer is called with `training=True`, or draws "
    "random numbers itself."
)
STATE = "A layer keeps a state from one call to the next, such as `stateful=True`."
BATCH_STATISTICS = (
    "Statistics over the batch, such as a BatchNormalization in training mode. A decoder needs "
    "LayerNormalization."
)
WRONG_RESHAPE = (
    "A reshape or transpose mixes the axis of the batch with heads, beams or positions, or a mask "
    "of one sentence is used for another."
)
FOREIGN_MASK = (
    "The padding mask of another sentence is used: `tile` where `repeat` is needed, or a wrong "
    "reshape."
)
NOT_FINITE = (
    "A softmax over a row with nothing to attend to, or numbers above the range of the dtype, "
    "such as -1e9 in float16."
)
SHIFTED = (
    "The ids are shifted to the left: an output reads its label. Feed `target_ids[:, :-1]`, and "
    "shift nothing inside the model."
)
UNSHIFTED_LABELS = (
    "The labels are not shifted, so that each output has read its label. Feed "
    "`target_ids[:, :-1]`, and give `target_ids[:, 1:]` as labels."
)
ZERO_WEIGHTS = (
    "A mask hides all tokens, or weights behind the attention are zero, as gates of new models are."
)
TRAINING_MASK = (
    "The causal mask is dropped when dropout is active: another branch of the code computes the "
    "attention in training."
)
INVERTED = "A mask is inverted: True must mean that a token may be attended to."


def first_look_ahead(calls: Sequence[LayerCall], length: int) -> str | None:
    """Returns the cause if a layer over the target reads later positions by its nature."""
    for call in calls:
        layer = call.layer
        if call.query_length != length:
            continue
        if isinstance(layer, keras.layers.Conv1D) and layer.padding != "causal":
            if layer.kernel_size[0] > 1:
                return f'{call.name} reads later positions: give it `padding="causal"`.'
        if isinstance(layer, keras.layers.Bidirectional) or getattr(layer, "go_backwards", False):
            return f"{call.name} reads the sequence from its end."
        axes = np.ravel(getattr(layer, "axis", -1))
        is_norm = isinstance(layer, keras.layers.LayerNormalization) and 1 in axes
        if is_norm or isinstance(layer, keras.layers.GroupNormalization):
            return f"{call.name} has statistics over all positions: normalize only features."
    return None


def causal_mask_cause(calls: Sequence[LayerCall], length: int) -> str | None:
    """Returns the cause that masks of self-attention over the target show."""
    for call in self_attentions(calls, length):
        visible = _visible_pairs(call, length)
        if call.is_causal:
            continue
        if visible is None:
            how = " Give `use_causal_mask=True`." if call.is_causal is False else ""
            return f"{call.name} is called without a causal mask.{how}"
        if not visible.any():
            return f"{INVERTED} The mask of {call.name} hides all tokens of the target."
        upper = np.triu(visible, 1)
        if upper.any() and not np.tril(visible, -1).any():
            return f"{INVERTED} The causal mask of {call.name} shows only later positions."
        if upper.any() and not np.triu(visible, 2).any():
            return f"The causal mask of {call.name} shows one position too many (off by one)."
        if upper.any():
            return f"The mask of {call.name} hides padding only: it needs a causal mask, too."
    return None


def self_attentions(calls: Sequence[LayerCall], length: int) -> list[LayerCall]:
    """Lists innermost calls of layers that take an attention mask, over the target itself."""
    return [
        call
        for call in calls
        if call.is_innermost
        and call.has_mask_argument
        and call.query_length == call.key_length == length
        and not isinstance(call.layer, keras.layers.RNN)
    ]


def _visible_pairs(call, length):
    """Combines masks that have both axes: bool `(query, key)`; None without such a mask."""
    pairs = None
    for mask in call.masks.values():
        if mask.ndim >= 2 and mask.shape[-2:] == (length, length):
            seen = mask.reshape(-1, length, length).any(0)
            pairs = seen if pairs is None else pairs & seen
        elif mask.ndim >= 3 and mask.shape[-1] == length and not mask.any():
            return np.zeros((length, length), bool)
    return pairs


def padding_mask_cause(calls: Sequence[LayerCall], is_token: np.ndarray) -> str | None:
    """Returns the cause that masks of layers show for padded keys.

    Args:
        calls: Calls for sentences with padding.
        is_token: Bool `(batch, length)`, False = padding. No other input has this length.
    """
    length, had_mask = is_token.shape[1], ""
    for call in calls:
        if not (call.has_mask_argument and call.is_innermost and call.key_length == length):
            continue
        masks = [
            (name, mask)
            for name, mask in call.masks.items()
            # The mask of the queries says nothing of the keys.
            if mask.shape[-1] == length and name != "query_mask"
        ]
        verdicts = {_verdict(mask, is_token) for _, mask in masks}
        if "inverted" in verdicts:
            return f"{INVERTED} {call.name} sees the padding and not the tokens."
        if "hides padding" in verdicts:
            had_mask = call.name
            continue
        if call.query_length != call.key_length:
            return (
                f"The cross-attention {call.name} gets no padding mask of its keys, so that it "
                "attends to padding."
            )
        before = f" {had_mask} has one: the mask is lost after it." if had_mask else ""
        return (
            f"{call.name} gets no padding mask: an operation before it lost the mask, or no layer "
            f"made one.{before}"
        )
    return None


def hides_padding(calls: Sequence[LayerCall], is_token: np.ndarray) -> bool:
    """Returns True if layers with masks were seen and all of them hide the padding."""
    keyed = [call for call in calls if call.has_mask_argument and call.is_innermost]
    keyed = [call for call in keyed if call.key_length == is_token.shape[1]]
    return bool(keyed) and padding_mask_cause(calls, is_token) is None


def _verdict(mask, is_token):
    """Says whether a mask hides padding, or tokens instead."""
    if mask.ndim == 2 and mask.shape[0] not in (1, len(is_token)):
        return "other"  # (query, key)
    # Is a key visible to any query of any head? --> [batch, key]
    visible = mask.any(tuple(range(1, mask.ndim - 1)))
    visible = np.broadcast_to(visible, is_token.shape)
    if (visible & ~is_token).any():
        has_both = is_token.any(1) & (~is_token).any(1)
        shows_tokens = (visible & is_token).any(1)
        return "inverted" if not shows_tokens[has_both].any() else "other"
    return "hides padding" if (visible & is_token).any() else "other"


def future_cause(seen: np.ndarray, calls: Sequence[LayerCall]) -> str:
    """Returns the likely cause of outputs that depend on later tokens.

    Args:
        seen: Bool `(position, position)`: does the output of the row depend on the token of the
            column?
        calls: Calls of the layers.
    """
    length = len(seen)
    reach = max((column - row for row, column in np.argwhere(seen)), default=0)
    # The last output may read the first id, which a rotation moves to the end.
    is_first_read = bool(seen[:-1, 0].any())
    if not is_first_read and seen[np.arange(length - 1), np.arange(1, length)].all():
        return SHIFTED
    known = causal_mask_cause(calls, length) or first_look_ahead(calls, length)
    if known is not None:
        return known
    if not np.tril(seen, -1).any():
        return f"{INVERTED} The causal mask shows later positions instead of earlier ones."
    if 0 < reach < length - 2:
        return (
            "The causal mask is off by one (diagonal 1), once per layer, or a convolution is not "
            f"causal: an output reads up to {reach} later tokens."
        )
    return "The causal mask is missing, or lost on its way to the attention."
