import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import pipeline
from keras_transformer.data import read_lines
from keras_transformer.training import Recipe


def test_an_export_is_verified_on_the_runs_validation_text(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    recipe = Recipe.from_dict(recipe_values(corpus))
    assert pipeline._verification_texts(recipe, None) == [source for source, _ in PAIRS]
    (tmp_path / "other.en").write_text("A dog.\n", encoding="utf-8")
    assert pipeline._verification_texts(recipe, tmp_path / "other.en") == ["A dog."]


def test_without_that_text_the_export_makes_its_own(tmp_path):
    recipe = Recipe.from_dict(recipe_values(tmp_path / "moved"))
    assert pipeline._verification_texts(recipe, None) is None


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
