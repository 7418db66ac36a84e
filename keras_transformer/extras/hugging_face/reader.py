"""Models of Hugging Face: a folder with `config.json` and weights of PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import UNK_ID
from keras_transformer.base.options import received
from keras_transformer.base.reading import read_json
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.extras.foreign import positions
from keras_transformer.extras.foreign.foreign_model import ForeignModel, Tensors, check_heads
from keras_transformer.extras.foreign.settings import dropout_rate, number
from keras_transformer.extras.foreign.vocabulary import Vocabulary, vocabulary_from_names
from keras_transformer.extras.hugging_face import m2m100, names
from keras_transformer.extras.hugging_face.shards import read_tensors

CONFIG = "config.json"
_CONSTRAINTS = ("min_length", "no_repeat_ngram_size", "banned_ids")
# Values of fields that a configuration may lack. Pegasus' class has the layers of a pre-norm model.
_MARIAN = {"activation_function": "gelu", "scale_embedding": False}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "marian": _MARIAN,
    "pegasus": _MARIAN,
    m2m100.KIND: {"activation_function": "relu", "scale_embedding": True},
}
_SIZES_OF_SIDES = ("layers", "attention_heads", "ffn_dim")
_NUMBERS = [f"{side}_{name}" for side in ("encoder", "decoder") for name in _SIZES_OF_SIDES]
_NUMBERS += ["d_model", "pad_token_id", "decoder_start_token_id"]
# Search options that this package lacks, with the value that has no effect.
_NEUTRAL: dict[str, Any] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "num_beam_groups"), 1),
    **dict.fromkeys(("num_return_sequences",), 1),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "diversity_penalty", "do_sample"), 0),
    **dict.fromkeys(("renormalize_logits",), 0),
    **dict.fromkeys(("exponential_decay_length_penalty", "forced_bos_token_id", "max_time")),
    **dict.fromkeys(("forced_decoder_ids", "begin_suppress_tokens", "sequence_bias")),
    **dict.fromkeys(("constraints", "force_words_ids", "penalty_alpha", "guidance_scale")),
    **dict.fromkeys(("stop_strings", "watermarking_config")),
}


def is_model(folder: Path) -> bool:
    """Returns whether a folder has a configuration of Hugging Face."""
    return (folder / CONFIG).is_file()


def read(folder: Path) -> ForeignModel:
    """Reads the model of a folder."""
    path = folder / CONFIG
    config = read_json(path)
    _check_supported(config, path)
    tensors = _read_tensors(folder, config)
    vocabularies, languages = _read_vocabularies(folder, config, tensors)
    # transformers reads search options from the model's file only if there is no other file.
    file = folder / "generation_config.json"
    options, file = (read_json(file), file) if file.is_file() else (config, path)
    if languages is not None:
        options = {**options, "forced_bos_token_id": None}  # A caller names the language.
    forced = 1 if languages is not None and languages.target_prefix else 0
    decoding, notes = _decoding(options, file, vocabularies[1], forced)
    fields, limits = _fields(config, tensors, path), _limits(options, file, forced)
    return ForeignModel(fields, tensors, vocabularies, decoding, limits, notes, languages=languages)


def check_config(path: Path) -> None:
    """Raises `InputError` for the configuration of a model that is not imported."""
    if "model_type" in (config := read_json(path)):
        _check_supported(config, path)


def _decoding(options, file, vocabulary, forced):
    """Returns decoding options, and notes that name the options that this package lacks."""
    banned_ids, longer = _banned_ids(options, file, vocabulary)
    decoding = {
        "beam_size": number(options, "num_beams", file, 1),
        "length_penalty": number(options, "length_penalty", file, 1, float),
        "length_normalization": "length",
        "early_stopping": options.get("early_stopping") is True,
        "min_length": _min_length(options, file, forced),
        "no_repeat_ngram_size": number(options, "no_repeat_ngram_size", file, 0),
        "banned_ids": banned_ids,
    }
    decoding = {
        name: value
        for name, value in decoding.items()
        if name not in _CONSTRAINTS or value != getattr(DecodingOptions, name)
    }
    lacking = {name: options.get(name) for name in _NEUTRAL} | {"bad_words_ids": longer or None}
    values = ", ".join(
        f"{name}={received(value)}"
        for name, value in lacking.items()
        if value not in (None, _NEUTRAL.get(name))
    )
    problem = "keras_transformer lacks these search options, so translations may differ"
    return decoding, (f"{problem}: {values}",) if values else ()


def _banned_ids(options, file, vocabulary: Vocabulary):
    """Returns this package's ids of banned single tokens, and the longer banned sequences."""
    lists = [options.get(name) or [] for name in ("suppress_tokens", "bad_words_ids")]
    # A value that is no list is one wrong sequence.
    tokens, sequences = (value if isinstance(value, list) else [value] for value in lists)
    sequences = [*([id] for id in tokens), *sequences]
    new_ids = {id: index for index, id in reversed(list(enumerate(vocabulary.rows)))}
    banned_ids, longer = set(), []
    for sequence in sequences:
        is_list = isinstance(sequence, list) and sequence
        if not is_list or any(type(id) is not int or id not in new_ids for id in sequence):
            rule = "banned tokens must be lists of ids of the vocabulary"
            raise InputError(f"{file}: {rule}. Received: {received(sequence)}.")
        if len(sequence) > 1:
            longer.append(sequence)
        elif new_ids[sequence[0]] > UNK_ID:  # No search chooses padding, BOS or <unk>.
            banned_ids.add(new_ids[sequence[0]])
    return tuple(sorted(banned_ids)), longer


