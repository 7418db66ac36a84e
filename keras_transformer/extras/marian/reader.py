"""Marian's model files: an npz, or the binary layout of Bergamot's and Firefox's students."""

import os
import re
import struct
from pathlib import Path

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.base.reading import decode_text, read_arrays, read_checked, reading_errors
from keras_transformer.extras.foreign.foreign_model import ForeignModel, Tensors, check_heads
from keras_transformer.extras.foreign.settings import dropout_rate, files_like, number, read_yaml
from keras_transformer.extras.foreign.shortlist_files import read_lexicon
from keras_transformer.extras.foreign.vocabulary import (
    check_rows,
    files_of_sides,
    read_sentencepiece,
    vocabulary_from_names,
    vocabulary_from_sentencepiece,
)

OPTIONS = "special:model.yml"
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
# SentencePiece files of OPUS-MT, which segment words; vocab.yml has the ids.
_PIECES = ("source.spm", "target.spm")
_FLOAT32, _INT8 = 0x0404, 0x0101
_INTGEMM8 = (0x4101, 0x10001)
_SHOWN_FILES = 8
_NO = ("false",)
# Supported values of options. An option that a file lacks has Marian's default.
_ALLOWED: dict[str, tuple[str, ...]] = {
    "type": ("transformer",),
    **dict.fromkeys(("right-left", "ulr", "transformer-pool", "transformer-no-projection"), _NO),
    **dict.fromkeys(("transformer-alibi-shift", "transformer-alibi-trainable"), _NO),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-attention-mask": ("default",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-activation": tuple(ACTIVATIONS),
    "transformer-preprocess": ("", "d", "n", "nd", "dn"),
    "transformer-postprocess": ("dan", "an", "da", "a"),
    "transformer-postprocess-emb": ("", "d"),
    "transformer-postprocess-top": ("", "n", "d", "dn", "nd"),
    "factors-dim-emb": ("0",),
}
_DEFAULTS = {
    "type": "amun",
    "transformer-postprocess": "dan",
    **dict.fromkeys(("transformer-preprocess", "transformer-postprocess-top"), ""),
    "transformer-heads": "8",
    "transformer-dim-ffn": "2048",
    "transformer-decoder-dim-ffn": "0",
    "transformer-ffn-activation": "swish",
    "transformer-decoder-autoreg": "self-attention",
    "dec-cell": "gru",
    **dict.fromkeys(("enc-depth", "dec-depth"), "1"),
    "dim-emb": "512",
}


def is_model(folder: Path) -> bool:
    """Returns whether a folder has files that may be models of Marian."""
    return bool(model_files(folder))


def read(folder: Path) -> ForeignModel:
    """Reads the model of a folder."""
    path = model_file(folder)
    arrays = read_tensors(path)
    options = _read_options(arrays, path)
    _check_supported(options, path)
    if "Wpos" in arrays:
        raise InputError(f"{path}: trained positions (Wpos) are not imported.")
    no_weights = [name for name in arrays if name == OPTIONS or name.endswith("QuantMultA")]
    tensors = Tensors({name: arrays[name] for name in arrays.keys() - no_weights}, path)
    files = [*files_like(folder, "*decoder.yml", "config*.yml"), folder]
    file, decoder = files[0], {}
    if file.is_file():
        decoder = read_yaml(read_checked(file).decode("utf-8-sig", "replace"), file)
    # Students are made for greedy search. Marian's own default is 12.
    is_student = file is folder and options["transformer-decoder-autoreg"] == "rnn"
    decoding = {
        "beam_size": number(decoder, "beam-size", file, 1 if is_student else 12),
        # Without a value the option means 1.
        "length_penalty": number(decoder, "normalize", file, "normalize" in decoder, float),
        "word_penalty": number(decoder, "word-penalty", file, 0, float),
        "length_normalization": "marian",
        "max_length_ratio": number(decoder, "max-length-factor", file, 3, float),
    }
    vocabularies = _read_vocabularies(folder, decoder.get("vocabs"), file, tensors)
    shortlist = read_lexicon(folder, vocabularies, decoder)
    fields = {**_fields(options), "dropout": _dropout(options, path)}
    return ForeignModel(fields, tensors, vocabularies, decoding, **shortlist)


