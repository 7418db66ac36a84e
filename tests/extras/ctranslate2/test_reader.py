"""Models of CTranslate2 against the scores and texts of ctranslate2 itself."""

import json
import pathlib
import shutil
import struct
import zipfile

import numpy as np
import pytest
from device_plans import ONE_GRAPH

from keras_transformer.base.errors import InputError
from keras_transformer.decoding.search import score_targets
from keras_transformer.engine import ModelEngine
from keras_transformer.extras.ctranslate2.model_bin import read_variables
from keras_transformer.extras.importing.importing import import_model, import_run, read_model
from keras_transformer.text.vocabulary import parsed

pytestmark = pytest.mark.tensorflow

TOYS = pathlib.Path(__file__).parents[2] / "data" / "ctranslate2"
HERE = ["pre_silu_relative_float16", "old_v5_txt", "from_marian_hf_int8"]
THERE = ["pre_relu_untied", "post_gelu_tied_int8", "post_relu_zero_start", "argos"]
SEARCHES = {"greedy": (1, 1.0), "beam4": (4, 1.0), "argos": (4, 0.2)}
_LIMIT = 40
SIDES = ("encoder", "decoder")


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", [*HERE, *THERE])
def test_words_and_texts_are_ctranslate2s(tmp_path, oracle, name):
    folder = TOYS / name if name in HERE else oracle(f"ctranslate2_{name}")
    known = json.loads((folder / "expected.json").read_text("utf-8"))
    for archive in folder.glob("*.argosmodel"):
        zipfile.ZipFile(archive).extractall(tmp_path)
        folder = tmp_path
    toy = import_model(folder)
    tokenizers = toy.source_tokenizer, toy.target_tokenizer
    names = list(tokenizers[1].pieces_of(range(tokenizers[1].vocabulary_size)))
    for text, target, expected in zip(
        *map(known.get, ("texts", "targets", "log_probs")), strict=True
    ):
        source = tokenizers[0].tokenize(text, add_eos=True)
        ids = [names.index(piece) if piece in names else 3 for piece in target]
        scores, _ = score_targets(toy.model, np.array([source]), np.array([[*ids, 2]]))
        np.testing.assert_allclose(np.asarray(scores)[0], expected, atol=1e-4)
    engine = ModelEngine(toy.model, *tokenizers, **ONE_GRAPH)
    for search, (beam_size, length_penalty) in SEARCHES.items():
        options = {**toy.decoding, "beam_size": beam_size, "length_penalty": length_penalty}
        options |= {"max_length": _LIMIT, "max_length_ratio": float("inf")}
        rows = zip(engine.translate(known["texts"], **options), known[search], strict=True)
        # At its limit CTranslate2 may return a hypothesis without an end.
        pairs = [(row.text, text) for row, (text, pieces, _) in rows if len(pieces) < _LIMIT]
        assert len(pairs) >= len(known["texts"]) - 1
        assert [received for received, _ in pairs] == [expected for _, expected in pairs]
    is_argos = name == "argos"
    search = toy.decoding["beam_size"], toy.decoding["length_penalty"]
    assert search == ((4, 0.2) if is_argos else (2, 1.0))


@pytest.mark.parametrize("sides", [SIDES, SIDES[:1]])
def test_positions_without_a_table_are_those_that_ctranslate2_computes(tmp_path, sides):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    folder, kinds = changed(tmp_path, "from_marian_hf_int8"), {"f4": 0, "i1": 1, "i2": 2}
    arrays = read_variables(folder / "model.bin")
    for side in sides:
        del arrays[f"{side}/position_encodings/encodings"]
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    written(
        folder, 6, [(name, array, kinds[array.dtype.str[1:]]) for name, array in arrays.items()]
    )
    toy, oracle = import_model(folder), ctranslate2.Translator(str(folder), compute_type="float32")
    assert (toy.model.config.positions == "sinusoidal") == (sides == SIDES)
    known = json.loads((folder / "expected.json").read_text("utf-8"))
    source, target = toy.source_tokenizer, toy.target_tokenizer
    names = list(target.pieces_of(range(target.vocabulary_size)))
    # A sentence, and a text that is longer than any table, where no side has one.
    for repeated in (1, 200) if sides == SIDES else (1, 5):
        (ids,) = source.tokenize(known["texts"][:1])
        ids, pieces = [*ids * repeated, 2], known["targets"][0] * repeated
        sides_read = [[*source.pieces_of(ids)]], [pieces]
        (expected,) = oracle.score_batch(*sides_read, max_input_length=0)
        target_ids = [*map(names.index, pieces), 2]
        scores, _ = score_targets(toy.model, np.array([ids]), np.array([target_ids]))
        np.testing.assert_allclose(np.asarray(scores)[0], expected.log_probs, atol=1e-4)
    assert repeated == 5 or len(ids) > 1024


