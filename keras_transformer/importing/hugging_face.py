"""Hugging Face's Marian models: a folder with `config.json` and `model.safetensors`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError, require
from keras_transformer.importing import vocabulary
from keras_transformer.importing.vocabulary import Vocabulary, of_names
from keras_transformer.importing.weights import Tensors

CONFIG = "config.json"
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
_ATTENTIONS = {"self_attn": "self", "encoder_attn": "context"}
_NORMS = {
    "self_attn_layer_norm": "self_Wo_ln",
    "encoder_attn_layer_norm": "context_Wo_ln",
    "final_layer_norm": "ffn_ffn_ln",
}
_CONVERT = (
    "is a pickle, which may run any code, and is not read; write model.safetensors with "
    "transformers: AutoModelForSeq2SeqLM.from_pretrained(FOLDER).save_pretrained(OTHER)"
)


def read_json(path: Path, required: bool = True) -> dict[str, Any]:
    """Reads a JSON object; an empty one where a file that is not required is missing."""
    if not required and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object.")
    return value


def check_supported(config: Mapping[str, Any], path: Path) -> None:
    """Raises `InputError` for a model that this package has no layers for."""
    if config.get("model_type") != "marian":
        kind = config.get("model_type")
        raise InputError(f"{path}: only Marian's models are imported. Received: {kind!r}.")
    heads, width = config["encoder_attention_heads"], config["d_model"]
    for name, is_fine, rule in (
        ("decoder_attention_heads", config["decoder_attention_heads"] == heads, f"must be {heads}"),
        (
            "d_model",
            width % 2 == 0 and width % heads == 0,
            f"must be even, and a multiple of {heads}",
        ),
        ("activation_function", _activation(config), "must be relu, silu or gelu"),
        ("scale_embedding", config.get("scale_embedding", False), "must be true"),
    ):
        if not is_fine:
            value = config.get(name)
            raise InputError(f"{path}: `{name}` {rule} to be imported. Received: {value!r}.")


def _activation(config):
    return _ACTIVATIONS.get(config.get("activation_function", "gelu"))


def model_fields(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Returns fields of a folder's `TransformerConfig`, without the vocabulary's sizes."""
    return {
        "model_dim": config["d_model"],
        "num_heads": config["encoder_attention_heads"],
        "intermediate_dim": max(config["encoder_ffn_dim"], config["decoder_ffn_dim"]),
        "num_encoder_layers": config["encoder_layers"],
        "num_decoder_layers": config["decoder_layers"],
        "activation": _activation(config),
        "layer_norm_epsilon": 1e-5,
        "tie_embeddings": tensors.tied_embeddings,
        "output_bias": True,
        "position_layout": "halves",
    }


def read_tensors(folder: Path, config: Mapping[str, Any]) -> Tensors:
    """Reads the weights under Marian's names, matrices as `(inputs, outputs)`."""
    path = folder / "model.safetensors"
    if not path.is_file():
        if (folder / "pytorch_model.bin").is_file():
            raise InputError(f"{folder / 'pytorch_model.bin'}: {_CONVERT}.")
        raise InputError(f"{path}: no such file.")
    safetensors: Any = require("safetensors.numpy", "safetensors, which reads the model,", "import")
    try:
        arrays = safetensors.load_file(path)
    except (safetensors.SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}.") from None
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        renamed |= _renamed(name.removeprefix("model."), array, config)
    return Tensors(renamed, path)


def _renamed(name, array, config):
    """Returns a tensor by Marian's name; nothing for one that is computed or a copy."""
    if name.endswith("embed_positions.weight"):
        return {}
    if name == "shared.weight":
        return {"Wemb": array}
    if name == "lm_head.weight":
        is_tied = config.get("tie_word_embeddings", True)
        return {} if is_tied else {"decoder_ff_logit_out_Wt": array}
    if name == "final_logits_bias":
        return {"decoder_ff_logit_out_b": array}
    side, part, *names = name.split(".")
    if part == "embed_tokens":
        is_shared = config.get("share_encoder_decoder_embeddings", True)
        return {} if is_shared else {f"{side}_Wemb": array}
    try:
        number, layer, *names = names
        kind = names[-1]
        prefix = f"{side}_l{int(number) + 1}"
        array = array.T if kind == "weight" and array.ndim == 2 else array
        if layer in _NORMS:
            return {f"{prefix}_{_NORMS[layer]}_{'scale' if kind == 'weight' else kind}": array}
        letter = "W" if kind == "weight" else "b"
        if layer in ("fc1", "fc2"):
            return {f"{prefix}_ffn_{letter}{layer[-1]}": array}
        suffix = "o" if names[0] == "out_proj" else names[0][0]
        return {f"{prefix}_{_ATTENTIONS[layer]}_{letter}{suffix}": array}
    except (ValueError, KeyError, IndexError):
        return {name: array}  # `Tensors.check_all_used` raises an error with this name.


def read_vocabularies(
    folder: Path, config: Mapping[str, Any]
) -> tuple[list[Any], list[Vocabulary]]:
    """Returns the SentencePiece model and the vocabulary of each side."""
    models = [
        vocabulary.read_sentencepiece(folder / f"{side}.spm") for side in ("source", "target")
    ]
    files = [folder / "vocab.json", folder / "target_vocab.json"]
    files = files if files[1].is_file() else [files[0]] * 2
    special = {"pad": config["pad_token_id"], "start": config["decoder_start_token_id"]}
    return models, [of_names(vocabulary.read_names(file), file, **special) for file in files]