def model_file(folder: Path) -> Path:
    """Returns the one model of a folder."""
    files = model_files(folder)
    if len(files) != 1:
        names = ", ".join(file.name for file in files[:_SHOWN_FILES]) or "none"
        raise InputError(f"{folder}: expected one model, *.npz or *.bin. Received: {names}.")
    return files[0]


def model_files(folder: Path) -> list[Path]:
    """Returns the files of a folder that may be models of Marian."""
    files = files_like(folder, "*.npz") or files_like(folder, "*.bin")
    return [file for file in files if not file.name.startswith(("lex.", "pytorch_model"))]


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads the tensors of a file; int8 tensors become float32."""
    if path.suffix != ".bin":
        return read_arrays(path)
    with reading_errors(path, "a model of Marian"):
        return dict(_binary_tensors(path.read_bytes(), path))


def _binary_tensors(data, path):
    version, count = struct.unpack_from("<QQ", data)
    if version != 1 or count > len(data) // 32:
        raise InputError(f"{path}: expected a binary model of version 1. Received: {version}.")
    headers = [struct.unpack_from("<QQQQ", data, 16 + 32 * i) for i in range(count)]
    index, names, shapes = 16 + 32 * count, [], []
    for length, *_ in headers:
        names.append(data[index : index + length].rstrip(b"\0").decode())
        index += length
    for _, _, rank, _ in headers:
        shapes.append(struct.unpack_from(f"<{rank}i", data, index))
        index += 4 * rank
    (gap,) = struct.unpack_from("<Q", data, index)
    index += 8 + gap
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        yield name, _binary_tensor(data[index : index + size], name, shape, kind, path)
        index += size


def _binary_tensor(content, name, shape, kind, path):
    count = int(np.prod(shape))
    if kind == _FLOAT32:
        return np.frombuffer(content, "<f4", count).reshape(shape)
    if kind == _INT8:
        return np.frombuffer(content, "int8")
    if kind not in _INTGEMM8:
        rule = "only float32 and intgemm8 are read"
        raise InputError(f"{path}: {rule}. Received: the tensor {name} of the type {kind:#x}.")
    (multiplier,) = struct.unpack_from("<f", content, count)
    values = np.frombuffer(content, "int8", count).astype("float32") / multiplier
    # The file holds each matrix of a product transposed.
    return values.reshape(shape) if name.endswith("Wemb") else values.reshape(shape[::-1]).T


def _read_options(tensors, path):
    """Reads the options in a model as text, with Marian's defaults where the model has none."""
    if OPTIONS not in tensors:
        raise InputError(f"{path}: not a model of Marian: it has no {OPTIONS}.")
    text = tensors[OPTIONS].astype("int8").tobytes().split(b"\0")[0].decode("utf-8", "replace")
    options = {**_DEFAULTS, **read_yaml(text, f"{path}: {OPTIONS}")}
    names = [name for name, value in _DEFAULTS.items() if value.isdigit()]
    return options | {name: number(options, name, path) for name in names}


def _check_supported(options, path):
    """Raises `InputError` for options that a `Transformer` cannot have."""

    def refuse(name, rule):
        raise InputError(f"{path}: {rule}. Received: {name}: {received(options.get(name))}.")

    for name, allowed in _ALLOWED.items():
        if name in options and options[name] not in allowed:
            refuse(name, f"`{name}` must be {' or '.join(map(repr, allowed))} to be imported")
    if options["transformer-decoder-autoreg"] == "rnn" and options["dec-cell"] != "ssru":
        refuse("dec-cell", "a recurrent decoder must have ssru cells")
    layers = options.get("transformer-tied-layers") or []
    if list(layers) != [str(i + 1) for i in range(len(layers))]:
        refuse("transformer-tied-layers", "layers that share weights are not imported")
    check_heads(options["dim-emb"], options["transformer-heads"], path)
    is_pre = "n" in options["transformer-preprocess"]
    is_post = "n" in options["transformer-postprocess"]
    if is_pre == is_post or is_pre != ("n" in options["transformer-postprocess-top"]):
        refuse("transformer-postprocess-top", "normalizations must be all before or all after")
    version = _version(options)
    if is_pre and version < (1, 11):
        refuse("version", "pre-norm models of Marian before 1.11 are not imported")
    if options["transformer-ffn-activation"] == "gelu" and version < (1, 12, 3):
        refuse("version", "gelu of Marian before 1.12.3 was another function and is not imported")


