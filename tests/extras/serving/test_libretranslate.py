"""LibreTranslate's API: its recorded exchanges, parts of texts, languages, invalid requests."""

import json
import re
import sys
import types

import pydantic
import pytest
from upper_case import Engine, ask

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.serving import detection
from keras_transformer.extras.serving.libretranslate_spec import Text
from keras_transformer.text.languages import Languages, codes_of

pytestmark = pytest.mark.tensorflow

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=X"
DIRECTION = {"source": "en", "target": "de"}
RULES = {"split_sentences": True, "copy_symbols": True}  # of all requests


@pytest.fixture
def serve(app_of):
    """`serve(engine, **options)`: the application of an engine that writes upper case."""

    def serve(engine=None, **options):
        limits = {"max_sentences": 5, "max_text_characters": 40}
        return app_of(engine, **{"languages": "en-de", **limits, **options})

    return serve


@pytest.fixture
def of_model(serve, monkeypatch):
    """`of_model(languages, option)`: the application of a model of several languages."""

    def of_model(languages, option=None):
        engine = Engine()
        engine.languages = languages
        return serve(engine, languages=option)

    return of_model


def translate(app, q="a", **fields):
    """The answer to a request, without the name of its only field."""
    app.state.engine.calls = []
    answer = ask(app, "POST", "/translate", json={"q": q, **DIRECTION, **fields}).json()
    return answer["translatedText"] if [*answer] == ["translatedText"] else answer


def read(app):
    """The texts that the engine has read since the last request, without blank ones."""
    return sorted(text for texts, _ in app.state.engine.calls for text in texts if text)


def options_of(app, **fields):
    """The options with which the engine reads a request's only batch."""
    translate(app, **fields)
    ((_, options),) = app.state.engine.calls
    return options


def targets_of(app):
    return {row["code"]: row["targets"] for row in ask(app, "GET", "/languages").json()}


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


def test_recorded_exchanges_are_answered_with_equal_status_and_keys(one_app, oracle):
    exchanges = json.loads((oracle("libretranslate") / "exchanges.json").read_text("utf-8"))
    assert len(exchanges) == 65
    for exchange in exchanges:
        body, limits = exchange["body"], LIMITS.get(exchange["options"], {})
        fields = body if isinstance(body, dict) else {}
        app = one_app(languages=TARGETS.get(fields.get("target"), "en-es"), **limits)
        content = json.dumps(body) if isinstance(body, dict) else body
        headers = {"content-type": exchange["content_type"]} if exchange["content_type"] else {}
        method, path = exchange["method"], exchange["path"]
        answer = ask(app, method, path, content=content, headers=headers)
        status = 400 if exchange["status"] == 500 else exchange["status"]
        if exchange["options"] in LEFT_TO_A_PROXY:
            assert answer.status_code == 200, exchange
        else:
            assert answer.status_code == status, (exchange, answer.text)
            if exchange["answer_type"] == JSON:
                assert keys_of(answer.json()) == keys_of(exchange["answer"]), exchange


def part(value, name="q", more=b""):
    name = name.encode() + b'"' + more
    return b'--X\r\nContent-Disposition: form-data; name="%s\r\n\r\n%s\r\n' % (name, value)


EN_DE = "source=en&target=de"
ENDS = part(b"en", "source") + part(b"de", "target") + b"--X--\r\n"
BODIES = [
    # Kind, query, body, translation: as Weblate (two), Linguist, deep-translator and others send.
    (JSON, "", json.dumps({**DIRECTION, "q": ["a", "b"], "api_key": ""}).encode(), ["A", "B"]),
    (JSON, "q=c", json.dumps({**DIRECTION, "q": "a\r\nb"}).encode(), "A\r\nB"),
    ("application/ld+json; charset=utf-8", "", json.dumps({**DIRECTION, "q": "a"}).encode(), "A"),
    (FORM, EN_DE, b"api_key=&q=a+b%0D%0Ac&q=d", "A B\nC"),
    (FORM, EN_DE, "q=ä&n=".encode(), "Ä"),
    ("", f"{EN_DE}&q=%C3%A4+b&api_key=x", b"ignored", "Ä B"),
    (PARTS.replace("X", '"X"'), "", part("ä\r\nb--".encode()) + ENDS, "Ä\nB--"),
]


