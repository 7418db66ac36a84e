"""CTranslate2's Transformers, as OpenNMT-py, OpenNMT-tf and fairseq publish them."""

import functools
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.base.reading import decode_text, read_checked, read_json
from keras_transformer.extras.ctranslate2.model_bin import read_variables
from keras_transformer.extras.ctranslate2.names import (
    ACTIVATIONS,
    NORM,
    SIDES,
    marian_names,
    split,
)
from keras_transformer.extras.foreign.foreign_model import (
    FileArray,
    ForeignModel,
    Tensors,
    check_heads,
)
from keras_transformer.extras.foreign.positions import NAMES, position_fields, sinusoids
from keras_transformer.extras.foreign.settings import files_like, number
from keras_transformer.extras.foreign.shortlist_files import read_map
from keras_transformer.extras.foreign.vocabulary import (
    Vocabulary,
    check_rows,
    files_of_sides,
    read_sentencepiece,
)
from keras_transformer.text.tags import LANGUAGE_TOKEN

MODEL = "model.bin"
_LACKING = {1: "gelu with tanh", 4: "gelu with a sigmoid"}
# Positions that CTranslate2 computes where a file has none.
_COMPUTED = {"position_layout": "halves", "position_frequencies": "marian", "position_offset": 1}
# Attributes that change nothing here, and others with the value that means "without it".
_IGNORED = (
    "alignment_layer alignment_heads alibi_use_positive_positions scale_alibi "
    "with_relative_position"
)
_ZERO = (
    "embeddings_merge alibi layernorm_embedding multi_query_attention user_decoder_start_tokens "
    "with_source_bos"
)
# Tokens of M2M-100 and NLLB, which a caller gives as the beginning of a translation.
_MANY_LANGUAGES = 20
_ENDINGS = ("*.spm", "*.model")
_PADDING = ("<pad>", "<blank>")  # of fairseq and this package, and of OpenNMT
_LEAST_SHARE = 0.2  # of pieces in a vocabulary: one of both sides has half of each
_OPTION = "the right files with --sentencepiece"
# No translation is empty: EOS is never the first token.
SEARCH = {"beam_size": 2, "length_penalty": 1.0, "length_normalization": "length"}
SEARCH |= {"early_stopping": True, "min_length": 2}
"""Search options of CTranslate2."""


def is_model(folder: Path) -> bool:
    """Returns whether a folder looks like one of CTranslate2; Marian has a `model.bin`, too."""
    if not (folder / MODEL).is_file():
        return False
    with open(folder / MODEL, "rb") as file:
        has_version = int.from_bytes(file.read(8), "little") != 1
    return has_version or any(files_like(folder, "*_vocabulary.*"))


def read(folder: Path, sentencepiece: Sequence[str | os.PathLike] = ()) -> ForeignModel:
    """Reads the model of a folder.

    Args:
        folder: Path of the folder.
        sentencepiece: Paths of the SentencePiece file of both sides, or of each side. By default
            these are files of the folder, or of the folder that holds it.
    """
    variables = _Variables(folder / MODEL)
    options = _read_options(folder, variables)
    fields = _fields(variables, options)
    tensors = _tensors(variables, fields)
    vocabularies = _read_vocabularies(folder, options, tensors, sentencepiece)
    shortlist = read_map(folder, vocabularies)
    return ForeignModel(fields, tensors, vocabularies, SEARCH, **shortlist)


