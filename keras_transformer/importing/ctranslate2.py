"""CTranslate2's Transformers, as OpenNMT-py, OpenNMT-tf, fairseq and Argos publish them."""

import math
import mmap
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_transformer.errors import InputError, first_line, show
from keras_transformer.importing.positions import position_fields, sinusoids
from keras_transformer.importing.vocabulary import (
    Vocabulary,
    check_rows,
    number,
    read_json,
)
from keras_transformer.importing.weights import (
    BFLOAT16,
    ForeignModel,
    Tensors,
    as_float32,
    mapped_array,
)
from keras_transformer.options import received
from keras_transformer.reading import check_file, decode_text, read_checked
from keras_transformer.text.vocabulary import read_sentencepiece

MODEL, METADATA = "model.bin", "metadata.json"
_VERSIONS = range(2, 7)
_TYPES = tuple(map(np.dtype, ("<f4", "i1", "<i2", "<i4", "<f2"))) + (BFLOAT16,)
_TYPES_BY_SIZE = {4: _TYPES[0], 2: _TYPES[2], 1: _TYPES[1]}  # up to version 3
_ACTIVATIONS = {0: "relu", 2: "silu", 3: "gelu", 5: "tanh", 6: "sigmoid"}
_LACKING = {1: "gelu with tanh", 4: "gelu with a sigmoid"}
# Positions that CTranslate2 computes where a file has none; here they become a table.
_COMPUTED_POSITIONS = 1024
# Kind and letters in Marian's names; a variable has the rows of one matrix for each letter.
_LAYERS = {
    "self_attention/linear_0": ("self", "qkv"),
    "self_attention/linear_1": ("self", "o"),
    "attention/linear_0": ("context", "q"),
    "attention/linear_1": ("context", "kv"),
    "attention/linear_2": ("context", "o"),
    "ffn/linear_0": ("ffn", "1"),
    "ffn/linear_1": ("ffn", "2"),
}
_NORMS = {"self_attention": "self_Wo", "attention": "context_Wo", "ffn": "ffn_ffn"}
# Attributes that change nothing here, and the values of others that mean "without it".
_IGNORED = (
    "alignment_layer",
    "alignment_heads",
    "alibi_use_positive_positions",
    "scale_alibi",
    "with_relative_position",
)
_ZERO = (
    "embeddings_merge",
    "alibi",
    "layernorm_embedding",
    "multi_query_attention",
    "user_decoder_start_tokens",
    "with_source_bos",
)
# Tokens of M2M-100 and NLLB, which a caller gives as the beginning of a translation.
_LANGUAGE, _MANY_LANGUAGES = re.compile(r"__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}"), 20
_ENDINGS = ("*.spm", "*.model")
_SIDES = ("source|src", "target|tgt|trg")
_PADDING = ("<pad>", "<blank>")  # of fairseq and this package, and of OpenNMT
_LEAST_SHARE = 0.2  # of pieces in a vocabulary: one of both sides has half of each
_OPTION = "the right files with --sentencepiece"
# Of CTranslate2 itself. No translation is empty: EOS is never the first token.
_SEARCH = {"beam_size": 2, "length_penalty": 1.0, "length_normalization": "length"}
_SEARCH |= {"early_stopping": True, "min_length": 2}
ARGOS_SEARCH = {**_SEARCH, "beam_size": 4, "length_penalty": 0.2}
"""Search options of Argos Translate."""


def is_model(folder: Path) -> bool:
    """Returns whether a folder looks like one of CTranslate2; Marian has a `model.bin`, too."""
    if not (folder / MODEL).is_file():
        return False
    with open(folder / MODEL, "rb") as file:
        has_version = int.from_bytes(file.read(8), "little") != 1
    return has_version or any(folder.glob("*_vocabulary.*"))


