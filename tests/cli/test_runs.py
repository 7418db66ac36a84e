import types

import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer, Transformer, TransformerConfig, export
from keras_transformer.cli.runs import export_run, inspect_run
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


@pytest.fixture
def texts_of(tmp_path, monkeypatch):
    """`texts_of(run, **options)`: the texts that an export of a run is verified with."""

    def texts_of(run, **options):
        seen = []
        exporter = types.SimpleNamespace(
            export=lambda engine, output, texts, *_, **__: seen.append(texts)
        )
        monkeypatch.setattr(RunFolder, "engine", lambda self: types.SimpleNamespace(labels=None))
        monkeypatch.setattr(export, "exporter_of", lambda format: exporter)
        export_run(run, tmp_path / "new", **options)
        return seen[0]

    return texts_of


def test_an_export_is_verified_with_the_runs_samples_and_reads_no_corpus(tmp_path, texts_of):
    tokenizer = Tokenizer.train_from_texts(PAIRS[0], 29)
    run = RunFolder(tmp_path / "run")
    run.create(Recipe.from_dict(recipe_values(tmp_path / "missing")), (tokenizer, tokenizer), {})
    assert texts_of(run.path) == []  # The export takes its built-in sentences.
    run.write_sample_pairs(PAIRS[:5])
    assert texts_of(run.path) == [source for source, _ in PAIRS[:5]]
    (tmp_path / "other.en").write_text("A dog.\n", encoding="utf-8")
    assert texts_of(run.path, verify_with=tmp_path / "other.en") == ["A dog."]
