"""A text is its sentences: each is translated by itself, and no white space is lost."""

import dataclasses
import itertools
import re

import pytest
from fakes import FakeEngine, FakeTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import Translation
from keras_transformer.base.errors import InputError
from keras_transformer.engine.steps.text_steps import text_steps
from keras_transformer.engine.translator import Translator
from keras_transformer.text.dialog import Turns
from keras_transformer.text.languages import languages_of_directions, languages_of_tags
from keras_transformer.text.sentences import TextRules
from keras_transformer.text.symbols import Placeholders
from keras_transformer.text.tags import split_tag, tag_tokens

ALL = TextRules(split_sentences=True, copy_symbols=True, keep_case=True)


class SentenceEngine(FakeEngine):
    """Gives each text hypotheses that name its options, and counts the texts that it reads."""

    text_rules = ALL
    capabilities = frozenset({"translate", "stream", "phrases", "sample"})
    long_inputs = ("refuse", "split")

    def translate(self, texts, **options):
        self.texts, self.options = list(texts), options
        count = len(self.texts)

        def of_each(name):
            value = options.get(name)
            return value if isinstance(value, (list, tuple)) else [value] * count

        rows = zip(
            texts, of_each("seed"), of_each("target_prefixes"), of_each("phrases"), strict=True
        )
        return [self.translation(*row, options.get("n_best") or 1) for row in rows]

    @staticmethod
    def translation(text, seed, prefix, phrases, n_best):
        if not text.strip():
            return Translation("", 0.0)
        parts = [
            prefix or "",
            text.swapcase(),
            "" if seed is None else f"[{seed}]",
            *(phrases or ()),
        ]
        words = " ".join(filter(None, parts))
        best, *others = (
            Translation(words + "′" * rank, -float(len(text)) - rank) for rank in range(n_best)
        )
        return dataclasses.replace(best, alternatives=tuple(others))

    def stream(self, text, target_prefix="", **options):
        (translation,) = self.translate([text], target_prefixes=[target_prefix], **options)
        words = translation.text.split(" ")
        return (" ".join(words[: count + 1]) for count in range(len(words)))


def translate(text, engine=None, **options):
    (translation,) = Translator(engine or SentenceEngine()).translate([text], **options)
    return translation


SPACES = st.sampled_from([" ", "  ", "\n", "\r\n", "\n\n", "\t", "\u00a0", " \n  ", "\u3000"])
OUTER = st.sampled_from(["", " ", "\n", "\t\t", "\u00a0 ", "\r\n\r\n"])
SENTENCES = st.sampled_from(
    [
        "One dog.",
        "Is it so?",
        "Dr. Gold came!",
        "12:30.",
        "😀!",
        "TWO HORSES PLAY.",
        "A {x} b!",
        "Nein.",
    ]
)


@st.composite
def drawn_texts(draw):
    """Returns the sentences of a text, and the white space around and between them."""
    sentences = draw(st.lists(SENTENCES, min_size=1, max_size=6))
    spaces = [draw(OUTER), *(draw(SPACES) for _ in sentences[1:]), draw(OUTER)]
    return sentences, spaces


@settings(max_examples=200)
@given(
    drawn=drawn_texts(),
    n_best=st.integers(1, 3),
    seed=st.none() | st.integers(0, 9),
    prefix=st.sampled_from(["", "So"]),
)
def test_every_space_stays_and_each_sentence_is_what_it_is_alone(drawn, n_best, seed, prefix):
    sentences, spaces = drawn
    text = "".join(itertools.chain(*itertools.zip_longest(spaces, sentences, fillvalue="")))
    engine = SentenceEngine()
    options = {"n_best": n_best, "seed": seed}
    translation = translate(text, engine, target_prefixes=[prefix], **options)
    assert len(engine.texts) == len(sentences)
    read = [index for index, sentence in enumerate(sentences) if any(map(str.isalpha, sentence))]
    alone = [
        translate(
            sentence, n_best=n_best, seed=seed, target_prefixes=[prefix * (index in read[:1])]
        )
        for index, sentence in enumerate(sentences)
    ]
    expected = itertools.zip_longest(spaces, (one.text for one in alone), fillvalue="")
    assert translation.text == "".join(itertools.chain(*expected))
    assert translation.score == sum(one.score for one in alone)