class _Variables:
    """Variables of a model; those that are numbers or texts are its attributes.

    Attributes:
        path: Path of the file.
        arrays: Arrays by their names, without the attributes that were taken.
    """

    def __init__(self, path: Path):
        self.path, self.arrays = path, read_variables(path)

    def get(self, name: str) -> FileArray:
        """Returns a matrix; raises `InputError` for a missing one."""
        if name not in self.arrays or len(self.arrays[name].shape) != 2:
            raise InputError(f"{self.path}: the model has no matrix {name}.")
        return self.arrays[name]

    def take(self, name: str, default: Any = None) -> Any:
        """Removes an attribute and returns its value."""
        if name not in self.arrays:
            return default
        value = np.asarray(self.arrays.pop(name))
        return value.item() if not value.ndim else value.tobytes().decode("utf-8", "replace")

    def take_equal(self, name: str, default: Any) -> Any:
        """Removes an attribute of the root or of both sides, which must be equal."""
        names = [name, *(f"{side}/{name}" for side in SIDES)]
        values = [self.take(name) for name in names if name in self.arrays]
        if any(value != values[0] for value in values):
            rule = f"`{name}` must be equal in the encoder and the decoder"
            raise InputError(f"{self.path}: {rule}. Received: {received(values)}.")
        return values[0] if values else default

    def refuse(self, name, value, reason=""):
        rule = f"a model with `{name}` is not imported"
        raise InputError(f"{self.path}: {rule}. Received: {received(value)}{reason}.")


def _read_options(folder, variables):
    """Returns the options of `config.json`, or those that older files have among the variables."""
    path = folder / "config.json"
    options = {
        name: variables.take_equal(name, default)
        for name, default in (
            ("unk_token", "<unk>"),
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("layer_norm_epsilon", None),
        )
    }
    options["add_source_eos"] = bool(variables.take_equal("with_source_eos", 0))
    starts_with_bos = variables.take_equal("with_target_bos", 1)
    options["decoder_start_token"] = options["bos_token" if starts_with_bos else "eos_token"]
    if path.is_file():
        options |= read_json(path)
    options |= {"epsilon": number(options, "layer_norm_epsilon", path, 1e-5, float) or 1e-5}
    for name in ("add_source_bos", "multi_query_attention", "quantization_type"):
        if options.get(name):
            value = received(options[name])
            raise InputError(f"{path}: a model with `{name}` is not imported. Received: {value}.")
    if options["decoder_start_token"] is None:
        rule = "`decoder_start_token` must name the token that starts a translation"
        raise InputError(f"{path}: {rule}. Received: null, so that a caller gives it.")
    for name in ("unk_token", "eos_token", "decoder_start_token"):
        if not isinstance(options[name], str):
            rule = f"`{name}` must be a text"
            raise InputError(f"{path}: {rule}. Received: {received(options[name])}.")
    if variables.take_equal("start_from_zero_embedding", 0):
        # Only Marian's models have it. Their tokenizers end each source with EOS.
        options |= {"decoder_start_token": None, "add_source_eos": True}
    return options


def _fields(variables, options):
    """Returns fields of the configuration; takes the attributes from the variables."""
    _take_neutral(variables)
    inner = [variables.get(f"{side}/layer_0/ffn/linear_0/weight").shape[0] for side in SIDES]
    heads = {"num_heads": variables.take_equal("num_heads", 8)}
    fields = {
        "model_dim": variables.get("decoder/projection/weight").shape[-1],
        "num_heads": number(heads, "num_heads", variables.path),
        "intermediate_dim": max(inner),
        "num_encoder_layers": _count_layers(variables, "encoder"),
        "num_decoder_layers": _count_layers(variables, "decoder"),
        "activation": _activation(variables),
        "normalize_first": bool(variables.take_equal("pre_norm", 1)),
        "layer_norm_epsilon": options["epsilon"],
        "source_eos": options["add_source_eos"] is True,
    }
    check_heads(fields["model_dim"], fields["num_heads"], variables.path)
    for name in [name for name in variables.arrays if name.endswith("/head_dim")]:
        if (head_dim := variables.take(name)) * fields["num_heads"] != fields["model_dim"]:
            variables.refuse(name, head_dim)
    return fields


def _take_neutral(variables):
    """Takes the attributes that change nothing; raises `InputError` for values that would."""
    for name in _IGNORED.split():
        for scope in ("", "encoder/", "decoder/"):
            variables.take(scope + name)
    for name in _ZERO.split():
        if value := variables.take_equal(name, 0):
            variables.refuse(name, value)