@pytest.mark.parametrize(("kind", "query", "body", "translation"), BODIES)
def test_parameters_come_from_json_or_a_form_or_the_query(one_app, kind, query, body, translation):
    headers = {"content-type": kind} if kind else {}
    sent = {"content": body, "headers": headers}
    answer = ask(one_app(languages="en-de"), "POST", f"/translate?{query}", **sent)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"translatedText": translation}


MALFORMED = [
    (JSON, b"{", "EOF"),
    (JSON, b"[]", "Invalid JSON format"),
    (JSON, b"[" * 100_000, "recursion"),
    (JSON, b'{"q": "\\ud800"}', "escape"),
    ("text/plain", b'{"q": "a"}', "missing q"),
    (FORM, b"q=\xff", "utf-8"),
    (FORM, b"q=%FF", "utf-8"),
    (FORM, b"q=a&" * 101, "fields"),
    ("multipart/form-data", part(b"a") + ENDS, "boundary"),
    (PARTS, part(b"a") * 101 + ENDS, "is 100"),
    (PARTS, part(b"\xff") + ENDS, "utf-8"),
    (PARTS, part(b"a", more=b'; filename="a.txt"') + ENDS, "files"),
    (PARTS, b"no boundary", "Malformed request: "),
]
INVALID = [
    ({"q": 5}, "q must be a text"),
    ({"q": ["a", {}]}, "q must be a text or a list"),
    ({"source": "xx\n"}, r"^xx\\n is not supported$"),
    ({"target": 5}, "5 is not supported"),
    ({"target": "auto"}, "^auto is not supported$"),
    ({"source": "de", "target": "en"}, r"English \(en\) is not available as a target"),
    ({"source": "auto", "target": "en"}, "is not available as a target"),
    ({"format": "xml"}, '"xml" format is not supported'),
    *(({"alternatives": wrong}, "is not a number") for wrong in ("x", None, [], "9" * 5000)),
    ({"q": ["a"] * 6}, r"\(6 texts\) exceeds text limit \(5\).*`max_sentences`"),
    ({"q": "ä" * 41}, r"\(41 characters\) exceeds text limit \(40\).*`max_text_char"),
    ({"q": "<p>a" * 6, "format": "html"}, r"\(6 blocks\) exceeds"),
    ({"split_sentences": "perhaps"}, 'must be true or false. Received: "perhaps"'),
    *(({name: empty}, f"missing {name} p") for name in ("q", "source") for empty in ("", [])),
    ({"q": "a" * 40}, "at most 60 bytes"),
]
MALFORMED += [
    (JSON, json.dumps({"q": "a", **DIRECTION, **fields}).encode(), says) for fields, says in INVALID
]
MALFORMED += [
    (JSON, b'{"q": "a", "source": "en", "target": "de", "alternatives": 1e999}', "number")
]


@pytest.mark.parametrize(("kind", "body", "says"), MALFORMED)
def test_a_malformed_or_invalid_request_is_told_in_one_line(one_app, kind, body, says):
    limits = {"max_sentences": 5, "max_text_characters": 40, "max_answer_bytes": 60}
    app, headers = one_app(languages="en-de", **limits), {"content-type": kind}
    answer = ask(app, "POST", "/translate", content=body, headers=headers)
    assert answer.status_code == (413 if "bytes" in says else 400)
    ((name, message),) = answer.json().items()
    assert name == "error" and re.search(says, message) and "\n" not in message


def test_thousands_of_wrong_texts_are_one_mistake():
    with pytest.raises(pydantic.ValidationError) as caught:
        Text.model_validate({"q": [[]] * 5000})
    assert caught.value.error_count() < 5


