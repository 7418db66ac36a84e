from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import run_exports
from keras_transformer.training import Recipe


def test_an_export_is_verified_on_the_runs_validation_text(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    recipe = Recipe.from_dict(recipe_values(corpus))
    assert run_exports.verification_texts(recipe, None) == [source for source, _ in PAIRS]
    (tmp_path / "other.en").write_text("A dog.\n", encoding="utf-8")
    assert run_exports.verification_texts(recipe, tmp_path / "other.en") == ["A dog."]


def test_without_that_text_the_export_makes_its_own(tmp_path):
    recipe = Recipe.from_dict(recipe_values(tmp_path / "moved"))
    assert run_exports.verification_texts(recipe, None) is None
