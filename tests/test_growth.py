"""A text, a list of parts and a table of names twice as long cost twice as much.

Steps are lines and calls of Python. What one call does in C is seen in its memory and in processor
time, whose limit lies far above the time of a cost that grows in proportion.
"""

import functools
import gc
import io
import itertools
import random
import re
import sys
import time
import tracemalloc

import numpy as np
import pytest
from fakes import FakeEngine, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import Translation, Translator
from keras_transformer.base import reading
from keras_transformer.data import noise
from keras_transformer.data.placeholders import with_placeholders
from keras_transformer.engine.steps import glossary
from keras_transformer.engine.steps import tag as tags
from keras_transformer.engine.translation import pair_lines
from keras_transformer.extras.corpora import learn_terms, rules
from keras_transformer.extras.corpora.inline_codes import Segment
from keras_transformer.extras.corpora.xml_text import xml_blocks
from keras_transformer.extras.documents import translate_document
from keras_transformer.extras.markup import protect, restore
from keras_transformer.extras.markup.token_positions import positions_before, token_spans
from keras_transformer.text import (
    Tokenizer,
    capitals,
    dialog,
    folding,
    language_codes,
    languages,
    sentences,
    tables,
)
from keras_transformer.text.elements import count_blocks, find_tags
from keras_transformer.text.labels import Labels
from keras_transformer.text.patterns import ITEM_OR_NUMBER
from keras_transformer.text.symbols import Placeholders, symbol

TERMS = glossary.Glossary([("a", "b"), ("a b c", "x"), ("dog", "Hund"), ("ﬁ x", "z")])
RULES = rules.PairRules(source_scripts=["Latin"], target_scripts=["Han"], max_characters=10**9)
PLACEHOLDERS = Placeholders(8, numbers=True)
PART = 80  # characters that a model reads at once
_TOKEN = re.compile(r"<ph_\d+>|\S{1,6}")


def copied(text, is_aligned=True):
    """A copy of a text, in parts."""
    parts = []
    for part in sentences.split_text(text, lambda part: len(part) <= PART):
        tokens = tuple(_TOKEN.findall(part))
        sides = {"tokens": tokens, "source_tokens": tokens} if is_aligned else {}
        alignment = np.eye(len(tokens)) if is_aligned else None
        parts.append(Translation(part, 0.0, alignment=alignment, **sides))
    return Translation.joined(parts)


def restored(text, markup="html", is_aligned=True):
    for block in protect(text, markup, PLACEHOLDERS):
        restore(copied(block.text, is_aligned), block)


@functools.cache
def tokenizer():
    texts = ["a man and a dog", "a b c"] * 9
    return Tokenizer.train_from_texts(texts, 270, byte_fallback=True)


def segment(text):
    """Reads a text with codes between its words."""
    content = Segment(keeps_tags=True)
    for number, word in enumerate(text.split(" ")):
        content.add(word + " ")
        content.start(("bpt", "ept", "ph", "g", "hi")[number % 5], {"i": str(number % 7)})
        content.add(word)
        content.end()
    return content.text


class PartsEngine(FakeEngine):
    """Copies each text in parts, with alignments, as a model with a limit does."""

    capabilities = frozenset({"translate", "align"})
    source_tokenizer = FakeTokenizer(placeholders=PLACEHOLDERS, annotates_terms=False)

    def translate(self, texts, **options):
        return list(map(copied, texts))


def document(format, engine=FakeEngine, **options):
    """Translates a document."""
    translator = Translator(engine())
    return lambda text: translate_document(translator, text.encode(), format, **options)


class SplittingEngine(FakeEngine):
    """Copies each sentence, with alignments."""

    capabilities = frozenset({"translate", "align"})
    text_rules = sentences.TextRules(True, True, True)
    source_tokenizer = FakeTokenizer(placeholders=PLACEHOLDERS, annotates_terms=False)

    def translate(self, texts, **options):
        return [self.copied(text) for text in texts]

    @staticmethod
    def copied(text):
        tokens = tuple(_TOKEN.findall(text))[:PART]
        sides = {"tokens": tokens, "source_tokens": tokens, "alignment": np.eye(len(tokens))}
        return Translation(text, 0.0, **sides)


