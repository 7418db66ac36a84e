"""DeepL's API: what its official client reads, parameters, languages, documents, errors."""

import io
import threading
import time
import types

import pytest
from upper_case import Engine

from keras_transformer.serving import deepl as own
from keras_transformer.serving import libretranslate
from keras_transformer.text.languages import Languages

deepl = pytest.importorskip("deepl", reason="comes with the extra [test]")
requests = pytest.importorskip("requests", reason="comes with the extra [test]")
testclient = pytest.importorskip("starlette.testclient", reason="comes with the extra [serve]")
pytestmark = pytest.mark.tensorflow

TRANSLATE, DOCUMENT = "/v2/translate", "/v2/document"
DE = {"target_lang": "DE"}


@pytest.fixture
def serve(app_of, monkeypatch):
    """`serve(engine, **options)`: a client of the application with an engine in upper case."""
    identifier = types.SimpleNamespace(rank=lambda text: [("en", 0.9), ("de", 0.1)])
    monkeypatch.setattr(libretranslate, "language_identifier", lambda purpose: identifier)
    clients = []

    def serve(engine=None, **options):
        app = app_of(engine or Engine(), **{"languages": "en-de", **options})
        client = testclient.TestClient(app, "http://localhost", raise_server_exceptions=False)
        clients.append(client.__enter__())
        return client

    yield serve
    for client in clients:
        client.__exit__(None, None, None)


class _Adapter(requests.adapters.BaseAdapter):
    """Sends requests of the package `requests` to an application in this process."""

    def __init__(self, client):
        super().__init__()
        self._client = client

    def send(self, request, **options):
        headers = {name: value for name, value in request.headers.items() if name != "Host"}
        content = {"content": request.body, "headers": headers}
        answer = self._client.request(request.method, request.url, **content)
        response = requests.Response()
        response.status_code, response.headers = answer.status_code, answer.headers
        response.raw = io.BytesIO(answer.content)
        return response

    def close(self):
        pass


def official(client):
    """DeepL's own client of an application."""
    translator = deepl.DeepLClient("any key", server_url="http://localhost")
    translator._client._session.mount("http://localhost", _Adapter(client))
    return translator


def test_the_official_client_gets_translations_languages_and_usage(serve):
    translator = official(serve(languages="en,pt"))
    result = translator.translate_text("Two dogs.", target_lang="PT-BR")
    assert (result.text, result.detected_source_lang) == ("TWO DOGS.", "EN")
    assert result.billed_characters == 9
    texts = ["Two dogs. A cat!", "", "12:30"]
    newer = {"enable_beta_languages": True, "translation_memory_threshold": None}
    results = translator.translate_text(
        *(texts,),
        source_lang="en",
        target_lang=deepl.Language.PORTUGUESE_EUROPEAN,
        context="On a farm.",
        model_type="prefer_quality_optimized",
        formality="prefer_more",
        preserve_formatting=True,
        extra_body_parameters=newer,
    )
    assert [result.text for result in results] == ["TWO DOGS. A CAT!", "", "12:30"]
    assert {result.detected_source_lang for result in results} == {"EN"}
    sources = {language.code: language.name for language in translator.get_source_languages()}
    assert sources == {"EN": "English"}
    targets = [(row.code, row.supports_formality) for row in translator.get_target_languages()]
    assert targets == [("PT-BR", False), ("PT-PT", False)]
    usage = translator.get_usage()
    assert not usage.any_limit_reached and usage.character.limit > 10**9
    assert translator.list_glossaries() == translator.get_glossary_languages() == []
    with pytest.raises(deepl.GlossaryNotFoundException):
        translator.get_glossary("1")


