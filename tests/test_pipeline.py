import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer, Transformer, TransformerConfig, pipeline
from keras_transformer.data import read_lines
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.run_folder import save_model


def test_an_export_is_verified_on_the_runs_validation_text(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    recipe = Recipe.from_dict(recipe_values(corpus))
    assert pipeline._verification_texts(recipe, None) == [source for source, _ in PAIRS]
    (tmp_path / "other.en").write_text("A dog.\n", encoding="utf-8")
    assert pipeline._verification_texts(recipe, tmp_path / "other.en") == ["A dog."]


def test_without_that_text_the_export_makes_its_own(tmp_path):
    recipe = Recipe.from_dict(recipe_values(tmp_path / "moved"))
    assert pipeline._verification_texts(recipe, None) is None


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
    pipeline.inspect_run(folder.path, "A dog.", tmp_path / "report")
    assert list(zip(*measured[0], strict=True)) == PAIRS[2::3]


def test_translations_are_saved_and_scored(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")

    class Echo:
        def translate(self, texts, **options):
            assert options == {"beam_size": 3}
            known = dict(PAIRS)
            return [type("T", (), {"text": known[text]}) for text in texts]

    monkeypatch.setattr(pipeline.Translator, "load", lambda path: Echo())
    saved = tmp_path / "out.de"
    scores = pipeline.evaluate_model(
        "any", corpus / "train.en", corpus / "train.de", save=saved, beam_size=3
    )
    assert scores["bleu"] == 100.0
    assert read_lines(saved) == [target for _, target in PAIRS]


def test_a_place_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")
    engine = type("E", (), {"translate": lambda self, texts: [type("T", (), {"text": "x"})] * 32})
    monkeypatch.setattr(pipeline.Translator, "load", lambda path: engine())
    with pytest.raises(ValueError, match="cannot be written"):
        pipeline.evaluate_model(
            "any", corpus / "train.en", corpus / "train.de", save=tmp_path / "no" / "out.de"
        )
