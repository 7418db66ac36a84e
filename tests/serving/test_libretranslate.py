"""LibreTranslate's API: its recorded exchanges, parts of texts, languages, invalid requests."""

import asyncio
import json
import sys
import types

import pytest
from upper_case import Engine, translations_of

from keras_transformer.errors import InputError
from keras_transformer.serving import ServerOptions, libretranslate
from keras_transformer.serving.libretranslate import LibreTranslate, fields_of
from keras_transformer.serving.model import Model
from keras_transformer.serving.protocol import Rejection
from keras_transformer.text.languages import Languages, codes_of

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
FIELDS = {"source": "en", "target": "de"}
RULES = {"split_sentences": True, "copy_symbols": True}  # of all requests


@pytest.fixture
def make(load):
    """`make(**options)`: LibreTranslate's API for an engine that writes upper case."""

    def make(engine=None, markup="none", **options):
        options = {"languages": "en-de", "max_sentences": 5, "max_text_characters": 40, **options}
        model = load(engine or Engine(), markup=markup)
        return LibreTranslate(model, ServerOptions(model="m", markup=markup, **options))

    return make


def translated(api, request):
    """The translations of a request's texts, as the server passes them to `answer`."""
    signature, rows, _, options = request.prediction
    return translations_of(api._model, signature, rows, options)


def answer_of(api, hypotheses=None, **fields):
    """The answer of a request whose sentences have these hypotheses after the best."""
    if hypotheses is not None:
        api._model.engine.hypotheses = hypotheses
    request = api.read({**FIELDS, **fields})
    return json.loads(api.answer(request, translated(api, request)))


def read_by_engine(api, **fields):
    """The texts that the engine gets for a request, without blank ones."""
    signature, rows, _, options = api.read({**FIELDS, **fields}).prediction
    work = api._model.prepare(signature, rows, dict(options))
    return [row["text"] for _, row in work.rows if row["text"]]


def keys_of(value):
    """The structure of an answer: keys of objects, and lists with the first object of each."""
    if isinstance(value, dict):
        return {name: keys_of(entry) for name, entry in value.items()}
    is_list = isinstance(value, list)
    return [keys_of(entry) for entry in value[:1] if isinstance(entry, dict)] if is_list else None


# What this server does otherwise: a proxy checks keys and rates, and a mistake is never a 500.
LEFT_TO_A_PROXY = ("--api-keys --under-attack", "--req-limit 1", "--alternatives-limit 1")
LIMITS = {"--char-limit 5": {"max_text_characters": 5}, "--batch-limit 2": {"max_sentences": 2}}
LIMITS["--char-limit 5 --disable-files-translation"] = LIMITS["--char-limit 5"]
TARGETS = {"PT-br": "en,pt-BR", "zh-Hans": "en,zh"}


@pytest.mark.tensorflow
def test_recorded_exchanges_are_answered_with_equal_status_and_keys(app_of, oracle):
    testclient = pytest.importorskip("starlette.testclient", reason="comes with the extra [serve]")

    def answer_to(exchange):
        body, limits = exchange["body"], LIMITS.get(exchange["options"], {})
        fields = body if isinstance(body, dict) else {}
        app = app_of(languages=TARGETS.get(fields.get("target"), "en-es"), **limits)
        content = json.dumps(body) if isinstance(body, dict) else body
        headers = {"content-type": exchange["content_type"]} if exchange["content_type"] else {}
        with testclient.TestClient(app, "http://localhost") as client:
            method, path = exchange["method"], exchange["path"]
            return client.request(method, path, content=content, headers=headers)

    exchanges = json.loads((oracle("libretranslate") / "exchanges.json").read_text("utf-8"))
    assert len(exchanges) == 65
    for exchange in exchanges:
        answer = answer_to(exchange)
        status = 400 if exchange["status"] == 500 else exchange["status"]
        if exchange["options"] in LEFT_TO_A_PROXY:
            assert answer.status_code == 200, exchange
        else:
            assert answer.status_code == status, (exchange, answer.text)
            if exchange["answer_type"] == JSON:
                assert keys_of(answer.json()) == keys_of(exchange["answer"]), exchange


