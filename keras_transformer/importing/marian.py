"""Marian's model files: an npz, or the binary layout of Bergamot's and Firefox's students."""

import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.importing import vocabulary
from keras_transformer.importing.vocabulary import Vocabulary, of_names, of_sentencepiece
from keras_transformer.importing.weights import Tensors

OPTIONS = "special:model.yml"
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
_FLOAT32, _INT8 = 0x0404, 0x0101
_INTGEMM8 = (0x4101, 0x10001)
# Values of options that are imported. Where a file lacks an option, it has Marian's default.
_ALLOWED: dict[str, tuple[str, ...]] = {
    "type": ("transformer",),
    "right-left": ("false",),
    "ulr": ("false",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
    "transformer-no-projection": ("false",),
    "transformer-pool": ("false",),
    "transformer-attention-mask": ("default",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-ffn-activation": tuple(_ACTIVATIONS),
    "transformer-preprocess": ("", "d", "n", "nd", "dn"),
    "transformer-postprocess": ("dan", "an", "da", "a"),
    "transformer-postprocess-emb": ("", "d"),
    "transformer-postprocess-top": ("", "n", "d", "dn", "nd"),
    "factors-dim-emb": ("0",),
}
_DEFAULTS = {
    "type": "amun",
    "transformer-postprocess": "dan",
    "transformer-preprocess": "",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-heads": "8",
    "transformer-dim-ffn": "2048",
    "transformer-decoder-dim-ffn": "0",
    "transformer-ffn-activation": "swish",
    "transformer-decoder-autoreg": "self-attention",
    "dec-cell": "gru",
    "enc-depth": "1",
    "dec-depth": "1",
    "dim-emb": "512",
    "transformer-rnn-projection": "false",
    "transformer-disable-position-embeddings": "false",
}


def model_file(folder: Path) -> Path:
    """Returns the file of the only model in a folder."""
    files = sorted(folder.glob("*.npz")) or sorted(folder.glob("*.bin"))
    files = [file for file in files if not file.name.startswith(("lex.", "pytorch_model"))]
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise InputError(f"{folder}: expected one model, *.npz or *.bin. Received: {names}.")
    return files[0]


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads the tensors of a file; int8 values are scaled back to float32."""
    if path.suffix == ".bin":
        return _read_binary(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read as an npz: {error}.") from None


def _read_binary(path):
    data = path.read_bytes()
    try:
        return dict(_binary_tensors(data, path))
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: the file is damaged: {error}.") from None


def _binary_tensors(data, path):
    version, count = struct.unpack_from("<QQ", data)
    if version != 1 or count > len(data) // 32:
        raise InputError(f"{path}: expected a binary model of version 1. Received: {version}.")
    headers = [struct.unpack_from("<QQQQ", data, 16 + 32 * i) for i in range(count)]
    offset, names, shapes = 16 + 32 * count, [], []
    for length, *_ in headers:
        names.append(data[offset : offset + length].rstrip(b"\0").decode())
        offset += length
    for _, _, rank, _ in headers:
        shapes.append(struct.unpack_from(f"<{rank}i", data, offset))
        offset += 4 * rank
    (gap,) = struct.unpack_from("<Q", data, offset)
    offset += 8 + gap
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        yield name, _binary_tensor(data[offset : offset + size], name, shape, kind, path)
        offset += size


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
    # A matrix for products is stored transposed.
    if name.endswith("Wemb"):
        return values.reshape(shape)
    return values.reshape(shape[::-1]).T


def read_options(tensors: Mapping[str, np.ndarray], path: Path) -> dict[str, Any]:
    """Reads a model's options as text; an option that it lacks has Marian's default."""
    if OPTIONS not in tensors:
        raise InputError(f"{path}: not a model of Marian: it has no {OPTIONS}.")
    text = tensors[OPTIONS].astype("int8").tobytes().split(b"\0")[0].decode("utf-8", "replace")
    return {**_DEFAULTS, **vocabulary.read_yaml(text, f"{path}: {OPTIONS}")}


def check_supported(options: Mapping[str, Any], path: Path) -> None:
    """Raises `InputError` for a model that this package has no layers for."""

    def refuse(name, rule):
        raise InputError(f"{path}: {rule}. Received: {name}: {options.get(name)!r}.")

    for name, allowed in _ALLOWED.items():
        if name in options and options[name] not in allowed:
            refuse(name, f"`{name}` must be {' or '.join(map(repr, allowed))} to be imported")
    if options["transformer-decoder-autoreg"] == "rnn" and options["dec-cell"] != "ssru":
        refuse("dec-cell", "a recurrent decoder must have ssru cells")
    layers = options.get("transformer-tied-layers") or []
    if list(layers) != [str(i + 1) for i in range(len(layers))]:
        refuse("transformer-tied-layers", "layers that share weights are not imported")
    for name in ("transformer-alibi-shift", "transformer-alibi-trainable"):
        if options.get(name) == "true":
            refuse(name, "ALiBi is not imported")
    width, heads = int(options["dim-emb"]), int(options["transformer-heads"])
    if width % 2 or width % heads:
        refuse("dim-emb", f"the width must be even, and a multiple of the {heads} heads")
    is_pre = "n" in options["transformer-preprocess"]
    is_post = "n" in options["transformer-postprocess"]
    if is_pre == is_post or is_pre != ("n" in options["transformer-postprocess-top"]):
        refuse("transformer-postprocess-top", "normalizations must be all before or all after")
    version = _version(options)
    if is_pre and version < (1, 11):
        refuse("version", "pre-norm models of Marian before 1.11 are not imported")
    if options["transformer-ffn-activation"] == "gelu" and version < (1, 12, 3):
        refuse("version", "gelu of Marian before 1.12.3 was another function and is not imported")


def _version(options):
    match = re.match(r"v?([0-9.]+)", str(options.get("version", "")))
    return tuple(int(part) for part in match[1].split(".") if part) if match else (0,)


def model_fields(options: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Returns fields of a file's `TransformerConfig`, without the vocabulary's sizes."""
    widths = int(options["transformer-dim-ffn"]), int(options["transformer-decoder-dim-ffn"])
    fields = {
        "model_dim": int(options["dim-emb"]),
        "num_heads": int(options["transformer-heads"]),
        "intermediate_dim": max(widths),
        "num_encoder_layers": int(options["enc-depth"]),
        "num_decoder_layers": int(options["dec-depth"]),
        "activation": _ACTIVATIONS[options["transformer-ffn-activation"]],
        "normalize_first": "n" in options["transformer-preprocess"],
        "layer_norm_epsilon": 1e-6,
        "tie_embeddings": tensors.tied_embeddings,
        "output_bias": True,
        "position_layout": "halves",
        "position_frequencies": "marian",
    }
    if options["transformer-disable-position-embeddings"] == "true":
        fields["positions"] = "none"
    if options["transformer-decoder-autoreg"] == "rnn":
        projects = options["transformer-rnn-projection"] == "true"
        fields |= {"decoder": "ssru", "ssru_projection": projects}
    return fields


def tensors_of(arrays: Mapping[str, np.ndarray], path: Path) -> Tensors:
    """Returns the weights, without options and the factors of quantized activations."""
    if "Wpos" in arrays:
        raise InputError(f"{path}: trained positions (Wpos) are not imported.")
    other_names = [name for name in arrays if name == OPTIONS or name.endswith("QuantMultA")]
    return Tensors({name: arrays[name] for name in arrays.keys() - other_names}, path)


def decoding_defaults(folder: Path) -> dict[str, Any]:
    """Reads the options of Marian's decoder in a folder, as text."""
    files = sorted(folder.glob("*decoder.yml")) or sorted(folder.glob("config*.yml"))
    if not files:
        return {}
    return vocabulary.read_yaml(files[0].read_text("utf-8", "replace"), files[0])


def read_vocabularies(folder: Path, vocabulary_names: Any) -> tuple[list[Any], list[Vocabulary]]:
    """Returns the SentencePiece model and the vocabulary of each side.

    Args:
        folder: The folder.
        vocabulary_names: The `vocabs` of the decoder's options, or None.
    """
    files = [folder / Path(name).name for name in vocabulary_names or () if isinstance(name, str)]
    files = [file for file in files if file.is_file()] or _vocabulary_files(folder)
    if len(files) > 2:
        names = ", ".join(file.name for file in files)
        raise InputError(f"{folder}: expected one or two vocabularies. Received: {names}.")
    files = [files[0], files[-1]]
    if all(file.suffix == ".spm" for file in files):
        models = [vocabulary.read_sentencepiece(file) for file in files]
        return models, [of_sentencepiece(model) for model in models]
    pieces = [folder / name for name in ("source.spm", "target.spm")]
    if not all(file.is_file() for file in pieces):
        kind = "subword-nmt's BPE" if list(folder.glob("*.bpe")) else files[0].name
        rule = "words are cut by SentencePiece, so that source.spm and target.spm are needed"
        raise InputError(f"{folder}: {rule}. Received: {kind}.")
    models = [vocabulary.read_sentencepiece(file) for file in pieces]
    return models, [of_names(vocabulary.read_names(file), file) for file in files]


def _vocabulary_files(folder):
    for patterns in (["*vocab*.yml"], ["vocab*.spm"], ["src*.spm", "trg*.spm"], ["*.spm"]):
        if files := [file for pattern in patterns for file in sorted(folder.glob(pattern))]:
            return files  # "source.spm" is before "target.spm".
    raise InputError(f"{folder}: there is no vocabulary, *.spm or *.vocab.yml.")
