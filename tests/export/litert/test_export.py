import hashlib
import json

import numpy as np
import pytest
from small_corpus import recipe_values

from keras_transformer import Tokenizer, Transformer, TransformerConfig, Translator
from keras_transformer.cli.main import run
from keras_transformer.engine.run_folder import save_model
from keras_transformer.errors import InputError, VerificationError
from keras_transformer.export import export_litert
from keras_transformer.export.litert import export as litert
from keras_transformer.export.litert.file import custom_operations
from keras_transformer.training import Recipe, RunFolder

pytestmark = pytest.mark.tensorflow


def test_the_folder_holds_what_it_says(litert_report):
    folder, manifest = litert_report.folder, litert_report.manifest
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(found) == {
        "model.tflite",
        "tokenizer.json",
        "tokenizer.model",
        "export.json",
        "README.md",
        "verification.json",
    }
    assert json.loads(found["export.json"]) == manifest
    assert json.loads(found["verification.json"]) == litert_report.verification
    for name, described in manifest["files"].items():
        assert described["bytes"] == len(found[name])
        assert described["sha256"] == hashlib.sha256(found[name]).hexdigest()
    assert manifest["source_lengths"] == [7, 13]


def test_the_file_needs_no_operation_but_litert_s(litert_report):
    content = (litert_report.folder / "model.tflite").read_bytes()
    assert custom_operations(content) == []
    assert litert_report.manifest["files"]["model.tflite"]["custom_operations"] == []


def test_the_tokenizer_is_beside_it_for_two_libraries(litert_report, texts):
    tokenizers = pytest.importorskip("tokenizers", reason="comes with the extra [test]")
    theirs = tokenizers.Tokenizer.from_file(str(litert_report.folder / "tokenizer.json"))
    ours = Tokenizer.load(litert_report.folder / "tokenizer.model")
    assert [each.ids for each in theirs.encode_batch(texts)] == ours.tokenize(texts)


def test_signatures_have_the_names_and_shapes_of_the_contract(litert_report):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(litert_report.folder / "model.tflite"))
    outputs = ["ids", "log_probability", "score"]
    assert interpreter.get_signature_list() == {
        name: {"inputs": ["source_ids"], "outputs": outputs}
        for name in ("greedy_7", "greedy_13", "beam_7", "beam_13")
    }
    found = interpreter.get_signature_runner("beam_7")(source_ids=np.full((5, 7), 4, "int32"))
    assert {name: each.shape for name, each in found.items()} == {
        "ids": (5, 2, 17),
        "score": (5, 2),
        "log_probability": (5, 2),
    }


def test_embeddings_are_stored_once(litert_report, engine):
    from ai_edge_litert import schema_py_generated as schema

    content = (litert_report.folder / "model.tflite").read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    table = np.asarray(engine.model.target_embedding.embeddings, "float32").tobytes()
    arrays = [b"" if each.data is None else bytes(each.data) for each in model.buffers]
    assert arrays.count(table) == 1
    assert not [each for each in arrays if len(each) == len(table) and each != table]
    users = {
        model.operatorCodes[operator.opcodeIndex].builtinCode
        for graph in model.subgraphs
        for operator in graph.operators
        for place in operator.inputs
        if arrays[graph.tensors[place].buffer] == table
    }
    codes = schema.BuiltinOperator
    assert users == {codes.GATHER, codes.FULLY_CONNECTED}


def test_a_failed_verification_leaves_nothing(engine, tmp_path, monkeypatch):
    def fail(*args):
        raise VerificationError("no")

    monkeypatch.setattr(litert, "convert", lambda functions: [])
    monkeypatch.setattr(litert, "verify_litert", fail)
    with pytest.raises(VerificationError):
        export_litert(engine, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"quantize": "int4"}, "one of none, float16, int8. Received: 'int4'"),
        (
            {"source_lengths": []},
            "`source_lengths` must be integers of at least 2, or null. Received: ()",
        ),
        ({"source_lengths": [14]}, "integers from 2 to 13. Received: source_lengths=[14]"),
        ({"source_lengths": [True]}, "integers of at least 2, or null. Received: True"),
        ({"beam_size": 0}, "`beam_size` must be a positive integer"),
        ({"n_best": 5}, "at most `beam_size`"),
        ({"length_penalty": -1.0}, "`length_penalty` must be a number of at least 0"),
    ],
)
def test_a_wrong_option_is_a_users_mistake(engine, tmp_path, options, expected):
    with pytest.raises(InputError) as caught:
        export_litert(engine, tmp_path / "new", **options)
    assert expected in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_another_precision_is_refused(make_engine, tmp_path):
    with pytest.raises(InputError, match="a model that computes in bfloat16"):
        export_litert(make_engine(dtype="mixed_bfloat16"), tmp_path / "new")


@pytest.fixture
def run_folder(tmp_path, tokenizer, other_tokenizer, rng):
    """A run with two vocabularies, large enough for its weights to be quantized."""
    config = TransformerConfig(
        tokenizer.vocabulary_size,
        target_vocabulary_size=other_tokenizer.vocabulary_size,
        tie_embeddings="decoder",
        model_dim=40,
        num_heads=2,
        intermediate_dim=48,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    model = Transformer(config)
    for weight in model.trainable_weights:
        weight.assign(0.3 * rng.normal(size=weight.shape))
    folder = RunFolder(tmp_path / "run")
    folder.create(Recipe.from_dict(recipe_values(tmp_path)), (tokenizer, other_tokenizer), {})
    save_model(model, folder.model_file)
    return folder


def test_the_command_makes_int8_files_that_the_translator_reads(
    run_folder, tmp_path, texts, capsys
):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    (tmp_path / "sources").write_text("\n".join(texts) + "\n", encoding="utf-8")
    arguments = ["--model", str(run_folder.path), "--output", str(tmp_path / "new")]
    options = ["--quantize", "int8", "--source-lengths", "48", "--beam-size", "1"]
    verify = ["--verify-with", str(tmp_path / "sources")]
    assert run(["export", "--json", "--format", "litert", *arguments, *options, *verify]) == 0
    report = json.loads(capsys.readouterr().out)
    compared = report["verification"]
    assert 0 < compared["equal"] <= compared["texts"] <= 64
    assert 0 < compared["mean_score_difference"]
    names = {path.name for path in (tmp_path / "new").glob("*tokenizer.model")}
    assert names == {"source_tokenizer.model", "target_tokenizer.model"}
    live = Translator(run_folder.engine()).translate(texts[:32], beam_size=1)
    found = Translator.load(tmp_path / "new").translate(texts[:32], n_best=1)
    same = sum(a.text == b.text for a, b in zip(live, found, strict=True))
    assert same > 16
