"""What every engine does: a test per promise, the engines that keep it in its table.

The naive engine searches in plain Python, every prefix scored from scratch by the whole model. The
other engines find what it finds, or refuse an option in one line with their name and the option's.
"""

import concurrent.futures
import dataclasses
import functools
import itertools
import warnings

import export_features
import numpy as np
import pytest
from naive_engine import NaiveEngine
from translations import check_same

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError
from keras_transformer.decoding import DecodingOptions
from keras_transformer.engine.request import CALL_OPTIONS
from keras_transformer.engine.translation import CONTINUATION

pytestmark = pytest.mark.filterwarnings("ignore:.*tokens and were cut", "ignore:Texts with phrases")

TEXTS = ["a man runs.", "", "the old clerk", "läuft", "in Köln."]
TARGETS = ["A GIRL RUNS.", "A", "", "A MAN", "THE"]
PREFIXES = ["A", "", "ON A", "", "A"]
SEEDS = (3, 7, 11, 19, 23)
RUN, SAVED_MODEL, LITERT, CTRANSLATE2 = ENGINES = ("run", "saved_model", "litert", "ctranslate2")
OF_IDS = (RUN, LITERT, CTRANSLATE2)
# An export searches as it was made to: with these options, unless it takes others.
EXPORTED = {"beam_size": 3, "length_penalty": 0.8}


def of(engines, *rows, slow=()):
    """Parametrizes a test by engines and rows; TensorFlow makes the exports."""
    marks = {name: [pytest.mark.tensorflow] * (name != RUN) for name in ENGINES}
    for name in slow:
        marks[name] += [pytest.mark.slow]
    cases = [(name, *row) for row in rows or [()] for name in engines]
    return [pytest.param(*case, marks=marks[case[0]]) for case in cases]


def of_each(*rows):
    """The same where each row begins with its own engines."""
    return [param for engines, *row in rows for param in of(engines, row)]


@pytest.fixture(scope="session")
def translator_of(request, engine):
    """`translator_of(name)`: a `Translator` with the engine of this name, made once."""

    @functools.cache
    def translator_of(name):
        if name in ("naive", RUN):
            return Translator(engine if name == RUN else NaiveEngine(engine))
        return Translator(request.getfixturevalue("engines_of")(name)[1])

    return translator_of


@pytest.fixture(scope="session")
def expected(translator_of):
    """`expected(texts, **options)`: what the naive engine finds."""
    found = {}

    def expected(texts=TEXTS, **options):
        key = repr((texts, options))
        if key not in found:
            engine = translator_of("naive").engine
            found[key] = engine.translate(texts, **{**EXPORTED, **options})
        return found[key]

    return expected


def check_found(expected, received):
    """The same texts, scores and alignments; of an engine of ids, also its tokens."""
    names = [name for name in ("ids", "tokens", "source_tokens") if getattr(received[0], name)]
    check_same(expected, received, *names)
    for ours, theirs in zip(expected, received, strict=True):
        if theirs.token_log_probabilities:
            values = theirs.token_log_probabilities, ours.token_log_probabilities
            np.testing.assert_allclose(*values, atol=1e-4)
        for name in CONTINUATION:
            value = getattr(ours, name)
            assert getattr(theirs, name) == (value and pytest.approx(value, abs=1e-4))


SEARCHES = [
    (ENGINES, {}),
    (ENGINES, {"beam_size": 1}),
    (ENGINES, {"alignment": True}),
    ((SAVED_MODEL,), {"n_best": 3, "batch_size": 3}),
    (OF_IDS, {"n_best": 2, "alignment": [True, True, False, False, True]}),
    ((LITERT,), {"beam_size": 1, "alignment": True, "threads": 1, "batch_size": 2}),
    ((RUN, CTRANSLATE2), {"beam_size": 2, "length_penalty": 1.2, "early_stopping": False}),
    ((RUN, CTRANSLATE2), {"n_best": 3, "target_prefixes": PREFIXES}),
    (
        (RUN, CTRANSLATE2),
        {"beam_size": 1, "banned_ids": (7, 9), "min_length": 5, "no_repeat_ngram_size": 2},
    ),
    ((RUN, CTRANSLATE2), {"beam_size": 1, "min_length": 17, "max_length": 17}),
    ((RUN, CTRANSLATE2), {"beam_size": 1, "max_length": 3, "target_prefixes": PREFIXES}),
    (
        (RUN, CTRANSLATE2),
        {"beam_size": 1, "length_normalization": "marian", "max_length_ratio": 0.2},
    ),
    ((RUN, CTRANSLATE2), {"beam_size": 1, "max_length_ratio": 0.5, "target_prefixes": PREFIXES}),
    ((RUN,), {"length_normalization": "marian", "word_penalty": 0.2, "n_best": 2}),
    ((RUN,), {"logit_bias": {9: 2.5, 11: -1.0}, "allow_unknown": True, "n_best": 3}),
    ((RUN,), {"min_length_ratio": 2.0, "max_length_ratio": 2.5, "banned_ids": (7, 9)}),
    ((RUN,), {"max_length": 1, "n_best": 2, "banned_ids": [*range(2), *range(3, 47)]}),
    ((RUN,), {"phrases": [["A"], [], ["ON", "ON"], [], []], "n_best": 2}),
]