def variable(name, array, kind, item_size=None):
    """A variable of a file; up to version 3 it has its item size and its number of items."""
    text, shape = name.encode() + b"\0", array.shape
    header = struct.pack(f"<H{len(text)}sB{len(shape)}I", len(text), text, len(shape), *shape)
    size = array.nbytes if item_size is None else array.size
    header += struct.pack("<BI", kind if item_size is None else item_size, size)
    return header + array.tobytes()


def written(folder, version, variables, spec=b"TransformerSpec\0", aliases=()):
    body = struct.pack(f"<IH{len(spec)}sII", version, len(spec), spec, version, len(variables))
    body += b"".join(variable(*entry) for entry in variables)
    texts = [text.encode() + b"\0" for pair in aliases for text in pair]
    if version > 2:
        body += struct.pack("<I", len(texts) // 2)
        body += b"".join(struct.pack(f"<H{len(text)}s", len(text), text) for text in texts)
    (folder / "model.bin").write_bytes(body)
    return folder


FLOATS = np.array([[0.5, -2.0], [0.25, 0.0]], "float32")
STORED = {
    (2, "float32"): [("a", FLOATS, 0, 4)],
    (3, "int16"): [("a", (FLOATS * 512).astype("int16"), 0, 2), ("a_scale", np.float32(512), 0, 4)],
    (4, "int8"): [
        ("a", np.array([[32, -127], [127, 0]], "int8"), 1),
        ("a_scale", np.array([63.5, 508], "float32"), 0),
        ("c", np.array([[32, -127], [127, 0]], "int8"), 1),  # has the scale of `a`, by an alias
    ],
    (6, "float16"): [("a", FLOATS.astype("float16"), 4)],
    (6, "bfloat16"): [("a", (FLOATS.view("uint32") >> 16).astype("uint16"), 5)],
}


@pytest.mark.parametrize(("version", "kind"), STORED)
def test_numbers_of_each_version_and_type(tmp_path, version, kind):
    names = {name for name, *_ in STORED[version, kind] if not name.endswith("_scale")}
    aliases = [("b", "a")] if version > 2 else []
    aliases += [("c_scale", "a_scale")] if "c" in names else []
    path = written(tmp_path, version, STORED[version, kind], aliases=aliases) / "model.bin"
    variables = read_variables(path)
    assert variables.keys() == names | ({"b"} if aliases else set())
    for variable in variables.values():
        received = np.asarray(variable, "float32")
        np.testing.assert_allclose(received, FLOATS, atol=0.004 if kind == "int8" else 0)
    content = path.read_bytes()
    for size in range(0, len(content), 5):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match="model.bin: "):
            read_variables(path)


def changed(tmp_path, name="old_v5_txt", **files):
    folder = tmp_path / "model"
    shutil.copytree(TOYS / name, folder)
    for file, content in files.items():
        path = folder / file.replace("_txt", ".txt").replace("_json", ".json")
        path.write_text(content) if content else path.unlink()
    return folder


