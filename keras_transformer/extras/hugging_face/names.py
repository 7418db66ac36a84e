"""Names of activations and tensors in transformers' Marian, Pegasus and M2M100, in both directions.

Weights have Marian's names here, as in `foreign.weights`. In a file, matrices of blocks are
transposed: `(outputs, inputs)`.
"""

from collections.abc import Mapping
from typing import Any

ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
"""Keras' names of activations by the names in a configuration."""
_LAYERS = {
    f"{name}.{kind}_proj": (f"{marian_name}_W{letter}", f"{marian_name}_b{letter}")
    for name, marian_name in (("self_attn", "self"), ("encoder_attn", "context"))
    for kind, letter in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"))
} | {
    "fc1": ("ffn_W1", "ffn_b1"),
    "fc2": ("ffn_W2", "ffn_b2"),
    "self_attn_layer_norm": ("self_Wo_ln_scale", "self_Wo_ln_bias"),
    "encoder_attn_layer_norm": ("context_Wo_ln_scale", "context_Wo_ln_bias"),
    "final_layer_norm": ("ffn_ffn_ln_scale", "ffn_ffn_ln_bias"),
}
_NORM = {"weight": "ln_scale", "bias": "ln_bias"}


def is_pre_norm(config: Mapping[str, Any]) -> bool:
    """Returns whether a configuration's class normalizes before each block: all but Marian's."""
    return config["model_type"] != "marian"


def marian_names(config: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns Marian's names of the tensors of a configuration's model.

    None stands for a computed tensor, and for a copy of another tensor. `without_prefix` gives the
    keys of the names in a file.
    """
    is_tied = config.get("tie_word_embeddings", True)
    is_shared = config.get("share_encoder_decoder_embeddings", True)
    names: dict[str, str | None] = {
        "shared.weight": "Wemb",
        "final_logits_bias": "decoder_ff_logit_out_b",
        "lm_head.weight": None if is_tied else "decoder_ff_logit_out_Wt",
    }
    suffix = "_pre" if is_pre_norm(config) else ""
    for side in ("encoder", "decoder"):
        names[f"{side}.embed_positions.weight"] = f"{side}_Wpos"
        names[f"{side}.embed_positions.weights"] = None
        names[f"{side}.embed_tokens.weight"] = None if is_shared else f"{side}_Wemb"
        for kind, name in _NORM.items() if suffix else ():
            names[f"{side}.layer_norm.{kind}"] = f"{side}_top_{name}"
        for i in range(config[f"{side}_layers"]):
            for layer, layer_names in _LAYERS.items():
                end = suffix if layer.endswith("_norm") else ""
                for kind, name in zip(_NORM, layer_names, strict=True):
                    names[f"{side}.layers.{i}.{layer}.{kind}"] = f"{side}_l{i + 1}_{name}{end}"
    return names


def is_transposed(name: str) -> bool:
    """Returns whether a tensor's matrix is the transpose of Marian's."""
    return ".layers." in name


def without_prefix(name: str) -> str:
    """Returns a name in a file as `marian_names` has it."""
    return name.removeprefix("model.")


def with_prefix(name: str) -> str:
    """Returns a name of `marian_names` as a file has it."""
    return name if name in ("lm_head.weight", "final_logits_bias") else f"model.{name}"