SPLITTING = Translator(SplittingEngine())


def of_pair(function):
    return lambda text: function(text, text + "x", np.random.default_rng(0))


TEXT_FUNCTIONS = {
    "fold": folding.fold,
    "fold_case": folding.fold_case,
    "split_text": lambda text: sentences.split_text(text, lambda part: len(part) <= 40),
    "sentence_ends": sentences.sentence_ends,
    "sentences of a text": lambda text: SPLITTING.translate([text]),
    "sentences of HTML": lambda text: SPLITTING.translate([text], markup="html"),
    "matches": TERMS.matches,
    "matches of a pair": lambda text: TERMS.matches(text, "b x Hund"),
    "matches of a long target": lambda text: TERMS.matches("a dog ﬁ x", text),
    "a long term": lambda text: glossary.Glossary([(f"a{text[:99]}b", "b")]).matches(text),
    "split_text at annotations": lambda text: sentences.split_text(
        "<term_begin> a. B<term_as> b<term_end> " + text, lambda part: len(part) <= 40
    ),
    "in_usual_case": lambda text: capitals.in_usual_case(
        text, terms=[(start, start + 1) for start in range(0, len(text), 2)]
    ),
    "in_capitals": capitals.in_capitals,
    "is_in_capitals": capitals.is_in_capitals,
    "language codes": lambda text: (
        language_codes.primary_language(text),
        language_codes.main_name(text),
    ),
    "in_training": lambda text: TERMS.in_training(text, "b x Hund", np.random.default_rng(0)),
    "annotate": lambda text: glossary.annotate(text, TERMS.matches(text)),
    "origins": glossary.origins,
    "origins of annotations": lambda text: glossary.origins(
        glossary.annotate(text, TERMS.matches(text))
    ),
    "with_placeholders": lambda text: with_placeholders(text, text + "x", PLACEHOLDERS),
    "items": ITEM_OR_NUMBER.findall,
    "without_tags": lambda text: tags.without_tags(text, "x"),
    "count_blocks": count_blocks,
    "find_tags": find_tags,
    "protect html": lambda text: protect(text, "html", PLACEHOLDERS),
    "protect placeholders": lambda text: protect(text, "placeholders", PLACEHOLDERS),
    "restore html": restored,
    "restore placeholders": lambda text: restored(text, "placeholders"),
    "a text in lines": document("text"),
    "a wrapped text": document("text", wrapped=True),
    "Markdown": document("markdown"),
    "subtitles": lambda text: document("srt")(
        "".join(f"\n\n1\n00:01.0 --> 00:02.0\n{text[i : i + 40]}" for i in range(0, len(text), 40))
    ),
    "a cue": lambda text: document("srt")("1\n00:01.0 --> 00:02.0\n" + text),
    "a cue in parts": lambda text: document("srt", PartsEngine)(
        "1\n00:01.0 --> 00:02.0\n" + re.sub(r"\s+", " ", text)
    ),
    "a paragraph of Markdown in parts": document("markdown", PartsEngine),
    "restore in order": lambda text: restored(text, is_aligned=False),
    "positions_before": positions_before,
    "token_spans": lambda text: token_spans(tokenizer().pieces(text), text, tokenizer()),
    "token_spans of what was written": lambda text: token_spans(
        tokenizer().pieces(text), text, tokenizer(), is_written=True
    ),
    "turns": lambda text: (dialog.Turns("</s>").split(text), dialog.Turns("</s>").are_in(text)),
    "segment": segment,
    "one_line": reading.one_line,
    "escape_field": lambda text: reading.unescape_field(reading.escape_field(text)),
    "pair_lines": lambda text: pair_lines(text, Translation(text, 0.0), is_back=False),
    "xml_blocks": lambda text: list(xml_blocks(io.BytesIO(text.encode("utf-8")), "a.tmx")),
    "skeleton": rules.skeleton,
    "without_escapes": rules.without_escapes,
    "rows of a table": lambda text: [
        list(rows(text.replace('"', "").split("\n"), "a"))
        for rows in (tables._csv_rows, tables._tsv_rows)
    ],
    "are_column_names": lambda text: tables.are_column_names([text, text + "x"]),
    **{
        f"rule {name}": lambda text, breaks=breaks: breaks(RULES, text, text + "x")
        for name, breaks in rules.RULES.items()
        if name != "language"  # of another package
    },
    **{f"noise {name}": of_pair(change) for name, change in noise._CHANGES.items()},
}


