import json

import numpy as np
import pytest
from small_corpus import recipe_values

from keras_transformer import Tokenizer, Translator
from keras_transformer.base import memory
from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run
from keras_transformer.engine.opening import engine_of_run
from keras_transformer.export import export_litert, exporter_of
from keras_transformer.export.litert.export_options import LiteRTOptions
from keras_transformer.runs.model_file import save_model
from keras_transformer.training import Recipe, RunFolder

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_tokenizer_is_beside_it_for_two_libraries(litert_report, texts, side):
    tokenizers = pytest.importorskip("tokenizers", reason="comes with the extra [test]")
    path = litert_report.folder / f"{side}_tokenizer"
    theirs = tokenizers.Tokenizer.from_file(f"{path}.json")
    ours = Tokenizer.load(f"{path}.model")
    texts = texts if side == "source" else [text.upper() for text in texts]
    assert [encoding.ids for encoding in theirs.encode_batch(texts)] == ours.tokenize(texts)


def test_signatures_have_the_names_and_shapes_of_the_contract(litert_report):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(litert_report.folder / "model.tflite"))
    outputs = ["ids", "log_probability", "score"]
    assert interpreter.get_signature_list() == {
        **{
            name: {"inputs": ["source_ids"], "outputs": outputs}
            for name in ("greedy_7", "greedy_13", "beam_7", "beam_13")
        },
        "align": {"inputs": ["source_ids", "target_ids"], "outputs": ["alignment"]},
    }
    result = interpreter.get_signature_runner("beam_7")(source_ids=np.full((5, 7), 4, "int32"))
    shapes = {name: array.shape for name, array in result.items()}
    assert shapes == {"ids": (5, 2, 17), "score": (5, 2), "log_probability": (5, 2)}


def test_embeddings_are_stored_once(litert_report, engine):
    from ai_edge_litert import schema_py_generated as schema

    content = (litert_report.folder / "model.tflite").read_bytes()
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    table = np.asarray(engine.model.target_embedding.embeddings, "float32").tobytes()
    arrays = [b"" if buffer.data is None else bytes(buffer.data) for buffer in model.buffers]
    assert arrays.count(table) == 1
    assert not [array for array in arrays if len(array) == len(table) and array != table]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": "int4"}, "one of none, float16, int8. Received: 'int4'"),
        ({"source_lengths": []}, r"integers of at least 2, or null\. Received: \(\)"),
        ({"source_lengths": [14]}, r"integers from 2 to 13\. Received: source_lengths=\[14\]"),
        ({"n_best": 5}, "at most `beam_size`"),
    ],
)
def test_a_wrong_option_is_a_users_mistake(engine, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        export_litert(engine, tmp_path / "new", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_large_model_has_one_length_because_each_takes_the_memory_of_all_weights(
    engine, monkeypatch
):
    monkeypatch.setattr(engine, "max_source_length", 24)
    exporter, options = exporter_of("litert"), LiteRTOptions()
    with_shortlist = LiteRTOptions(shortlist=True)
    assert exporter.resolve_export_options(engine, options)["source_lengths"] == [16, 24]
    lengths = exporter.resolve_export_options(engine, with_shortlist)["source_lengths"]
    assert lengths == [12, 16, 20, 24]
    monkeypatch.setattr(memory, "LARGE_MODEL_BYTES", 4 * engine.model.count_params())
    for unnamed in (options, with_shortlist):
        assert exporter.resolve_export_options(engine, unnamed)["source_lengths"] == [24]
    chosen = LiteRTOptions(source_lengths=(7, 16))
    assert exporter.resolve_export_options(engine, chosen)["source_lengths"] == [7, 16]


def test_another_precision_is_refused(make_engine, tmp_path):
    with pytest.raises(InputError, match="a model that computes in bfloat16"):
        export_litert(make_engine(dtype="mixed_bfloat16"), tmp_path / "new")


@pytest.mark.slow
def test_the_command_makes_int8_files_that_the_translator_reads(
    make_engine, tokenizer, other_tokenizer, tmp_path, texts, capsys
):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    # Large enough for its weights to be quantized.
    sizes = {"model_dim": 40, "intermediate_dim": 48}
    engine = make_engine(other_tokenizer, tie_embeddings="decoder", **sizes)
    for weight in engine.model.trainable_weights:  # A model that is less sure changes less.
        weight.assign(0.7 * weight)
    folder = RunFolder(tmp_path / "run")
    recipe = Recipe.from_dict(recipe_values(tmp_path))
    folder.create(recipe.to_dict(), (tokenizer, other_tokenizer), {})
    save_model(engine.model, folder.model_file)
    # The longest texts, whose scores of an untrained model differ least.
    sources = "".join(f"{text}\n" for text in sorted(texts, key=len)[-64:])
    (tmp_path / "sources").write_text(sources, encoding="utf-8")
    arguments = ["--model", str(folder.path), "--output", str(tmp_path / "new")]
    options = ["--quantize", "int8", "--source-lengths", "48", "--beam-size", "1"]
    verify = ["--samples", str(tmp_path / "sources")]
    assert run(["export", "--json", "--format", "litert", *arguments, *options, *verify]) == 0
    report = json.loads(capsys.readouterr().out)
    compared = report["verification"]
    assert 0 < compared["equal"] <= compared["texts"] <= 64
    assert 0 < compared["mean_score_difference"]
    names = {path.name for path in (tmp_path / "new").glob("*tokenizer.model")}
    assert names == {"source_tokenizer.model", "target_tokenizer.model"}
    live = engine_of_run(folder).translate(texts[:32], beam_size=1)
    received = Translator.load(tmp_path / "new").translate(texts[:32])
    same = sum(a.text == b.text for a, b in zip(live, received, strict=True))
    assert same > 16