def test_a_text_of_one_sentence_is_read_as_it_is():
    engine = SentenceEngine()
    plain = engine.translate(["One dog."])[0]
    assert translate("One dog.", engine) == plain
    assert translate("One dog.", engine).parts == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12:30", "12:30"),
        (" € 1.299,00\r\n", " € 1.299,00\r\n"),
        ("", ""),
        (" \t", " \t"),
        ("<ph_1>!", "<ph_1>!"),
        ("…\n\nYes.", "…\n\nyES."),
    ],
)
def test_a_text_without_letters_passes_without_the_model(text, expected):
    engine = SentenceEngine()
    assert translate(text, engine).text == expected
    assert [one for one in engine.texts if one] == (["Yes."] if "Yes" in text else [])


@pytest.mark.parametrize(
    ("rules", "read", "expected"),
    [
        (TextRules(), ["One. (2) THREE HORSES."], " oNE. (2) three horses.\n"),
        (
            TextRules(split_sentences=True),
            ["One.", "(2) THREE HORSES."],
            " oNE. (2) three horses.\n",
        ),
        (TextRules(keep_case=True), ["One. (2) THREE HORSES."], " oNE. (2) three horses.\n"),
        (
            TextRules(True, keep_case=True),
            ["One.", "(2) Three horses."],
            " oNE. (2) THREE HORSES.\n",
        ),
    ],
)
def test_the_rules_are_the_engines_unless_a_call_has_others(rules, read, expected):
    class Engine(SentenceEngine):
        text_rules = rules

    for engine, options in (Engine(), {}), (SentenceEngine(), rules._asdict()):
        assert translate(" One. (2) THREE HORSES.\n", engine, **options).text == expected
        assert engine.texts == read


@pytest.mark.parametrize(
    "text", ["One\ttwo\t\tthree", "  One:     12   dogs", "One.  Two.\tThree."]
)
def test_tabs_and_rows_of_spaces_stay(text):
    class Engine(SentenceEngine):
        @staticmethod
        def translation(text, *_):  # As SentencePiece reads it.
            return Translation(" ".join(text.split()), 0.0)

    assert translate(text, Engine()).text == text


def test_a_term_in_capitals_is_found_in_a_sentence_in_capitals():
    engine, glossary = SentenceEngine(), {"API": "Schnittstelle", "rabbit": "Hase"}
    text = "THE RABBIT HAS AN API."
    translation = translate(text, engine, glossary=glossary, glossary_by="constraints")
    assert engine.texts == ["The rabbit has an API."]
    assert engine.options["phrases"] == [["Hase", "Schnittstelle"]]
    assert translation.text.isupper()


class ScriptEngine(SentenceEngine):
    """Writes Chinese for a text that begins with an upper-case letter, otherwise English."""

    @staticmethod
    def translation(text, *_):
        return Translation("你好。" if text[:1].isupper() else "Hello." if text else "", 0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two.", "你好。你好。"),
        ("One.  Two.", "你好。  你好。"),  # two spaces say something
        ("One.\nTwo. ", "你好。\n你好。 "),
        ("你好。你好。", "Hello. Hello."),
        ("你好。\n你好。", "Hello.\nHello."),
        ("One. 你好。", "你好。Hello."),
        ("One.\u00a0Two.", "你好。\u00a0你好。"),
        ("12:30. One. 4.", "12:30. 你好。4."),
    ],
)
def test_the_space_between_sentences_is_that_of_the_translations_script(text, expected):
    assert translate(text, ScriptEngine()).text == expected


class CopyingEngine(SentenceEngine):
    @staticmethod
    def translation(text, *_):
        return Translation(text, -1.0)


@pytest.mark.parametrize(
    ("direction", "text", "read", "expected"),
    [
        # The source's language has its i, and the target's language has another.
        (("tr", "en"), "BİR KIRMIZI KAPI.", "Bir kırmızı kapı.", "BIR KIRMIZI KAPI."),
        (("en", "tr"), "SHOULD I SIT?", "Should I sit?", "SHOULD I SİT?"),
        (("en", "az"), "SHOULD I SIT?", "Should I sit?", "SHOULD I SİT?"),
        # An address keeps its case, also where a text begins with it.
        (
            ("en", "de"),
            "http://a.org STANDS STILL.",
            "http://a.org Stands still.",
            "http://a.org STANDS STILL.",
        ),
    ],
)
def test_capitals_are_those_of_the_language_of_each_side(direction, text, read, expected):
    engine = CopyingEngine(languages=languages_of_directions([direction]))
    assert translate(text, engine).text == expected
    assert engine.texts == [read]