PART = b'--X\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
BODIES = [(JSON, "", b'{"q": "a\\r\\nb", "n": "1"}', {"q": "a\r\nb", "n": "1"})]
BODIES += [("application/ld+json; charset=utf-8", "", b'{"q": 5}', {"q": 5})]
BODIES += [(FORM, "n=1", b"q=a%0D%0Ab&q=c", {"q": "a\nb", "n": "1"})]
BODIES += [(FORM, "", "q=ä&n=".encode(), {"q": "ä", "n": ""})]
BODIES += [("", "q=%C3%A4+b", b"ignored", {"q": "ä b"}), ("text/plain", "", b'{"q": "a"}', {})]
PARTS = PART % (b"q", "ä\r\nb--X".encode()[:-3]) + PART % (b"n", b"1") + b"--X--\r\n"
FILE = PARTS.replace(b'name="q"', b'name="q"; filename="a.txt"')
BODIES += [('multipart/form-data; boundary="X"', "", PARTS, {"q": "ä\nb", "n": "1"})]


@pytest.mark.parametrize(("kind", "query", "body", "fields"), BODIES)
def test_parameters_come_from_json_or_a_form_or_the_query(kind, query, body, fields):
    assert asyncio.run(fields_of(kind, query, body)) == fields


MALFORMED = [(JSON, "", b"{", "EOF"), (JSON, "", b"[]", "Invalid JSON format")]
MALFORMED += [(JSON, "", b"[" * 100_000, "recursion"), (JSON, "", b'{"q": "\\ud800"}', "escape")]
MALFORMED += [(FORM, "", b"q=\xff", "utf-8"), (FORM, "", b"q=%FF", "utf-8")]
MALFORMED += [(FORM, "", b"q=a&" * 101, "fields"), ("", "q=%FF", b"", "utf-8")]
MALFORMED += [("multipart/form-data", "", PARTS, "boundary")]
MALFORMED += [("multipart/form-data; boundary=X", "", PART % (b"q", b"a") * 101, "is 100")]
MALFORMED += [("multipart/form-data; boundary=X", "", PART % (b"q", b"\xff") + b"--X", "utf-8")]
MALFORMED += [("multipart/form-data; boundary=X", "", PART % (b"n", b"1") + FILE, "files")]
MALFORMED += [("multipart/form-data; boundary=X", "", b"no boundary", "Malformed request: ")]


@pytest.mark.parametrize(("kind", "query", "body", "says"), MALFORMED)
def test_a_malformed_request_is_400_of_one_line(kind, query, body, says):
    with pytest.raises(Rejection, match=says) as caught:
        asyncio.run(fields_of(kind, query, body))
    assert caught.value.status == 400 and "\n" not in str(caught.value)


INVALID = [({"q": 5}, "q must be a text"), ({"q": ["a", {}]}, "q must be a text or a list")]
INVALID += [({"source": "xx\n"}, r"^xx\\n is not supported$")]
INVALID += [({"target": 5}, "5 is not supported"), ({"target": "auto"}, "^auto is not supported$")]
INVALID += [({"source": "de", "target": "en"}, r"English \(en\) is not available as a target")]
INVALID += [({"source": "auto", "target": "en"}, "is not available as a target")]
INVALID += [({"format": "xml"}, '"xml" format is not supported')]
INVALID += [({"alternatives": value}, "is not a number") for value in ("x", None, [], 1e999)]
INVALID += [({"alternatives": "9" * 5000}, "is not a number")]
INVALID += [({"q": ["a"] * 6}, r"\(6 texts\) exceeds text limit \(5\).*`max_sentences`")]
INVALID += [({"q": "ä" * 41}, r"\(41 characters\) exceeds text limit \(40\).*`max_text_char")]
INVALID += [({"split_sentences": "perhaps"}, 'must be true or false. Received: "perhaps"')]
INVALID += [({"q": "<p>a" * 6, "format": "html"}, r"\(6 blocks\) exceeds")]
INVALID += [({name: empty}, f"missing {name} p") for name in ("q", "source") for empty in ("", [])]


@pytest.mark.parametrize(("fields", "says"), INVALID)
def test_an_invalid_request_is_400_of_one_line(make, fields, says):
    with pytest.raises(Rejection, match=says) as caught:
        make().read({"q": "a", **FIELDS, **fields})
    assert caught.value.status == 400 and "\n" not in str(caught.value)


def test_a_request_may_reach_the_limits(make):
    assert answer_of(make(), q=["ä" * 40] * 5) == {"translatedText": ["Ä" * 40] * 5}