CAPITALS = "TWO RABBITS. A cat."
TEXTS = [
    ({"q": ["ä" * 40] * 5}, ["ä" * 40] * 5, ["Ä" * 40] * 5),  # the limits
    ({"q": "ab"}, ["ab"], "AB"),
    ({"q": " a\r\n\n  b\tc "}, ["a", "b", "c"], " A\r\n\n  B\tC "),
    ({"q": "a<br />b<br>c"}, ["a", "b", "c"], "A<br />B<br>C"),
    ({"q": "😀\nä"}, ["ä"], "😀\nÄ"),
    *(({"q": [text]}, [], [text]) for text in ("", " \n", "...", "1", "1\n😀")),
    (
        {"q": "Two dogs.  A cat!\u00a0So."},
        ["A cat!", "So.", "Two dogs."],
        "TWO DOGS.  A CAT!\u00a0SO.",
    ),
    (
        {"q": "<p>Two dogs. <b>A</b> cat.</p>\n<p>1</p>", "format": "html"},
        ["A cat.", "Two dogs."],
        "<p>TWO DOGS. <b>A</b> CAT.</p>\n<p>1</p>",
    ),
    # A text in the target language stays, whatever it is.
    *(
        ({"q": "Ab\n&lt;<b>", "source": source, "target": target}, [], "Ab\n&lt;<b>")
        for source, target in (("en", "en"), ("DE", "DE"), ("deu_Latn", "de"), ("de-AT", "de"))
    ),
    # A request may take its texts as one segment, and leave capitals.
    *(
        ({"q": CAPITALS, "split_sentences": no}, [CAPITALS], CAPITALS.upper())
        for no in (False, "false", "False", "0", 0)
    ),
    *(
        ({"q": CAPITALS, "keep_case": yes}, ["A cat.", "Two rabbits."], CAPITALS.upper())
        for yes in (True, "true", "True", "1", 1)
    ),
]


@pytest.mark.parametrize(("fields", "sentences", "translation"), TEXTS)
def test_a_text_is_its_sentences_and_what_is_no_text_remains(
    one_app, fields, sentences, translation
):
    app = one_app(languages="en-de", max_sentences=5, max_text_characters=40)
    assert translate(app, **fields) == translation
    assert read(app) == sentences


def test_a_conversation_is_one_text(serve):
    app = serve(dialog := Engine())
    dialog.turns = types.SimpleNamespace()
    translate(app, "TWO RABBITS. A cat.")
    assert read(app) == ["TWO RABBITS. A cat."]


def test_a_sentence_of_too_many_tokens_is_split_by_the_engine_if_it_can(serve):
    for ways, expected in (
        (("refuse", "split", "truncate"), "split"),
        (("truncate",), "truncate"),
    ):
        engine = Engine()
        engine.long_inputs = ways
        for fields in ({}, {"split_sentences": False}):
            assert options_of(serve(engine), q="Dogs", **fields)["long_input"] == expected


def test_alternatives_are_the_other_hypotheses_without_doubles(serve):
    def answer(hypotheses, engine=None, app=None, **fields):
        app = serve(engine) if app is None else app
        app.state.engine.hypotheses = hypotheses
        return translate(app, **fields)

    one = answer(["X", "A", "", "Y"], alternatives=4)
    assert one == {"translatedText": "A", "alternatives": ["X", "Y"]}
    lines = answer(["X"], q=["a\nb", "c"], alternatives="5")
    assert lines["translatedText"] == ["A\nB", "C"]
    assert lines["alternatives"][0] == ["X\nX"]
    assert lines["alternatives"][1] == ["X"]
    for none in (-1, "-1141951981229924"):
        assert answer(["X"], alternatives=none) == "A"
    # An export whose beam gives more of them than the client wants.
    wide = answer(["X", "Y", "Z"], Engine(n_best=4), q=["a", "b"], alternatives=2)
    assert wide["alternatives"] == [["X", "Y"], ["X", "Y"]]
    # HTML has none, as in LibreTranslate, and an export whose searches give one hypothesis.
    assert answer(["X"], alternatives=1, format="html")["alternatives"] == []
    single = Engine(signatures={"serving_default": {}})
    assert answer(["X"], single, alternatives=1)["alternatives"] == []
    # An answer that is no HTML has no character references.
    html = answer(["x & y"], app=serve(markup="html"), q="a &lt; b", alternatives=1)
    assert html == {"translatedText": "A < B", "alternatives": ["x & y"]}


