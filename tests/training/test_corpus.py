import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer
from keras_transformer.training import Recipe
from keras_transformer.training.corpus import texts_of, train_tokenizers


@pytest.fixture
def values(tmp_path):
    return recipe_values(write_corpus(tmp_path))


def test_the_pairs_are_those_of_the_files(values):
    assert list(texts_of(Recipe.from_dict(values), "train")) == PAIRS


@pytest.mark.parametrize("sample", [None, 1000])
def test_a_joint_vocabulary_is_learned_from_both_sides(values, tmp_path, sample):
    values["text"]["sample_sentences"] = sample
    source, target = train_tokenizers(Recipe.from_dict(values))
    assert source is target
    assert source == Tokenizer.train([tmp_path / "train.en", tmp_path / "train.de"], 150)


def test_a_vocabulary_a_side_is_learned_from_its_side(values, tmp_path):
    values["text"].update(joint=False, vocabulary_size=100, target_vocabulary_size=120)
    source, target = train_tokenizers(Recipe.from_dict(values))
    assert source == Tokenizer.train(tmp_path / "train.en", 100)
    assert target == Tokenizer.train(tmp_path / "train.de", 120)


def test_a_sample_is_of_lines_of_all_the_text_and_always_the_same(values):
    values["text"].update(vocabulary_size=60, sample_sentences=20)
    one, again = (train_tokenizers(Recipe.from_dict(values))[0] for _ in range(2))
    values["text"]["sample_sentences"] = None
    assert one == again != train_tokenizers(Recipe.from_dict(values))[0]
