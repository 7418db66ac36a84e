"""Exports of run folders: what they are verified with."""

import types

import pytest
from small_corpus import PAIRS, recipe_values

from keras_transformer import Tokenizer, export
from keras_transformer.engine.run_folder import RunFiles
from keras_transformer.export import export_run
from keras_transformer.training import Recipe, RunFolder


@pytest.fixture
def texts_of(tmp_path, monkeypatch):
    """`texts_of(run, **options)`: the texts that an export of a run is verified with."""

    def texts_of(run, **options):
        seen = []
        exporter = types.SimpleNamespace(
            export=lambda engine, output, texts, *_, **__: seen.append(texts)
        )
        monkeypatch.setattr(RunFiles, "engine", lambda self: types.SimpleNamespace(labels=None))
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