TEXTS = [("ab", ["ab"], "AB"), (" a\r\n\n  b\tc ", ["a", "b", "c"], " A\r\n\n  B\tC ")]
TEXTS += [("a<br />b<br>c", ["a", "b", "c"], "A<br />B<br>C"), ("😀\nä", ["ä"], "😀\nÄ")]
TEXTS += [
    ("", [], ""),
    (" \n", [], " \n"),
    ("...", [], "..."),
    ("1", [], "1"),
    ("1\n😀", [], "1\n😀"),
]
TEXTS += [
    ("Two dogs.  A cat!\u00a0So.", ["Two dogs.", "A cat!", "So."], "TWO DOGS.  A CAT!\u00a0SO.")
]


@pytest.mark.parametrize(("text", "sentences", "translation"), TEXTS)
def test_a_text_is_its_sentences_and_what_is_no_text_remains(make, text, sentences, translation):
    api = make()
    assert read_by_engine(api, q=[text]) == sentences
    assert answer_of(api, q=[text]) == {"translatedText": [translation]}


def test_a_request_may_take_its_texts_as_one_segment_and_leave_capitals(make):
    api, text = make(), "TWO RABBITS. A cat."
    assert read_by_engine(api, q=text, split_sentences="false") == [text]
    assert read_by_engine(api, q=text, keep_case=True) == ["Two rabbits.", "A cat."]
    assert answer_of(api, q=text, keep_case="1") == {"translatedText": "TWO RABBITS. A CAT."}
    dialog = make()
    dialog._model.engine.turns = types.SimpleNamespace()
    assert read_by_engine(dialog, q=text) == [text]


def test_html_is_blocks_and_their_sentences(make):
    text = "<p>Two dogs. <b>A</b> cat.</p>\n<p>1</p>"
    assert read_by_engine(make(), q=text, format="html") == ["Two dogs.", "A cat."]
    assert answer_of(make(), q=text, format="html") == {
        "translatedText": text.upper().replace("P>", "p>").replace("B>", "b>")
    }


@pytest.mark.parametrize("markup", ["none", "html"])
def test_a_text_in_the_target_language_remains_as_it_is(make, markup):
    for source, target in (("en", "en"), ("DE", "DE"), ("deu_Latn", "de"), ("de-AT", "de")):
        answer = answer_of(make(markup=markup), q="Ab\n&lt;<b>", source=source, target=target)
        assert answer == {"translatedText": "Ab\n&lt;<b>"}


def test_a_sentence_of_too_many_tokens_is_split_by_the_engine_if_it_can(make):
    for long_inputs, long_input in (
        (("refuse", "split", "truncate"), "split"),
        (("truncate",), "truncate"),
    ):
        engine = Engine()
        engine.long_inputs = long_inputs
        for fields in ({}, {"split_sentences": False}):
            answer_of(make(engine), q="Two dogs.", **fields)
            assert engine.calls[-1][1]["long_input"] == long_input


def test_alternatives_are_the_other_hypotheses_without_doubles(make):
    answer = answer_of(make(), ["X", "A", "", "Y"], q="a", alternatives=4)
    assert answer == {"translatedText": "A", "alternatives": ["X", "Y"]}
    lines = answer_of(make(), ["X"], q=["a\nb", "c"], alternatives="5")
    assert lines["translatedText"] == ["A\nB", "C"]
    assert sorted(lines["alternatives"][0]) == ["A\nX", "X\nB", "X\nX"]
    assert lines["alternatives"][1] == ["X"]
    assert answer_of(make(), q="a", alternatives=-1) == {"translatedText": "A"}
    # An export whose beam gives more of them than the client wants.
    wide = answer_of(make(Engine(n_best=4)), ["X", "Y", "Z"], q=["a", "b"], alternatives=2)
    assert wide["alternatives"] == [["X", "Y"], ["X", "Y"]]
    # HTML has none, as in LibreTranslate, and an export whose searches give one hypothesis.
    assert answer_of(make(), q="a", alternatives=1, format="html")["alternatives"] == []
    signatures = {"serving_default": {}}
    single = Engine(signatures=signatures)
    assert answer_of(make(single), q="a", alternatives=1)["alternatives"] == []