LANGUAGES = json.dumps([f"__{first}{last}__" for first in "abcde" for last in "vwxyz"])


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("from_marian_hf_int8", {"config_json": '{"add_source_bos": true}'}, "`add_source_bos`"),
        ("from_marian_hf_int8", {"config_json": '{"quantization_type": 1}'}, "`quantization_type"),
        ("pre_silu_relative_float16", {"config_json": '{"decoder_start_token": null}'}, "starts a"),
        ("old_v5_txt", {"shared_vocabulary_txt": ""}, "there is no vocabulary"),
        ("old_v5_txt", {"shared_vocabulary_txt": "<unk>\n<s>\n</s>\n"}, "3 ids .* and 57 rows"),
        ("old_v5_txt", {"shared_vocabulary_txt": "a\n" * 57}, "58 ids"),
        ("from_marian_hf_int8", {"shared_vocabulary_json": "{}"}, "expected a JSON list"),
        (
            "from_marian_hf_int8",
            {"shared_vocabulary_json": LANGUAGES},
            "begin with the token of a language .* 25 tokens",
        ),
    ],
)
def test_a_folder_that_cannot_be_imported_is_one_line(tmp_path, name, files, message):
    with pytest.raises(InputError, match=message) as caught:
        read_model(changed(tmp_path, name, **files))
    assert "\n" not in str(caught.value)


ZERO = np.zeros(2, "float32")


@pytest.mark.parametrize(
    ("version", "spec", "variables", "message"),
    [
        (1, b"x\0", [], "expected a binary version from 2 to 6. Received: 1"),
        (7, b"x\0", [], "expected a binary version from 2 to 6. Received: 7"),
        (6, b"WhisperSpec\0", [], "encoder-decoder Transformers .* 'WhisperSpec'"),
        (6, None, [("decoder/alibi", np.int8(1), 1)], "with `alibi` is not imported"),
        (6, None, [(f"{side}/activation", np.int8(1), 1) for side in SIDES], "gelu with tanh"),
        (6, None, [("encoder/pre_norm", np.int8(0), 1)], "`pre_norm` must be equal"),
        (6, None, [("encoder/layer_0/ffn/linear_0_noact/weight", ZERO, 0)], "linear_0_noact"),
        (6, None, [("decoder/layer_0/self_attention/rotary_dim", np.int32(8), 3)], "rotary_dim"),
        (6, None, [("decoder/project_in/weight", ZERO, 0)], "variable decoder/project_in/weight"),
        (6, None, [("encoder/layer_0/ffn/layer_norm/beta", None, 0)], "RMS normalization"),
    ],
)
def test_what_a_transformer_lacks_is_named(tmp_path, version, spec, variables, message):
    folder = changed(tmp_path, "pre_silu_relative_float16")
    if spec is None:  # The toy's variables, with others of these names.
        kinds, toy = {"f2": 4, "i1": 1, "i2": 2}, read_variables(folder / "model.bin")
        arrays = {name: np.asarray(array) for name, array in toy.items()}
        entries = {
            name: (name, array, kinds[array.dtype.str[1:]]) for name, array in arrays.items()
        }
        entries |= {entry[0]: entry for entry in variables}
        variables = [entry for entry in entries.values() if entry[1] is not None]
        written(folder, version, variables)
    else:
        written(folder, version, variables, spec)
    with pytest.raises(InputError, match=message):
        read_model(folder)


TABLES = ["encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"]


