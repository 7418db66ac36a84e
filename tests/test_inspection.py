from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.inspection import inspect_run
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.run_folder import save_model


def test_heads_are_measured_on_the_pairs_that_were_held_out(tmp_path, monkeypatch):
    values = recipe_values(write_corpus(tmp_path / "corpus"))
    del values["data"]["validation"]
    values["data"]["hold_out_every"] = 3
    folder, tokenizer = RunFolder(tmp_path / "run"), Tokenizer.train_from_texts(PAIRS[0], 29)
    folder.create(Recipe.from_dict(values), (tokenizer, tokenizer), {})
    sizes = dict(model_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    config = TransformerConfig(tokenizer.vocabulary_size, intermediate_dim=16, **sizes)
    save_model(Transformer(config), folder.model_file)
    measured = []
    write_report = "keras_transformer.analysis.report.write_report"
    monkeypatch.setattr(write_report, lambda *_, pairs, **rest: measured.append(pairs) or {})
    inspect_run(folder.path, "A dog.", tmp_path / "report")
    assert list(zip(*measured[0], strict=True)) == PAIRS[2::3]