def test_the_markup_of_a_request_is_its_format_or_that_of_the_server(make):
    def options_of(markup, **fields):
        request = make(markup=markup).read({"q": "<p>a &amp; b</p>", **FIELDS, **fields})
        assert [row["text"] for row in request.prediction.rows] == ["<p>a &amp; b</p>"]
        return dict(request.prediction.options)

    html = {"markup": "html", **RULES}
    assert options_of("none", format="html") == options_of("html") == html
    assert options_of("none", format="text") == options_of("none") == RULES
    assert options_of("placeholders") == {"markup": "placeholders", **RULES}
    # An answer that is no HTML has no character references.
    assert answer_of(make(markup="html"), q="a &lt; b") == {"translatedText": "A < B"}


def test_languages_are_those_of_the_option_or_of_the_export(make):
    exported = Engine(languages=["zh", "pt-BR"])
    codes = [language["code"] for language in make(exported, languages=None).languages()]
    assert codes == ["zh-Hans", "pt-BR"]
    for code in ("ZH", "zh-hans", "zh_Hans", "auto"):
        make(exported, languages=None).read({"q": "a", "source": code, "target": "pb"})
    assert make(exported).languages() == [
        {"code": "en", "name": "English", "targets": ["en", "de"]},
        {"code": "de", "name": "German", "targets": ["de"]},
    ]
    with pytest.raises(InputError, match="`languages` must be two codes"):
        make(languages="en")


def test_a_beam_is_widened_for_the_alternatives_that_are_asked_for(make, monkeypatch):
    def options_of(count):
        return dict(make().read({**FIELDS, "q": "a", "alternatives": count}).prediction.options)

    assert options_of(1) == options_of(0) == RULES  # The export's beam has two.
    assert options_of(2) == {"beam_size": 3, "n_best": 3, **RULES}
    assert options_of(99) == {"beam_size": 11, "n_best": 11, **RULES}

    def refuse(self, **options):
        raise InputError("`beam_size` is fixed")

    monkeypatch.setattr(Engine, "request", refuse)
    assert options_of(2) == RULES


@pytest.mark.tensorflow
def test_as_many_alternatives_as_asked_come_from_a_smaller_beam(light):
    model = Model(str(light), 1)
    api = LibreTranslate(model, ServerOptions(model="m", languages="en-de"))
    for count in (1, 2, 5):
        request = api.read({**FIELDS, "q": "a man runs", "alternatives": count})
        answer = json.loads(api.answer(request, translated(api, request)))
        texts = [answer["translatedText"], *answer["alternatives"]]
        assert len(set(texts)) == len(texts) == count + 1


PAIRS = (("en", "de"), ("de", "en"), ("en", "zh"))
TOKENS = Languages({code: f">>{code}<<" for code in ("de", "en", "zh")}, "target", directions=PAIRS)
BOTH_SCRIPTS = Languages(
    {code: f">>{code}<<" for code in ("en", "zh", "zh-Hant")},
    "target",
    directions=(("zh", "en"), ("zh-Hant", "en")),
)
# Of an imported model: its texts have tags, and their source is of any language.
OPEN = Languages(
    {"de": ">>deu<<", "zh": ">>zho<<"},
    "target",
    directions=((None, "de"), (None, "zh")),
    is_optional=True,
)


@pytest.mark.parametrize(("languages", "option"), [(TOKENS, None), (OPEN, "en-de")])
def test_source_and_target_choose_one_of_several_directions(make, monkeypatch, languages, option):
    monkeypatch.setattr(Engine, "languages", languages)
    api = make(languages=option)
    targets = {row["code"]: row["targets"] for row in api.languages()}
    expected = {"en": ["en", "de", "zh-Hans"], "de": ["de", "en"], "zh-Hans": ["zh-Hans"]}
    assert targets == {**expected, "de": ["de", "en"] if languages is TOKENS else ["de"]}
    for target, code in (("de", "de"), ("zh", "zh")):
        prediction = api.read({"q": ["a", "b"], "source": "en", "target": target}).prediction
        named = [{"text": text, "target_language": code} for text in ("a", "b")]
        if languages is OPEN:
            language = named[0].pop("target_language")
            assert dict(prediction.options) == {"target_language": language, **RULES}
            del named[1]["target_language"]
        assert prediction.rows == named
    with pytest.raises(Rejection, match="Chinese.* is not available .* from German"):
        api.read({"q": "a", "source": "de", "target": "zh-Hans"})
    shares = [("fr", 0.5), ("de", 0.3), ("en", 0.2)]
    monkeypatch.setattr(libretranslate, "_language_shares", lambda texts: shares)
    request = api.read({"q": "a", "source": "auto", "target": "zh"})
    assert request.detected == {"confidence": 100.0, "language": "en"}
    if languages is TOKENS:
        restricted = make(languages="en-de").languages()
        assert [row["targets"] for row in restricted] == [["en", "de"], ["de"]]