def _activation(variables):
    value = variables.take_equal("activation", 0)
    if value not in ACTIVATIONS:
        reason = f", {_LACKING.get(value, 'an unknown one')}"
        variables.refuse("activation", value, reason)
    return ACTIVATIONS[value]


def _count_layers(variables, side):
    names = (re.match(rf"{side}/layer_(\d+)/", name) for name in variables.arrays)
    return max((int(match[1]) + 1 for match in names if match), default=0)


def _tensors(variables, fields):
    """Returns the tensors by Marian's names; adds the fields that depend on them."""
    factors = [_embedding_factor(variables, side, fields["model_dim"]) for side in SIDES]
    arrays = {}
    for name, array in variables.arrays.items():
        arrays |= _renamed(name, array, "_pre" if fields["normalize_first"] else "")
    for name in sorted(arrays.keys() & variables.arrays.keys()):
        rule = "a `Transformer` has no weight for the variable"
        raise InputError(f"{variables.path}: {rule} {name:.80}.")
    for name in sorted(variables.arrays):
        norm = name.removesuffix("gamma")
        if norm != name and f"{norm}beta" not in variables.arrays:
            rule = "a model with RMS normalization is not imported"
            raise InputError(f"{variables.path}: {rule}. Received: {name:.80} without its beta.")
    _tie(arrays, fields, factors)
    _describe_positions(arrays, fields)
    return Tensors(arrays, variables.path)


def _renamed(name, array, suffix):
    """Returns the tensors of a variable by Marian's names, or the variable by its own name."""
    names = marian_names(name, suffix)

    def part(numbers, i):
        return split(name, numbers, len(names))[i]

    parts = (array.changed(functools.partial(part, i=i), array.dtype) for i in range(len(names)))
    return dict(zip(names, parts, strict=True)) or {name: array}


def _embedding_factor(variables, side, width):
    """Returns a side's factor of embeddings over √width, by which this package scales them."""
    root = math.sqrt(width)
    for name in ("scale_embeddings", "embeddings/multiply_by_sqrt_depth"):
        value = variables.take(f"{side}/{name}")
        if value is not None:  # A factor, or an integer: whether the factor is √width.
            factor = value if isinstance(value, float) else (root if value else 1.0)
            # A factor of float32 is as near to the root as it can be.
            return 1.0 if math.isclose(factor, root, rel_tol=1e-6) else factor / root
    return 1.0


def _tie(arrays, fields, factors):
    """Joins equal tables, and scales embeddings as this package needs them."""
    tables = [arrays.get(f"{side}_Wemb") for side in SIDES]
    output = arrays.pop("decoder_ff_logit_out_W", None)
    is_joint = _is_same(*tables) and factors[0] == factors[1]
    is_tied = _is_same(tables[1], output)
    for side, factor in zip(SIDES, factors, strict=True):
        if factor != 1 and f"{side}_Wemb" in arrays:
            multiply = functools.partial(np.multiply, np.float32(factor))
            arrays[f"{side}_Wemb"] = arrays[f"{side}_Wemb"].changed(multiply)
    if is_joint:
        del arrays["encoder_Wemb"]
        arrays["Wemb"] = arrays.pop("decoder_Wemb")
    if output is not None and not is_tied:
        arrays["decoder_ff_logit_out_Wt"] = output
    if is_tied and factors[1] != 1:
        # The output meets a scaled table: the last normalization is divided by the factor.
        name = f"decoder_l{fields['num_decoder_layers']}_ffn_ffn"
        name = "decoder_top" if fields["normalize_first"] else name
        for kind in NORM.values():
            arrays[f"{name}_{kind}"] = arrays[f"{name}_{kind}"].changed(
                lambda numbers: numbers / np.float32(factors[1])
            )


def _is_same(array, other_array):
    """Returns whether two variables are equal; binary version 2 has no aliases."""
    if array is None or other_array is None or array.shape != other_array.shape:
        return False
    return array is other_array or np.array_equal(array, other_array)