@pytest.mark.parametrize(("name", "options"), of_each(*SEARCHES))
def test_an_engine_finds_what_the_naive_search_finds(translator_of, expected, name, options):
    search = {key: options[key] for key in options if key not in ("batch_size", "threads")}
    received = translator_of(name).engine.translate(TEXTS, **{**EXPORTED, **options})
    check_found(expected(**search), received)
    assert options.get("max_length") == 1 or len({row.text for row in received}) > 1


VALUES = {
    "alignment": True,
    "allow_unknown": True,
    "banned_ids": (9,),
    "batch_size": 3,
    "beam_size": 2,
    "early_stopping": False,
    "length_normalization": "marian",
    "length_penalty": 0.3,
    "logit_bias": {9: 1.0},
    "long_input": "split",
    "max_length": 9,
    "max_length_ratio": 1.5,
    "min_length": 2,
    "min_length_ratio": 0.5,
    "n_best": 2,
    "no_repeat_ngram_size": 3,
    "phrases": [["A"]],
    "sampling": True,
    "seed": 5,
    "shortlist": True,
    "source_language": "en",
    "target_language": "de",
    "target_prefixes": ["A"],
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "word_penalty": 0.2,
}
"""A value of each option that is not its default."""
OF_THE_MODEL = {"shortlist", "source_language", "target_language"}
TAKES = {RUN: VALUES.keys() - OF_THE_MODEL, **export_features.TAKES}


def test_every_option_has_a_value():
    names = {field.name for field in dataclasses.fields(DecodingOptions)}
    assert names | {*CALL_OPTIONS} | {"target_prefixes", "phrases"} == VALUES.keys()


@pytest.mark.parametrize("option", VALUES)
@pytest.mark.parametrize("name", of(ENGINES))
def test_an_option_is_taken_or_refused_in_one_line_with_its_name(translator_of, name, option):
    engine, values = translator_of(name).engine, {option: VALUES[option]}
    needed = {"word_penalty": {"length_normalization": "marian"}, "n_best": {"beam_size": None}}
    values |= {"sampling": True} if option in export_features.SAMPLING else needed.get(option, {})
    if option in TAKES[name]:
        is_of_texts = option in ("target_prefixes", "phrases")
        assert is_of_texts or engine.request(**values) != engine.request(**{**values, option: None})
        return
    with pytest.raises(InputError, match=f"`{option}` .*Received: ") as caught:
        engine.translate(["a man"], **values)
    if option in engine.fixed_options:  # Its own value may be asked for.
        assert engine.translate([], **{option: engine.fixed_options[option]}) == []
    assert "\n" not in str(caught.value)
    assert option in OF_THE_MODEL or engine.noun in str(caught.value)


