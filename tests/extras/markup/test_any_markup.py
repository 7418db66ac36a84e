"""Markup of any source comes back whole, whatever a model does: random sources and tokenizers."""

import html
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markup_engines import (
    EIGHT,
    ITEM,
    RANDOM,
    SETS_OF_PLACEHOLDERS,
    TAG,
    SayingEngine,
    check_same_tags,
    disorder,
    random_markup,
    tokens_of,
    tree,
)
from translations import sentencepiece_pieces

from keras_transformer import Translation, Translator
from keras_transformer.extras.markup import protect, restore
from keras_transformer.text.elements import count_blocks
from keras_transformer.text.symbols import Placeholders


def contents(text):
    """The text of each element without its tags and items, by its tag."""
    parents, inside = tree(text), {}
    for begin in parents:
        name = re.match(r"<(\w+)", begin)[1]
        rest = text.partition(begin)[2]
        depth, end = 1, 0
        for match in re.finditer(rf"<(/?){name}\b[^>]*>", rest):
            depth += -1 if match[1] else 1
            if not depth:
                end = match.start()
                break
        inside[begin] = re.sub(r"\s", "", ITEM.sub("", TAG.sub("", rest[:end])))
    return inside


@settings(max_examples=250)
@given(rng=RANDOM, placeholders=SETS_OF_PLACEHOLDERS)
def test_every_tag_and_item_of_any_source_is_there_once_and_nested_as_before(rng, placeholders):
    source, restored, is_rich = random_markup(rng), "", True
    blocks = protect(source, "html", placeholders)
    assert len(source) // 2 + 1 >= count_blocks(source) >= len(blocks)
    for protected in blocks:
        assert protected.text.count("<ph_") <= placeholders.size
        assert not TAG.search(re.sub(r"<ph_\d+>", "", protected.text.replace("<b>", "")))
        texts = protected.text, protected.text_to_read
        assert len({"".join(text.split()) for text in texts}) == 1
        translation = disorder(protected.text, rng)
        restored += restore(translation, protected).text
        is_rich &= len(re.findall(r"\w", re.sub(r"<ph_\d>", "", translation.text))) > 9
    check_same_tags(source, restored)
    if is_rich:  # An element that had text has some again.
        texts = contents(restored)
        for begin, text in contents(source).items():
            has_words = re.search(r"\w", html.unescape(text))
            assert not has_words or texts[begin], (source, restored)


NEIGHBOURS = "&nbsp; &quot; &lt; &gt; &amp; &#40; &rdquo; &#x2003; ( ) .".split()
LITERALS = ["http://a.b/c?d=1&amp;e=2", "me@x.org", "{name}", "%s", "&lt;ph_1&gt;"]


@settings(max_examples=150)
@given(*map(st.sampled_from, (NEIGHBOURS, LITERALS, NEIGHBOURS)))
def test_items_beside_character_references_are_no_more_and_no_less_than_they_are(
    before, item, after
):
    # These may be a part of an address or a URL.
    before += "&nbsp;" * (before == ".")
    after = "&nbsp;" * (after in ("&amp;", "&#40;", "&rdquo;", "(", ")", ".")) + after
    source = f"x{before}{item}{after}y and {item}"
    (protected,) = protect(source, "html", EIGHT)
    assert protected.literals == [item] * 2, source
    assert re.findall("[xy]", protected.text) == ["x", "y"], source
    tokens = tokens_of(protected.text)
    translation = Translation(protected.text, 0.0, tokens=tokens, source_tokens=tokens)
    translation = html.unescape(restore(translation, protected).text)
    assert translation.split() == html.unescape(source).split(), source


class TokenEngine(SayingEngine):
    """Reads tokens of a real tokenizer, up to a limit; writes each word in upper case.

    A word attends to its tokens, whose places come from SentencePiece itself.
    """

    def __init__(self, tokenizer, limit=512):
        super().__init__(None, Placeholders())
        self.source_tokenizer = self.tokenizer = tokenizer
        self.limit = limit

    def translate(self, texts, alignment=False, **options):
        return list(map(self.translation, texts))

    def translation(self, text):
        pieces = sentencepiece_pieces(self.tokenizer, text)[: self.limit]
        data, owners = text.encode(), []
        words = [match.span() for match in re.finditer(r"\S+", text)]
        for piece in pieces:
            offset = len(data[: piece.end].decode("utf-8", "ignore")) - 0.5
            owners.append(next((n for n, (a, b) in enumerate(words) if a <= offset < b), None))
        count = max(owner for owner in owners if owner is not None) + 1
        weights = np.zeros((count, len(pieces)))
        for column, owner in enumerate(owners):
            if owner is not None:
                weights[owner, column] = 1
        target = [text[start:stop].upper() for start, stop in words[:count]]
        sides = {"source_tokens": tuple(self.tokenizer.pieces_of(piece.id for piece in pieces))}
        sides["tokens"] = tuple("▁" + word for word in target)
        return Translation(" ".join(target), 0.0, **sides, alignment=weights)


@pytest.mark.parametrize("name", ["tokenizer", "byte_tokenizer"])
def test_tags_enclose_the_right_words_of_any_text(name, request):
    tokenizer = request.getfixturevalue(name)
    words = [f"w{number:02}" for number in range(40)]
    for number in range(20):
        tagged = [*words[:number], f"<b>{words[number]}</b>", *words[number + 1 :]]
        engine = TokenEngine(tokenizer, limit=100)  # The text has more.
        (translation,) = Translator(engine).translate([" ".join(tagged)], markup="html")
        assert f"<b>W{number:02}</b>" in translation.text
        assert "W39" not in translation.text
    for odd in "😀😀😀😀 a\u00adb\u00adc\u00add ﬁﬁﬁ 我有一只狗 ｆｕｌｌ \u200b\u200ba".split(" "):
        source = f"{odd} one <b>two</b> {odd} <i>three</i>"
        (translation,) = Translator(TokenEngine(tokenizer)).translate([source], markup="html")
        assert re.findall(r"<\w>.*?</\w>", translation.text) == ["<b>TWO</b>", "<i>THREE</i>"]