def test_the_official_client_gets_tags_and_elements_that_stay(serve):
    translator = official(serve())
    text = '<p>A cat.<p><X id="1">Two <i>dogs</i></X><p><y-z/>&amp;<p>'
    text += "<keep>b</keep><keep><p>c</p></keep><p>Hi</p>"
    options = {"source_lang": "EN", "target_lang": "DE", "tag_handling": "html"}
    kept = translator.translate_text(text, ignore_tags=["x,keep", "Y-Z"], **options).text
    assert kept == text.replace("A cat.", "A CAT.").replace("Hi", "HI")
    translated = translator.translate_text(text, **options).text
    assert "<keep>B</keep>" in translated and "TWO" in translated and "CAT" in translated
    options["tag_handling"] = "xml"
    assert translator.translate_text("<a>Hi</a>", **options).text == "<a>HI</a>"


def test_the_official_client_gets_a_document_once_it_is_translated(serve, tmp_path):
    started, released = threading.Event(), threading.Event()

    class Slow(Engine):
        def translate(self, texts, **options):
            if "Two dogs." in texts:
                started.set()
                released.wait(60)
            return super().translate(texts, **options)

    client = serve(Slow(), max_ongoing=2)
    translator = official(client)
    content = b"# Two dogs.\r\n\r\n```\ncode\n```\n"
    target = {"source_lang": "EN", "target_lang": "DE"}
    handle = translator.translate_document_upload(content, filename="Notes.MD", **target)
    assert started.wait(60)
    key, path = {"document_key": handle.document_key}, f"{DOCUMENT}/{handle.document_id}"
    status = translator.translate_document_get_status(handle)
    assert status.ok and not status.done
    # The document has one of the two places of requests until it is translated.
    assert client.app.state.api._held == 1
    early = client.post(f"{path}/result", data=key)
    assert early.status_code == 503 and "not done" in early.json()["message"]
    released.set()
    while not (status := translator.translate_document_get_status(handle)).done:
        assert status.ok
        time.sleep(0.02)
    output = io.BytesIO()
    translator.translate_document_download(handle, output)
    assert output.getvalue() == b"# TWO DOGS.\r\n\r\n```\ncode\n```\n"
    # The id alone, which logs may have, opens nothing.
    for wrong in ({}, {"document_key": handle.document_id}, {"document_key": "ü"}):
        for answer in (client.post(path, json=wrong), client.post(f"{path}/result", data=wrong)):
            assert answer.status_code == 404 and answer.json()["message"]
    assert client.post(f"{DOCUMENT}/{'A' * 32}", data=key).status_code == 404


@pytest.mark.parametrize("engine_says", ["bad", "bug"])
def test_a_document_that_cannot_be_translated_is_an_error_of_one_line(serve, engine_says):
    client = serve()
    translator = official(client)
    handle = translator.translate_document_upload(engine_says, filename="a.txt", target_lang="DE")
    while (status := translator.translate_document_get_status(handle)).ok:
        time.sleep(0.02)
    expected = {"bad": "More.", "bug": "log"}[engine_says]
    assert expected in status.error_message and "\n" not in status.error_message
    assert client.post(TRANSLATE, json={"text": ["a"], **DE}).status_code == 200
    with pytest.raises(deepl.DeepLException, match="Bad request"):
        translator.translate_document_download(handle, io.BytesIO())


def test_a_document_whose_process_has_ended_is_an_error(tmp_path):
    files = own.TranslatedFiles(tmp_path)
    begun = own.Documents(files, 60).begin()
    for seconds, status in ((60, "translating"), (-1, "error")):
        documents = own.Documents(files, seconds)
        assert documents.status(begun["document_id"], begun)["status"] == status


FORM = {"content-type": "application/x-www-form-urlencoded"}
ANSWERED = [
    ({"content": "text=a+b&text=C%0D%0Ad&target_lang=de", "headers": FORM}, ["A B", "C\nD"]),
    ({"json": {"text": "a", "target_lang": "de-AT", "source_lang": ""}}, ["A"]),
    ({"data": {"text": ["b", "a"], "auth_key": "x", **DE}}, ["B", "A"]),
    ({"params": {"text": "a", "split_sentences": "0", **DE}}, ["A"]),
    ({"files": {"text": (None, "a"), "target_lang": (None, "DE")}}, ["A"]),
    ({"json": {"text": ["a\nb"], "tag_handling": None, "glossary_id": "", **DE}}, ["A\nB"]),
]