WRONG = [
    (ENGINES, {"batch_size": 0}, "`batch_size` must be a positive integer .*batch_size=0"),
    (ENGINES, {"beam_sise": 2}, "There is no option `beam_sise`. Did you mean `beam_size`?"),
    (ENGINES, {"n_best": 9}, "`n_best` must be at most .* Received: n_best=9"),
    ((RUN, LITERT, CTRANSLATE2), {"long_input": "cut"}, "`long_input` must be one of refuse"),
    ((RUN, CTRANSLATE2), {"max_length": 18}, "`max_length` must be at most 17.*max_length=18"),
    ((RUN, CTRANSLATE2), {"banned_ids": (47,)}, "`banned_ids`.*Received: 47"),
    ((RUN, CTRANSLATE2), {"target_prefixes": ["A"] * 2}, "2 prefixes and 5 texts"),
    ((RUN,), {"phrases": [["A"]]}, "1 lists and 5 texts"),
    ((RUN,), {"phrases": ["A"] * 5}, "`phrases` must be a list of strings"),
    ((RUN,), {"phrases": [["A"]] * 5, "sampling": True}, "only for a beam search.*sampling=True"),
    ((RUN, SAVED_MODEL), {"sampling": True, "seed": (1, 2)}, "one `seed`, or one for each text"),
    (ENGINES, {"alignment": [True]}, "`alignment` must be True or False"),
    (
        (SAVED_MODEL, LITERT),
        {"n_best": 2, "beam_size": 1},
        "`n_best` must be (1 of greedy|at most 1)",
    ),
    ((SAVED_MODEL,), {"n_best": 2, "sampling": True}, "`n_best` must be 1 of samples"),
    ((SAVED_MODEL,), {"n_best": 2, "alignment": True}, "`n_best` must be 1 with `alignment`"),
    ((SAVED_MODEL,), {"beam_size": 1, "alignment": True}, "need beam search.*beam_size=1"),
    ((SAVED_MODEL,), {"sampling": True, "alignment": True}, "need beam search.*sampling=True"),
    ((LITERT,), {"threads": 0}, "`threads` must be a positive integer"),
    (ENGINES, {"tag": "bt"}, "`tag` needs a model trained with tags"),
    (ENGINES, {"target_language": "de"}, "need a model that names languages. Received: None and"),
    (
        (SAVED_MODEL, LITERT, CTRANSLATE2),
        {"glossary": {"man": "A"}},
        "`glossary` needs a run folder",
    ),
    (ENGINES, {"glossary_by": "constraints"}, "`glossary_by` needs a `glossary`"),
]


@pytest.mark.parametrize(("name", "options", "message"), of_each(*WRONG))
def test_a_wrong_value_is_one_line(translator_of, name, options, message):
    with pytest.raises(InputError, match=message) as caught:
        translator_of(name).translate(TEXTS, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "texts", ["a man", None, 5, {"a": 1}, ["a", None], ["a", 6], ["a", "\ud800"]]
)
@pytest.mark.parametrize("name", of(ENGINES))
def test_texts_must_be_a_list_of_strings(translator_of, name, texts):
    with pytest.raises(InputError, match="^(Text 2: A text|(Text 2: )?`texts`) must be .* Rec"):
        translator_of(name).engine.translate(texts)


@pytest.mark.parametrize("name", of(ENGINES))
def test_other_texts_and_batches_change_nothing(translator_of, expected, engine, name):
    # A trained model's in the batches of a processor.
    chosen = engine.with_(plan=None) if name == RUN else translator_of(name).engine
    translate = functools.partial(chosen.translate, **EXPORTED)
    check_found(expected()[::-1], translate(TEXTS[::-1]))
    check_found(expected(), translate(iter(TEXTS), batch_size=3))
    check_found(expected()[2:3], translate(np.array(TEXTS[2:3]), batch_size=1))


@pytest.mark.parametrize("name", of(ENGINES))
def test_several_threads_get_what_one_gets(translator_of, expected, name):
    def translate(start):
        return translator_of(name).engine.translate(TEXTS[start:], **EXPORTED)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for start, received in zip(range(4), pool.map(translate, range(4)), strict=True):
            check_found(expected()[start:], received)


@pytest.mark.parametrize("name", of(ENGINES))
def test_a_text_without_tokens_is_translated_as_nothing(translator_of, expected, name):
    engine = translator_of(name).engine
    assert engine.translate([]) == []
    blank = ["", " \t\n", "\u200b", "\ufeff\u200e", "\u2581 \u200b", "\u3000", "\x07"]
    options = [{}, {"beam_size": 1}, {"alignment": True}]
    options += [{"sampling": True}] if "sample" in engine.capabilities else []
    for one in options:
        *received, text = engine.translate([*blank, "a girl"], **{**EXPORTED, **one})
        assert received == [Translation("", 0.0)] * len(blank)
        assert text.text and text.score < 0


LONG = "a man runs in the park. two dogs sit on a bench."