@pytest.mark.parametrize("name", ["old_v5_txt", "from_marian_hf_int8"])  # pre-norm, post-norm
@pytest.mark.parametrize("has_aliases", [False, True])
@pytest.mark.parametrize("factors", [(4, 4), (2, 2), (2, 4), (4, 3), (2, 3)])
def test_vectors_and_logits_are_the_files_however_its_tables_are_scaled_and_stored(
    tmp_path, name, has_aliases, factors
):
    """One table of three names, 16 wide: the factor that this package has is 4."""
    folder = changed(tmp_path, name)
    arrays = {key: np.asarray(x) for key, x in read_variables(folder / "model.bin").items()}
    table, is_pre = arrays[TABLES[0]], name == "old_v5_txt"
    last = "decoder/layer_norm" if is_pre else "decoder/layer_0/ffn/layer_norm"
    norm = [arrays[f"{last}/{kind}"] for kind in ("gamma", "beta")]
    arrays |= {
        f"{side}/scale_embeddings": np.float32(x) for side, x in zip(SIDES, factors, strict=True)
    }
    aliases = [(key, TABLES[0]) for key in TABLES[1:]] if has_aliases else []
    stored = [
        (key, array, {"f4": 0, "i1": 1, "i2": 2}[array.dtype.str[1:]])
        for key, array in arrays.items()
        if key not in dict(aliases)
    ]
    model = read_model(written(folder, 6, stored, aliases=aliases))
    assert model.fields["normalize_first"] == is_pre
    assert model.fields["layer_norm_epsilon"] == 1e-5  # CTranslate2's, where no file has one
    tensors = {key: np.asarray(array) for key, array in model.tensors.arrays.items()}
    assert ("Wemb" in tensors) == (factors[0] == factors[1])
    sides = [tensors.get(f"{side}_Wemb", tensors.get("Wemb")) for side in SIDES]
    for received, factor in zip(sides, factors, strict=True):
        np.testing.assert_allclose(4 * received, factor * table, rtol=1e-5)
    output = tensors.get("decoder_ff_logit_out_Wt", sides[1])
    place = "decoder_top" if is_pre else "decoder_l1_ffn_ffn"
    for kind, expected in zip(("ln_scale", "ln_bias"), norm, strict=True):
        np.testing.assert_allclose(output * tensors[f"{place}_{kind}"], table * expected, rtol=1e-5)


class TestSentencePiece:
    """Files that segment words lie beside the model, under any name."""

    def test_files_may_be_named(self, tmp_path):
        folder = changed(tmp_path)
        (folder / "sentencepiece.model").rename(tmp_path / "x.spm")
        expected = read_model(folder).vocabularies
        (tmp_path / "x.spm").rename(tmp_path / "x")
        with pytest.raises(InputError, match="one SentencePiece file.* with --sentencepiece"):
            read_model(folder)
        assert read_model(folder, [tmp_path / "x"]).vocabularies == expected

    @pytest.mark.parametrize("name", ["bpe.model", "other.spm"])
    def test_files_of_another_model_are_refused(self, tmp_path, name):
        folder = changed(tmp_path)
        (folder / "sentencepiece.model").unlink()
        other = parsed((TOYS / "old_v5_txt" / "sentencepiece.model").read_bytes())
        for piece in other.pieces[3:]:
            piece.piece += "x"
        (folder / name).write_bytes(other.SerializeToString())
        with pytest.raises(InputError, match="SentencePiece file.*--sentencepiece"):
            read_model(folder)

    def test_other_models_take_none(self):
        with pytest.raises(InputError, match="only models of CTranslate2 take SentencePiece files"):
            read_model(TOYS.parent / "marian" / "opus", ["x.spm"])


def test_our_weights_come_back_from_an_export(tmp_path):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    from keras_transformer import Translator
    from keras_transformer.extras.ctranslate2.export import convert_to_ctranslate2

    run = import_run(TOYS / "old_v5_txt", tmp_path / "run")
    engine = Translator.load(run).engine
    sides = engine.source_tokenizer, engine.target_tokenizer
    pieces = [side.pieces_of(range(side.vocabulary_size)) for side in sides]
    convert_to_ctranslate2(engine.model, *pieces, tmp_path / "export")
    shutil.copyfile(pathlib.Path(run, "tokenizer.model"), tmp_path / "export" / "a.spm")
    model = import_model(tmp_path / "export").model
    assert model.config.position_layout == "interleaved" and not model.config.source_eos
    for expected, received in zip(
        map(np.asarray, engine.model.weights), map(np.asarray, model.weights), strict=True
    ):
        if (
            len(received) == len(expected) + 1
        ):  # The file's <s> is a token, and its row starts, too.
            received = np.delete(received, 4, axis=0)
        np.testing.assert_array_equal(received, expected)