TURKISH = "CATFEET SİT."
BOTH_WAYS = [("en", "tr"), ("tr", "en"), ("en", "de"), ("de", "en")]


@pytest.mark.parametrize(
    ("directions", "options", "expected"),
    [
        (BOTH_WAYS, {"source_language": "en", "target_language": "tr"}, TURKISH),
        (BOTH_WAYS, {"target_language": ["tr"]}, TURKISH),
        (BOTH_WAYS, {"target_language": "tur_Latn"}, TURKISH),
        (BOTH_WAYS, {"target_language": "de"}, "CATFEET SIT."),
        (BOTH_WAYS, {}, "CATFEET SIT."),
        # Every direction, or every direction from the source, has the same target.
        ([("en", "tr"), ("de", "tr")], {}, TURKISH),
        ([("en", "tr"), ("de", "fr")], {"source_language": "en"}, TURKISH),
    ],
)
def test_capitals_of_a_model_of_several_directions_are_of_the_requests(
    directions, options, expected
):
    engine = CopyingEngine(languages=languages_of_directions(directions))
    assert translate("CATFEET SIT.", engine, **options).text == expected
    engine.capabilities |= {"stream"}
    if not any(isinstance(value, list) for value in options.values()):
        *_, last = Translator(engine).stream("CATFEET SIT.", **options)
        assert last == expected


@pytest.mark.parametrize(
    ("text", "options"), [(">>tur<< CATFEET SIT.", {}), ("CATFEET SIT.", {"tag": "tur"})]
)
def test_capitals_are_of_the_language_that_a_tag_names(text, options):
    tags = tag_tokens(["tur", "deu"], are_languages=True)
    tokenizer = FakeTokenizer(
        tag_tokens=tags, split_tags=lambda text: split_tag(text, tags.values())
    )
    engine = CopyingEngine(languages=languages_of_tags(tags), source_tokenizer=tokenizer)
    assert translate(text, engine, **options).text.endswith(TURKISH)
    text, options = text.replace("tur", "deu"), {name: "deu" for name in options}
    assert translate(text, engine, **options).text.endswith("CATFEET SIT.")


def test_the_language_of_a_text_tells_its_abbreviations():
    text, german = "Das kostet evtl. Zehn. Ja.", ["Das kostet evtl. Zehn.", "Ja."]
    for engine, options in [
        (SentenceEngine(languages=languages_of_directions([("de", "en")])), {}),
        (SentenceEngine(), {"source_language": "de"}),
        (SentenceEngine(), {"source_language": ["deu_Latn"]}),
    ]:
        translate(text, engine, **options)
        assert engine.texts == german
    Translator(engine).translate([text] * 2, source_language=["en", "de"])
    assert engine.texts == ["Das kostet evtl.", "Zehn.", "Ja.", *german]  # English has no `evtl.`


def test_phrases_go_to_the_sentence_whose_source_has_them():
    engine, texts = SentenceEngine(), ["Ann came. Bob left.", "Eve slept. Bob left.", "One."]
    phrases = [["bob", "ann"], ["Carl"], ["Zwei"]]
    translations = Translator(engine).translate(texts, phrases=phrases)
    assert engine.texts == ["Ann came.", "Bob left.", texts[1], "One."]
    assert list(map(list, engine.options["phrases"])) == [["ann"], ["bob"], ["Carl"], ["Zwei"]]
    assert translations[0].text == "aNN CAME. ann bOB LEFT. bob"


def test_a_glossarys_terms_go_to_their_sentences():
    engine = SentenceEngine()
    glossary = {"dog": "Hund", "cat": "Katze"}
    translate("A dog. A cat and a dog.", engine, glossary=glossary, glossary_by="constraints")
    assert engine.texts == ["A dog.", "A cat and a dog."]
    assert engine.options["phrases"] == [["Hund"], ["Katze", "Hund"]]


def test_a_prefix_belongs_to_the_first_sentence_that_the_model_reads():
    engine = SentenceEngine()
    texts = ["12:30! One. Two.", "\n", "One."]
    translations = Translator(engine).translate(texts, target_prefixes=["So", "no", "x"])
    assert [one.text for one in translations] == ["12:30! So oNE. tWO.", "\n", "x oNE."]