@pytest.mark.parametrize("name", of(ENGINES))
def test_a_long_text_is_truncated(translator_of, engine, expected, name):
    (ids,) = engine.source_tokenizer.tokenize([LONG])
    (short,) = engine.source_tokenizer.detokenize([ids[:12]])
    assert engine.source_tokenizer.tokenize([short], add_eos=True) == [[*ids[:12], 2]]
    translate = translator_of(name).engine.translate
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        received = translate([LONG, "a"], long_input="truncate", **EXPORTED)
    check_found(expected([short, "a"]), received)
    if name != SAVED_MODEL:  # whose graph cuts them
        (warning,) = (one for one in caught if "longer" in str(one.message))
        assert "1 of 2 texts are longer than 13 tokens and were cut" in str(warning.message)
        assert warning.filename == __file__


@pytest.mark.parametrize("name", of(OF_IDS))
def test_a_long_text_is_refused_or_split_into_parts_that_are_what_they_are_alone(
    translator_of, expected, name
):
    translate = functools.partial(translator_of(name).engine.translate, **EXPORTED)
    with pytest.raises(InputError, match="Text 2: .* at most 13 tokens; .*split.*Received: 2. tok"):
        translate(["a", LONG])
    parts = ["a man runs in the", "park. two dogs sit on", "a bench."]
    options = {"n_best": 2, "alignment": True}
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 13 tokens and were split"):
        whole, short = translate([LONG, "a"], long_input="split", **options)
    alone = expected([*parts, "a"], **options)
    check_found(alone[-1:], [short])
    check_found(alone[:-1], whole.parts)
    assert whole.text == " ".join(one.text for one in alone[:-1]) and whole.alignment is None
    assert whole.score == pytest.approx(sum(one.score for one in alone[:-1]), abs=1e-4)
    (other,) = whole.alternatives
    assert other.text == " ".join(one.alternatives[0].text for one in alone[:-1])


@pytest.mark.parametrize("name", of((RUN, SAVED_MODEL)))
def test_a_sample_depends_on_its_text_its_seed_and_its_filters(
    translator_of, engine, expected, name
):
    sampled = {"sampling": True, **EXPORTED}
    translate = functools.partial(translator_of(name).engine.translate, **sampled)
    options = {"temperature": 1.5, "top_p": 0.9}
    received = translate(TEXTS, seed=SEEDS, **options)
    check_found(engine.translate(TEXTS, seed=SEEDS, **sampled, **options), received)
    check_same(received[::-1], translate(TEXTS[::-1], seed=SEEDS[::-1], **options))
    again = translate(TEXTS, seed=7, **options)
    assert sum(one.text != other.text for one, other in zip(received, again, strict=True)) > 1
    check_same(expected(beam_size=1), translate(TEXTS, seed=SEEDS, top_k=1))
    check_same(expected(beam_size=1), translate(TEXTS, seed=SEEDS, temperature=1e-6))


@pytest.mark.parametrize("name", of((RUN, CTRANSLATE2)))
def test_samples_have_the_scores_of_the_model(translator_of, expected, name):
    translator, options = translator_of(name).engine, {"sampling": True, "length_penalty": 0.8}
    drawn = translator.translate(TEXTS, n_best=3, temperature=2.0, top_k=7, **options)
    for index in (0, 2):
        rows = [(row, *row.alternatives)[index] for row in drawn if row.ids]
        sources = [text for text in TEXTS if text.strip()]
        scored = translator_of("naive").engine.score(sources, [row.ids for row in rows], 0.8)
        for one, row in zip(scored, rows, strict=True):
            assert row.log_probability == pytest.approx(one.log_probability, abs=1e-3)
            assert row.score == pytest.approx(one.score, abs=1e-3)
    assert len(translator.translate(TEXTS, top_k=1000, **options)) == len(TEXTS)
    greedy = translator.translate(TEXTS, top_k=1, **options)
    check_found(expected(beam_size=1), greedy)
    # At this temperature all tokens are nearly equally probable.
    for allow in (False, True):
        wild = translator.translate(TEXTS * 9, temperature=100.0, allow_unknown=allow, **options)
        assert any(3 in row.ids for row in wild) is allow