@pytest.mark.parametrize(("sent", "expected"), ANSWERED)
def test_texts_come_from_json_forms_and_the_query(serve, sent, expected):
    answer = serve().post(TRANSLATE, **sent)
    assert answer.status_code == 200, answer.text
    rows = answer.json()["translations"]
    assert [row["text"] for row in rows] == expected
    assert {row["detected_source_language"] for row in rows} == {"EN"}


LINES = "Two\r\ndogs. A\ncat.\n\nIt"
SPLITS = [({}, {"Two", "dogs.", "A", "cat.", "It"}, LINES)]
SPLITS += [({"split_sentences": value}, *SPLITS[0][1:]) for value in ("1", 1, True)]
SPLITS += [({"split_sentences": value}, {LINES}, LINES) for value in ("0", 0, False)]
JOINED = "Two dogs. A cat.\n\nIt"
SPLITS += [({"split_sentences": "nonewlines"}, {"Two dogs.", "A cat.", "It"}, JOINED)]
HTML = {"tag_handling": "html"}
SPLITS += [({**HTML}, {"Two dogs.", "A cat.", "It"}, None)]


@pytest.mark.parametrize(("fields", "sentences", "text"), SPLITS)
def test_sentences_end_at_line_breaks_as_split_sentences_says(serve, fields, sentences, text):
    engine = Engine()
    client = serve(engine)
    engine.calls.clear()
    answer = client.post(TRANSLATE, json={"text": [LINES], **DE, **fields})
    assert {text for texts, _ in engine.calls for text in texts} == sentences
    if text is not None:
        assert answer.json()["translations"][0]["text"] == text.upper()


NOT = "Value for '%s' not supported."
REFUSED = [
    ({"target_lang": code}, NOT % "target_lang") for code in ("xx", "", None, 5, "EN", "auto")
]
REFUSED += [({"target_lang": "auto"}, NOT % "target_lang")]
REFUSED += [({"source_lang": code}, NOT % "source_lang") for code in ("xx", 5)]
REFUSED += [({"text": empty}, "Parameter 'text' not specified") for empty in ([], "", None)]
REFUSED += [({"text": wrong}, NOT % "text") for wrong in (5, ["a", 5], {"a": 1})]
REFUSED += [({"text": ["a"] * 6}, "`max_sentences`"), ({"text": ["a" * 41]}, "`max_text_char")]
REFUSED += [({"tag_handling": "rtf"}, NOT % "tag_handling")]
REFUSED += [({"split_sentences": "2"}, NOT % "split_sentences")]
REFUSED += [({"tag_handling": "html", "ignore_tags": [5]}, NOT % "ignore_tags")]
FORMALITY = "'formality' is not supported for given 'target_lang'."
REFUSED += [({"formality": value}, FORMALITY) for value in ("more", "less")]
REFUSED += [({"formality": "rude"}, NOT % "formality")]
REFUSED += [({name: "x"}, NOT % name) for name in ("glossary_id", "style_id", "glossary_ids")]
REFUSED += [({"custom_instructions": ["Rhyme."]}, NOT % "custom_instructions")]


@pytest.mark.parametrize(("fields", "says"), REFUSED)
def test_what_is_not_there_is_400_with_deepls_message(serve, fields, says):
    client = serve(max_sentences=5, max_text_characters=40)
    answer = client.post(TRANSLATE, json={"text": ["a"], **DE, **fields})
    assert answer.status_code == 400, answer.text
    (message,) = answer.json().values()
    assert set(answer.json()) == {"message"} and says in message and "\n" not in message
    if "text" not in fields and "tag_handling" not in fields and "split_sentences" not in fields:
        form = {name: value for name, value in {**DE, **fields}.items() if value is not None}
        form["target_lang"] = form["target_lang"] if fields.get("target_lang", 1) else ""
        refused = client.post(DOCUMENT, data=form, files={"file": ("a.txt", b"a")})
        assert refused.status_code == 400 and says in refused.json()["message"]


