"""CTranslate2's names of activations and variables, and their layout; for reading and for writing.

Weights have Marian's names here, as in `foreign.weights`: matrices are `(inputs, outputs)`.
"""

import re
from collections.abc import Sequence

import numpy as np

SIDES = ("encoder", "decoder")
ACTIVATIONS = {0: "relu", 2: "silu", 3: "gelu", 5: "tanh", 6: "sigmoid"}
"""This package's names of activations by CTranslate2's numbers."""
# Marian's names of the tensors of a part, without side and block. A variable has the rows of one
# matrix for each name. The kind of the variable takes the place of the braces.
_PARTS = {
    "embeddings": ("Wemb",),  # of the decoder, and before binary version 5 of the encoder
    "embeddings_0": ("Wemb",),
    "position_encodings": ("Wpos",),
    "projection": ("ff_logit_out_{}",),
    "layer_norm": ("top_{}",),
    "self_attention": ("self_{}",),
    "self_attention/linear_0": ("self_{}q", "self_{}k", "self_{}v"),
    "self_attention/linear_1": ("self_{}o",),
    "self_attention/layer_norm": ("self_Wo_{}",),
    "attention/linear_0": ("context_{}q",),
    "attention/linear_1": ("context_{}k", "context_{}v"),
    "attention/linear_2": ("context_{}o",),
    "attention/layer_norm": ("context_Wo_{}",),
    "ffn/linear_0": ("ffn_{}1",),
    "ffn/linear_1": ("ffn_{}2",),
    "ffn/layer_norm": ("ffn_ffn_{}",),
}
NORM = {"gamma": "ln_scale", "beta": "ln_bias"}
"""Marian's names of the weights of a normalization."""
_KINDS = {
    **NORM,
    "weight": "W",
    "bias": "b",
    "encodings": "",
    "relative_position_keys": "distance_keys",
    "relative_position_values": "distance_values",
}
_VARIABLE = re.compile(r"(encoder|decoder)/(?:layer_(\d{1,4})/)?(.+)/(\w+)")


def marian_names(variable: str, suffix: str) -> tuple[str, ...]:
    """Returns Marian's names of the tensors in a variable, in their order; none for an unknown one.

    Args:
        variable: CTranslate2's name, such as `encoder/layer_0/ffn/linear_0/weight`.
        suffix: `_pre` for the normalizations of the blocks of a pre-norm model, or "".
    """
    match = _VARIABLE.fullmatch(variable)
    side, index, part, kind = match.groups() if match else ("", None, "", "")
    if kind not in _KINDS:
        return ()
    prefix = side if index is None else f"{side}_l{int(index) + 1}"
    suffix = suffix if index is not None and kind in NORM else ""
    return tuple(f"{prefix}_{name.format(_KINDS[kind])}{suffix}" for name in _PARTS.get(part, ()))


def _has_rows(variable):
    """Returns whether a variable has the columns of matrices as rows, one matrix after another."""
    return "/layer_" in variable and variable.endswith(("/weight", "/bias"))


def split(variable: str, numbers: np.ndarray, count: int) -> list[np.ndarray]:
    """Returns the `count` weights in a variable."""
    return [rows.T for rows in np.array_split(numbers, count)] if _has_rows(variable) else [numbers]


def join(variable: str, weights: Sequence[np.ndarray]) -> np.ndarray:
    """Returns a variable's numbers, the inverse of `split`."""
    if not _has_rows(variable):
        return weights[0]
    return np.ascontiguousarray(np.concatenate([array.T for array in weights]))
