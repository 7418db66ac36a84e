import pytest
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer import Tokenizer
from keras_transformer.errors import InputError
from keras_transformer.training import Recipe
from keras_transformer.training.corpus import make_datasets, texts_of, train_tokenizers


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


def test_a_language_models_sample_is_of_its_lines_alone(values, tmp_path):
    lines = (tmp_path / "train.en").read_text(encoding="utf-8")
    (tmp_path / "blank.en").write_text(lines.replace("\n", "\n\n \n"), encoding="utf-8")
    values["data"] |= {part: {"source": "blank.en"} for part in ("train", "validation")}
    values["text"] |= {"vocabulary_size": 120, "sample_sentences": len(PAIRS)}
    values["model"] = {"kind": "language_model"}
    expected = Tokenizer.train_from_texts([source for source, _ in PAIRS], 120)
    assert train_tokenizers(Recipe.from_dict(values))[0] == expected


def test_every_third_pair_is_held_out_where_that_is_asked_for(values):
    del values["data"]["validation"]
    with pytest.raises(InputError, match="`data.validation` must name its files"):
        Recipe.from_dict(values)
    values["data"]["hold_out_every"] = 3
    recipe = Recipe.from_dict(values)
    assert list(texts_of(recipe, "validation")) == PAIRS[2::3]
    assert set(texts_of(recipe, "train")) == set(PAIRS) - set(PAIRS[2::3])


@pytest.fixture
def labelled(values, tmp_path):
    """A recipe of a classifier over `label<TAB>text`."""
    lines = [f"{i % 3}\t{text}" for i, (text, _) in enumerate(PAIRS)]
    for name, end in (("train.tsv", []), ("validation.tsv", ["3\tSnow."])):
        (tmp_path / name).write_text("\n".join([*lines, *end]) + "\n", encoding="utf-8")
    values["data"] |= {part: {"source": f"{part}.tsv"} for part in ("train", "validation")}
    values["model"] = {"kind": "classifier", "model_dim": 16}
    values["text"]["vocabulary_size"] = 100
    return Recipe.from_dict(values)


def test_a_classifiers_labels_come_first_and_are_a_vocabulary_of_their_own(labelled):
    assert next(texts_of(labelled, "train")) == (PAIRS[0][0], "0")
    texts, labels = train_tokenizers(labelled)
    assert labels.names == ["0", "1", "2"]
    assert texts == Tokenizer.train_from_texts([text for text, _ in PAIRS], 100)


def test_a_label_that_was_not_trained_on_is_one_line(labelled):
    with pytest.raises(InputError) as error:
        make_datasets(labelled, train_tokenizers(labelled))
    assert str(error.value).endswith(
        "validation.tsv, line 33: expected a label of the training texts (0, 1, 2). Received: '3'."
    )


@pytest.mark.parametrize("option", [{"select_by": "bleu"}, {"attention_images": 1}])
def test_what_a_classifier_cannot_do_in_training_is_an_error(labelled, option):
    values = labelled.to_dict()
    values["training"] |= option
    with pytest.raises(InputError, match=f"`training.{next(iter(option))}"):
        Recipe.from_dict(values)