DOCUMENTS = [({}, None, "Invalid file data."), ({}, ("a.docx", b"a"), ".txt")]
DOCUMENTS += [({"output_format": "pdf"}, ("a.txt", b"a"), NOT % "output_format")]
DOCUMENTS += [({"filename": "a.odt"}, ("a.txt", b"a"), '".odt"')]
DOCUMENTS += [({}, ("a.txt", b"\xff\xfe\xfd"), "a.txt"), ({}, ("a.txt", b""), "empty file")]


@pytest.mark.parametrize(("fields", "file", "says"), DOCUMENTS)
def test_a_document_of_another_kind_is_400(serve, fields, file, says):
    sent = {"data": {**DE, **fields}} | ({"files": {"file": file}} if file else {})
    answer = serve().post(DOCUMENT, **sent)
    assert answer.status_code == 400 and says in answer.json()["message"]


def test_a_document_may_be_named_by_a_parameter(serve):
    fields = {"filename": "a.txt", "output_format": "TXT", **DE}
    answer = serve(max_ongoing=1).post(DOCUMENT, data=fields, files={"file": ("blob", b"a")})
    assert answer.status_code == 200 and set(answer.json()) == {"document_id", "document_key"}


LANGUAGES = Languages(
    directions=(("en", "zh"), ("en-GB", "de"), ("zh", "en"), ("zh-Hant", "en"), ("en", "sr-Latn"))
)


def test_languages_are_deepls_codes(serve, monkeypatch):
    monkeypatch.setattr(Engine, "languages", LANGUAGES)
    client = serve(languages=None)

    def codes(**query):
        rows = client.request("GET", "/v2/languages", params=query).json()
        assert all(row["name"] for row in rows)
        return [row["language"] for row in rows]

    assert codes() == codes(type="source") == ["EN", "EN-GB", "ZH", "ZH-HANT"]
    assert codes(type="target") == ["ZH-HANS", "DE", "EN-GB", "EN-US", "SR-LATN"]
    for code in codes(type="target"):
        assert client.post(TRANSLATE, json={"text": ["a"], "target_lang": code}).status_code == 200
    for source, target in (("zh", "en-us"), ("ZH-HANT", "EN"), ("EN", "ZH")):
        fields = {"text": ["a"], "source_lang": source, "target_lang": target}
        (row,) = client.post(TRANSLATE, json=fields).json()["translations"]
        assert row["detected_source_language"] == source.upper()
    german = {"text": ["a"], "source_lang": "ZH", "target_lang": "DE"}
    answer = client.post(TRANSLATE, json=german)
    assert answer.status_code == 400 and "not available" in answer.json()["message"]
    wrong = client.post("/v2/languages", data={"type": "both"})
    assert wrong.status_code == 400 and "'type' is invalid" in wrong.json()["message"]


def test_errors_of_the_server_have_a_message(serve):
    client = serve(max_body_bytes=100, max_ongoing=1, languages=None)
    for method, path, body, status in (
        ("POST", TRANSLATE, b"a" * 101, 413),
        ("POST", DOCUMENT, b"a" * 101, 413),
        ("POST", TRANSLATE, b"text=a&target_lang=DE", 501),
        ("GET", "/v2/languages", b"", 501),
        ("GET", "/v2/nothing", b"", 404),
        ("GET", TRANSLATE, b"", 405),
    ):
        answer = client.request(method, path, content=body, headers=FORM)
        assert answer.status_code == status and set(answer.json()) == {"message"}, answer.text
    client = serve(max_ongoing=1)
    bug = client.post(TRANSLATE, json={"text": ["bug"], **DE})
    assert bug.status_code == 500 and set(bug.json()) == {"message"}