def _dropout(options, path):
    """Returns the dropout rate of the training; 0 for a student, and where no file has a rate."""
    training_file = path.with_name(f"{path.name}.yml")  # as Marian's training writes it
    if options["transformer-decoder-autoreg"] == "rnn" or not training_file.is_file():
        return 0.0
    training = read_yaml(decode_text(read_checked(training_file), training_file), training_file)
    return dropout_rate(training, "transformer-dropout", training_file)


def _version(options):
    version = options.get("version")
    match = re.match(r"v?([0-9.]{1,80})", version if isinstance(version, str) else "")
    return tuple(int(part) for part in match[1].split(".") if part) if match else (0,)


def _fields(options):
    widths = options["transformer-dim-ffn"], options["transformer-decoder-dim-ffn"]
    fields = {
        "model_dim": options["dim-emb"],
        "num_heads": options["transformer-heads"],
        "intermediate_dim": max(widths),
        "num_encoder_layers": options["enc-depth"],
        "num_decoder_layers": options["dec-depth"],
        "activation": ACTIVATIONS[options["transformer-ffn-activation"]],
        "normalize_first": "n" in options["transformer-preprocess"],
        "layer_norm_epsilon": 1e-6,
        "position_layout": "halves",
        "position_frequencies": "marian",
    }
    if options.get("transformer-disable-position-embeddings") == "true":
        fields["positions"] = "none"
    if options["transformer-decoder-autoreg"] == "rnn":
        projects = options.get("transformer-rnn-projection") == "true"
        fields |= {"decoder": "ssru", "ssru_projection": projects}
    return fields


def _read_vocabularies(folder, names, where, tensors):
    """Reads the vocabularies of both sides; `names` is the decoder's option `vocabs`, or None."""
    names = names.split() if isinstance(names, str) else names or ()
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{where}: `vocabs` must be a list of files. Received: {received(names)}.")
    files = [folder / Path(name).name for name in names]
    for name in (file.name for file in files if not os.path.isfile(file)):
        rule = f"`vocabs` must name files in {folder}"
        raise InputError(f"{where}: {rule}. Received: {received(name)}.")
    has_names = bool(files)
    files = files or _vocabulary_files(folder)
    pair = files_of_sides(files, has_names)
    if not pair:
        rule = "expected one vocabulary, names with source and target, or `vocabs` in decoder.yml"
        names = " ".join(file.name for file in files[:_SHOWN_FILES])
        raise InputError(f"{folder}: {rule}. Received: {names}.")
    files, rows = pair, [tensors.rows(side) for side in ("encoder", "decoder")]
    if all(file.suffix == ".spm" for file in files):
        return [_of_pieces(*side, not has_names) for side in zip(files, rows, strict=True)]
    pieces = [folder / name for name in _PIECES]
    if not all(file.is_file() for file in pieces):
        kind = "subword-nmt's BPE" if files_like(folder, "*.bpe") else files[0].name
        rule = "SentencePiece segments the words, so source.spm and target.spm are needed"
        raise InputError(f"{folder}: {rule}. Received: {kind}.")
    return list(map(vocabulary_from_names, pieces, files, rows))


def _of_pieces(file, rows, may_only_segment):
    """Reads a SentencePiece file as a vocabulary; OPUS-MT's files may only segment words."""
    vocabulary, advice = vocabulary_from_sentencepiece(read_sentencepiece(file), file), ""
    if may_only_segment and file.name in _PIECES:
        advice = " In the layout of OPUS-MT this file only segments words: copy the model's "
        advice += "vocab.yml and decoder.yml into the folder."
        if (vocabulary.end, vocabulary.unknown) != (0, 1):
            rule = "a vocabulary of Marian begins with </s> and <unk>"
            names = ", ".join(f"{name:.80}" for name in vocabulary.names[:2])
            raise InputError(f"{file}: {rule}. Received: {names}.{advice}")
    check_rows(len(vocabulary.names), rows, file, advice)
    return vocabulary


def _vocabulary_files(folder):
    for patterns in (["*vocab*.yml"], ["vocab*.spm"], ["src*.spm", "trg*.spm"], ["*.spm"]):
        if files := files_like(folder, *patterns):
            return files  # "source.spm" is before "target.spm".
    raise InputError(f"{folder}: there is no vocabulary, *.spm or *.vocab.yml.")