def read(folder: Path, sentencepiece: Sequence[str | os.PathLike] = ()) -> ForeignModel:
    """Reads the model of a folder.

    Args:
        folder: Path of the folder.
        sentencepiece: Paths of the SentencePiece file of both sides, or of each side. By default
            these are files of the folder, or of the folder that holds it.
    """
    path = folder / MODEL
    model = _Model(path)
    options = _read_options(folder, model)
    fields = _fields(model, options)
    tensors = _tensors(model, fields)
    vocabularies = _read_vocabularies(folder, options, tensors, sentencepiece)
    return ForeignModel(fields, tensors, vocabularies, _SEARCH)


def read_argos(folder: Path, sentencepiece: Sequence[str | os.PathLike] = ()) -> ForeignModel:
    """Reads the model of an unpacked Argos package, with the search of Argos Translate."""
    path = folder / METADATA
    metadata = read_json(path)
    for name, neutral in (("type", "translate"), ("target_prefix", "")):
        if (value := metadata.get(name) or neutral) != neutral:
            rule = f"only packages with `{name}` {neutral!r} are imported"
            raise InputError(f"{path}: {rule}. Received: {received(value)}.")
    names = " to ".join(str(metadata.get(f"{side}_name")) for side in ("from", "to"))
    show(f"{folder}: an Argos package that translates {names}")
    model = read(folder / "model", sentencepiece)
    return model._replace(decoding=ARGOS_SEARCH)


class _Model:
    """Variables of a `model.bin`; each must be used exactly once.

    Attributes:
        arrays: Arrays by their names, without those that only scale another one.
        aliases: Names of the arrays that other names stand for.
    """

    def __init__(self, path: Path):
        self.path, self.arrays, self.aliases, self._used = path, {}, {}, set()
        check_file(path)
        try:
            with open(path, "rb") as file:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    self._read(data)
        except InputError:
            raise
        except Exception as error:  # Any byte of a damaged file may be wrong.
            reason = f"{first_line(error):.200}"
            raise InputError(f"{path}: cannot be read as CTranslate2's model: {reason}.") from None

    def _read(self, data):
        self._data, self._position = data, 0
        version = self._number("I")
        if version not in _VERSIONS:
            rule = f"expected a binary version from {_VERSIONS[0]} to {_VERSIONS[-1]}"
            raise InputError(f"{self.path}: {rule}. Received: {version}.")
        if (kind := self._text()) != "TransformerSpec":
            rule = "only CTranslate2's encoder-decoder Transformers are imported"
            raise InputError(f"{self.path}: {rule}. Received: {received(kind)}.")
        self._number("I")  # the revision, which the names show
        for _ in range(self._number("I")):
            name = self._text()
            self.arrays[name] = self._variable(version)
        if version > 2:
            for _ in range(self._number("I")):
                alias = self._text()
                self.aliases[alias] = self._text()
        self._data = None  # The arrays are views of the file of their own.
        scales = {f"{name}_scale" for name in self.arrays} & {*self.arrays, *self.aliases}
        self._scales = {name: self.arrays.pop(name) for name in scales if name in self.arrays}
        self.aliases = {name: of for name, of in self.aliases.items() if of in self.arrays}

    def _number(self, form):
        (value,) = struct.unpack_from("<" + form, self._data, self._position)
        self._position += struct.calcsize("<" + form)
        return value

    def _text(self):
        start, size = self._position + 2, self._number("H")
        self._position = start + size
        if self._position > len(self._data):
            raise ValueError("the file ends too early")
        return self._data[start : start + size].rstrip(b"\0").decode()

    def _variable(self, version):
        shape = [self._number("I") for _ in range(self._number("B"))]
        kind, size = self._number("B"), self._number("I")
        dtype = _TYPES_BY_SIZE[kind] if version < 4 else _TYPES[kind]
        size *= dtype.itemsize if version < 4 else 1
        start, self._position = self._position, self._position + size
        if size != math.prod(shape) * dtype.itemsize or self._position > len(self._data):
            raise ValueError("a variable has another size than its numbers")
        if size < 1 << 12:  # bytes: a mapping of its own would not pay
            return np.frombuffer(self._data[start : self._position], dtype).reshape(shape)
        return mapped_array(self.path, dtype, start, shape)

    def is_same(self, name, other_name):
        """Returns whether two names stand for equal arrays; version 2 has no aliases."""
        names = [self.aliases.get(alias, alias) for alias in (name, other_name)]
        return names[0] == names[1] or np.array_equal(*map(self.get, names))

    def unused(self):
        """Returns names of arrays that were never got."""
        return self.arrays.keys() - self._used

    def __contains__(self, name):
        return name in self.arrays or name in self.aliases

    def attribute(self, name, default):
        """Removes a number or a text at the root or of both sides, which must be equal."""
        names = [name, f"encoder/{name}", f"decoder/{name}"]
        values = [_plain(self.arrays.pop(name)) for name in names if name in self.arrays]
        if any(value != values[0] for value in values):
            rule = f"`{name}` must be equal in the encoder and the decoder"
            raise InputError(f"{self.path}: {rule}. Received: {received(values)}.")
        return values[0] if values else default

    def get(self, name):
        """Returns an array, dequantized; raises `InputError` for a missing one."""
        name = self.aliases.get(name, name)
        if name not in self.arrays:
            raise InputError(f"{self.path}: the model has no variable {name}.")
        self._used.add(name)
        array, scale = self.arrays[name], self._scales.get(f"{name}_scale")
        if scale is None:
            return array
        scale = np.asarray(scale, "float32")
        return array / (scale[:, None] if scale.ndim and scale.size > 1 else scale)


