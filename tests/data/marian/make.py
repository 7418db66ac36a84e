"""Makes the two models in this folder: random weights in Marian's files, without Marian.

python tests/data/marian/make.py

opus      an OPUS-MT model: npz, source.spm, target.spm, and one vocab.yml that lacks some pieces
student   a student of Firefox: binary file with int8 matrices, SSRU decoder, one vocabulary

Tests make models of other kinds, see `KINDS`, and models of Hugging Face.
"""

import io
import json
import pathlib
import struct

import numpy as np
import sentencepiece

HERE = pathlib.Path(__file__).parent
WIDTH, HEADS, INNER, LAYERS = 16, 2, 24, 2
SOURCE = ["the old child sees a small house", "a happy cat likes the red stone"]
SOURCE += ["the river moves and the tree moves", "yes, the cats find 1 tree"]
TARGET = ["la maljuna infano vidas malgrandan domon", "felica kato sxatas la rugan sxtonon"]
TARGET += ["la rivero movas kaj la arbo movas", "jes, la katoj trovas 1 arbon"]
OPTIONS = """\
type: transformer
dim-emb: {width}
enc-depth: {layers}
dec-depth: {layers}
transformer-heads: {heads}
transformer-dim-ffn: {inner}
transformer-ffn-activation: {activation}
transformer-ffn-depth: 2
transformer-preprocess: "{preprocess}"
transformer-postprocess: {postprocess}
transformer-postprocess-emb: d
transformer-postprocess-top: "{preprocess}"
transformer-decoder-autoreg: {autoreg}
dec-cell: {cell}
tied-embeddings-all: true
version: v1.12.42 b7be0e964 2025-05-24 22:34:42 -0700
"""


# Activation, and arguments of `tensors`.
KINDS = {
    "pre_norm": ("gelu", {"pre": True, "tables": ("Wemb",)}),
    "pre_norm_ssru": ("relu", {"pre": True, "ssru": True}),
    "two_tables": ("gelu", {"tables": ("encoder_Wemb", "decoder_Wemb")}),
    "own_output": ("swish", {"tables": ("encoder_Wemb", "decoder_Wemb"), "output": True}),
    "no_bias": ("relu", {"ssru": True, "pre": True, "bias": False}),
}


