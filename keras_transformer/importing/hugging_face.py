"""Hugging Face's Marian models: a folder with `config.json` and `model.safetensors`."""

import json
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError, require
from keras_transformer.importing.vocabulary import number, of_names
from keras_transformer.importing.weights import Parts, Tensors

CONFIG = "config.json"
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "silu": "silu", "gelu": "gelu"}
_LAYERS = {
    f"{theirs}.{kind}_proj": (f"{ours}_W{letter}", f"{ours}_b{letter}")
    for theirs, ours in (("self_attn", "self"), ("encoder_attn", "context"))
    for kind, letter in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"))
} | {
    "fc1": ("ffn_W1", "ffn_b1"),
    "fc2": ("ffn_W2", "ffn_b2"),
    "self_attn_layer_norm": ("self_Wo_ln_scale", "self_Wo_ln_bias"),
    "encoder_attn_layer_norm": ("context_Wo_ln_scale", "context_Wo_ln_bias"),
    "final_layer_norm": ("ffn_ffn_ln_scale", "ffn_ffn_ln_bias"),
}
_OF_SIDES = ("layers", "attention_heads", "ffn_dim")
_NUMBERS = [f"{side}_{name}" for side in ("encoder", "decoder") for name in _OF_SIDES]
_NUMBERS += ["d_model", "pad_token_id", "decoder_start_token_id"]
_CONVERT = (
    "is a pickle, which may run any code, and is not read; write model.safetensors with "
    "transformers: AutoModelForSeq2SeqLM.from_pretrained(FOLDER).save_pretrained(OTHER)"
)


def read(folder: Path) -> Parts:
    """Reads the parts of a folder's model."""
    path = folder / CONFIG
    config = _read_json(path)
    _check_supported(config, path)
    tensors = _read_tensors(folder, config)
    generation = folder / "generation_config.json"
    options = config | (_read_json(generation) if generation.is_file() else {})
    decoding = {
        "beam_size": number(options, "num_beams", folder, 1),
        "length_penalty": number(options, "length_penalty", folder, 1, float),
        "length_normalization": "length",
        "early_stopping": options.get("early_stopping") is True,
    }
    return Parts(_fields(config, tensors), tensors, _read_vocabularies(folder, config), decoding)


def _read_json(path):
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object.")
    return value


def _check_supported(config, path):
    """Raises `InputError` for what a model here has no place for."""
    if (kind := config.get("model_type")) != "marian":
        raise InputError(f"{path}: only Marian's models are imported. Received: {kind!r}.")
    config |= {name: number(config, name, path) for name in _NUMBERS}
    heads, width = config["encoder_attention_heads"], config["d_model"]
    is_multiple = heads and width % 2 == width % heads == 0
    activation = str(config.get("activation_function", "gelu"))
    for name, is_fine, rule in (
        ("decoder_attention_heads", config["decoder_attention_heads"] == heads, f"must be {heads}"),
        ("d_model", is_multiple, f"must be even, and a multiple of {heads}"),
        ("activation_function", activation in _ACTIVATIONS, "must be relu, silu or gelu"),
        ("scale_embedding", config.get("scale_embedding", False), "must be true"),
    ):
        if not is_fine:
            rule = f"{path}: `{name}` {rule} to be imported"
            raise InputError(f"{rule}. Received: {config.get(name)!r}.")


def _fields(config, tensors):
    return {
        "model_dim": config["d_model"],
        "num_heads": config["encoder_attention_heads"],
        "intermediate_dim": max(config["encoder_ffn_dim"], config["decoder_ffn_dim"]),
        "num_encoder_layers": config["encoder_layers"],
        "num_decoder_layers": config["decoder_layers"],
        "activation": _ACTIVATIONS[config.get("activation_function", "gelu")],
        "layer_norm_epsilon": 1e-5,
        "tie_embeddings": tensors.tied_embeddings,
        "output_bias": True,
        "position_layout": "halves",
    }


def _read_tensors(folder, config):
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
    names, renamed = _names(config), {}
    for name, array in arrays.items():
        name = name.removeprefix("model.")
        # One that has no name in Marian has no place: an error that names it.
        if (ours := names.get(name, name)) is not None:
            renamed[ours] = array.T if ".layers." in name else array
    return Tensors(renamed, path)


def _names(config):
    """Marian's name of each tensor; None for one that is computed, or has another's weights."""
    is_tied = config.get("tie_word_embeddings", True)
    is_shared = config.get("share_encoder_decoder_embeddings", True)
    names = {"shared.weight": "Wemb", "final_logits_bias": "decoder_ff_logit_out_b"}
    names["lm_head.weight"] = None if is_tied else "decoder_ff_logit_out_Wt"
    for side in ("encoder", "decoder"):
        names[f"{side}.embed_positions.weight"] = None
        names[f"{side}.embed_tokens.weight"] = None if is_shared else f"{side}_Wemb"
        for i in range(config[f"{side}_layers"]):
            for layer, (weight, bias) in _LAYERS.items():
                theirs, ours = f"{side}.layers.{i}.{layer}", f"{side}_l{i + 1}"
                names[f"{theirs}.weight"] = f"{ours}_{weight}"
                names[f"{theirs}.bias"] = f"{ours}_{bias}"
    return names


def _read_vocabularies(folder, config):
    files = [folder / "vocab.json", folder / "target_vocab.json"]
    files = files if files[1].is_file() else [files[0]] * 2
    special = {"pad": config["pad_token_id"], "start": config["decoder_start_token_id"]}
    pieces = (folder / "source.spm", folder / "target.spm")
    return [of_names(*paths, **special) for paths in zip(pieces, files, strict=True)]