ONE = Languages(directions=(("pt-BR", "de"),))
FOREIGN = [(ONE, "de-pt"), (ONE, "pt-fr"), (ONE, "pt,pt-BR"), (OPEN, "en-fr")]
FOREIGN += [(TOKENS, "de-zh"), (TOKENS, "en-fr"), (ONE, "zh,de")]


@pytest.mark.parametrize(("languages", "option"), FOREIGN)
def test_languages_of_another_model_are_refused(make, monkeypatch, languages, option):
    monkeypatch.setattr(Engine, "languages", languages)
    with pytest.raises(InputError, match=f"direction of the model: .*Received: {option[:2]}"):
        make(languages=option)


def test_languages_of_the_model_may_be_named_with_other_regions(make, monkeypatch):
    monkeypatch.setattr(Engine, "languages", ONE)
    for option, codes in (("pt,de-AT", ["pt", "de-AT"]), ("pt-PT,DE", ["pt-PT", "de"])):
        assert [row["code"] for row in make(languages=option).languages()] == codes


SOURCES = Languages(directions=(("en", "eo"), ("fr", "eo")))


def test_several_sources_of_one_target_are_listed_and_need_no_option(make, monkeypatch):
    monkeypatch.setattr(Engine, "languages", SOURCES)
    # The export may name one direction, for programs that know only one.
    for exported in (Engine(), Engine(languages=["en", "eo"])):
        api = make(exported, languages=None)
        targets = {row["code"]: row["targets"] for row in api.languages()}
        assert targets == {"en": ["en", "eo"], "fr": ["fr", "eo"], "eo": ["eo"]}
        for source in ("en", "fr"):
            prediction = api.read({"q": "a", "source": source, "target": "eo"}).prediction
            assert prediction.rows == [{"text": "a"}] and dict(prediction.options) == RULES
    (restricted, _) = make(languages="fr-eo").languages()
    assert restricted["targets"] == ["fr", "eo"]
    with pytest.raises(InputError, match="direction of the model: en-eo, fr-eo. Received: eo-fr"):
        make(languages="eo-fr")


@pytest.mark.parametrize(
    ("source", "target", "chosen"),
    [
        ("eng_Latn", "tl", ("en", "fil")),
        ("en-US", "iw", ("en", "he")),
        ("en", "zt", ("en", "zh-Hant")),
        ("EN", "zh-TW", ("en", "zh-Hant")),
        ("en", "zh_CN", ("en", "zh")),
        ("en", "zh", ("en", "zh")),
        ("en", "pb", ("en", "pt")),
        ("en", "pes", ("en", "pes_Arab")),
        ("en", "fa", ("en", "pes_Arab")),
        ("en", "pes_Arab", ("en", "pes_Arab")),
        ("pt-BR", "eng", ("pt", "en")),
        ("auto", "fil-PH", ("en", "fil")),
    ],
)
def test_codes_that_clients_send_are_the_nearest_languages(
    make, monkeypatch, source, target, chosen
):
    names = "eng_Latn tgl_Latn heb_Hebr zho_Hant zho_Hans por_Latn pes_Arab prs_Arab".split()
    languages = Languages(codes_of(names), source_prefix="source", target_prefix="target")
    monkeypatch.setattr(Engine, "languages", languages)
    monkeypatch.setattr(libretranslate, "_language_shares", lambda texts: [("en", 1.0)])
    request = make(languages=None).read({"q": "a", "source": source, "target": target})
    (named,) = request.prediction.rows
    assert (named["source_language"], named["target_language"]) == chosen


@pytest.mark.parametrize(
    ("code", "nearest"), [("zt", "zh-Hans"), ("zh-TW", "zh-Hans"), ("sr-Latn", "sr"), ("tlh", "")]
)
def test_another_script_or_language_is_400_with_the_nearest(make, code, nearest):
    with pytest.raises(Rejection, match=" is not supported") as caught:
        make(languages="zh,sr").read({"q": "a", "source": "zh", "target": code})
    assert caught.value.status == 400
    advice = (
        f"Did you mean `{nearest}`? Known: zh-Hans, sr" if nearest else f"{code} is not supported"
    )
    assert advice in str(caught.value)