def _min_length(options, file, forced):
    """Returns the minimum number of target tokens, which includes EOS.

    transformers counts the tokens before EOS, with the `forced` token of a language. `min_length`
    also counts the decoder's first input.
    """
    name, extra = "min_length", 0
    if options.get("min_new_tokens") is not None:
        name, extra = "min_new_tokens", 1
    least = number(options, name, file, 0) + extra - forced
    return least if least > 1 else 0  # Each translation has EOS.


def _limits(options, file, forced):
    """Returns the limit of target tokens; `max_length` also counts the decoder's first input.

    Both count the `forced` token of a language.
    """
    for name, extra in (("max_new_tokens", forced), ("max_length", 1 + forced)):
        if options.get(name) is not None:
            return {"max_target_length": max(2, number(options, name, file) - extra)}
    return {}


def _check_supported(config, path):
    """Raises `InputError` for options that a `Transformer` cannot have."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        rule = "only models of Marian, M2M100, NLLB and SMaLL-100, and those that an export writes"
        raise InputError(f"{path}: {rule} for Pegasus, are imported. Received: {received(kind)}.")
    config |= {**_DEFAULTS[kind], **config}
    config |= {name: number(config, name, path) for name in _NUMBERS}
    heads = config["encoder_attention_heads"]
    check_heads(config["d_model"], heads, path)
    activation = config["activation_function"]
    is_known = isinstance(activation, str) and activation in names.ACTIVATIONS
    for name, is_fine, rule in (
        ("decoder_attention_heads", config["decoder_attention_heads"] == heads, f"must be {heads}"),
        ("activation_function", is_known, "must be relu, silu or gelu"),
        ("scale_embedding", config["scale_embedding"], "must be true"),
    ):
        if not is_fine:
            rule = f"{path}: `{name}` {rule} to be imported"
            raise InputError(f"{rule}. Received: {received(config.get(name))}.")


def _fields(config, tensors, path):
    return {
        "model_dim": config["d_model"],
        "num_heads": config["encoder_attention_heads"],
        "intermediate_dim": max(config["encoder_ffn_dim"], config["decoder_ffn_dim"]),
        "num_encoder_layers": config["encoder_layers"],
        "num_decoder_layers": config["decoder_layers"],
        "activation": names.ACTIVATIONS[config["activation_function"]],
        "normalize_first": names.is_pre_norm(config),
        "layer_norm_epsilon": 1e-5,
        "dropout": dropout_rate(config, "dropout", path),
        **_positions(config, tensors),
    }


def _read_tensors(folder, config):
    """Reads the weights under Marian's names, matrices as `(inputs, outputs)`."""
    arrays, path = read_tensors(folder)
    marian_names, renamed = names.marian_names(config), {}
    for name, array in arrays.items():
        name = names.without_prefix(name)
        # Tensors without a counterpart raise an error that names them.
        if (marian_name := marian_names.get(name, name)) is not None:
            is_transposed = names.is_transposed(name)
            renamed[marian_name] = (
                array.changed(np.transpose, array.dtype) if is_transposed else array
            )
    return Tensors(renamed, path)


def _positions(config, tensors):
    if config["model_type"] == m2m100.KIND:
        return m2m100.POSITIONS
    if all(name in tensors for name in positions.NAMES):
        return positions.position_fields(tensors.arrays)
    for name in positions.NAMES:
        tensors.arrays.pop(name, None)
    return {"position_layout": "halves"}


def _read_vocabularies(folder, config, tensors):
    settings_file, target_file = folder / "tokenizer_config.json", folder / "target_vocab.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    added = _added_tokens(folder, settings, settings_file)
    files = [folder / "vocab.json"] * 2
    if settings.get("separate_vocabs") or target_file.is_file():
        files[1] = target_file
    rows = [tensors.rows(side) for side in ("encoder", "decoder")]
    for name in ("pad_token_id", "decoder_start_token_id"):
        if config[name] >= min(rows):
            rule = f"`{name}` must be below {min(rows)}, the number of rows of the embeddings"
            raise InputError(f"{folder / CONFIG}: {rule}. Received: {config[name]}.")
    special = {"pad": config["pad_token_id"], "start": config["decoder_start_token_id"]}
    if config["model_type"] == m2m100.KIND:
        vocabulary, languages = m2m100.read_vocabulary(
            folder, min(rows), added, settings, **special
        )
        return [vocabulary, vocabulary], languages
    pieces = (folder / "source.spm", folder / "target.spm")
    sides = zip(pieces, files, rows, strict=True)
    return [vocabulary_from_names(*paths, added, **special) for paths in sides], None


def _added_tokens(folder, settings, settings_file):
    """Returns ids of the tokens that transformers separates before SentencePiece."""
    path = folder / "added_tokens.json"
    added = read_json(path) if path.is_file() else {}
    decoder = settings.get("added_tokens_decoder") or {}
    try:
        return {token["content"]: int(id) for id, token in decoder.items()} | added
    except (AttributeError, KeyError, TypeError, ValueError):
        rule = "`added_tokens_decoder` must have ids with tokens"
        raise InputError(f"{settings_file}: {rule}. Received: {received(decoder)}.") from None