def joined(count):
    sides = {"tokens": ("a", "b"), "ids": (1, 2)}
    hypotheses = tuple(Translation("a", -rank / 7, **sides) for rank in range(4))
    part = Translation("a", 0.0, alternatives=hypotheses, **sides)
    return Translation.joined([part] * count)


def names(count):
    """Returns codes, all of them different."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [
        "q" + "".join(letters[number // 26**power % 26] for power in range(5))
        for number in range(count)
    ]


LIST_FUNCTIONS = {
    "joined": joined,
    "glossary": lambda count: glossary.Glossary((name, "b") for name in names(count)),
    "terms of one first word": lambda count: glossary.Glossary(
        (f"a {name}", "b") for name in names(count)
    ).matches("a " * count),
    "terms of one first sign": lambda count: glossary.Glossary(
        (f"!{name}", "b") for name in names(count)
    ).matches("!q" * count),
    "learn_terms": lambda count: list(
        learn_terms.learn_terms([(name, name[::-1]) for name in names(count)])
    ),
    "placeholders": lambda count: Placeholders.of_symbols(map(symbol, range(count))),
    "codes_of": lambda count: languages.codes_of(f">>{name}<<" for name in names(count)),
    "languages_of_tags": lambda count: languages.languages_of_tags(
        {name: f">>{name}<<" for name in names(count)}
    ),
    "directions": lambda count: languages.languages_of_directions(
        (name, "de") for name in names(count)
    ).direction("qaaaaa", "de"),
    "labels": lambda count: Labels.of_texts(names(count)).tokenize(names(count)),
    "turns": lambda count: dialog.Turns("</s>").join(names(count)),
}

# `#` becomes a number, so that all repetitions differ.
# fmt: off
UNITS = [
    "a", "a ", "A1", "１．", "1 ", "# ", " ", "  \t", "\n", "\u2028", "\xa0", "\u00ad", "a\u0301",
    "é", "İ", "ﬁ", "㍿", "½", "ß", "´", '"', "“", "»", ")", "(", "{", "{}", "{a#} ", "}", "${", "%",
    "%1$s", "%(", "@", "a@", "a@b.c ", "http://", "http://a.b/# ", "www.", "://", "/", "-", "_",
    "=", "&", "&amp;", "&#", "<", "<a ", "<a>", "</a>", "<br>", "<ph_1> ", "<ph_", "<a ='", "<!--",
    "<b>a#</b> ", "x<sup>1</sup> ", "<p>a", "<pre>\n a", "<i>w# ", "</i> ", "<term_begin> ", "dog ",
    "<term_as> ", "<term_begin> a<term_as> b<term_end> ", ">>a<< ", "<a> ", ">>", "。", "例",
    "한국", "．1", "…", ".!? ", "? ", ";", "α;", "α; a ", "α", "3月", "12 ", "tháng ", "17:00 ",
    "٣", "日本 ", "👍🏽", "🇩🇪", "\u200d", "\ufffd", "ا", "कि", " </s> ", "\\", "\\n", "w# ",
    "a b c ", "amp;", "{{ ", "{{{a#}}} ", "{% ", "{# ", "{\\a(", "{\\a(1, 2)} ", "{a, date, ",
    "#{a", "{A(", "[X#X] ", "[X", "a+b.", "wss://a ", "a.b://", "<0>", "</0> ", "<a title='b'>",
    "<p alt=b title=", "<img title='a ' alt=a>", "[^", "[^a#]: ", "<a =x", "{A} ", "{A#} B ", "I ",
    "<term_begin> a. B<term_as> b<term_end> ", "<script>", "<title>", "<![CDATA[", "<?=",
    "</script", "<p translate=no>", "<i translate=yes>",
]
QUOTES = ['"', '"', "'", "“"]
# fmt: on
_CLOCK_SECONDS = 1e-5  # Less than this is noise.
_LIMIT_SECONDS = 4e-3
_LONG_SECONDS = 0.05
_UNIT_SECONDS = 1.5


def text_of(units, size):
    """Returns a text of units that are repeated, first in turn and then one after the other."""
    count = size // (2 * sum(map(len, units)))
    repeated = [
        *("".join(units).replace("#", str(number)) for number in range(count)),
        *(unit.replace("#", str(number)) for unit in units for number in range(count)),
    ]
    return "".join(repeated)


def steps(function, *arguments):
    """Counts the lines and calls of a function."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += 1
        return trace

    def profile(frame, event, argument):
        nonlocal count
        count += event == "c_call"

    tracer = sys.gettrace()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(tracer)
        sys.setprofile(None)
    return count