@pytest.mark.parametrize(
    ("text", "written", "expected"),
    [
        ("One dog.", "Ein <ph_2> Hund <ph_1>.", "Ein Hund."),
        ("One dog.", "<ph_1> Ein Hund", "Ein Hund"),
        ("One dog.", "<ph_1>", ""),
        ("<ph_3> sees.", "<ph_1> sieht <ph_3>.", "<ph_3> sieht."),
        ("<ph_2> sees <ph_1>.", "<ph_2> <ph_1>  <ph_4>.", "<ph_1> <ph_2>."),
        ("BEHIND <ph_2> HE SAT", "<ph_1> er saß <ph_2> da", "<ph_2> ER SAẞ DA"),
    ],
)
def test_a_placeholder_that_the_model_invents_reaches_nobody(text, written, expected):
    class Inventing(SentenceEngine):
        text_rules = TextRules(keep_case=True)
        source_tokenizer = FakeTokenizer(placeholders=Placeholders(4))

        def translate(self, texts, **options):
            alternatives = (Translation(written, -1.0),)
            return [
                Translation(written, 0.0, tokens=(*written.split(),), alternatives=alternatives)
            ]

        def stream(self, text, **options):
            return iter([written[:3], written])

    best = translate(text, Inventing())
    assert (best.text, best.alternatives[0].text) == (expected, expected)
    assert set(re.findall("<ph_.>", " ".join(best.tokens))) <= set(re.findall("<ph_.>", text))
    assert "".join([*Translator(Inventing()).stream(text)][-1:]) == expected
    # A vocabulary without placeholders reads them as text.
    plain = Inventing(source_tokenizer=FakeTokenizer())
    assert translate("One dog.", plain, keep_case=False).text == written


def test_each_sentence_has_the_tags_of_its_text():
    tokenizer = FakeTokenizer(tag_tokens={"bt": "<bt>"})
    engine = SentenceEngine(source_tokenizer=tokenizer)
    translate(" One. 12:30. Two.", engine, tag="bt")
    assert engine.texts == ["<bt> One.", "", "<bt> Two."]


def test_samples_of_a_text_are_those_of_its_sentences_in_order():
    texts = translate("One. 2. Three.", n_best=3, sampling=True)
    samples = [re.sub(r" \[-?\d+\]", "", one.text) for one in (texts, *texts.alternatives)]
    assert samples == [f"oNE.{mark} 2. tHREE.{mark}" for mark in ("", "′", "′′")]


@pytest.mark.parametrize("markup", [None, "placeholders"])
def test_equal_sentences_have_seeds_of_their_own_which_depend_on_nothing_else(markup):
    def seeds(text, **options):
        engine = SentenceEngine()
        translate(text, engine, sampling=True, markup=markup, **options)
        seed = engine.options["seed"]
        return [*seed] if isinstance(seed, tuple) else [seed]

    of_text = seeds("Yes. Yes. Yes. Yes.", seed=3)
    assert len({*of_text}) == 4 and all(-(2**31) <= seed < 2**31 for seed in of_text)
    assert of_text[0] == 3 and seeds("Yes.", seed=3) == [3]
    assert seeds("Yes. No. Yes. No. So.", seed=3)[:4] == of_text
    assert not {*of_text[1:]} & {*seeds("Yes. Yes. Yes. Yes.", seed=4)}
    assert seeds("Yes. Yes.")[0] in (0, None) and len({*seeds("Yes. Yes.")}) == 2
    engine = SentenceEngine()
    Translator(engine).translate(["Yes. No.", "So. Yes."], sampling=True, seed=[3, 4])
    assert engine.options["seed"][:3] == (*of_text[:2], 4)
    assert engine.options["seed"][3] == seeds("So. Yes.", seed=4)[1] not in of_text
    translate("Yes. Yes.", engine, sampling=True, seed="x")
    assert engine.options["seed"] == ("x", "x")  # The engine refuses it.
    translate("Yes. Yes.", engine)
    assert "seed" not in engine.options