def _describe_positions(arrays, fields):
    """Adds the fields of the positions; removes the tables that are computed here."""
    distances = next((name for name in arrays if name.endswith("_distance_keys")), None)
    if distances:
        count = len(np.asarray(arrays[distances]))
        fields |= {"positions": "relative", "max_distance": count // 2}
        fields["relative_values"] = distances.replace("keys", "values") in arrays
        return
    tables = [arrays[name] for name in NAMES if name in arrays]
    if not tables:
        fields |= _COMPUTED
        return
    for name in NAMES:
        if name not in arrays:  # One side has a table, and both sides have the same kind here.
            positions = np.arange(len(np.asarray(tables[0]))) + _COMPUTED["position_offset"]
            computed = sinusoids(positions, fields["model_dim"], "halves", "marian")
            arrays[name] = computed.astype("float32")
    fields |= position_fields(arrays)


def _read_vocabularies(folder, options, tensors, sentencepiece):
    names = [_read_names(folder, side, options) for side in ("source", "target")]
    pieces = _piece_files(folder, sentencepiece)
    vocabularies = []
    for tokens, file, side in zip(names, pieces, SIDES, strict=True):
        check_rows(len(tokens), tensors.rows(side), folder)
        ids = {token: id for id, token in reversed(list(enumerate(tokens)))}
        special = {
            name: ids.get(options[f"{name}_token"]) for name in ("eos", "unk", "decoder_start")
        }
        if None in (special["eos"], special["unk"]):
            missing = options["unk_token" if special["unk"] is None else "eos_token"]
            raise InputError(f"{folder}: the vocabulary must have {received(missing)}.")
        start = options["decoder_start_token"]
        if side == "decoder" and start is not None and special["decoder_start"] is None:
            raise InputError(f"{folder}: the vocabulary must have {received(start)}.")
        model = read_sentencepiece(file)
        known = sum(piece.piece in ids for piece in model.pieces)
        if known < _LEAST_SHARE * len(model.pieces):
            rule = "the vocabulary must have the pieces of the SentencePiece file"
            sizes = f"{known} of {len(model.pieces)} pieces"
            raise InputError(f"{file}: {rule}. Received: {sizes}. Give {_OPTION}.")
        # The encoder has no start: then equal sides have equal vocabularies.
        pad = next((ids[name] for name in _PADDING if name in ids), None)
        ends = special["eos"], special["unk"], pad, special["decoder_start"]
        vocabularies.append(Vocabulary(model, tokens, *ends))
    return vocabularies


def _read_names(folder, side, options):
    """Returns the tokens of a side."""
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if (path := folder / f"{name}.json").is_file():
            tokens = read_json(path, list)
            break
        if (path := folder / f"{name}.txt").is_file():
            tokens = decode_text(read_checked(path), path).removesuffix("\n").split("\n")
            break
    else:
        raise InputError(f"{folder}: there is no vocabulary, shared_vocabulary.json or .txt.")
    if any(not isinstance(token, str) for token in tokens):
        raise InputError(f"{path}: expected a list of tokens.")
    languages = [token for token in tokens if LANGUAGE_TOKEN.fullmatch(token)]
    if len(languages) >= _MANY_LANGUAGES:
        rule = "a model whose translations begin with the token of a language is not imported"
        raise InputError(f"{path}: {rule}. Received: {len(languages)} tokens, as {languages[0]}.")
    return tokens if options["unk_token"] in tokens else [*tokens, options["unk_token"]]


def _piece_files(folder, sentencepiece):
    """Returns the SentencePiece files of both sides."""
    files = [Path(file) for file in sentencepiece]
    for directory in (folder, folder.parent):
        files = files or sorted(files_like(directory, *_ENDINGS))
    pair = files_of_sides(files, bool(sentencepiece))
    if not pair or pair[0].name == "bpe.model":  # of Moses and subword-nmt
        rule = "expected one SentencePiece file, or source.* and target.*, in the folder or above"
        names = ", ".join(path.name for path in files_like(folder.parent, "*.model")) or "none"
        raise InputError(f"{folder}: {rule}. Received: {names}. Give {_OPTION}.")
    return pair
