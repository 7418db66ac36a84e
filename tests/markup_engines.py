"""Engines that translate words in a known way, for tests of markup."""

import collections
import re

import numpy as np
from fakes import FakeEngine, FakeTokenizer
from hypothesis import strategies as st

from keras_transformer import Translation, Translator
from keras_transformer.text.per_text import repeated
from keras_transformer.text.symbols import Placeholders

EIGHT = Placeholders(8)


def tokens_of(text):
    words = [part for part in re.split(r"(<ph_\d+>|\s+)", text) if part and not part.isspace()]
    spaced = [text.find(word) == 0 or " " + word in text for word in words]
    return tuple("▁" * space + word for word, space in zip(words, spaced, strict=True))


class SayingEngine(FakeEngine):
    """`say` gives the words of a translation, and for each the place of one of the source."""

    capabilities = frozenset({"translate", "align"})

    def __init__(self, say, placeholders=EIGHT, annotates=False):
        tokens = {"placeholders": placeholders, "annotates_terms": annotates, "tokenize": list}
        super().__init__(say=say, source_tokenizer=FakeTokenizer(**tokens))

    def translate(self, texts, alignment=False, **options):
        self.texts, translations = texts, []
        is_aligned = repeated("alignment", alignment, len(texts))
        for text, is_text_aligned in zip(texts, is_aligned, strict=True):
            source = text.split()
            said = self.say(source)
            tokens = tuple("▁" + word for word, _ in said)
            weights = np.zeros((len(said) + 1, len(source) + 1), "float32")
            for row, (_, position) in enumerate(said):
                weights[row, position] = 1
            sides = {"source_tokens": (*("▁" + word for word in source), "</s>")}
            sides |= {
                "tokens": (*tokens, "</s>"),
                "alignment": weights if is_text_aligned else None,
            }
            translations.append(Translation(" ".join(word for word, _ in said), 0.0, **sides))
        return translations


def unchanged(words):
    return [(word, position) for position, word in enumerate(words)]


def in_order(words):
    return [(word.upper(), position) for word, position in unchanged(words)]


def without_signs(words):
    pairs = [(word.strip("(),.:"), position) for word, position in in_order(words)]
    return [(word, position) for word, position in pairs if word]


def backwards(words):
    return in_order(words)[::-1]


def translated(source, say=in_order, markup="html", placeholders=EIGHT, **options):
    translator = Translator(SayingEngine(say, placeholders))
    return translator.translate([source], markup=markup, **options)[0].text


def says(**translations):
    """Translates some words, in order, and others in upper case."""
    return lambda words: [(translations.get(word, word.upper()), i) for i, word in enumerate(words)]


def copied(text, is_aligned=True):
    """A translation that copies a text, without the annotations of its terms."""
    sources, places, is_translation = [], [], False
    for space, piece in re.findall(r"(\s?)(<term_\w+>|(?:(?!<term_)\S)+)", text):
        is_translation = piece == "<term_as>" or (is_translation and piece != "<term_end>")
        if not is_translation and not piece.startswith("<term_"):
            places.append(len(sources))
        sources.append(("▁" if space or not sources else "") + piece)
    tokens = tuple(sources[place] for place in places)
    weights = np.zeros((len(tokens), len(sources)))
    weights[range(len(tokens)), places] = 1
    sides = {"tokens": tokens, "source_tokens": tuple(sources), "alignment": weights}
    written = "".join(tokens).replace("▁", " ").strip()
    return Translation(written, 0.0, **sides if is_aligned else {})


WORDS = ["a", "dog", "plays,", "&amp;", "in", "the", "snow.", "&lt;b&gt;", "Straße", "犬", "don't"]
ITEMS = ["http://a.b/c?d=1", "me@x.org", "{name}", "%s", "%1$d", "www.x.de", "<!-- c -->", "<br>"]


def random_markup(rng):
    """A source of tags with numbers of their own, some left open, words and items."""
    parts, stack = [], []
    for number in range(rng.randrange(12)):
        kind = rng.random()
        if kind < 0.25:
            name = rng.choice("biup")
            parts.append(f"<{name} id={number}>")
            stack.append(name)
        elif kind < 0.45 and stack:
            # Now and then one of another name than the last.
            name = stack.pop() if rng.random() < 0.9 else rng.choice("biup")
            parts.append(f"</{name}>")
        elif kind < 0.6:
            parts.append(f" {rng.choice(ITEMS)} ")  # A word next to it would be a part of it.
        else:
            parts.append(rng.choice(WORDS))
        parts.append(rng.choice(["", " ", " "]))
    return "".join(parts) + "".join(f"</{name}>" for name in reversed(stack) if rng.random() < 0.9)


def disorder(text, rng):
    """A made-up translation: words dropped, doubled and moved, attention at random."""
    source = tokens_of(text)
    target = [token for token in source for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    target += ["▁<ph_7>"] * (rng.random() < 0.1)
    if rng.random() < 0.7:
        rng.shuffle(target)
    weights = np.random.default_rng(rng.randrange(10**6)).random((len(target) + 1, len(source) + 1))
    text = "".join(target).replace("▁", " ").strip()
    sides = {"tokens": (*target, "</s>"), "source_tokens": (*source, "</s>")}
    return Translation(text, 0.0, **sides, alignment=weights if rng.random() < 0.9 else None)


TAG = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>")
ITEM = re.compile(r"http://a\.b/c\?d=1|me@x\.org|\{name\}|%s|%1\$d|www\.x\.de")


def tree(text):
    """The parents of all tags that have an end, by their text; tags without one are left out."""
    tags, stack, pairs = TAG.findall(text), [], {}
    for position, tag in enumerate(tags):
        name = re.match(r"</?(\w*)", tag)
        if tag.startswith("</") and name[1] in [element for _, element in stack]:
            while True:
                opened, open_name = stack.pop()
                if open_name == name[1]:
                    pairs[opened] = position
                    break
        elif not tag.startswith(("</", "<!", "<br")):
            stack.append((position, name[1]))
    return {
        tags[start]: [
            tags[outer] for outer, stop in sorted(pairs.items()) if outer < start and stop > end
        ]
        for start, end in pairs.items()
    }


SETS_OF_PLACEHOLDERS = st.sampled_from([Placeholders(), Placeholders(2), EIGHT])
RANDOM = st.randoms(use_true_random=False)


def check_same_tags(source, restored):
    """Each tag and item is there once, and elements are nested as before."""
    for pattern in (TAG, ITEM):
        counts = collections.Counter(pattern.findall(source))
        assert collections.Counter(pattern.findall(restored)) == counts, (source, restored)
    whole = tree(source)
    if len(whole) == source.count(" id=") == source.count("</"):
        assert tree(restored) == whole, (source, restored)
    # What is left is text, with its signs escaped.
    assert not re.search("[<>]", TAG.sub("", restored)), (source, restored)
