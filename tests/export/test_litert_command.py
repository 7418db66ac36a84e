import json

import pytest
from small_corpus import recipe_values

from keras_transformer import Transformer, TransformerConfig, Translator
from keras_transformer.cli import run
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.run_folder import save_model

pytestmark = pytest.mark.tensorflow


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
    options = ["--quantize", "int8", "--source-lengths", "48", "--ids-only", "--beam-size", "1"]
    verify = ["--verify-with", str(tmp_path / "sources")]
    assert run(["export", "--format", "litert", *arguments, *options, *verify]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["files"]) == {"model_ids.tflite"}
    compared = report["verification"]["ids, greedy"]
    assert compared["texts"] > len(texts)
    assert 0 < compared["mean_score_difference"]
    assert not (tmp_path / "new" / "model.tflite").exists()
    names = {path.name for path in (tmp_path / "new").glob("*tokenizer.model")}
    assert names == {"source_tokenizer.model", "target_tokenizer.model"}
    live = Translator(run_folder.engine()).translate(texts[:32], beam_size=1)
    found = Translator.load(tmp_path / "new").translate(texts[:32], n_best=1)
    same = sum(a.text == b.text for a, b in zip(live, found, strict=True))
    assert same > 16