@pytest.mark.parametrize("name", of((RUN, SAVED_MODEL, CTRANSLATE2)))
def test_given_translations_are_scored(translator_of, name):
    score, naive = (translator_of(one).engine.score for one in (name, "naive"))
    scored = naive(TEXTS, TARGETS, 0.8)
    check_found(scored, score(iter(TEXTS), np.array(TARGETS), 0.8, batch_size=3))
    check_found(scored[:1], score(TEXTS[:1], TARGETS[:1], 0.8, batch_size=1))
    if name != SAVED_MODEL:
        check_found(naive(TEXTS, TARGETS, 0.3), score(TEXTS, TARGETS, 0.3))
        ids = [row.ids for row in scored]
        check_found(scored, score(TEXTS, ids, 0.8))
        # ids without an end
        check_found(naive(TEXTS[:1], [[7, 9]], 0.6), score(TEXTS[:1], [[7, 9]], 0.6))
    with pytest.raises(InputError, match="a target for each source. Received: 1 sources and 0"):
        score(["a"], [])
    with pytest.raises(InputError, match="`batch_size` must be a positive integer"):
        score(["a"], ["b"], batch_size=0)
    with pytest.raises(InputError, match="`beam_size` is fixed at|no option `beam_size`"):
        score(["a"], ["b"], beam_size=2)


@pytest.mark.parametrize("name", of(ENGINES))
def test_a_stream_grows_to_the_greedy_translation(translator_of, name):
    translator = translator_of(name)
    if name != RUN:
        with pytest.raises(
            InputError, match=f"`stream` needs a run folder: {translator.engine.noun}"
        ):
            translator.stream("a man")
        return
    (whole,) = translator.translate(TEXTS[:1], beam_size=1, min_length=6)
    texts = list(translator.stream(TEXTS[0], min_length=6))
    assert texts[-1] == whole.text and len(texts) > 3
    for shorter, longer in zip(texts, texts[1:], strict=False):
        assert longer.startswith(shorter) and longer != shorter
    parts = translator.translate([LONG], beam_size=1, long_input="split", target_prefixes=["A MAN"])
    *_, last = translator.stream(LONG, target_prefix="A MAN", long_input="split")
    assert last == parts[0].text and last.startswith("A MAN") and len(parts[0].parts) > 1
    with pytest.raises(InputError, match="Only one hypothesis.*beam_size=4"):
        translator.stream("a", beam_size=4)
    with pytest.raises(InputError, match="at most 13 tokens"):
        translator.stream(LONG)
    assert list(translator.engine.stream(" ")) == []


@pytest.mark.parametrize("call", ["score", "warmup"])
@pytest.mark.parametrize("name", of(ENGINES))
def test_a_missing_call_is_one_line_that_names_those_there(translator_of, name, call):
    translator, engine = translator_of(name), translator_of(name).engine
    assert name == RUN or engine.capabilities == export_features.CAN[name]
    able = ", ".join(sorted(engine.capabilities))
    assert repr(engine) == f"<{type(engine).__name__}: {able}, at most 13 tokens per source>"
    if call not in engine.capabilities:
        with pytest.raises(
            InputError, match=f"^`{call}` needs a run folder: {engine.noun} can {able}"
        ):
            getattr(translator, call)(*[["a"]] * 2 * (call == "score"))


MARKED = ["a <b>man</b> runs.", "<i>two</i> dogs", "", "<p>the old clerk"]
OF_STEPS = [
    (MARKED, {"markup": "html"}),
    (["a {x} man", "two dogs %s"], {"markup": "placeholders"}),
    (["a man runs. two dogs", "a girl"], {"split_sentences": True}),
    (["A MAN RUNS.", "12:30"], {"keep_case": True, "copy_symbols": True}),
]


@pytest.mark.parametrize(("name", "texts", "options"), of(ENGINES, *OF_STEPS))
def test_steps_around_an_engine_are_the_same_for_all(translator_of, name, texts, options):
    expected, received = (
        translator_of(one).translate(texts, **EXPORTED, **options) for one in ("naive", name)
    )
    for one, other in zip(expected, received, strict=True):
        assert other.text == one.text and other.score == pytest.approx(one.score, abs=1e-4)


OF_LISTS = [
    ((RUN, CTRANSLATE2), {"beam_size": 1}),
    ((RUN, CTRANSLATE2), {"n_best": 2, "length_penalty": 0.0}),
    ((RUN, CTRANSLATE2), {"beam_size": 1, "no_repeat_ngram_size": 2, "min_length": 4}),
    ((CTRANSLATE2,), {"batch_size": 1, "shortlist": False}),
]


OF_LITERT = of((LITERT,), [{"beam_size": 1}], slow=(LITERT,))


