"""Folders of Marian's with combinations of options and files."""

import itertools
import struct

import numpy as np
import pytest
from marian_toys import TOYS, changed, student

from keras_transformer.errors import InputError
from keras_transformer.interop.marian import reader

_VALUES = {"beam-size": 7, "normalize": 0.25, "word-penalty": 0.5, "max-length-factor": 1.5}
_FIELDS = dict(
    zip(_VALUES, ("beam_size", "length_penalty", "word_penalty", "max_length_ratio"), strict=True)
)
# Marian's, where the option is missing, and where it has no value.
_MISSING, _EMPTY = (12, 0, 0, 3), (12, 1, 0, 3)


@pytest.mark.parametrize("toy", ["opus", "student"])
def test_each_option_of_a_decoder_has_its_value_or_marians(toy, tmp_path):
    """Two by two: given, without a value, and missing."""
    for number, (first, second) in enumerate(itertools.permutations(_VALUES, 2)):
        for pair in (("value", "empty"), ("empty", "missing"), ("missing", "value")):
            states = dict(zip((first, second), pair, strict=True))
            given = {"value": _VALUES, "empty": dict.fromkeys(_VALUES, "")}
            config = "mini-batch: 1\n" + "".join(
                f"{name}: {given[state][name]}\n"
                for name, state in states.items()
                if state != "missing"
            )
            place = tmp_path / f"{number} {pair[0]}"
            place.mkdir()
            if toy == "student":
                folder = student(place, config=config)
            else:
                config += "vocabs: [vocab.yml, vocab.yml]\n"
                folder = changed(place, files={"decoder.yml": config})
            decoding = reader.read(folder).decoding
            for name, missing, empty in zip(_VALUES, _MISSING, _EMPTY, strict=True):
                expected = {"value": _VALUES[name], "empty": empty, "missing": missing}
                state = states.get(name, "missing")
                assert decoding[_FIELDS[name]] == expected[state], (states, name)


def test_a_decoder_without_a_file_is_a_students_if_it_is_recurrent(tmp_path):
    assert reader.read(student(tmp_path)).decoding["beam_size"] == 1
    (tmp_path / "with").mkdir()
    folder = student(tmp_path / "with", config="beam-size: 4\n")
    (folder / "firefox.decoder.yml").write_text("normalize: 0.5\n")
    # The options are those of decoder.yml alone.
    decoding = reader.read(folder).decoding
    assert (decoding["beam_size"], decoding["length_penalty"]) == (12, 0.5)


def test_activations_of_every_version_are_read_or_refused(tmp_path):
    versions = {
        "v1.9.0": False,
        "v1.11.0": False,
        "v1.12.0": False,
        "v1.12.2 abc": False,
        "v1.12.3": True,
        "v1.12.42 b7be 2025": True,
        "1.13": True,
        "v2.0.1": True,
    }
    for number, ((version, is_right), activation) in enumerate(
        itertools.product(versions.items(), ["gelu", "relu", "swish", None])
    ):
        place = tmp_path / str(number)
        place.mkdir()
        options = {"transformer_ffn_activation": activation} if activation else {}
        folder = changed(place, version=version, **options)
        if activation is None:
            _without_option(folder, "transformer-ffn-activation")
        if activation == "gelu" and not is_right:
            with pytest.raises(InputError, match="gelu of Marian before 1.12.3"):
                reader.read(folder)
        else:
            expected = {"gelu": "gelu", "relu": "relu"}.get(activation, "silu")
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