def test_a_stream_ends_with_the_translation():
    text = "  One dog. 12.\n\nTWO HORSES.  "
    parts = list(Translator(SentenceEngine()).stream(text))
    assert parts == [
        "  oNE",
        "  oNE DOG.",
        "  oNE DOG. 12.",
        "  oNE DOG. 12.\n\nTWO",
        "  oNE DOG. 12.\n\nTWO HORSES.",
        "  oNE DOG. 12.\n\nTWO HORSES.  ",
    ]
    assert parts[-1] == translate(text).text
    engine = SentenceEngine()
    assert list(Translator(engine).stream("A. B.", split_sentences=False)) == ["a.", "a. b."]


class AnnotatingEngine(SentenceEngine):
    source_tokenizer = FakeTokenizer(annotates_terms=True, tag_tokens={"bt": "<bt>"})


STREAMED = st.sampled_from(["One dog.", "12:30.", "😀!", "TWO HORSES.", "我在这里。", "Nein."])


@settings(max_examples=200)
@given(
    sentences=st.lists(STREAMED, max_size=5),
    spaces=st.lists(SPACES | st.just(""), min_size=6, max_size=6),
    prefix=st.sampled_from(["", "So"]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "split_sentences": st.booleans(),
            "keep_case": st.booleans(),
            "copy_symbols": st.booleans(),
            "tag": st.just("bt"),
            "glossary": st.just({"dog": "Hund"}),
            "seed": st.just(3),
            "sampling": st.just(True),
        },
    ),
)
def test_a_stream_grows_to_the_translation_with_all_options(sentences, spaces, prefix, options):
    text = "".join(itertools.chain(*itertools.zip_longest(spaces, sentences, fillvalue="")))
    expected = translate(text, AnnotatingEngine(), target_prefixes=[prefix], **options).text
    stream = Translator(AnnotatingEngine()).stream(text, target_prefix=prefix, **options)
    *growing, last = ["", *stream]
    assert last == expected
    assert all(later.startswith(one) for one, later in itertools.pairwise([*growing, last]))


def test_a_stream_refuses_markup_and_forced_terms_before_its_first_text():
    engine = FakeEngine(capabilities=frozenset({"stream", "translate", "phrases"}))
    for options in (
        {"markup": "placeholders"},
        {"glossary": {"dog": "Hund"}},
        {"phrases": [["Hund"]]},
    ):
        with pytest.raises(InputError, match="stream"):
            Translator(engine).stream("A dog.", **options)


@pytest.mark.parametrize(
    ("long_inputs", "options", "expected"),
    [
        (("refuse", "split"), {}, "split"),
        (("refuse", "split"), {"long_input": "refuse"}, "refuse"),
        (("refuse", "split"), {"split_sentences": False}, None),
        (("refuse", "split"), {"split_sentences": False, "long_input": "split"}, "split"),
        (("refuse",), {}, None),
    ],
)
def test_long_sentences_are_split_where_texts_are_unless_a_call_says_otherwise(
    long_inputs, options, expected
):
    engine = SentenceEngine(long_inputs=long_inputs)
    Translator(engine).translate(["One. Two."], **options)
    assert engine.options.get("long_input") == expected
    engine = SentenceEngine(long_inputs=long_inputs)
    assert list(Translator(engine).stream("One. Two.", **options))
    assert engine.options.get("long_input") == expected


class TestOtherModels:
    ENGINES = [{"labels": ["a"]}, {"turns": Turns("|")}, {"reads_sources": False}]

    @pytest.mark.parametrize("attributes", ENGINES)
    def test_texts_that_are_no_sentences_are_never_split(self, attributes):
        engine = SentenceEngine(**attributes)
        assert text_steps(engine, {"split_sentences": False}) == ([], {})
        with pytest.raises(InputError, match="`split_sentences` needs a model that translates sen"):
            Translator(engine).translate(["a. b."], split_sentences=True)


@pytest.mark.parametrize("name", ["split_sentences", "copy_symbols", "keep_case"])
def test_an_option_is_true_or_false(name):
    with pytest.raises(InputError, match=f"`{name}` must be True or False. Received: {name}='x'"):
        translate("a", **{name: "x"})


def test_an_error_names_the_text_and_not_the_sentence():
    class Engine(SentenceEngine):
        def translate(self, texts, **options):
            raise InputError("No.", texts.index("Bad."))

    with pytest.raises(InputError, match="Text 2: No."):
        Translator(Engine()).translate(["One. Two. Three.", "Good. Bad."])
