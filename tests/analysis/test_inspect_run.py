"""Inspection of run folders: what heads are measured on."""

from small_corpus import PAIRS, recipe_values

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.analysis.report import inspect_run
from keras_transformer.engine.run_folder import save_model
from keras_transformer.training import Recipe, RunFolder


def test_heads_are_measured_on_the_runs_samples_and_no_corpus_is_read(tmp_path, monkeypatch):
    folder, tokenizer = RunFolder(tmp_path / "run"), Tokenizer.train_from_texts(PAIRS[0], 29)
    recipe = Recipe.from_dict(recipe_values(tmp_path / "missing"))
    folder.create(recipe, (tokenizer, tokenizer), {})
    sizes = dict(model_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    config = TransformerConfig(tokenizer.vocabulary_size, intermediate_dim=16, **sizes)
    save_model(Transformer(config), folder.model_file)
    reports = []

    def write_report(folder, inspection, trained, **inputs):
        reports.append((trained, inputs.get("pairs")))
        return {}

    monkeypatch.setattr("keras_transformer.analysis.report.write_report", write_report)
    inspect_run(folder.path, "A dog.", tmp_path / "report")
    folder.write_sample_pairs(PAIRS[:5])
    inspect_run(folder.path, "A dog.", tmp_path / "other")
    assert reports[0] == (recipe.data.max_length, None)
    assert list(zip(*reports[1][1], strict=True)) == PAIRS[:5]