def _plain(array):
    return array.item() if not array.ndim else array.tobytes().decode("utf-8", "replace")


def _read_options(folder, model):
    """Returns the options of `config.json`, or those that older files have among the variables."""
    path = folder / "config.json"
    attributes = {
        name: model.attribute(name, default)
        for name, default in (
            ("unk_token", "<unk>"),
            ("bos_token", "<s>"),
            ("eos_token", "</s>"),
            ("with_source_eos", 0),
            ("with_target_bos", 1),
            ("layer_norm_epsilon", None),
        )
    }
    options = {"add_source_eos": bool(attributes.pop("with_source_eos")), **attributes}
    starts_with_bos = options.pop("with_target_bos")
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
    return options


def _fields(model, options):
    """Returns fields of the configuration; removes the attributes from the model's arrays."""

    def refuse(name, value, reason=""):
        rule = f"a model with `{name}` is not imported"
        raise InputError(f"{model.path}: {rule}. Received: {received(value)}{reason}.")

    for name in _IGNORED:
        for scope in ("", "encoder/", "decoder/"):
            model.arrays.pop(scope + name, None)
    for name in _ZERO:
        if value := model.attribute(name, 0):
            refuse(name, value)
    activation = model.attribute("activation", 0)
    if activation not in _ACTIVATIONS:
        refuse("activation", activation, f", {_LACKING.get(activation, 'an unknown one')}")
    counts = {side: _count(model, rf"{side}/layer_(\d+)/") for side in ("encoder", "decoder")}
    inner = [len(model.get(f"{side}/layer_0/ffn/linear_0/weight")) for side in counts]
    table = model.get("decoder/embeddings/weight")
    # Marian's models end each source with EOS, which only their tokenizers write.
    starts_with_zeros = bool(model.attribute("start_from_zero_embedding", 0))
    if starts_with_zeros:
        options["decoder_start_token"] = None
    fields = {
        "model_dim": table.shape[-1],
        "num_heads": model.attribute("num_heads", 8),
        "intermediate_dim": max(inner),
        "num_encoder_layers": counts["encoder"],
        "num_decoder_layers": counts["decoder"],
        "activation": _ACTIVATIONS[activation],
        "normalize_first": bool(model.attribute("pre_norm", 1)),
        "layer_norm_epsilon": options["epsilon"],
        "output_bias": True,
        "source_eos": starts_with_zeros or options["add_source_eos"] is True,
    }
    width, heads = fields["model_dim"], fields["num_heads"]
    if width % 2 or heads < 1 or width % heads:
        rule = f"the width must be even, and a multiple of the {heads} heads"
        raise InputError(f"{model.path}: {rule}. Received: {width}.")
    for name in [name for name in model.arrays if name.endswith("/head_dim")]:
        if (head_dim := _plain(model.arrays.pop(name))) * heads != width:
            refuse(name, head_dim)
    return fields