def test_a_beam_is_widened_for_the_alternatives_that_are_asked_for(serve):
    app = serve()  # Its export's beam has two.
    for count, options in {0: {}, 1: {"n_best": 2}, 2: {"n_best": 3, "beam_size": 3}}.items():
        assert options_of(app, alternatives=count) == {"long_input": "split", **options}
    assert options_of(app, alternatives=99)["beam_size"] == 11

    class Fixed(Engine):
        def request(self, **options):
            if "beam_size" in options:
                raise InputError("`beam_size` is fixed")

    assert "beam_size" not in options_of(serve(Fixed()), alternatives=2)


def test_the_markup_of_a_request_is_its_format_or_that_of_the_server(serve):
    text = "<p>{x} &amp;</p> a"
    for markup, format, expected in [
        *(("none", plain, "<P>{X} &AMP;</P> A") for plain in ("text", "", None)),
        ("placeholders", "text", "<P>{x} &AMP;</P> A"),
        *((markup, "html", "<p>{x} &amp;</p> A") for markup in ("none", "placeholders", "html")),
        ("html", "text", "<p>{x} &</p> A"),
    ]:
        assert translate(serve(markup=markup), text, format=format) == expected, (markup, format)


def test_as_many_alternatives_as_asked_come_from_a_smaller_beam(light, app_of):
    engine = Translator.load(light).engine
    engine.calls = []
    app = app_of(engine, languages="en-de")
    for count in (1, 2, 5):
        answer = translate(app, "a man runs", alternatives=count)
        texts = [answer["translatedText"], *answer["alternatives"]]
        assert len(set(texts)) == len(texts) == count + 1


def test_languages_are_those_of_the_option_or_of_the_export(serve):
    exported = serve(Engine(languages=["zh", "pt-BR"]), languages=None)
    assert [*targets_of(exported)] == ["zh-Hans", "pt-BR"]
    for code in ("ZH", "zh-hans", "zh_Hans", "auto", " AUTO "):
        answer = translate(exported, source=code, target="pb")
        assert answer == "A" or answer["translatedText"] == "A"
    named = serve(Engine(languages=["zh", "pt-BR"]))
    assert ask(named, "GET", "/languages").json() == [
        {"code": "en", "name": "English", "targets": ["en", "de"]},
        {"code": "de", "name": "German", "targets": ["de"]},
    ]
    with pytest.raises(InputError, match="`languages` must be two codes"):
        serve(languages="en")


PAIRS = (("en", "de"), ("de", "en"), ("en", "zh"))
TOKENS = Languages({code: f">>{code}<<" for code in ("de", "en", "zh")}, "target", directions=PAIRS)
SCRIPTS = (("zh", "en"), ("zh-Hant", "en"))
BOTH_SCRIPTS = Languages(
    {code: f">>{code}<<" for code in ("en", "zh", "zh-Hant")}, "target", directions=SCRIPTS
)
# Of an imported model: its texts have tags, and their source is of any language.
OPEN_PAIRS = ((None, "de"), (None, "zh"))
OPEN = Languages(
    {"de": ">>deu<<", "zh": ">>zho<<"}, "target", directions=OPEN_PAIRS, is_optional=True
)
ONE = Languages(directions=(("pt-BR", "de"),))
SOURCES = Languages(directions=(("en", "eo"), ("fr", "eo")))


@pytest.mark.parametrize(("languages", "option"), [(TOKENS, None), (OPEN, "en-de")])
def test_source_and_target_choose_one_of_several_directions(
    of_model, monkeypatch, languages, option
):
    app = of_model(languages, option)
    expected = {"en": ["en", "de", "zh-Hans"], "de": ["de", "en"], "zh-Hans": ["zh-Hans"]}
    assert targets_of(app) == {**expected, "de": ["de", "en"] if languages is TOKENS else ["de"]}
    for code in ("de", "zh"):
        named = options_of(app, target=code)["target_language"]
        assert [*named] == [code] if languages is TOKENS else named == code
    refused = translate(app, source="de", target="zh-Hans")["error"]
    assert re.search("Chinese.* is not available .* from German", refused)
    identifier = types.SimpleNamespace(rank=lambda text: [("fr", 0.5), ("de", 0.3), ("en", 0.2)])
    monkeypatch.setattr(detection, "language_identifier", lambda purpose: identifier)
    answer = translate(app, source="auto", target="zh")
    assert answer["detectedLanguage"] == {"confidence": 100.0, "language": "en"}