def memory(function, *arguments):
    """Returns the largest number of bytes that a function needs at once."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def seconds(function, *arguments):
    """Returns the processor time of a function."""
    gc.disable()
    start = time.thread_time()
    try:
        function(*arguments)
        return time.thread_time() - start
    finally:
        gc.enable()


def takes_time_in_proportion(function, argument_of, shorts=(300, 300, 2500), limit=_LIMIT_SECONDS):
    """Returns False if a function takes three times as long as in proportion.

    The longest argument is as long as it may be for `limit` seconds of a cost in proportion, at
    least 8 and at most 128 times as long as the first. So a cost is seen that grows with the square
    and is small for each character, such as a copy of the rest of a text at each of them. The last
    argument begins longer: sentencex takes a square of time within a window of 2,000 characters.
    """
    for short in shorts:
        argument = argument_of(short)
        least = max(min(seconds(function, argument) for _ in range(3)), _CLOCK_SECONDS)
        factor = 8
        while factor < 128 and 2 * factor * least < limit:
            factor *= 2
        longer = argument_of(factor * short)
        # Another process may take the processor's caches once, hardly twice.
        if any(seconds(function, longer) < 3 * factor * least for _ in range(2)):
            return True
    return False


def doubles(cost, texts, factor, constant):
    """Returns whether a cost of three texts, each twice as long as the one before, about doubles.

    From one text to the next the way of a function may change, such as the number of parts. A
    square grows with each size.
    """
    costs = list(map(cost, texts))
    return any(long < factor * short + constant for short, long in itertools.pairwise(costs))


@pytest.mark.parametrize("name", TEXT_FUNCTIONS)
@settings(max_examples=5)
@given(units=st.lists(st.sampled_from(UNITS), min_size=1, max_size=3))
def test_a_text_twice_as_long_takes_twice_the_steps_and_the_memory(name, units):
    function = TEXT_FUNCTIONS[name]
    texts = [text_of(units, size) for size in (1000, 2000, 4000)]
    function(texts[1])  # fills caches, also of a text in parts
    # Numbers of more digits may need more steps each: 2.4 times as many for twice the text.
    assert doubles(functools.partial(steps, function), texts, 2.6, 300)
    assert doubles(functools.partial(memory, function), texts, 2.6, 50_000)


def slow_units(function, seed):
    """Returns units whose repetition takes more than a time in proportion, or None.

    First all units make a text for `_LONG_SECONDS`, which shows a copy of a list for each part.
    Then come pairs. Each unit has another one behind it, in quotation marks. Of a function that
    takes long, only as many units are tried as `_UNIT_SECONDS` allow, in an order of the seed.
    """
    rng = random.Random(seed)
    function(text_of(UNITS[:1], 500))  # fills caches
    end = time.thread_time() + _UNIT_SECONDS
    mixed = functools.partial(text_of, UNITS)
    if not takes_time_in_proportion(function, mixed, (2500, 2500, 5000), _LONG_SECONDS):
        return UNITS
    for first in rng.sample(UNITS, len(UNITS)):
        if time.thread_time() > end:
            return None
        quote = rng.choice(QUOTES)
        second = f"{quote}{rng.choice(UNITS)}{quote}"
        if not takes_time_in_proportion(
            function,
            lambda size, pair=(first, second): (
                text_of(["".join(pair)], size // 2) + text_of(pair[:1], size // 2) + pair[1]
            ),
        ):
            return first, second
    return None


@pytest.mark.parametrize("name", TEXT_FUNCTIONS)
def test_a_long_text_takes_time_in_proportion(name):
    assert slow_units(TEXT_FUNCTIONS[name], name) is None


# What costs grow with the square in: steps, copies, a search, and a pattern that finds no end.
QUADRATIC = {
    "steps": lambda text: [None for i in range(len(text)) for _ in range(0, i, 64)],
    "copies of a list": lambda text: functools.reduce(lambda parts, part: [*parts, part], text, []),
    "copies": lambda text: [text[i:] and None for i in range(len(text))],
    "searches": lambda text: [text.find("\0") for _ in text],
    "a pattern without an end": re.compile(r"<[^>]*>").findall,
    "a pattern of spaces": re.compile(r"\s+$").findall,
    "a quotation without an end": re.compile(r"""<a (?:[^>"']|"[^"]*"|'[^']*')*>""").findall,
    "nested quantifiers of a pair": re.compile(r"""(?:=[^"=]*"[^"]*")+\Z""").findall,
}


@pytest.mark.parametrize("name", QUADRATIC)
def test_a_square_in_a_function_is_noticed(name):
    def both(text):
        folding.fold(text)
        QUADRATIC[name](text)

    # The time for one seed may not be enough for the units that show it, or be disturbed.
    assert any(slow_units(both, f"{name} {number}") is not None for number in range(6))


def squares_of_a_list(function):
    """Returns which costs of a function of a count grow faster than the count."""
    function(600)  # fills caches
    for name, cost, factor, constant in (("steps", steps, 2.3, 300), ("memory", memory, 2.6, 5e4)):
        once, twice = (cost(function, count) for count in (300, 600))
        if twice >= factor * once + constant:
            yield name
    if not takes_time_in_proportion(function, lambda count: count, shorts=(600,) * 3):
        yield "time"


@pytest.mark.parametrize("name", LIST_FUNCTIONS)
def test_a_list_twice_as_long_takes_twice_the_steps_and_time_in_proportion(name):
    assert [*squares_of_a_list(LIST_FUNCTIONS[name])] == []


def test_a_square_in_steps_or_memory_is_noticed():
    texts = [text_of(UNITS[:2], size) for size in (1000, 2000, 4000)]
    assert not doubles(functools.partial(steps, QUADRATIC["steps"]), texts, 2.6, 300)
    parts = lambda text: [text[:end] for end in range(0, len(text), 4)]  # noqa: E731
    assert not doubles(functools.partial(memory, parts), texts, 2.6, 50_000)
    assert "steps" in squares_of_a_list(
        lambda count: [None for i in range(count) for _ in range(i)]
    )
    assert "memory" in squares_of_a_list(lambda count: [[None] * i for i in range(count)])
    assert "time" in squares_of_a_list(
        lambda count: [[*range(count)] and None for _ in range(count)]
    )
