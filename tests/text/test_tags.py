"""What a tag and the token of a language look like, for every part that reads or writes one."""

import pathlib
import re

import pytest

import keras_transformer
from keras_transformer.base.errors import InputError
from keras_transformer.data.noise import _UNCHANGED
from keras_transformer.engine.steps.tag import TagStep, without_tags
from keras_transformer.extras.foreign.vocabulary import tokenizer_of, vocabulary_from_sentencepiece
from keras_transformer.text import Tokenizer
from keras_transformer.text.languages import language_code, languages_of_tags
from keras_transformer.text.tags import (
    LANGUAGE_TOKEN,
    TAG,
    corpus_in_tag,
    language_in_tag,
    split_tag,
    tag_tokens,
    without_signs,
)
from keras_transformer.text.vocabulary import parsed

TAGS = "<bt> <2de> <new-york> >>de<< >>cmn_Hans<< >>sr@latin<< >>pt-BR<< >>X<<".split()
# A space, also as a token has it; angle brackets; nothing; what other tokens of a vocabulary are.
NO_TAGS = [
    ">>a b<<", ">>a\u2581b<<", ">>a\tb<<", ">>a<<b<<", ">>a>b<<", ">><<", ">>a<", "<BT>", "<a b>",
    "<a_b>", "<-a>", "<>", "<ph_1>", "<term_as>", "</s>", "__de__", "deu_Latn",
]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_one_for_every_part(tag):
    assert TAG.fullmatch(tag)
    assert split_tag(f" {tag} A dog", TAGS) == (tag, "A dog")
    assert without_tags(f"{tag} A dog", "A dog") == "A dog"
    assert _UNCHANGED.fullmatch(tag)
    name = corpus_in_tag(tag) or language_in_tag(tag)
    assert tag_tokens([name], are_languages=tag.startswith(">>")) == {name: tag}


@pytest.mark.parametrize("token", NO_TAGS)
def test_no_part_takes_another_token_for_a_tag(token):
    assert TAG.fullmatch(token) is None
    assert split_tag(f"{token} A dog", [token]) == ("", f"{token} A dog")
    assert without_tags(f"{token} A dog", "A dog") == f"{token} A dog"
    assert (corpus_in_tag(token), language_in_tag(token)) == (None, None)
    assert languages_of_tags({"a": token}) is None


def imported(*symbols):
    """The tokenizer of an imported model with user-defined symbols, and the names of its ids."""
    lines = ["a b", "two dogs", "a man and a dog"] * 9
    model = parsed(Tokenizer.train_from_texts(lines, vocabulary_size=16).model_bytes)
    for symbol in symbols:
        model.pieces.add(piece=symbol, score=0.0, type=model.pieces[0].USER_DEFINED)
    return tokenizer_of(vocabulary_from_sentencepiece(model), is_target=False)


def test_the_importer_and_the_tokenizer_find_the_same_tags():
    tokenizer = imported(">>de<<", ">>a b<<", ">>c<<d<<")
    assert tokenizer.tag_tokens == {"de": ">>de<<"}
    assert tokenizer.split_tags(">>de<< a dog") == (">>de<<", "a dog")
    assert tokenizer.split_tags(">>a b<< a dog") == ("", ">>a b<< a dog")


def test_a_tag_after_which_another_name_ends_is_the_first_one():
    tokenizer = imported(">>de<<", ">>fr<<")
    assert tokenizer.split_tag(">>de<<fr<< a dog") == (">>de<<", "fr<< a dog")
    step = TagStep("<bt>", None, [">>de<<"])
    assert step.before(">>de<<fr<< a dog") == [(">>de<< <bt> fr<< a dog", None)]


@pytest.mark.parametrize("name", ["BT", "a_b", "-a", "", "a b", "ä"])
def test_a_new_tag_that_no_text_could_have_is_refused(name):
    with pytest.raises(InputError, match=f"A new `tag` must .* Received: {re.escape(name)}\\.$"):
        Tokenizer.train_from_texts(["a man and a dog"] * 9, vocabulary_size=15, tags=[name])


@pytest.mark.parametrize(
    ("token", "name"),
    [("__de__", "de"), ("__ast__", "ast"), ("deu_Latn", "deu_Latn"), (">>deu<<", "deu")]
    + [("\u2581>>deu<<", "deu"), (">>a b<<", ">>a b<<"), ("__main__", "__main__"), ("de", "de")],
)
def test_the_signs_around_the_name_of_a_language_are_those_of_real_models(token, name):
    assert without_signs(token) == name
    assert bool(LANGUAGE_TOKEN.fullmatch(token)) == (token in ("__de__", "__ast__", "deu_Latn"))


def test_people_may_write_a_language_as_any_model_does():
    names = ["de", "deu", "deu_Latn", "__de__", ">>deu<<", "\u2581>>deu<<"]
    assert set(map(language_code, names)) == {"de"}


def test_the_page_reads_the_same_tags():
    script = pathlib.Path(keras_transformer.__file__).parent / "extras/web/static/engine.js"
    (pattern,) = re.findall(r"text\.match\(/\^\\s\*\((.*)\)\\s\*/\)", script.read_text("utf-8"))
    page = re.compile(pattern)
    assert [bool(page.fullmatch(tag)) for tag in (*TAGS, *NO_TAGS)] == [True] * len(TAGS) + [
        False
    ] * len(NO_TAGS)