@pytest.mark.parametrize(
    ("languages", "option", "targets"),
    [
        (TOKENS, "en-de", {"en": ["en", "de"], "de": ["de"]}),
        # Named with other regions.
        (ONE, "pt,de-AT", {"pt": ["pt", "de-AT"], "de-AT": ["de-AT"]}),
        (ONE, "pt-PT,DE", {"pt-PT": ["pt-PT", "de"], "de": ["de"]}),
        # Several sources of one target.
        (SOURCES, None, {"en": ["en", "eo"], "fr": ["fr", "eo"], "eo": ["eo"]}),
        (SOURCES, "fr-eo", {"fr": ["fr", "eo"], "eo": ["eo"]}),
        # Languages of another model.
        *((ONE, option, None) for option in ("de-pt", "pt-fr", "pt,pt-BR", "zh,de")),
        *[(OPEN, "en-fr", None), (TOKENS, "de-zh", None), (TOKENS, "en-fr", None)],
        (SOURCES, "eo-fr", None),
    ],
)
def test_the_option_chooses_among_the_languages_of_the_model(of_model, languages, option, targets):
    if targets is None:
        rule = f"direction of the model: .*Received: {option[:2]}"
        with pytest.raises(InputError, match=rule):
            of_model(languages, option)
        return
    app = of_model(languages, option)
    assert targets_of(app) == targets
    source, (_, target) = next(iter(targets.items()))
    assert translate(app, source=source, target=target) == "A"


@pytest.mark.parametrize(
    ("source", "target", "chosen"),
    [
        ("eng_Latn", "tl", ("en", "fil")),
        ("en-US", "iw", ("en", "he")),
        *(("en", code, ("en", "zh-Hant")) for code in ("zt", "zh-TW")),
        *(("EN", code, ("en", "zh")) for code in ("zh_CN", "zh")),
        ("en", "pb", ("en", "pt")),
        *(("en", code, ("en", "pes_Arab")) for code in ("pes", "fa", "pes_Arab")),
        ("pt-BR", "eng", ("pt", "en")),
        ("auto", "fil-PH", ("en", "fil")),
    ],
)
def test_codes_that_clients_send_are_the_nearest_languages(
    of_model, monkeypatch, source, target, chosen
):
    names = "eng_Latn tgl_Latn heb_Hebr zho_Hant zho_Hans por_Latn pes_Arab prs_Arab".split()
    languages = Languages(codes_of(names), source_prefix="source", target_prefix="target")
    identifier = types.SimpleNamespace(rank=lambda text: [("en", 1.0)])
    monkeypatch.setattr(detection, "language_identifier", lambda purpose: identifier)
    options = options_of(of_model(languages), source=source, target=target)
    (source_language,), (target_language,) = (
        options[name] for name in ("source_language", "target_language")
    )
    assert (source_language, target_language) == chosen


@pytest.mark.parametrize(
    ("code", "nearest"), [("zt", "zh-Hans"), ("zh-TW", "zh-Hans"), ("sr-Latn", "sr"), ("tlh", "")]
)
def test_another_script_or_language_is_400_with_the_nearest(one_app, code, nearest):
    error = translate(one_app(languages="zh,sr"), source="zh", target=code)["error"]
    assert error.startswith(f"{code} is not supported")
    assert f"Did you mean `{nearest}`? Known: zh-Hans, sr" in error or not nearest


CHINESE = {
    "zh-Hans": ["我们在这里学习汉语。", "The company 腾讯 发布了新产品", "台湾是一个岛"],
    "zh-Hant": ["我們在這裡學習漢語。", "The company 騰訊 發布了新產品", "臺灣是一個島，café"],
}


