"""DeepL's API: what its official client reads, parameters, languages, documents, errors."""

import contextlib
import io
import threading
import types
from unittest import mock

import pytest
from live_server import wait_for
from upper_case import Engine, application_of

from keras_transformer.extras.serving import detection
from keras_transformer.extras.serving.translated_files import Documents, TranslatedFiles
from keras_transformer.text.languages import Languages

deepl = pytest.importorskip("deepl", reason="comes with the extra [test]")
requests = pytest.importorskip("requests", reason="comes with the extra [test]")
testclient = pytest.importorskip("starlette.testclient", reason="comes with the extra [serve]")
pytestmark = pytest.mark.tensorflow

URL = "http://localhost"
TRANSLATE, DOCUMENT = "/v2/translate", "/v2/document"
DE = {"target_lang": "DE"}


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """`serve(**options)`: a client of an application, which tests share; its engine writes upper
    case, and English is what it detects."""
    folder, clients = tmp_path_factory.mktemp("models") / "toy", {}
    identifier = types.SimpleNamespace(rank=lambda text: [("en", 0.9), ("de", 0.1)])
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(detection, "language_identifier", lambda purpose: identifier)

        def serve(engine=None, **options):
            key = engine, tuple(options.items())
            if key not in clients:
                app = application_of(folder, engine, **{"languages": "en-de", **options})
                client = testclient.TestClient(app, URL, raise_server_exceptions=False)
                clients[key] = stack.enter_context(client)
            clients[key].app.state.engine.calls = []
            return clients[key]

        yield serve


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
    translator = deepl.DeepLClient("any key", server_url=URL)
    translator._client._session.mount(URL, _Adapter(client))
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
    wait_for(lambda: translator.translate_document_get_status(handle).done, 20)
    output = io.BytesIO()
    translator.translate_document_download(handle, output)
    assert output.getvalue() == b"# TWO DOGS.\r\n\r\n```\ncode\n```\n"
    fetched = client.post(f"{path}/result", data=key).headers
    assert fetched["content-type"] == "application/octet-stream"
    assert fetched["x-content-type-options"] == "nosniff"
    # The id alone, which logs may have, opens nothing.
    for wrong in ({}, {"document_key": handle.document_id}, {"document_key": "ü"}):
        for answer in (client.post(path, json=wrong), client.post(f"{path}/result", data=wrong)):
            assert answer.status_code == 404 and answer.json()["message"]
    for unknown in ("A" * 32, "é"):
        assert client.post(f"{DOCUMENT}/{unknown}", data=key).status_code == 404


@pytest.mark.parametrize("engine_says", ["bad", "bug", "full"])
def test_a_document_that_cannot_be_translated_is_an_error_of_one_line(
    serve, monkeypatch, engine_says
):
    if engine_says == "full":  # The disk is, when the translation is kept.
        monkeypatch.setattr(Documents, "end", mock.Mock(side_effect=OSError(28, "No space left")))
    client = serve()
    translator = official(client)
    handle = translator.translate_document_upload(engine_says, filename="a.txt", target_lang="DE")
    wait_for(lambda: not translator.translate_document_get_status(handle).ok, 20)
    status = translator.translate_document_get_status(handle)
    expected = {"bad": "More."}.get(engine_says, "log")
    assert expected in status.error_message and "\n" not in status.error_message
    assert client.post(TRANSLATE, json={"text": ["a"], **DE}).status_code == 200
    with pytest.raises(deepl.DeepLException, match="Bad request"):
        translator.translate_document_download(handle, io.BytesIO())


def test_a_document_whose_process_has_ended_is_an_error(tmp_path):
    files = TranslatedFiles(tmp_path)
    begun = Documents(files, 60).begin()
    for seconds, status in ((60, "translating"), (-1, "error")):
        documents = Documents(files, seconds)
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
    client = serve()
    answer = client.post(TRANSLATE, json={"text": [LINES], **DE, **fields})
    assert {text for texts, _ in client.app.state.engine.calls for text in texts} == sentences
    if text is not None:
        assert answer.json()["translations"][0]["text"] == text.upper()


NOT = "Value for '%s' not supported."
FORMALITY = "'formality' is not supported for given 'target_lang'."
REFUSED = [
    *(("target_lang", code, NOT) for code in ("xx", "", None, 5, "EN", "auto")),
    *(("source_lang", code, NOT) for code in ("xx", 5)),
    *(("text", empty, "Parameter '%s' not specified") for empty in ([], "", None)),
    *(("text", wrong, NOT) for wrong in (5, ["a", 5], {"a": 1})),
    *[("text", ["a"] * 6, "`max_sentences`"), ("text", ["a" * 41], "`max_text_char")],
    *[("tag_handling", "rtf", NOT), ("split_sentences", "2", NOT), ("ignore_tags", [5], NOT)],
    *[("formality", "more", FORMALITY), ("formality", "less", FORMALITY), ("formality", "x", NOT)],
    *((name, "x", NOT) for name in ("glossary_id", "style_id", "glossary_ids")),
    ("custom_instructions", ["Rhyme."], NOT),
]
OF_TEXTS = ("text", "tag_handling", "split_sentences", "ignore_tags")


@pytest.mark.parametrize(("name", "value", "says"), REFUSED)
def test_what_is_not_there_is_400_with_deepls_message(serve, name, value, says):
    client, says = serve(max_sentences=5, max_text_characters=40), says.replace("%s", name)
    fields = {"text": ["a"], **DE, "tag_handling": "html", name: value}
    answers = [client.post(TRANSLATE, json=fields)]
    if name not in OF_TEXTS:  # A form has no null.
        form = {**DE, name: "" if value is None else value}
        answers += [client.post(DOCUMENT, data=form, files={"file": ("a.txt", b"a")})]
    for answer in answers:
        assert answer.status_code == 400, answer.text
        ((key, message),) = answer.json().items()
        assert key == "message" and says in message and "\n" not in message


DOCUMENTS = [({}, None, "Invalid file data."), ({}, ("a.docx", b"a"), ".txt")]
DOCUMENTS += [({"output_format": "pdf"}, ("a.txt", b"a"), NOT % "output_format")]
DOCUMENTS += [({"filename": "a.odt"}, ("a.txt", b"a"), '".odt"')]
DOCUMENTS += [({}, ("a.txt", b"\xff\xfe\xfd"), "a.txt"), ({}, ("a.txt", b""), "empty file")]
# A document may be named by a parameter.
DOCUMENTS += [({"filename": "a.txt", "output_format": "TXT"}, ("blob", b"a"), None)]


@pytest.mark.parametrize(("fields", "file", "says"), DOCUMENTS)
def test_a_document_of_another_kind_is_400(serve, fields, file, says):
    sent = {"data": {**DE, **fields}} | ({"files": {"file": file}} if file else {})
    answer = serve().post(DOCUMENT, **sent)
    assert answer.status_code == (400 if says else 200)
    assert says in answer.json()["message"] if says else "document_key" in answer.json()


LANGUAGES = Languages(
    directions=(("en", "zh"), ("en-GB", "de"), ("zh", "en"), ("zh-Hant", "en"), ("en", "sr-Latn"))
)


def test_languages_are_deepls_codes(serve):
    engine = Engine()
    engine.languages = LANGUAGES
    client = serve(engine, languages=None)

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


def test_without_known_languages_every_request_is_501(serve):
    client = serve(languages=None)
    answers = [client.post(TRANSLATE, json={"text": ["a"], **DE}), client.get("/v2/languages")]
    for answer in answers:
        assert answer.status_code == 501 and set(answer.json()) == {"message"}
