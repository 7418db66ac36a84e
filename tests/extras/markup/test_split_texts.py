"""A text that is translated part by part has the tags of the whole text."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markup_engines import EIGHT, SayingEngine, copied, in_order

from keras_transformer import Translation, Translator
from keras_transformer.engine.steps.glossary import Glossary, annotate
from keras_transformer.extras.markup import aligning, protect, restore
from keras_transformer.extras.markup.protecting import divide
from keras_transformer.text.sentences import split_text
from keras_transformer.text.symbols import Placeholders


class SplittingEngine(SayingEngine):
    """Translates sentence by sentence, each with the tag in front of the text."""

    def translate(self, texts, alignment=False, **options):
        translations = []
        for text in texts:
            tag, *sentences = re.split(r" (?=S)", text)
            parts = [f"{tag} {sentence}" for sentence in sentences]
            parts = super().translate(parts, alignment=bool(alignment), **options)
            translations.append(Translation.joined(parts))
        return translations


@pytest.mark.parametrize("end", [" c.", ""])
@pytest.mark.parametrize("token", ["<2de>", ">>2de<<"])
def test_tags_of_a_split_text_with_a_tag_of_the_corpus_do_not_drift(token, end):
    # Without an end, each part has fewer tokens of the target than of the source.
    engine = SplittingEngine(lambda words: in_order(words)[1 : None if end else -1])
    engine.source_tokenizer.tag_tokens = {"2de": token}
    sentences = [f"S{number} a <b>b</b> c." for number in range(9)]
    (translation,) = Translator(engine).translate([" ".join(sentences)], markup="html", tag="2de")
    expected = " ".join(f"S{number} a <b>b</b>{end}" for number in range(9))
    assert translation.text == expected.upper().replace("B>", "b>")


FRAGMENTS = st.sampled_from(
    ["a", "dog", "runs {x}", "<b>big</b>", "<b>two words</b>", "<br>", "end.", "http://a.org/b"]
    + ["<i>cat <u>sat down</u></i>", "<!-- c --> e", "<i>f <p></i>g", "</u>h"]
)


@pytest.mark.parametrize("is_aligned", [True, False])
@settings(max_examples=40)
@given(words=st.lists(FRAGMENTS, min_size=1, max_size=30), size=st.integers(2, 9))
def test_the_parts_of_a_split_text_have_the_tags_of_the_whole_text(is_aligned, words, size):
    def fits(part):
        return len(part.split()) <= size

    for block in protect(" ".join(words), "html", Placeholders(3)):
        parts = [copied(part, is_aligned) for part in split_text(block.text, fits)]
        whole = restore(copied(block.text, is_aligned), block)
        assert restore(Translation.joined(parts), block).text == whole.text


def test_the_parts_of_a_split_text_with_annotated_terms_have_their_tags():
    words = [f"w{number} <b>a{number}</b> <i>c b{number}</i>, {{x}}." for number in range(20)]
    (block,) = protect(" ".join(words), "html", EIGHT)
    terms = Glossary([(f"{letter}{number}", "x y") for number in range(20) for letter in "ab"])
    text_read = annotate(block.text_to_read, terms.matches(block.text_to_read))
    parts = list(map(copied, split_text(text_read, lambda part: len(part.split()) <= 25)))
    assert len(parts) > 5
    assert restore(Translation.joined(parts), block, [text_read]).text == " ".join(words)


def test_attention_to_an_annotation_is_to_its_term_and_to_the_symbol_before_it_none():
    text, terms = "runs dog", Glossary([("dog", "Hund")])
    text_read = annotate(text, terms.matches(text))
    weights, _, _, middles = aligning._attention(copied(text_read), text, text_read)
    # Middles of `runs` and `dog`; `<term_as>`, `Hund` and `<term_end>` are at the end of `dog`.
    assert middles.tolist() == [2.5, 5.5, 6.5, 6.5, 6.5]
    np.testing.assert_array_equal(weights, np.eye(2, 5))


def test_an_end_tag_between_two_parts_belongs_to_the_words_before_it():
    (block,) = protect("<b>One. </b>Two.", "html", EIGHT)
    parts = divide(block, [5])  # Up to the border: `One. `, with its space.
    assert [part.text for part in parts] == ["One. ", "Two."]
    literals = [[tag.literal for tag in part.source_parts] for part in parts]
    assert literals == [["<b>", "</b>"], []]


def test_each_alternative_of_a_split_text_has_its_tags():
    (block,) = protect("<b>One.</b> Two <i>words.</i>", "html", EIGHT)
    parts = [
        dataclasses.replace(
            copied(text), alternatives=(dataclasses.replace(copied(other), score=-1),)
        )
        for text, other in (("One.", "One."), ("Two words.", "2 words."))
    ]
    best = restore(Translation.joined(parts), block)
    assert best.text == "<b>One.</b> Two <i>words.</i>"
    assert [t.text for t in best.alternatives] == ["<b>One.</b> 2 <i>words.</i>"]