def test_chinese_is_detected_in_the_script_of_its_characters(serve, of_model, monkeypatch):
    identifier = types.SimpleNamespace(rank=lambda text: [("zh", 0.9), ("en", 0.1)])
    monkeypatch.setattr(detection, "language_identifier", lambda purpose: identifier)
    unknown, both, one = serve(languages=None), of_model(BOTH_SCRIPTS), serve(languages="zh,en")
    for code, texts in CHINESE.items():
        for text in texts:
            (best, *_) = ask(unknown, "POST", "/detect", json={"q": text}).json()
            assert best == {"confidence": 90.0, "language": code}
            answer = translate(both, text, source="auto", target="en")
            assert answer["detectedLanguage"] == {"confidence": 100.0, "language": code}
            # A model of one script is the nearest for a text in the other.
            answer = translate(one, text, source="auto", target="en")
            assert answer["detectedLanguage"]["language"] == "zh-Hans"


@pytest.mark.parametrize("path", ["languages", "frontend/settings", "spec", "translate"])
def test_unknown_languages_are_501_of_one_line(one_app, path):
    method = "POST" if path == "translate" else "GET"
    answer = ask(one_app(), method, f"/{path}", json={"q": "a"})
    assert answer.status_code == 501 and "--languages" in answer.json()["error"]


def test_detection_gives_the_servers_languages_and_auto_one_of_them(serve, of_model, monkeypatch):
    shares = [("fr", 0.6), ("zh", 0.2), ("de", 0.1), ("en", 0.05), ("it", 0.004)]
    codes = ["fr", "zh-Hans", "de", "en", "it"]
    many = Languages(directions=tuple((code, "pt") for code in codes))
    sure = [("fr", 0.99), ("de", 0.008), ("it", 0.002)]
    texts = ["12:30", "b"]  # The first text tells nothing.

    def detected(app, shares=shares):
        identifier = types.SimpleNamespace(
            rank=lambda text: shares if "b" in text else [("af", 1.0)]
        )
        monkeypatch.setattr(detection, "language_identifier", lambda purpose: identifier)
        rows = ask(app, "POST", "/detect", json={"q": texts}).json()
        return [(row["language"], row["confidence"]) for row in rows]

    # A language of 0 % is none.
    assert detected(serve(languages=None), sure) == [("fr", 99), ("de", 1)]
    assert detected(serve(languages="it-pt")) == [("it", 100)]
    assert detected(serve(languages="pt-sv")) == [("pt", 0)]
    assert detected(of_model(many)) == [("fr", 63), ("zh-Hans", 21), ("de", 10)]
    # None is known.
    assert detected(serve(languages=None)) == [("fr", 60), ("zh-Hans", 20), ("de", 10)]
    app = serve()
    assert detected(app) == [("de", 67), ("en", 33)]
    answer = translate(app, texts, source="auto")
    assert answer["detectedLanguage"] == [{"confidence": 67, "language": "de"}] * 2
    assert answer["translatedText"] == ["12:30", "B"]
    emoji = {"confidence": 0, "language": "en"}
    assert ask(app, "POST", "/detect", json={"q": "😀"}).json() == [emoji]
    assert translate(app, "😀", source="auto")["detectedLanguage"] == emoji


def test_without_a_package_detection_is_501_and_auto_is_the_source(serve, monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    app = serve()
    answer = ask(app, "POST", "/detect", json={"q": "a"})
    assert answer.status_code == 501
    assert re.search(r"package py3langid\): pip install [^\n]+$", answer.json()["error"])
    unknown = {"confidence": 0, "language": "en"}
    assert translate(app, source="auto")["detectedLanguage"] == unknown


def test_the_specification_has_the_languages_and_the_limits_of_the_server(serve):
    described = ask(serve(), "GET", "/spec").json()
    paths = "/translate /detect /translate_file /languages /frontend/settings /health /spec"
    assert {*described["paths"]} == {*paths.split()}
    content = described["paths"]["/translate"]["post"]["requestBody"]["content"]
    text = {"type": "string", "maxLength": 40}
    one = {**text, "minLength": 1}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": 5}
    # A form has one text.
    for kind, kinds_of_q in ((JSON, [one, texts]), (FORM, [one])):
        schema = content[kind]["schema"]
        assert schema["required"] == ["q", "source", "target"]
        fields = schema["properties"]
        assert fields["q"]["anyOf"] == kinds_of_q
        assert fields["source"]["enum"] == ["auto", "en", "de"]
        assert fields["target"]["enum"] == ["de"]
