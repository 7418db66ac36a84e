"""Which unit of a translation is which word of the source, where several could be."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from markup_engines import EIGHT, copied, translated

from keras_transformer.extras.markup import protect, restore
from keras_transformer.extras.markup.aligning import copied_words


@pytest.mark.parametrize("order", [*itertools.product(["no", "n<b>o</b>", "<i>n</i>o"], repeat=3)])
def test_equal_words_are_in_the_sources_order_where_attention_tells_nothing(order):
    source = " ".join(order)
    (block,) = protect(source, "html", EIGHT)
    copy = copied(block.text)
    even = np.full_like(copy.alignment, 1 / copy.alignment.shape[1])
    assert restore(dataclasses.replace(copy, alignment=even), block).text == source


@pytest.mark.parametrize("places", [*itertools.permutations(range(3))])
def test_of_several_copies_the_one_that_attends_to_a_word_has_its_tags(places):
    """A source has a word once, and its translation three times."""

    def say(words):
        return [("no", place) for place in places]

    expected = ["no"] * 3
    expected[places.index(1)] = "n<b>o</b>"
    assert translated("a n<b>o</b> c", say) == " ".join(expected)


SPOKEN = {"unhappy": "un<b>happy</b>", "traurige": "<b>traurige</b>"}  # copied, or translated


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
@pytest.mark.parametrize("spoken", SPOKEN)
def test_a_tag_within_a_word_stands_where_the_translation_of_the_word_stands(order, spoken):
    spoken_words = [spoken, "Hunde", "schlafen"]
    words = [SPOKEN[spoken], *spoken_words[1:]]
    received = translated(
        "un<b>happy</b> dogs sleep", lambda _: [(spoken_words[place], place) for place in order]
    )
    assert received == " ".join(words[place] for place in order)


@pytest.mark.parametrize("elements", [1, 2, 3])
@pytest.mark.parametrize("items", [0, 1, 3])
def test_each_element_has_a_part_of_a_word_however_many_placeholders_there_are(elements, items):
    names = "bius"[:elements]
    source = " ".join(
        [*(f"<{name}>w{i}</{name}>" for i, name in enumerate(names)), *["{x}"] * items]
    )

    def say(words):
        return [("OneWord", 0), *((word, i) for i, word in enumerate(words) if "<ph_" in word)]

    text = translated(source, say)
    for name in names:
        assert re.search(rf"<{name}>\w+</{name}>", text), text
    assert re.sub(r"</?\w>", "", text) == " ".join(["OneWord", *["{x}"] * items])


INVENTED = ["<ph_9>", "<ph_01>", "<ph_\u0661>", "<ph_\U00010d41>", f"<ph_{'1' * 5000}>"]


@pytest.mark.parametrize("name", INVENTED)
def test_a_placeholder_that_the_model_has_invented_is_left_out(name):
    def say(words):
        return [*((word, place) for place, word in enumerate(words)), (name, 0)]

    assert translated("a {x} <b>b</b>", say) == "a {x} <b>b</b>"


def test_a_copy_has_the_length_of_its_word_and_attends_to_it():
    # Both words `no` have a copy: the first copy attends to the second word.
    attention = {0: [0.1, 0.9, 0.0, 0.0], 1: [0.0, 0.0, 1.0, 0.0], 2: [0.9, 0.1, 0.0, 0.0]}
    source, target = ["no", "yes", "no", "ß"], ["No", "no", "ja", "ss"]
    attention[3] = [0.0, 0.0, 0.0, 1.0]
    copies = copied_words(source, target, lambda index: np.array(attention[index]), range(4))
    assert copies == {0: 1, 2: 0}
    assert copied_words(source, target, lambda index: np.array(attention[index]), {2}) == {2: 0}