def _count(model, pattern):
    names = (re.match(pattern, name) for name in (*model.arrays, *model.aliases))
    return max((int(match[1]) + 1 for match in names if match), default=0)


def _tensors(model, fields):
    """Returns the tensors by Marian's names; adds the fields that depend on them."""
    tensors = _tables(model, fields)
    suffix = "_pre" if fields["normalize_first"] else ""
    for side in ("encoder", "decoder"):
        for i in range(fields[f"num_{side}_layers"]):
            layer, block = f"{side}/layer_{i}", f"{side}_l{i + 1}"
            for part, (kind, letters) in _LAYERS.items():
                for variable, letter_of_kind in (("weight", "W"), ("bias", "b")):
                    if (name := f"{layer}/{part}/{variable}") in model:
                        parts = np.split(model.get(name), len(letters))
                        for letter, rows in zip(letters, parts, strict=True):
                            tensors[f"{block}_{kind}_{letter_of_kind}{letter}"] = rows.T
            for part, name in _NORMS.items():
                _take_norm(model, tensors, f"{layer}/{part}", f"{block}_{name}", suffix)
            for name in ("keys", "values"):
                if (table := f"{layer}/self_attention/relative_position_{name}") in model:
                    tensors[f"{block}_self_distance_{name}"] = model.get(table)
        _take_norm(model, tensors, side, f"{side}_top", "")
    _scale_output(tensors, fields)
    tables = [name for name in tensors if name.endswith("_distance_keys")]
    if tables:
        fields |= {"positions": "relative", "max_distance": len(tensors[tables[0]]) // 2}
        fields["relative_values"] = tables[0].replace("keys", "values") in tensors
    else:
        _take_positions(model, tensors, fields)
    for name in sorted(model.unused()):
        raise InputError(f"{model.path}: a `Transformer` has no weight for the variable {name}.")
    return Tensors(tensors, model.path)


def _take_norm(model, tensors, name, new_name, suffix):
    for variable, new_variable in (("gamma", "scale"), ("beta", "bias")):
        if (path := f"{name}/layer_norm/{variable}") in model:
            tensors[f"{new_name}_ln_{new_variable}{suffix}"] = model.get(path)
    if f"{new_name}_ln_scale{suffix}" in tensors and f"{new_name}_ln_bias{suffix}" not in tensors:
        rule = "a model with RMS normalization is not imported"
        raise InputError(f"{model.path}: {rule}. Received: {name}/layer_norm without beta.")


def _tables(model, fields):
    """Returns embeddings and the output projection; this package scales embeddings by √width."""
    names = ["encoder/embeddings_0/weight", "decoder/embeddings/weight"]
    if names[0] not in model:
        names[0] = "encoder/embeddings/weight"
    root = math.sqrt(fields["model_dim"])
    factors = [_factor(model, side, root) / root for side in ("encoder", "decoder")]
    # A factor of float32 is as near to the root as it can be.
    factors = [1.0 if math.isclose(factor, 1, rel_tol=1e-6) else factor for factor in factors]
    output = "decoder/projection/weight"
    is_joint = model.is_same(*names) and factors[0] == factors[1]
    is_tied = model.is_same(names[1], output)
    new_names = ["Wemb"] if is_joint else ["encoder_Wemb", "decoder_Wemb"]
    tensors = {
        new_name: model.get(name) if factor == 1 else model.get(name) * np.float32(factor)
        for new_name, name, factor in zip(new_names, names, factors, strict=False)
    }
    model.get(names[1])
    fields["tie_embeddings"] = ("all" if is_joint else "decoder") if is_tied else "none"
    if is_tied:
        fields["_output_divisor"] = factors[1]
        model.get(output)
    else:
        tensors["decoder_ff_logit_out_Wt"] = model.get(output)
    if "decoder/projection/bias" in model:
        tensors["decoder_ff_logit_out_b"] = model.get("decoder/projection/bias")
    return tensors


def _factor(model, side, root):
    """Returns the factor of a side's embeddings: a number, or 0 or 1 for none and the root."""
    for name in ("scale_embeddings", "embeddings/multiply_by_sqrt_depth"):
        if (array := model.arrays.pop(f"{side}/{name}", None)) is not None:
            is_number = array.dtype.kind == "f" or array.dtype == BFLOAT16
            return float(as_float32(array)) if is_number else (root if array.item() else 1.0)
    return root


def _scale_output(tensors, fields):
    """Divides the decoder's output where it meets a scaled table: its last normalization."""
    divisor = fields.pop("_output_divisor", 1.0)
    name = f"decoder_l{fields['num_decoder_layers']}_ffn_ffn"
    name = "decoder_top" if fields["normalize_first"] else name
    for variable in ("scale", "bias") if divisor != 1 else ():
        tensors[f"{name}_ln_{variable}"] = tensors[f"{name}_ln_{variable}"] / np.float32(divisor)


def _take_positions(model, tensors, fields):
    names = {side: f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")}
    tables = {side: model.get(name) for side, name in names.items() if name in model}
    if len(tables) < 2:  # CTranslate2 computes positions from 1.
        positions = np.arange(1, _COMPUTED_POSITIONS + 1)
        computed = sinusoids(positions, fields["model_dim"], "halves", "marian").astype("float32")
        tables = {side: tables.get(side, computed) for side in names}
    fields |= position_fields(tables)
    if fields.get("positions") == "learned":
        tensors |= {f"{side}_Wpos": table for side, table in tables.items()}


def _read_vocabularies(folder, options, tensors, sentencepiece):
    names = [_read_names(folder, side, options) for side in ("source", "target")]
    pieces = _piece_files(folder, sentencepiece)
    vocabularies = []
    for tokens, file, side in zip(names, pieces, ("encoder", "decoder"), strict=True):
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
    languages = [token for token in tokens if _LANGUAGE.fullmatch(token)]
    if len(languages) >= _MANY_LANGUAGES:
        rule = "a model whose translations begin with the token of a language is not imported"
        raise InputError(f"{path}: {rule}. Received: {len(languages)} tokens, as {languages[0]}.")
    return tokens if options["unk_token"] in tokens else [*tokens, options["unk_token"]]


def _piece_files(folder, sentencepiece):
    """Returns the SentencePiece files of both sides."""
    files = [Path(file) for file in sentencepiece]
    for directory in (folder, folder.parent):
        files = files or sorted(file for ending in _ENDINGS for file in directory.glob(ending))
    sides = [[file for file in files if re.search(side, file.name)] for side in _SIDES]
    if sentencepiece and len(files) <= 2 or len(files) == 1:
        is_other = len(files) == 1 and files[0].name == "bpe.model"
        files = [] if is_other else [files[0], files[-1]]
    elif len(files) == 2 and all(len(side) == 1 for side in sides) and sides[0] != sides[1]:
        files = [sides[0][0], sides[1][0]]
    else:
        files = []
    if not files:
        rule = "expected one SentencePiece file, or source.* and target.*, in the folder or above"
        names = ", ".join(path.name for path in sorted(folder.parent.glob("*.model"))) or "none"
        raise InputError(f"{folder}: {rule}. Received: {names}. Give {_OPTION}.")
    return files