def options(activation="swish", ssru=False, pre=False):
    """`special:model.yml`, padded with NULs to a multiple of 256."""
    sizes = {"width": WIDTH, "layers": LAYERS, "heads": HEADS, "inner": INNER}
    cell = ("rnn", "ssru") if ssru else ("self-attention", "gru")
    norm = ("n", "da") if pre else ("", "dan")
    sizes |= zip(("autoreg", "cell", "preprocess", "postprocess"), (*cell, *norm), strict=True)
    text = OPTIONS.format(**sizes, activation=activation).encode()
    return np.frombuffer(text.ljust(-(-len(text) // 256) * 256, b"\0"), "int8")


def sentencepiece_model(lines, size, **ids):
    model = io.BytesIO()
    options = {"vocab_size": size, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1}
    options |= {"model_writer": model, "normalization_rule_name": "identity", **ids}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines * 20), **options)
    return model.getvalue()


def tensors(
    vocabulary_size,
    rng,
    ssru=False,
    pre=False,
    tables=("Wemb",),
    output=False,
    bias=True,
    layers=(LAYERS, LAYERS),
):
    """Random tensors under Marian's names.

    Args:
        vocabulary_size: Number of rows of each table.
        rng: Generator.
        ssru: Whether the decoder is recurrent.
        pre: Whether normalizations are before the sublayers.
        tables: Names of the tables of embeddings.
        output: Whether the output has a matrix of its own.
        bias: Whether the output has a bias.
        layers: Number of blocks of the encoder and the decoder.
    """
    arrays = {}

    def matrix(name, rows, columns, bias=None):
        arrays[name] = rng.normal(size=(rows, columns), scale=rows**-0.5).astype("float32")
        if bias is not None:
            arrays[bias] = rng.normal(size=(1, columns), scale=0.1).astype("float32")

    def norm(name, end="_pre" if pre else ""):
        arrays[f"{name}_ln_scale{end}"] = rng.uniform(0.5, 1.5, (1, WIDTH)).astype("float32")
        arrays[f"{name}_ln_bias{end}"] = rng.normal(size=(1, WIDTH), scale=0.1).astype("float32")

    def attention(name):
        for letter in "qkvo":
            matrix(f"{name}_W{letter}", WIDTH, WIDTH, f"{name}_b{letter}")
        norm(f"{name}_Wo")

    for name in tables:
        table = rng.normal(size=(vocabulary_size, WIDTH), scale=WIDTH**-0.5)
        arrays[name] = table.astype("float32")
    if output:
        matrix("decoder_ff_logit_out_W", WIDTH, vocabulary_size)
    if bias:
        arrays["decoder_ff_logit_out_b"] = rng.normal(size=(1, vocabulary_size)).astype("float32")
    for side, count in zip(("encoder", "decoder"), layers, strict=True):
        for number in range(1, count + 1):
            name = f"{side}_l{number}"
            if side == "decoder" and ssru:
                matrix(f"{name}_rnn_W", WIDTH, WIDTH)
                matrix(f"{name}_rnn_Wf", WIDTH, WIDTH, f"{name}_rnn_bf")
                norm(f"{name}_rnn" if pre else f"{name}_rnn_ffn")
            else:
                attention(f"{name}_self")
            if side == "decoder":
                attention(f"{name}_context")
            matrix(f"{name}_ffn_W1", WIDTH, INNER, f"{name}_ffn_b1")
            matrix(f"{name}_ffn_W2", INNER, WIDTH, f"{name}_ffn_b2")
            norm(f"{name}_ffn_ffn")
        if pre:
            norm(f"{side}_top", end="")
    return arrays


def quantized(array):
    """Int8 values and the multiplier that they were made with."""
    multiplier = np.float32(127 / np.abs(array).max())
    return np.round(array * multiplier).astype("int8"), multiplier


def binary(items):
    """The layout of a binary model, version 1; matrices in intgemm8."""
    entries = []
    for name, array in items.items():
        if array.dtype == np.int8:
            entries.append((name, 0x0101, array.shape, array.tobytes()))
        elif "_W" in name or name == "Wemb":
            values, multiplier = quantized(array if name == "Wemb" else array.T)
            content = values.tobytes() + struct.pack("<f", multiplier)
            entries.append((name, 0x4101, array.shape, content))
        else:
            entries.append((name, 0x0404, array.shape, array.tobytes()))
    contents = [content.ljust(-(-len(content) // 256) * 256, b"\0") for *_, content in entries]
    head = struct.pack("<QQ", 1, len(entries))
    for (name, kind, shape, _), content in zip(entries, contents, strict=True):
        head += struct.pack("<QQQQ", len(name) + 1, kind, len(shape), len(content))
    head += b"".join(name.encode() + b"\0" for name, *_ in entries)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in entries)
    gap = -(len(head) + 8) % 256
    return head + struct.pack("<Q", gap) + bytes(gap) + b"".join(contents)


def write_sides(folder):
    """Writes a SentencePiece model for each side; returns their pieces without special tokens."""
    pieces = {}
    for side, lines in (("source", SOURCE), ("target", TARGET)):
        model = sentencepiece_model(lines, 40)
        (folder / f"{side}.spm").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces[side] = [processor.id_to_piece(i) for i in range(3, len(processor))]
    return pieces


def make_opus(folder, incomplete=("source", "target"), **kind):
    """Writes an OPUS-MT model, whose vocabulary lacks pieces of the `incomplete` sides."""
    folder.mkdir(exist_ok=True)
    # Each fifth piece of a side is missing, as where a corpus had it nowhere.
    listed = []
    for side, names in write_sides(folder).items():
        listed += [piece for i, piece in enumerate(names) if i % 5 or side not in incomplete]
    # Names that YAML takes for other types.
    names = ["</s>", "<unk>", ">>epo<<", "yes", "1", "<<", *dict.fromkeys(listed)]
    names = list(dict.fromkeys(names))
    lines = [f"{name if name.isalnum() else repr(name)}: {i}\n" for i, name in enumerate(names)]
    lines = lines[::2] + lines[1::2]  # The order of a file is not that of its ids.
    text = "".join(lines).replace("'<<'", "<<")
    (folder / "vocab.yml").write_text(text, encoding="utf-8")
    weights = tensors(len(names), np.random.default_rng(1))
    np.savez_compressed(folder / "model.npz", **weights, **{"special:model.yml": options()})
    (folder / "decoder.yml").write_text(
        "models:\n  - elsewhere/model.npz\nvocabs:\n  - elsewhere/vocab.yml\n"
        "  - elsewhere/vocab.yml\nbeam-size: 3\nnormalize: 0.7\nword-penalty: 0.2\n"
    )


def make_student(folder):
    folder.mkdir(exist_ok=True)
    ids = {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1}
    model = sentencepiece_model(SOURCE + TARGET, 60, **ids)
    (folder / "vocab.en.spm").write_bytes(model)
    size = len(sentencepiece.SentencePieceProcessor(model_proto=model))
    weights = tensors(size, np.random.default_rng(2), ssru=True)
    weights["none_QuantMultA"] = np.ones((1, 1), "float32")
    weights["special:model.yml"] = options("relu", ssru=True)
    (folder / "model.intgemm8.bin").write_bytes(binary(weights))
    (folder / "config.yml").write_text("beam-size: 1\nnormalize: 1.0\nword-penalty: 0\n")


def make_kind(folder, name):
    """Writes a model of one of `KINDS` with a vocabulary of both sides."""
    ids = {"eos_id": 0, "unk_id": 1, "bos_id": -1, "pad_id": -1}
    model = sentencepiece_model(SOURCE + TARGET, 60, **ids)
    (folder / "vocab.spm").write_bytes(model)
    size = len(sentencepiece.SentencePieceProcessor(model_proto=model))
    activation, kind = KINDS[name]
    weights = tensors(size, np.random.default_rng(3), **kind)
    settings = options(activation, kind.get("ssru", False), kind.get("pre", False))
    np.savez(folder / "model.npz", **weights, **{"special:model.yml": settings})


def hugging_face_name(part):
    """Hugging Face's name of a layer's tensor: `self_Wo` is `self_attn.out_proj.weight`."""
    kind, _, end = part.partition("_")
    module = {"self": "self_attn", "context": "encoder_attn", "ffn": "final"}[kind]
    if "_ln_" in part:
        module += "_layer_norm"
    elif kind == "ffn":
        module = f"fc{end[-1]}"
    else:
        module += f".{'out' if end[-1] == 'o' else end[-1]}_proj"
    return f"{module}.bias" if end[0] == "b" or end.endswith("_ln_bias") else f"{module}.weight"


def make_hugging_face(folder, added=()):
    """Writes a model of Hugging Face; returns its tensors under Marian's names.

    The id after the pieces is padding, with whose vector the decoder begins; `added` tokens follow.
    """
    from safetensors.numpy import save_file

    source, target = write_sides(folder).values()
    names = ["</s>", "<unk>", *dict.fromkeys(source + target), "<pad>"]
    ids = {name: id for id, name in reversed(list(enumerate(names)))}  # not in their order
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    more = {name: id for id, name in enumerate(added, len(ids))}
    (folder / "added_tokens.json").write_text(json.dumps(more), encoding="utf-8")
    arrays = tensors(len(names) + len(more), np.random.default_rng(4))
    renamed = hugging_face_tensors(arrays)
    renamed["final_logits_bias"] = arrays["decoder_ff_logit_out_b"]
    save_file(renamed, folder / "model.safetensors")
    config = {"model_type": "marian", "scale_embedding": True, **sizes(LAYERS, LAYERS)}
    config |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), ids["<pad>"])
    config |= {"activation_function": "relu", "num_beams": 4, "length_penalty": 0.8}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return arrays


def hugging_face_tensors(arrays):
    """The shared table and the tensors of the blocks under Hugging Face's names."""
    renamed = {"model.shared.weight": arrays["Wemb"]}
    for name, array in arrays.items():
        side, _, rest = name.partition("_l")
        number, _, part = rest.removesuffix("_pre").partition("_")
        if number.isdigit():
            name = f"model.{side}.layers.{int(number) - 1}.{hugging_face_name(part)}"
            renamed[name] = np.ascontiguousarray(array.T) if len(array) > 1 else array[0]
        elif side.endswith("_top"):
            kind = "weight" if rest == "n_scale" else "bias"
            renamed[f"model.{side.removesuffix('_top')}.layer_norm.{kind}"] = array[0]
    return renamed


def sizes(*layers):
    """Sizes in the configuration of a model of Hugging Face."""
    config = {"d_model": WIDTH}
    for side, count in zip(("encoder", "decoder"), layers, strict=True):
        config |= {f"{side}_layers": count, f"{side}_attention_heads": HEADS}
        config[f"{side}_ffn_dim"] = INNER
    return config


PIECES = "sentencepiece.bpe.model"
LANGUAGES = {
    "m2m100": ("__af__", "__de__", "__en__"),
    "small100": ("__af__", "__de__", "__en__"),
    "nllb": ("deu_Latn", "eng_Latn", "zho_Hans"),
}


def make_m2m100(folder, kind):
    """Writes a model of M2M100, SMaLL-100 or NLLB in float16 and in two shards.

    Each kind names its languages in another file. Returns the tensors under Marian's names, and the
    names of the first ids; two more ids have no name.
    """
    from safetensors.numpy import save_file

    model = sentencepiece_model(SOURCE + TARGET, 60, model_type="bpe")
    (folder / PIECES).write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = [processor.id_to_piece(i) for i in range(3, len(processor))]
    names, files = ["<s>", "<pad>", "</s>", "<unk>"], {}
    if kind == "nllb":
        names += pieces
    else:  # The file has an order of its own, and lacks pieces.
        names += [piece for i, piece in enumerate(reversed(pieces)) if i % 5]
        files["vocab.json"] = {name: id for id, name in enumerate(names)}
    languages = {name: id for id, name in enumerate(LANGUAGES[kind], len(names))}
    if kind == "m2m100":
        files["added_tokens.json"] = languages
    elif kind == "nllb":
        rows = [{"content": name, "id": id} for name, id in languages.items()]
        files["tokenizer.json"] = {"added_tokens": rows}
    else:
        files["special_tokens_map.json"] = {"additional_special_tokens": list(languages)}
        files["tokenizer_config.json"] = {"tokenizer_class": "SMALL100Tokenizer"}
        (folder / "tokenization_small100.py").write_text("raise SystemExit\n")
    names += languages
    layers, rng = (2, 1), np.random.default_rng(5)
    arrays = tensors(len(names) + 2, rng, pre=True, bias=False, layers=layers)
    arrays = {name: array.astype("float16") for name, array in arrays.items()}
    renamed, shards = list(hugging_face_tensors(arrays).items()), {}
    for file, part in (("a.safetensors", renamed[::2]), ("b.safetensors", renamed[1::2])):
        save_file(dict(part), folder / file)
        shards |= {name: file for name, _ in part}
    files["model.safetensors.index.json"] = {"weight_map": shards}
    config = {"model_type": "m2m_100", **sizes(*layers)}
    files["config.json"] = config | {"pad_token_id": 1, "decoder_start_token_id": 2}
    files["generation_config.json"] = {"max_length": 40, "num_beams": 5, "early_stopping": True}
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return arrays, names


if __name__ == "__main__":
    make_opus(HERE / "opus")
    make_student(HERE / "student")
