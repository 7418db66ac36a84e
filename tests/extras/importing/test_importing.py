"""Import: files of Marian and Hugging Face that are damaged, and the run that it writes."""

import errno
import hashlib
import io
import json
import os
import pathlib
import shutil
import struct
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
import yaml
from marian_toys import SOURCES, TARGETS, TOYS, changed
from model_servers import FileServer, make_tar, make_zip
from reference import float64

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import locked_folder
from keras_transformer.base.ids import BOS_ID, EOS_ID
from keras_transformer.base.reading import file_digests
from keras_transformer.cli.main import run
from keras_transformer.export import export_run
from keras_transformer.extras.foreign.foreign_model import Tensors
from keras_transformer.extras.importing import LocalModel, import_model, import_run, importing
from keras_transformer.extras.importing.importing import read_model
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text.languages import Languages
from keras_transformer.text.sentences import TextRules
from keras_transformer.text.vocabulary import parsed

pytestmark = pytest.mark.tensorflow

ENDS = "</s>: 0\n<unk>: 1\n"
PRE_NORM = {"transformer_preprocess": "n", "transformer_postprocess": "da"}
PRE_NORM["transformer_postprocess_top"] = "n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "s2s"}, "`type` must be 'transformer'"),
        ({"transformer_tied_layers": ["1", "1"]}, "layers that share weights"),
        ({"transformer_no_projection": "true"}, "`transformer-no-projection`"),
        ({"transformer_postprocess_emb": "nd"}, "`transformer-postprocess-emb`"),
        ({"transformer_decoder_autoreg": "average-attention"}, "`transformer-decoder-autoreg`"),
        ({"transformer_alibi_shift": "true"}, "`transformer-alibi-shift` must be 'false'"),
        ({"dim_emb": "15"}, "the width must be even, .* 2 heads. Received: 15"),
        ({"transformer_preprocess": "n"}, "normalizations must be all before or all after"),
        ({**PRE_NORM, "version": "v1.10.4 1234"}, "pre-norm models of Marian before 1.11"),
        ({"enc_depth": "1"}, "has no weight for the tensor encoder_l2_ffn_W1"),
        ({"dec_depth": "3"}, "the model has no tensor decoder_l3_self_Wq"),
        ({"enc_depth": "x"}, "`enc-depth` must be an integer of at least 0. Received: 'x'"),
        ({"parts": {"Wemb": np.s_[:, :12]}}, "the shape of .*embeddings must be"),
        ({"parts": {"encoder_l1_self_Wo_ln_scale": np.s_[:, :12]}}, "the shape of .*gamma must be"),
        ({"parts": {"encoder_l1_ffn_W2": np.s_[:, :12]}}, "the shape of .*kernel must be"),
        ({"parts": {"Wemb": np.s_[:-1]}}, "each id must have a row. Received: 48 ids .* 47 rows"),
        ({"parts": {"decoder_ff_logit_out_b": np.s_[:, :12]}}, "48 ids .* 12 rows"),
        ({"files": {"vocab.yml": "</s>: 0\n<unk>: 1\na: 48"}}, "Received: 49 ids .* 48 rows"),
        ({"files": {"vocab.yml": "{}"}}, "expected names with their ids"),
        ({"files": {"vocab.yml": f"{ENDS}a: 44\n"}}, "each row must .* 45 ids .* 48 rows"),
        ({"files": {"vocab.yml": f"{ENDS}a: {10**10}"}}, "Received: 10000000001 ids .* 48 rows"),
        ({"files": {"vocab.yml": f"{ENDS}a: 5\nb: 5"}}, "line 4: .* one name, .* 'a'.* 'b': '5'"),
        ({"files": {"vocab.yml": f"{ENDS}a: 5\na: 6"}}, "line 4: .* one id, .* 5 .* 'a': '6'"),
        ({"files": {"vocab.yml": f"{ENDS}a: x"}}, "line 3: .* an integer .* 'a': 'x'"),
        ({"files": {"vocab.yml": f"{ENDS}[a: 2\n"}}, "vocab.yml, line 4: not valid YAML"),
        ({"files": {"vocab.yml": f"{ENDS}ab\x01: 2"}}, "line 3: .* U\\+0001 at column 3"),
        ({"files": {"vocab.yml": f"{ENDS}\udcff: 2"}}, "line 3: expected UTF-8.* byte 0xff"),
        # The remaining files of OPUS-MT's layout only segment words.
        ({"missing": ["vocab.yml", "decoder.yml"]}, "source.spm: .*only segments words: copy"),
        ({"missing": ["vocab.yml"]}, "decoder.yml: `vocabs` must name files"),
        ({"missing": ["source.spm"]}, "source.spm and target.spm are needed"),
        ({"missing": ["vocab.yml", "decoder.yml", "target.spm"]}, "names with source and target"),
        ({"files": {"decoder.yml": "vocabs: [a.yml, vocab.yml]"}}, "must name files .* 'a.yml'"),
        ({"files": {"decoder.yml": "a: b", "b.vocab.yml": ""}}, "names with source and target"),
    ]
    + [
        ({"files": {"decoder.yml": f"{name}: {value}"}}, f"`{name}` must be .*at least 0")
        for name, value in (("beam-size", "twelve"), ("normalize", "true"), ("normalize", "[1]"))
        + (("max-length-factor", ".inf"), ("word-penalty", "-1"))
    ],
)
def test_what_is_not_supported_is_one_line(tmp_path, options, message):
    with pytest.raises(InputError, match=message) as caught:
        import_model(changed(tmp_path, **options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("is_old", [False, True])
def test_names_are_read_as_marians_yaml_library_writes_them(tmp_path, is_old):
    """yaml-cpp quotes DEL and writes it raw, before 0.6.3 in two bytes. The others are plain."""
    pieces = ["\x7f", "c\x85", "\u2028d", "e\u2029f", "\ufffe", "\uffff", "g\xa0", "---"]
    pieces += ["\x80", "\ufeff", "\u07ff:", "h:i", "\U000f0000"]
    escaped = {"\x80": r"\x80", "\ufeff": r"\ufeff"}
    if is_old:
        escaped |= {"\x7f": "\udcc1\udcbf", "\u07ff:": "\udce0\udc9f\udcbf:"}
    quoted = {name: f'"{escaped.get(name, name)}"' for name in ("\x7f", "\u07ff:", *escaped)}
    lines = [ENDS, *(f"{quoted.get(name, name)}: {id}\n" for id, name in enumerate(pieces, 2))]
    lines += [f"piece{id}: {id}\n" for id in range(2 + len(pieces), 48)]
    toy = import_model(changed(tmp_path, files={"vocab.yml": "".join(lines)}))
    ids = range(4, 4 + len(pieces))
    assert list(toy.target_tokenizer.pieces_of(ids)) == pieces


@pytest.mark.parametrize(("encoder", "decoder"), [("24", "40"), ("40", "24")])
def test_the_inner_width_is_the_larger_one_of_the_sides(tmp_path, encoder, decoder):
    options = {"transformer_dim_ffn": encoder, "transformer_decoder_dim_ffn": decoder}
    assert read_model(changed(tmp_path, **options)).fields["intermediate_dim"] == 40


def pickled():
    stream = io.BytesIO()
    np.savez(stream, Wemb=np.array([{}]))
    return stream.getvalue()


def with_pieces(change):
    """Changes the pieces of a SentencePiece file."""

    def changed_content(content):
        model = parsed(content)
        change(model.pieces)
        return model.SerializeToString()

    return changed_content


def of_kind(kind):
    """Gives the matrices of a binary file of Marian's another type."""
    return lambda content: content.replace(struct.pack("<Q", 0x4101), struct.pack("<Q", kind))


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 298763421\n"
FILES = [("opus", name) for name in ("model.npz", "source.spm", "vocab.yml", "decoder.yml")]
FILES += [("student", name) for name in ("model.intgemm8.bin", "vocab.en.spm", "config.yml")]
NEEDED = [("hugging_face", name) for name in ("model.safetensors", "vocab.json", "target.spm")]
OPTIONAL = [("hugging_face", name) for name in ("generation_config.json", "added_tokens.json")]
OPTIONAL += [("hugging_face", name) for name in ("config.json", "tokenizer_config.json")]
OPTIONAL += [("hugging_face", "pytorch_model.bin")]
# A toy, the file that is damaged, what its content becomes, and what the line names.
DAMAGED = [(*file, lambda _: LFS, "a Git LFS pointer .*git lfs pull") for file in FILES]
DAMAGED += [(*file, lambda _: LFS, "a Git LFS pointer") for file in NEEDED + OPTIONAL]
DAMAGED += [(*file, lambda _: None, "no such file") for file in NEEDED]
for weights in (NEEDED[0], FILES[0]):
    DAMAGED += [(*weights, lambda content: content[:3000], "")]
    DAMAGED += [(*weights, lambda _: b"<!DOCTYPE html>", ""), (*weights, lambda _: pickled(), "")]
STUDENT, PIECES = ("student", "model.intgemm8.bin"), ("student", "vocab.en.spm")
DAMAGED += [(*STUDENT, of_kind(0x10002), "only float32 and intgemm8 are read")]
DAMAGED += [(*STUDENT, of_kind(0x18001), "only float32 and intgemm8 are read")]
DAMAGED += [(*STUDENT, lambda content: content[:8], "")]
DAMAGED += [(*STUDENT, lambda content: content[:100], "")]
DAMAGED += [(*STUDENT, lambda content: content[:3000], "")]
DAMAGED += [
    (
        *PIECES,
        with_pieces(lambda pieces: pieces.pop()),
        "each row must have a name. Received: 59 ids .* 60 rows",
    ),
    (*PIECES, with_pieces(lambda pieces: setattr(pieces[1], "type", 3)), "must have <unk>"),
    (*PIECES, with_pieces(lambda pieces: setattr(pieces[0], "piece", "<end>")), "have </s>"),
]
DAMAGED += [
    ("opus", "model.npz.yml", lambda _, r=rate: b"transformer-dropout: " + r, "`transf.*` must be")
    for rate in (b"1", b"-0.1", b".nan", b"much")
]


@pytest.mark.parametrize(("toy", "file", "change", "words"), DAMAGED)
def test_a_damaged_or_missing_file_is_one_line_that_names_it(
    tmp_path, make_toy, toy, file, change, words
):
    path = make_toy(tmp_path, toy) / file
    if file == "pytorch_model.bin":
        (path.parent / "model.safetensors").unlink()
    content = change(path.read_bytes() if path.exists() else b"")
    path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=f"{file}: .*{words}") as caught:
        import_model(path.parent)
    assert "\n" not in str(caught.value) and "allow_pickle" not in str(caught.value)


DROPOUTS = [("opus", "", "", 0.0), ("student", "", "", 0.0)]
DROPOUTS += [("opus", "model.npz.yml", "transformer-dropout: 0.2", 0.2)]
DROPOUTS += [("opus", "model.npz.yml", "transformer-dropout: 0", 0.0)]
# An SSRU decoder is a student's, whose teacher had the dropout.
DROPOUTS += [("student", "model.intgemm8.bin.yml", "transformer-dropout: 0.1", 0.0)]
DROPOUTS += [("hugging_face", "config.json", '"dropout": 0.3', 0.3), ("hugging_face", "", "", 0.0)]


@pytest.mark.parametrize(("name", "file", "line", "rate"), DROPOUTS)
def test_a_run_has_the_dropout_that_its_folder_names_or_none(
    tmp_path, make_toy, name, file, line, rate
):
    folder = make_toy(tmp_path, name)
    if file == "config.json":
        config = json.loads((folder / file).read_text("utf-8")) | json.loads(f"{{{line}}}")
        (folder / file).write_text(json.dumps(config), "utf-8")
    elif file:
        (folder / file).write_text(line + "\n", "utf-8")
    fields = read_model(folder).fields
    assert [fields[name] for name in fields if "dropout" in name] == [rate]


def test_the_command_makes_a_run_with_the_models_weights_and_search(tmp_path, capsys):
    output = tmp_path / "run"
    (tmp_path / "samples").write_text("One.\nTwo.\n")
    samples = ["--samples", str(tmp_path / "samples")]
    assert run(["import", str(TOYS / "opus"), "--output", str(output), *samples]) == 0
    assert [source for source, _ in RunFolder(output).sample_pairs()] == ["One.", "Two."]
    captured = capsys.readouterr()
    assert captured.out == f"{output}\n"
    for side in ("source", "target"):
        start = f"{output}: the {side} vocabulary lacks"
        (line,) = (line for line in captured.err.splitlines() if line.startswith(start))
        assert " € " in line and " , " not in line  # `make.py` learned it from texts with commas.
    translator, toy = Translator.load(output), import_model(TOYS / "opus")
    config, engine = toy.model.config, translator.engine
    assert config.dropout == config.attention_dropout == config.feed_forward_dropout == 0
    assert engine.text_rules == TextRules(True, True, True)
    assert {key: translator.defaults[key] for key in toy.decoding} == toy.decoding
    assert (engine.source_tokenizer, engine.target_tokenizer) == toy[1:3]
    for weight, expected in zip(engine.model.weights, toy.model.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
    assert run(["import", str(TOYS / "opus"), "--output", str(output)]) == 2
    message = capsys.readouterr().err
    assert "exists already. Give --overwrite to replace it, or another --output." in message


NAMED = [
    ("firefox:en-fr", (), ("en", "fr")),
    ("firefox:en-zh-Hant/base", (), ("en", "zh-Hant")),
    ("argos:pt-en", (), ("pt", "en")),
    ("Helsinki-NLP/opus-mt-en-de", (), ("en", "de")),
    ("models/opus-mt-tc-big-eng-por", (), ("en", "pt")),
    ("Helsinki-NLP/opus-mt-gem-en", (), None),  # Germanic languages
    ("Helsinki-NLP/opus-mt-en-ROMANCE", (), None),
    ("opus-mt-en-de-finetuned", (), None),
    ("de-en", (), None),
    ("student", ("model.enpt.intgemm.alphas.bin", "lex.50.50.enpt.s2t.bin"), ("en", "pt")),
    ("student", ("base/model.enpt.bin",), ("en", "pt")),
    ("firefox:en-fr", ("model.enpt.bin",), ("en", "fr")),
    ("student", ("model.intgemm8.bin", "model.xxyy.bin"), None),
]


@pytest.mark.parametrize(("name", "files", "direction"), NAMED)
def test_names_of_models_and_of_firefoxs_files_tell_the_languages(tmp_path, name, files, direction):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    languages = importing._languages_of_names(LocalModel(tmp_path, name))
    assert (languages and languages.directions) == (direction and (direction,))


@pytest.fixture(scope="module")
def student_run(tmp_path_factory):
    """The run of the student, whose folder's name tells its languages."""
    folder = tmp_path_factory.mktemp("student")
    (folder / "opus-mt-en-de").symlink_to(TOYS / "student")
    return import_run(folder / "opus-mt-en-de", folder / "run")


@pytest.mark.usefixtures("one_graph")
def test_an_imported_run_knows_its_languages_and_exports_do_not_contradict(student_run, tmp_path):
    assert RunFolder(student_run).languages() == Languages(directions=(("en", "de"),))
    with pytest.raises(InputError, match="must be a direction of the model: en-de. Rec.*en-fr"):
        export_run(student_run, tmp_path / "export", "marian", languages="en-fr")
    translator = Translator.load(student_run)
    assert translator.translate(SOURCES[:1], target_language="de")[0].text
    with pytest.raises(InputError, match="fr"):
        translator.translate(SOURCES[:1], target_language="fr")


@pytest.mark.parametrize(("toy", "make"), [("opus", make_zip), ("student", make_tar)])
def test_a_model_behind_a_url_becomes_a_run_that_names_it(tmp_path, capsys, toy, make):
    pytest.importorskip("httpx2", reason="comes with the extra [import]")
    members = {f"{toy}/{path.name}": path.read_bytes() for path in (TOYS / toy).iterdir()}
    members["README.md"] = b"---\nlicense: cc-by-4.0\n---\n"  # above the model
    content = make(tmp_path / "archive", members).read_bytes()
    with FileServer().running() as server:
        server.files["/models/opus-mt-en-de?key=secret"] = content
        url = f"{server.url}/models/opus-mt-en-de"
        assert run(["import", f"{url}?key=secret", "--output", str(tmp_path / "run")]) == 0
    digest = hashlib.sha256(content).hexdigest()
    lines = capsys.readouterr().err.splitlines()
    assert {f"opus-mt-en-de: sha256 {digest}", f"{url}: reading the model"} <= {*lines}
    nouns = [line.split(": ")[1].split(" lacks ")[0] for line in lines if " lacks these" in line]
    sides = ["the source vocabulary", "the target vocabulary"]
    assert nouns == (["the vocabulary"] if toy == "student" else sides)
    files, expected = RunFolder(tmp_path / "run"), import_model(TOYS / toy).model
    origin = {"name": url, "licence": "cc-by-4.0", "files": {"opus-mt-en-de": digest}}
    assert files.origin() == origin
    for weight, known in zip(files.model().weights, expected.weights, strict=True):
        np.testing.assert_array_equal(weight, known)
    # Tags in the vocabulary tell the languages, whatever the name is.
    directions = {"opus": [(None, "eo")], "student": [("en", "de")]}
    assert Translator.load(files.path).directions == directions[toy]


def test_an_import_that_fails_leaves_what_was_there(student_run, tmp_path, monkeypatch):
    output = tmp_path / "run"
    for overwrite in (False, True):
        before = file_digests(output)
        for function, error in (
            ("RunFolder.write_sections", KeyboardInterrupt()),
            ("save_model", OSError(errno.ENOSPC, "No space left")),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(f"{importing.__name__}.{function}", mock.Mock(side_effect=error))
                with pytest.raises(type(error), match="No space left|^$"):
                    import_run(TOYS / "student", output, overwrite=overwrite)
            assert file_digests(output) == before and output.exists() == overwrite
        if not overwrite:
            shutil.copytree(student_run, output)


def test_a_kill_while_the_earlier_run_is_removed_leaves_a_replaceable_run(
    student_run, tmp_path, monkeypatch
):
    output, remove = shutil.copytree(student_run, tmp_path / "run"), shutil.rmtree

    def killed(path, *arguments, **options):
        if pathlib.Path(path).parent == tmp_path:
            raise KeyboardInterrupt
        remove(path, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        import_run(TOYS / "opus", output, overwrite=True)
    assert RunFolder(output).model().config.decoder != "ssru"
    import_run(TOYS / "student", output, overwrite=True)
    assert RunFolder(output).model().config.decoder == "ssru"
    assert os.listdir(tmp_path) == ["run"]


def test_one_process_at_a_time_writes_the_run(tmp_path):
    output = tmp_path / "run"
    with locked_folder(output), pytest.raises(InputError, match="writes to this folder"):
        import_run(TOYS / "student", output)
    assert not output.exists()


@pytest.mark.slow
def test_a_training_starts_from_the_run_with_nothing_but_a_corpus(student_run, tmp_path):
    from keras_transformer.training import Recipe, train

    origin = student_run
    (tmp_path / "a.src").write_text("\n".join(SOURCES * 20) + "\n")
    (tmp_path / "a.trg").write_text("\n".join(TARGETS * 20) + "\n")
    files = {"source": "a.src", "target": "a.trg"}
    data = {"folder": str(tmp_path), "train": files, "validation": files}
    data |= {"drop_duplicates": False, "max_length_ratio": None}
    training = {"start_from": origin, "epochs": 2, "warmup_steps": 10, "max_shapes": 1}
    training |= {"batch_tokens": 512, "sample_translations": 0, "jit_compile": False}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"data": data, "training": training | {"ema_momentum": 0.9}}))
    folder = train(Recipe.load(path), tmp_path / "tuned")
    losses = [row["val_loss"] for row in folder.history()]
    assert losses[1] < losses[0]
    assert folder.model().config == import_model(TOYS / "student").model.config
    # Marian's vector of the beginning of a sentence stays zero, and its ranking the default.
    table = folder.model().target_embedding.embeddings
    assert not np.any(table[BOS_ID]) and np.all(np.any(table[EOS_ID:], axis=1))
    assert folder.decoding() == RunFolder(origin).decoding()
    assert folder.origin() == RunFolder(origin).origin() and folder.origin()


def test_a_training_from_a_recipe_without_files_is_one_line(student_run, tmp_path):
    from keras_transformer.training import Recipe, train

    recipe = Recipe.load(pathlib.Path(student_run) / "recipe.yaml")
    with pytest.raises(InputError, match="`data.train` must name its files"):
        train(recipe, tmp_path / "again")


@pytest.mark.parametrize(
    "name, dtype, in_file",
    [
        ("pre_silu_relative_float16", None, "float16"),  # Most numbers are, not the tables.
        ("from_marian_hf_int8", None, "float32"),
        ("from_marian_hf_int8", "bfloat16", "bfloat16"),
    ],
)
def test_a_run_has_the_models_dtype_or_the_chosen_one(tmp_path, name, dtype, in_file):
    folder = pathlib.Path(__file__).parents[2] / "data" / "ctranslate2" / name
    import_run(folder, tmp_path / "run", dtype=dtype)
    received, expected = RunFolder(tmp_path / "run").model(), import_model(folder).model
    # Half precision takes half the memory, too, as XLA computes with it.
    in_memory = "float32" if in_file == "float32" else "float16"
    assert {weight.dtype for weight in received.weights} == {in_memory}
    tolerance = {"float32": 0, "float16": 2**-11, "bfloat16": 2**-8}[in_file]
    for ours, theirs in zip(received.weights, expected.weights, strict=True):
        ours, theirs = float64(ours), float64(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * 1e-4)
        rounded = theirs.astype(getattr(ml_dtypes, in_file, in_file)).astype("float64")
        np.testing.assert_allclose(ours, rounded, atol=3e-8)  # what float16 rounds


@pytest.mark.parametrize("dtype, width", [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_an_import_expects_the_bytes_of_its_dtype(tmp_path, monkeypatch, dtype, width):
    refuse = mock.Mock(side_effect=MemoryError)  # before the model is made
    monkeypatch.setattr(importing, "check_memory", refuse)
    with pytest.raises(MemoryError):
        import_run(TOYS / "opus", tmp_path / "run", dtype=dtype)
    arrays = np.load(TOYS / "opus" / "model.npz")
    count = sum(arrays[name].size for name in arrays if arrays[name].dtype == "float32")
    assert refuse.call_args.args[0] == width * count


BEYOND = [("Wemb", "float16", 1), ("encoder_l1_self_Wq", "bfloat16", -1)]
BEYOND += [("encoder_l1_ffn_b1", "float16", -1)]


def test_numbers_beyond_float16_are_one_line_and_no_run(tmp_path):
    folder, output = changed(tmp_path), tmp_path / "run"
    arrays = dict(np.load(folder / "model.npz"))
    for name, dtype, sign in BEYOND:
        arrays[name].flat[0], arrays[name].flat[-1] = np.nan, sign * 65536
        np.savez(folder / "model.npz", **arrays)
        rule = f"in {dtype} must have numbers up to 65,504. Received: 65,536. .* with `--dtype"
        with pytest.raises(InputError, match=rule):
            import_run(folder, output, dtype=dtype)
        assert not output.exists()
        arrays[name].flat[-1] = sign * 65504
    import_run(folder, output)  # Its own dtype has the last number.
    np.savez(folder / "model.npz", **arrays)
    for dtype in ("float16", "bfloat16"):
        import_run(folder, output, dtype=dtype, overwrite=True)


def test_a_dtype_without_such_matrices_is_one_line(tmp_path):
    with pytest.raises(InputError, match="`dtype` must be one of float32, float16, bfloat16"):
        import_run(tmp_path, tmp_path / "run", dtype="int8")
    assert not (tmp_path / "run").exists()


_MIXED = {"W": np.ones((2, 3), "float16"), "V": np.ones((2, 4), ml_dtypes.bfloat16)}


@pytest.mark.parametrize(
    "arrays, dtype",
    [
        ({"W": np.ones((2, 3), "float16"), "b": np.ones(3, "float32")}, "float16"),
        ({"b": np.ones(3, "float32"), "W": np.ones((2, 3), ml_dtypes.bfloat16)}, "bfloat16"),
        ({"W": np.ones((2, 3), "float16"), "positions": np.ones((2, 2), "float32")}, "float16"),
        ({"W": np.ones((2, 3), "float16"), "V": np.ones((2, 4), "float32")}, "float32"),
        (_MIXED, "bfloat16"),
        ({**_MIXED, "U": np.ones((3, 2), "float16")}, "float16"),
        ({"W": np.ones((2, 3), "float64")}, "float32"),
        ({"W": np.ones((2, 3), "int8"), "b": np.ones(3, "float16")}, "float32"),
        ({}, "float32"),
    ],
)
def test_the_dtype_of_tensors_is_the_one_of_most_numbers(arrays, dtype):
    assert Tensors(arrays, "a file").dtype == dtype