@pytest.mark.parametrize(("name", "options"), [*of_each(*OF_LISTS), *OF_LITERT])
def test_an_engine_searches_among_the_candidates_of_its_shortlist(
    listed_engine, folder_of_lists, name, options
):
    translator, naive = listed_engine, NaiveEngine(listed_engine)
    if name != RUN:
        translator = Translator.load(folder_of_lists(name)).engine
    options = {"beam_size": 3, "length_penalty": 0.6, "shortlist": True, **options}
    received = translator.translate(TEXTS, **options)
    search = {key: value for key, value in options.items() if key != "batch_size"}
    check_found(naive.translate(TEXTS, **search), received)
    plain = naive.translate(TEXTS, **{**search, "shortlist": False})
    assert (plain[0].text == received[0].text) is not options["shortlist"]
    if name == LITERT:
        with pytest.raises(InputError, match="`shortlist` is fixed at True in a LiteRT export"):
            translator.translate(TEXTS, shortlist=False)
    if name == CTRANSLATE2:  # Given translations may have any token.
        check_found(naive.score(TEXTS, TARGETS), translator.score(TEXTS, TARGETS))


NAMED = {
    "source_language": ["en", "de", "fr", "de", "en"],
    "target_language": ["de", "fr", "en", "en", "fr"],
}
EN_DE = {"source_language": "en", "target_language": "de"}
OF_LANGUAGES = {"beam_size": 2, "length_penalty": 0.6}


@pytest.fixture(scope="session")
def speaking(engine_of_languages, folder_of_languages):
    """`speaking(name)`: a `Translator` of a model that reads tokens of languages in all places that
    the engine has, and the naive engine's."""

    @functools.cache
    def speaking(name):
        trained = engine_of_languages(name)
        found = Translator(trained) if name == RUN else Translator.load(folder_of_languages(name))
        return found, Translator(NaiveEngine(trained))

    return speaking


@pytest.mark.parametrize("name", of(ENGINES, slow=(SAVED_MODEL, LITERT)))
def test_each_text_has_its_direction_whose_tokens_are_no_part_of_results(speaking, name):
    translator, naive = speaking(name)
    assert {*translator.directions} == {*itertools.permutations(["de", "en", "fr"], 2)}
    expected = naive.translate(TEXTS, alignment=True, **NAMED, **OF_LANGUAGES)
    arrays = {name: np.array(codes) for name, codes in NAMED.items()}
    check_found(expected, translator.translate(TEXTS, alignment=True, **arrays, **OF_LANGUAGES))
    others = translator.translate(TEXTS, **EN_DE, **OF_LANGUAGES)
    assert sum(one.text != other.text for one, other in zip(expected, others, strict=True)) > 1
    if "score" in translator.engine.capabilities:
        scored = naive.score(TEXTS, TARGETS, **NAMED)
        check_found(scored, translator.score(TEXTS, TARGETS, **NAMED))
    if name in (RUN, CTRANSLATE2):  # A limit counts no token of a language.
        for lengths in ({"min_length": 6, "target_prefixes": PREFIXES}, {"max_length": 4}):
            options = {**EN_DE, **lengths, "beam_size": 1}
            check_found(naive.translate(TEXTS, **options), translator.translate(TEXTS, **options))
    # A tag is read, too, and a text without tokens stays one.
    tagged = translator.translate(["a man", " ", "\u200b"], tag="bt", **EN_DE, **OF_LANGUAGES)
    check_found(naive.translate(["<bt> a man"], **EN_DE, **OF_LANGUAGES), tagged[:1])
    assert [row.text for row in tagged[1:]] == [" ", ""]


OF_DIRECTIONS = [
    ({"target_language": "it"}, "`target_language` must be one of .* 'it'"),
    ({"target_language": "en"}, "direction: .* Received: en-en"),
    ({"target_language": ["de", "fr", "en"]}, "Text 3: .*direction: .* Received: en-en"),
    ({"target_language": 5}, "must be a code. Received: "),
    ({"target_language": [["de"]] * 3}, "must be a code. Received: "),
    ({"target_language": ["de"]}, "one `target_language`, or one for each text"),
    ({"texts": ["a", LONG]}, "Text 2: .* at most 1[12] tokens"),  # and the languages
]


@pytest.mark.parametrize(("name", "options", "message"), of((RUN, CTRANSLATE2), *OF_DIRECTIONS))
def test_a_wrong_direction_is_one_line(speaking, name, options, message):
    with pytest.raises(InputError, match=message) as caught:
        speaking(name)[0].translate(**{"texts": ["a", "b", "c"], **EN_DE, **options})
    assert "\n" not in str(caught.value)