CHINESE = {
    "zh-Hans": ["我们在这里学习汉语。", "The company 腾讯 发布了新产品", "台湾是一个岛"],
    "zh-Hant": ["我們在這裡學習漢語。", "The company 騰訊 發布了新產品", "臺灣是一個島，café"],
}


def test_chinese_is_detected_in_the_script_of_its_characters(make, monkeypatch):
    identifier = types.SimpleNamespace(rank=lambda text: [("zh", 0.9), ("en", 0.1)])
    monkeypatch.setattr(libretranslate, "language_identifier", lambda purpose: identifier)
    for code, texts in CHINESE.items():
        for text in texts:
            monkeypatch.setattr(Engine, "languages", None)
            row = {"confidence": 90.0, "language": code}
            assert make(languages=None).detect({"q": text})[0] == row
            monkeypatch.setattr(Engine, "languages", BOTH_SCRIPTS)
            answer = answer_of(make(languages=None), q=text, source="auto", target="en")
            assert answer["detectedLanguage"] == {"confidence": 100.0, "language": code}
            # A model of one script is the nearest for a text in the other.
            monkeypatch.setattr(Engine, "languages", None)
            answer = answer_of(make(languages="zh,en"), q=text, source="auto", target="en")
            assert answer["detectedLanguage"]["language"] == "zh-Hans"


@pytest.mark.parametrize("ask", ["languages", "settings", "read"])
def test_unknown_languages_are_501_of_one_line(make, ask):
    with pytest.raises(Rejection, match="start the server with --languages") as caught:
        getattr(make(languages=None), ask)(*[{"q": "a"}][: ask == "read"])
    assert caught.value.status == 501


def test_detection_gives_the_servers_languages_and_auto_one_of_them(make, monkeypatch):
    shares = [("fr", 0.6), ("zh", 0.2), ("de", 0.1), ("en", 0.05), ("it", 0.004)]
    codes = ["fr", "zh-Hans", "de", "en", "it"]
    many = Languages(directions=tuple((code, "pt") for code in codes))
    identifier = types.SimpleNamespace(rank=lambda text: shares)
    monkeypatch.setattr(libretranslate, "language_identifier", lambda purpose: identifier)

    def detected(**options):
        rows = make(**options).detect({"q": ["a", "b"]})
        return [(row["language"], row["confidence"]) for row in rows]

    assert detected(languages=None) == [("fr", 60), ("zh-Hans", 20), ("de", 10)]  # none is known
    assert detected() == [("de", 67), ("en", 33)]
    assert detected(languages="it-pt") == [("it", 100)]
    assert detected(languages="pt-sv") == [("pt", 0)]
    monkeypatch.setattr(Engine, "languages", many)
    assert detected(languages=None) == [("fr", 63), ("zh-Hans", 21), ("de", 10)]
    monkeypatch.setattr(Engine, "languages", None)
    sure = types.SimpleNamespace(rank=lambda text: [("fr", 0.99), ("de", 0.008), ("it", 0.002)])
    monkeypatch.setattr(libretranslate, "language_identifier", lambda purpose: sure)
    assert detected(languages=None) == [("fr", 99), ("de", 1)]  # Not a language of 0 %.
    monkeypatch.setattr(libretranslate, "language_identifier", lambda purpose: identifier)
    answer = answer_of(make(), q=["a", "b"], source="auto")
    assert answer["detectedLanguage"] == [{"confidence": 67, "language": "de"}] * 2
    assert answer["translatedText"] == ["A", "B"]
    emoji = {"confidence": 0, "language": "en"}
    assert make().detect({"q": "😀"}) == [emoji]
    assert answer_of(make(), q="😀", source="auto")["detectedLanguage"] == emoji


def test_without_a_package_detection_is_501_and_auto_is_the_source(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    with pytest.raises(Rejection, match=r"package py3langid\): pip install [^\n]+$") as caught:
        make().detect({"q": "a"})
    assert caught.value.status == 501
    answer = answer_of(make(), q="a", source="auto")
    assert answer["detectedLanguage"] == {"confidence": 0, "language": "en"}


def test_an_answer_that_is_too_long_is_413(make):
    api = make(max_answer_bytes=30)
    assert answer_of(api, q="ab") == {"translatedText": "AB"}
    with pytest.raises(Rejection, match="at most 30 bytes") as caught:
        answer_of(api, q="a" * 30)
    assert caught.value.status == 413
