"""Folders of Marian's with combinations of options and files."""

import itertools
import struct

import numpy as np
import pytest
from marian_toys import TOYS, changed, student
from pairwise import pairwise

from keras_transformer.base.errors import InputError
from keras_transformer.extras.marian import reader

# An option of a decoder: its name here, a value, and Marian's where it has none or is missing.
OPTIONS = {
    "beam-size": ("beam_size", 7, 12, 12),
    "normalize": ("length_penalty", 0.25, 1, 0),
    "word-penalty": ("word_penalty", 0.5, 0, 0),
    "max-length-factor": ("max_length_ratio", 1.5, 3, 3),
}
STATES = ("value", "empty", "missing")


@pairwise(toy=["opus", "student"], beam=STATES, normalize=STATES, penalty=STATES, max_length=STATES)
def test_each_option_of_a_decoder_has_its_value_or_marians(
    tmp_path, toy, beam, normalize, penalty, max_length
):
    config, expected = "mini-batch: 1\n", {}
    states = beam, normalize, penalty, max_length
    for name, state, row in zip(OPTIONS, states, OPTIONS.values(), strict=True):
        field, value, empty, missing = row
        expected[field] = {"value": value, "empty": empty, "missing": missing}[state]
        config += {"value": f"{name}: {value}\n", "empty": f"{name}:\n", "missing": ""}[state]
    if toy == "student":
        folder = student(tmp_path, config=config)
    else:
        config += "vocabs: [vocab.yml, vocab.yml]\n"
        folder = changed(tmp_path, files={"decoder.yml": config})
    decoding = reader.read(folder).decoding
    assert {field: decoding[field] for field in expected} == expected


def test_a_decoder_without_a_file_is_a_students_if_it_is_recurrent(tmp_path):
    assert reader.read(student(tmp_path)).decoding["beam_size"] == 1
    (tmp_path / "with").mkdir()
    folder = student(tmp_path / "with", config="beam-size: 4\n")
    (folder / "firefox.decoder.yml").write_text("normalize: 0.5\n")
    # The options are those of decoder.yml alone.
    decoding = reader.read(folder).decoding
    assert (decoding["beam_size"], decoding["length_penalty"]) == (12, 0.5)


VERSIONS = {"v1.9.0": False, "v1.12.0": False, "v1.12.2 abc": False, "v1.12.3": True}
VERSIONS |= {"v1.12.42 b7be 2025": True, "1.13": True, "v2.0.1": True}
ACTIVATIONS = [("v1.11.0", *row) for row in (("relu", "relu"), ("swish", "silu"), (None, "silu"))]
ACTIVATIONS += [(version, "gelu", "gelu" if x else None) for version, x in VERSIONS.items()]


@pytest.mark.parametrize(("version", "activation", "expected"), ACTIVATIONS)
def test_activations_of_every_version_are_read_or_refused(tmp_path, version, activation, expected):
    options = {"transformer_ffn_activation": activation} if activation else {}
    folder = changed(tmp_path, version=version, **options)
    if activation is None:
        _without_option(folder, "transformer-ffn-activation")
    if expected is None:
        with pytest.raises(InputError, match="gelu of Marian before 1.12.3"):
            reader.read(folder)
    else:
        assert reader.read(folder).fields["activation"] == expected


def _without_option(folder, name):
    path = folder / "model.npz"
    tensors = reader.read_tensors(path)
    text = bytes(tensors[reader.OPTIONS]).split(b"\0")[0].decode()
    text = "\n".join(line for line in text.splitlines() if not line.startswith(f"{name}:"))
    tensors[reader.OPTIONS] = np.frombuffer(text.encode() + b"\n\0", "int8")
    np.savez(path, **tensors)


def _binary(tensors):
    """Marian's binary file: headers, names, shapes, and the tensors after a gap."""
    names = [name.encode() + b"\0" for name in tensors]
    headers, shapes, contents = [], [], []
    for (kind, values, shape), name in zip(tensors.values(), names, strict=True):
        headers.append(struct.pack("<QQQQ", len(name), kind, len(shape), len(values)))
        shapes.append(struct.pack(f"<{len(shape)}i", *shape))
        contents.append(values)
    return b"".join(
        [
            struct.pack("<QQ", 1, len(names)),
            *headers,
            *names,
            *shapes,
            struct.pack("<Q", 3),
            b"gap",
            *contents,
        ]
    )


def test_matrices_of_bytes_are_transposed_but_no_table_of_embeddings_is(tmp_path):
    rng, tensors, expected = np.random.default_rng(0), {}, {}
    names = [
        "Wemb",
        "encoder_Wemb",
        "decoder_Wemb",
        "encoder_l1_self_Wq",
        "decoder_ff_logit_out_W",
        "decoder_l1_ffn_b1",
    ]
    for name, kind in itertools.product(names, [0x0404, 0x4101, 0x10001]):
        shape, key = (3, 5), f"{kind:x}_{name}"
        matrix = rng.integers(-127, 128, shape)
        if kind == 0x0404:
            content = matrix.astype("<f4").tobytes()
        else:
            stored = matrix if name.endswith("Wemb") else matrix.T
            content = stored.astype("int8").tobytes() + struct.pack("<f", 4.0) + b"rest"
        tensors[key], expected[key] = (kind, content, shape), matrix / (1 if kind == 0x0404 else 4)
    path = tmp_path / "model.bin"
    path.write_bytes(_binary(tensors))
    arrays = reader.read_tensors(path)
    assert list(arrays) == list(expected)
    for name, matrix in expected.items():
        np.testing.assert_array_equal(arrays[name], matrix, err_msg=name)


@pytest.mark.parametrize(
    "names, is_clear",
    [
        (("vocab.aa.spm", "vocab.bb.spm"), False),
        (("vocab.spm",), True),
        (("vocab.src.spm", "vocab.trg.spm"), True),
        (("vocab.trg.spm", "vocab.source.spm"), None),
        (("srcvocab.en.spm",), False),
    ],
)
def test_two_vocabularies_need_names_of_sides_or_an_order(names, is_clear, tmp_path):
    content = (TOYS / "student" / "vocab.en.spm").read_bytes()
    for number, order in enumerate([None, names, names[::-1]]):
        place = tmp_path / str(number)
        place.mkdir()
        files = "" if order is None else f"vocabs: [{order[0]}, {order[-1]}]\n"
        folder = student(place, config="beam-size: 1\n" + files)
        (folder / "vocab.en.spm").unlink()
        for name in names:
            (folder / name).write_bytes(content)
        if order is None and is_clear is False:
            with pytest.raises(InputError, match="one vocabulary, names with source and target"):
                reader.read(folder)
        elif order is not None or is_clear:
            assert len(reader.read(folder).vocabularies) == 2
