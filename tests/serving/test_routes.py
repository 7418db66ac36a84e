"""The application: what its routes answer, and where they work."""

import asyncio
import json
import re
import threading
import time
import types
import urllib.parse

import pytest
from fakes import FakeTokenizer
from upper_case import Engine

from keras_transformer.errors import InputError
from keras_transformer.serving import libretranslate, protocol
from keras_transformer.serving.libretranslate import LibreTranslate
from keras_transformer.steps.glossary import Glossary

httpx = pytest.importorskip("httpx2", reason="comes with the extra [serve]")
pytestmark = pytest.mark.tensorflow

PREDICT, TRANSLATE = "/v1/models/toy:predict", "/translate"
FORM = {"content-type": "application/x-www-form-urlencoded"}


def with_client(app, talk):
    """What `talk(client)` returns, which awaits the answers of a client."""

    async def run():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await talk(client)

    return asyncio.run(run())


def ask(app, method, path, **more):
    """The answer to one request."""
    return with_client(app, lambda client: client.request(method, path, **more))


@pytest.mark.parametrize("path", [PREDICT, TRANSLATE, TRANSLATE + "?"])
@pytest.mark.parametrize(("letters", "source"), [(10, "en"), (5000, "en"), (10, "auto")])
def test_only_a_short_request_of_a_known_language_is_read_in_the_loop_of_all_clients(
    app_of, monkeypatch, path, letters, source
):
    readers = []
    identifier = types.SimpleNamespace(rank=lambda text: [("en", 1.0)])
    monkeypatch.setattr(libretranslate, "language_identifier", lambda purpose: identifier)

    def noting(function):
        def noted(*arguments):
            readers.append(threading.current_thread() is threading.main_thread())
            return function(*arguments)

        return noted

    for owner, name in ((protocol.Parser, "parse"), (LibreTranslate, "read")):
        monkeypatch.setattr(owner, name, noting(getattr(owner, name)))
    text = "a" * letters
    fields = {"q": text, "source": source, "target": "fr"}
    fields = {"instances": [text]} if path == PREDICT else fields
    sent = {"params": fields} if path.endswith("?") else {"json": fields}
    answer = ask(app_of(languages="en-fr"), "POST", path.removesuffix("?"), **sent)
    assert answer.status_code == 200 and "A" * letters in answer.text
    assert readers == [letters == 10 and (source == "en" or path == PREDICT)]


def test_blocks_of_html_are_counted_up_to_the_limit_and_no_further(app_of, monkeypatch):
    counted, count_blocks = [], protocol.count_blocks
    monkeypatch.setattr(
        protocol, "count_blocks", lambda text: counted.append(text) or count_blocks(text)
    )
    app, text = app_of(languages="en-fr", max_sentences=100), "<p>a" * 40
    body = {"markup": "html", "instances": [text] * 90}
    query = {"format": "html", "q": [text] * 90, "source": "en", "target": "fr"}
    for path, fields, status in ((PREDICT, body, 413), (TRANSLATE, query, 400)):
        answer = ask(app, "POST", path, json=fields)
        assert answer.status_code == status and "120" in answer.json()["error"]
        assert counted == [text] * 3  # 120 blocks are more than 100.
        counted.clear()


SENTENCES = " ".join(f"Dog {number} sees a cat." for number in range(300))
PARAGRAPH = "<p>" + "The dog sees a cat. " * 9 + "It sleeps!</p>\n<td>42</td>\n"
PAGE = "<html><body><b>Dogs</b> run.\n" + PARAGRAPH * 1000


def test_the_defaults_take_a_paragraph_a_page_and_a_list_of_texts(app_of):
    engine = Engine()
    app = app_of(engine, languages="en-fr")
    engine.calls.clear()  # of the warm-up
    texts = [f"Dog {number} sleeps.\r\n" for number in range(500)]

    async def talk(client):
        async def translate(text, **fields):
            fields = {"q": text, "source": "en", "target": "fr", **fields}
            answer = await client.post(TRANSLATE, json=fields)
            assert answer.status_code == 200, answer.text
            return answer.json()["translatedText"]

        assert await translate(SENTENCES) == SENTENCES.upper()
        assert sum(len(texts_of_call) for texts_of_call, _ in engine.calls) == 300
        assert await translate(texts) == [text.upper() for text in texts]
        return await translate(PAGE, format="html")

    assert len(PAGE) > 200_000
    page = with_client(app, talk)
    assert page.count("<td>42</td>") == page.count("IT SLEEPS!</p>") == PAGE.count("42")
    assert max(len(texts_of_call) for texts_of_call, _ in engine.calls) <= 32


def test_sentences_beyond_the_limit_are_refused_with_the_option_that_sets_it(app_of):
    app, text = app_of(languages="en-fr", max_sentences=299), SENTENCES
    fields = {"q": text, "source": "en", "target": "fr"}
    body = {"instances": [text], "split_sentences": True}

    async def talk(client):
        for path, content, status in ((PREDICT, body, 413), (TRANSLATE, fields, 400)):
            error = await client.post(path, json=content)
            assert error.status_code == status
            assert error.json()["error"].endswith(
                "299 sentences. Received: 300. The server's option `max_sentences` sets this limit."
            )
        assert (await client.post(PREDICT, json={"instances": [text]})).status_code == 200
        long = await client.post(PREDICT, content=b" " * (1 << 21))
        assert long.status_code == 413 and "`max_body_bytes`" in long.json()["error"]

    with_client(app, talk)


@pytest.mark.parametrize(("more", "status"), [(b"", 200), (b" ", 413)])
@pytest.mark.parametrize("path", [PREDICT, TRANSLATE])
def test_a_request_may_have_as_many_bytes_as_the_limit(app_of, path, more, status):
    fields = {"q": "a", "source": "en", "target": "fr"}
    fields = {"instances": ["a"]} if path == PREDICT else fields
    content = json.dumps(fields).encode().ljust(100) + more
    app = app_of(languages="en-fr", max_body_bytes=100)
    headers = {"content-type": "application/json"}
    assert ask(app, "POST", path, content=content, headers=headers).status_code == status


HEADERS = [({"host": host}, 200) for host in ("LOCALHOST:8501", "localhost.", "own.example:1")]
HEADERS += [({"host": host}, 200) for host in ("127.0.0.1:8501", "[::1]:8501", "192.0.2.1")]
HEADERS += [
    ({"host": host}, 403) for host in ("evil.example", "own.example.evil", "127.0.0.1.evil")
]
HEADERS += [({"host": host}, 403) for host in ("[evil", "evil@localhost.evil", "sub.own.example")]
PAGES = [({"origin": "http://localhost"}, 200), ({"origin": "http://localhost:1"}, 403)]
PAGES += [({"origin": "null"}, 403), ({"origin": "chrome-extension://abc"}, 200)]
PAGES += [({"sec-fetch-site": site}, 200) for site in ("same-origin", "none")]
PAGES += [({"sec-fetch-site": site}, 403) for site in ("same-site", "cross-site")]
PAGES += [({"sec-fetch-site": "cross-site", "origin": "http://localhost"}, 403)]
PAGES += [({"sec-fetch-site": "same-origin", "origin": "http://proxied.example"}, 200)]


@pytest.mark.parametrize(("headers", "status"), HEADERS + PAGES)
def test_a_page_of_another_site_can_send_nothing_and_read_nothing(app_of, headers, status):
    app, body = app_of(allowed_hosts="own.example"), {"instances": ["a"]}
    assert ask(app, "POST", PREDICT, json=body, headers=headers).status_code == status
    # Browsers keep an answer from pages of other sites, unless these have the server's name.
    read = ask(app, "GET", "/v1/models/toy", headers=headers)
    assert read.status_code == (status if "host" in headers else 200)


LETTER = "\ufeffTwo dogs.  A cat!\r\n\r\n12:30\r\n".encode()
FILES = {
    "letter.txt": (LETTER, "\ufeffTWO DOGS.  A CAT!\r\n\r\n12:30\r\n".encode()),
    "A page.HTML": (
        b"<!doctype html><title>Dogs</title><p><b>Two dogs.</b></p><script>a</script>",
        b"<!doctype html><title>DOGS</title><p><b>TWO DOGS.</b></p><script>a</script>",
    ),
}

FILES["Ноты.md"] = (b"# Two dogs.\n\n```\ncode\n```\n", b"# TWO DOGS.\n\n```\ncode\n```\n")
_TIMES = b"1\r\n00:00:01,000 --> 00:00:02,000\r\n%s\r\n"
FILES["film.srt"] = (_TIMES % b"Two dogs.", _TIMES % b"TWO DOGS.")
_TIMES = b"WEBVTT\n\n00:01.000 --> 00:02.000\n%s\n"
FILES["film.vtt"] = (_TIMES % b"Two dogs.", _TIMES % b"TWO DOGS.")


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_translated_and_fetched_as_from_libretranslate(app_of, name):
    content, expected = FILES[name]
    app = app_of(languages="en-fr")

    async def talk(client):
        settings = (await client.get("/frontend/settings")).json()
        assert settings["filesTranslation"] and {".txt", ".html"} < {
            *settings["supportedFilesFormat"]
        }
        fields = {"source": "en", "target": "fr", "api_key": ""}
        answer = await client.post("/translate_file", data=fields, files={"file": (name, content)})
        assert answer.status_code == 200, answer.text
        url = answer.json()["translatedFileUrl"]
        assert url.startswith("http://localhost/download_file/") and url.isascii()
        fetched = await client.get(url)
        stem, suffix = name.replace(" ", "_").lower().split(".")
        told = urllib.parse.unquote(fetched.headers["content-disposition"]).lower()
        assert told.replace('"', "").replace("*=utf-8''", "=") == (
            f"attachment; filename={stem}_fr.{suffix}"
        )
        assert (await client.get(url + "x")).status_code == 404
        same = {**fields, "source": "fr"}
        answer = await client.post("/translate_file", data=same, files={"file": (name, content)})
        assert (await client.get(answer.json()["translatedFileUrl"])).content == content
        proxied = {"x-forwarded-host": "example.org", "x-forwarded-proto": "https"}
        answer = await client.post(
            "/translate_file", data=fields, files={"file": (name, content)}, headers=proxied
        )
        assert answer.json()["translatedFileUrl"].startswith("https://example.org/download_file/")
        return fetched.content

    assert with_client(app, talk) == expected


FORWARDED = [({"proto": "https, http"}, "https://localhost/"), ({"proto": "HTTPS"}, "https://")]
FORWARDED += [
    ({"host": "a.org, b.org"}, "http://a.org/"),
    ({"host": "[::1]:80"}, "http://[::1]:80"),
]
FORWARDED += [({"host": "a.org:8443", "proto": "https,http"}, "https://a.org:8443/")]
FORWARDED += [
    ({"proto": wrong}, None) for wrong in ("javascript", "https:", ",https", "ht tp", " ")
]
FORWARDED += [({"host": wrong}, None) for wrong in ("a b", "a/b", "u@a", "[::1", "a:b", "?", ",a")]


@pytest.mark.parametrize(("headers", "expected"), FORWARDED)
def test_the_address_of_a_file_is_that_of_the_proxy_that_clients_see(app_of, headers, expected):
    headers = {f"x-forwarded-{name}": value for name, value in headers.items()}
    fields, files = {"q": "a", "source": "en", "target": "fr"}, {"file": ("a.txt", b"a")}
    app = app_of(languages="en-fr")
    answer = ask(app, "POST", "/translate_file", data=fields, files=files, headers=headers)
    if expected is None:
        assert answer.status_code == 400 and "X-Forwarded-" in answer.json()["error"]
    else:
        assert answer.json()["translatedFileUrl"].startswith(expected)


BAD_FILES = [({}, {}, 400, "empty file"), ({}, {"file": ("a.txt", b"")}, 400, "empty file")]
BAD_FILES += [({}, {"file": ("a.docx", b"a")}, 400, 'format not supported. Known: .txt.*".docx"')]
BAD_FILES += [({}, {"file": ("a.po", b"a")}, 400, 'format not supported.*".po"')]
BAD_FILES += [({}, {"file": ("a.srt", b"a")}, 400, "a.srt: expected lines with times")]
BAD_FILES += [({"target": "xx"}, {"file": ("a.txt", b"a")}, 400, "xx is not supported")]
BAD_FILES += [({}, {"file": ("a.txt", b"\xff\xfe\xfd")}, 400, "a.txt.*: ")]
BAD_FILES += [({}, {"file": ("a.txt", b"a" * 9000)}, 413, "`max_body_bytes`")]
BAD_FILES += [({}, {"file": ("a.txt", b"Two dogs. A cat. " * 20)}, 413, "`max_sentences`")]


@pytest.mark.parametrize(("fields", "files", "status", "says"), BAD_FILES)
def test_a_file_that_cannot_be_translated_is_one_line(app_of, fields, files, status, says):
    app = app_of(languages="en-fr", max_body_bytes=8000, max_sentences=30)
    fields = {"source": "en", "target": "fr", **fields}
    answer = ask(app, "POST", "/translate_file", data=fields, files=files or {"q": ("", b"a")})
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert re.search(says, error) and "\n" not in error


def test_without_the_folder_of_documents_files_are_501_and_settings_say_so(app_of, monkeypatch):
    def missing(name):
        raise InputError("This needs the folder keras_transformer/documents: install it.")

    monkeypatch.setattr(libretranslate, "load", missing)
    app = app_of(languages="en-fr")
    settings = ask(app, "GET", "/frontend/settings").json()
    assert (settings["filesTranslation"], settings["supportedFilesFormat"]) == (False, [])
    fields = {"source": "en", "target": "fr"}
    answer = ask(app, "POST", "/translate_file", data=fields, files={"file": ("a.txt", b"a")})
    assert answer.status_code == 501 and "keras_transformer/documents" in answer.json()["error"]


def test_a_model_without_alignments_translates_no_pages(app_of):
    engine = Engine()
    engine.capabilities = frozenset({"translate"})
    settings = ask(app_of(engine, languages="en-fr"), "GET", "/frontend/settings").json()
    assert {".txt", ".md", ".srt", ".vtt"} < {*settings["supportedFilesFormat"]}
    assert ".html" not in settings["supportedFilesFormat"]


def test_a_file_whose_time_is_over_leaves_no_sentences_behind(app_of):
    class Slow(Engine):
        def translate(self, texts, **options):
            time.sleep(0.05)
            return super().translate(texts, **options)

    engine = Slow()
    app = app_of(engine, languages="en-fr", request_timeout=0.4, max_batch_size=2, threads=1)
    content = "\n".join(f"Dog {number} sleeps." for number in range(400)).encode()
    fields = {"source": "en", "target": "fr"}

    async def talk(client):
        files = {"file": ("a.txt", content)}
        answer = await client.post("/translate_file", data=fields, files=files)
        assert answer.status_code == 504
        await asyncio.sleep(0.2)
        count = len(engine.calls)
        await asyncio.sleep(0.2)
        assert len(engine.calls) == count < 100
        other = await client.post(PREDICT, json={"instances": ["a"]})
        return other.status_code

    assert with_client(app, talk) == 200


def test_a_file_whose_time_is_over_submits_nothing_more(app_of, monkeypatch):
    has_ended, refused = threading.Event(), []

    def translated_file(self, request, translator):
        has_ended.wait(60)  # The request ends between two batches.
        try:
            translator.translate(["late"])
        except protocol.Rejection as error:
            refused.append(error.status)

    monkeypatch.setattr(LibreTranslate, "translated_file", translated_file)
    engine = Engine()
    app = app_of(engine, languages="en-fr", request_timeout=0.5)
    fields, files = {"source": "en", "target": "fr"}, {"file": ("a.txt", b"a")}

    async def talk(client):
        answer = await client.post("/translate_file", data=fields, files=files)
        has_ended.set()
        for _ in range(100):
            await asyncio.sleep(0 if refused else 0.05)
        return answer.status_code

    assert with_client(app, talk) == 504
    assert refused == [504] and ["late"] not in [texts for texts, _ in engine.calls]


def test_after_a_batch_has_hung_every_request_is_503_at_once(app_of):
    started, released = threading.Event(), threading.Event()

    class Hanging(Engine):
        def translate(self, texts, **options):
            if "hang" in texts:
                started.set()
                released.wait(60)
            return super().translate(texts, **options)

    app = app_of(Hanging(), languages="en-fr", batch_timeout=0.2, threads=1)
    fields = {"q": "a", "source": "en", "target": "fr"}

    async def talk(client):
        hanging = asyncio.create_task(client.post(PREDICT, json={"instances": ["hang"]}))
        while not started.is_set():
            await asyncio.sleep(0.01)
        # It waits for the only thread, which has hung.
        answers = [await client.post(PREDICT, json={"instances": ["a"]})]
        first = await hanging
        answers += [await client.get("/readyz")]
        answers += [await client.post(PREDICT, json={"instances": ["a"]})]
        answers += [await client.post(TRANSLATE, json=fields)]
        return first.status_code, [answer.status_code for answer in answers], answers[-1].json()

    try:
        first, others, error = with_client(app, talk)
    finally:
        released.set()
    assert (first, others) == (504, [503] * 4)
    assert error["error"].endswith("its process is replaced; send this again")


def test_a_file_whose_thread_does_not_end_is_told_by_readyz(app_of, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(LibreTranslate, "translated_file", lambda *arguments: released.wait(60))
    app = app_of(languages="en-fr", request_timeout=0.2, batch_timeout=0.3)
    fields, files = {"source": "en", "target": "fr"}, {"file": ("a.txt", b"a")}

    async def talk(client):
        first = await client.post("/translate_file", data=fields, files=files)
        before = await client.get("/readyz")
        for _ in range(100):
            await asyncio.sleep(0.05)
            if (ready := await client.get("/readyz")).status_code != 200:
                break
        return first.status_code, before.status_code, ready.status_code

    try:
        assert with_client(app, talk) == (504, 200, 503)
    finally:
        released.set()


def test_a_thread_that_ends_after_its_request_has_not_hung(app_of, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(LibreTranslate, "translated_file", lambda *arguments: released.wait(60))
    app = app_of(languages="en-fr", request_timeout=0.2, batch_timeout=60)
    fields, files = {"source": "en", "target": "fr"}, {"file": ("a.txt", b"a")}

    async def talk(client):
        answers = [await client.post("/translate_file", data=fields, files=files)]
        await asyncio.sleep(0.4)
        answers += [await client.get("/readyz")]
        released.set()
        await asyncio.sleep(0.2)
        return [answer.status_code for answer in (*answers, await client.get("/readyz"))]

    try:
        assert with_client(app, talk) == [504, 200, 200]
    finally:
        released.set()


def test_no_more_files_than_threads_are_translated_at_the_same_time(app_of, monkeypatch):
    running, counts = [], []

    def translated_file(self, request, translator):
        running.append(request)
        counts.append(len(running))
        time.sleep(0.05)
        running.remove(request)
        return b""

    monkeypatch.setattr(LibreTranslate, "translated_file", translated_file)
    app = app_of(languages="en-fr", threads=1)
    fields, files = {"source": "en", "target": "fr"}, {"file": ("a.txt", b"a")}

    async def talk(client):
        posts = (client.post("/translate_file", data=fields, files=files) for _ in range(4))
        return [answer.status_code for answer in await asyncio.gather(*posts)]

    assert with_client(app, talk) == [200] * 4
    assert counts == [1] * 4


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"Two dogs. A cat.\n" * 2000, 0),  # sentences
        (b"-\n" * 3001, 0),  # copied, without the model
        (b"Two dogs.\n" * 3000, 3000),
    ],
)
def test_texts_of_a_file_are_counted_before_the_first_is_translated(app_of, content, texts):
    engine = Engine()
    app = app_of(engine, languages="en-fr", max_sentences=3000)
    engine.calls.clear()  # of the warm-up
    fields, files = {"source": "en", "target": "fr"}, {"file": ("a.txt", content)}
    answer = ask(app, "POST", "/translate_file", data=fields, files=files)
    assert answer.status_code == (200 if texts else 413)
    assert sum(len(texts_of_call) for texts_of_call, _ in engine.calls) == texts


def test_the_language_of_a_file_is_that_of_its_text_in_its_encoding(app_of, monkeypatch):
    ranked: list[str] = []
    identifier = types.SimpleNamespace(rank=lambda text: ranked.append(text) or [("en", 1.0)])
    monkeypatch.setattr(libretranslate, "language_identifier", lambda purpose: identifier)
    page = '<meta charset=windows-1251><div class="the main article">Две собаки</div>'
    answer = ask(
        app_of(languages="en-ru"),
        *("POST", "/translate_file"),
        data={"source": "auto", "target": "ru"},
        files={"file": ("a.html", page.encode("cp1251"))},
    )
    assert answer.status_code == 200
    assert [text.split() for text in ranked] == [["Две", "собаки"]]


def test_a_batch_whose_requests_have_timed_out_stops_and_its_process_stays(app_of, monkeypatch):
    read, hundred = [], [f"text {number}" for number in range(100)]

    def find(self, text):
        time.sleep(0.02)
        read.append(text)
        return []

    monkeypatch.setattr(Glossary, "matches", find)
    options = {"request_timeout": 0.2, "batch_timeout": 1.5, "max_batch_size": 100, "threads": 1}
    app = app_of(Engine(terms=True), **options)

    async def talk(client):
        answer = await client.post(PREDICT, json={"instances": hundred, "glossary": {"a": "b"}})
        assert answer.status_code == 504 and "0.2 seconds" in answer.json()["error"]
        count = len(read)
        other = await client.post(PREDICT, json={"instances": ["a"]})
        assert len(read) <= count + 1 < 50  # All hundred would take two seconds.
        return other.status_code, (await client.get("/readyz")).status_code

    assert with_client(app, talk) == (200, 200)


def test_a_request_beyond_those_that_a_replica_holds_is_503_at_once_and_not_read(app_of):
    app, held = app_of(max_ongoing=2, batch_wait_ms=0), asyncio.Event()

    async def slow():
        yield b'{"instances": '
        await held.wait()
        yield b'["a"]}'

    async def talk(client):
        holding = [asyncio.create_task(client.post(PREDICT, content=slow())) for _ in range(2)]
        await asyncio.sleep(0.05)
        for path in (PREDICT, TRANSLATE, "/detect"):
            refused = await client.post(path, content=slow())
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert "holds 2 requests" in refused.json()["error"]
        ready = [
            (await client.get(path)).status_code for path in ("/readyz", "/healthz", "/health")
        ]
        held.set()
        answers = [answer.status_code for answer in await asyncio.gather(*holding)]
        return ready, answers, (await client.post(PREDICT, json={"instances": ["a"]})).status_code

    assert with_client(app, talk) == ([200] * 3, [200] * 2, 200)


@pytest.mark.parametrize("path", [PREDICT, TRANSLATE])
def test_the_time_of_a_request_begins_before_its_body(app_of, path):
    async def endless():
        yield b"{"
        await asyncio.sleep(60)

    started = time.monotonic()
    app = app_of(request_timeout=0.1, languages="en-fr")
    answer = ask(app, "POST", path, content=endless())
    assert answer.status_code == 504 and time.monotonic() - started < 10
    rule = "No answer within 0.1 seconds. The server's option `request_timeout` sets this limit."
    assert answer.json() == {"error": rule}


METHODS = [("GET", TRANSLATE, 405, "POST"), ("PUT", "/languages", 405, "GET, HEAD")]
METHODS += [("GET", PREDICT, 400, "POST"), ("DELETE", "/v1/models/toy", 400, "GET, HEAD")]
METHODS += [("GET", "/v1/models/toy/versions/1:predict", 400, "POST")]
METHODS += [("GET", "/v1/models/toy/labels/stable:predict", 400, "POST")]


@pytest.mark.parametrize(("method", "path", "status", "allowed"), METHODS)
def test_another_method_is_refused_with_those_that_are_allowed(
    app_of, method, path, status, allowed
):
    answer = ask(app_of(), method, path)
    allow = ", ".join(sorted(answer.headers["allow"].split(", ")))
    assert (answer.status_code, allow) == (status, allowed)
    assert "Malformed request" in answer.json()["error"]


VERSIONS = [("1", 200), ("001", 200), ("2", 404), ("0", 404), ("", 400), ("-1", 400), ("x", 400)]
VERSIONS += [("9" * 5000, 404), ("0" * 5000 + "1", 200), ("٣", 400), ("1.0", 400), ("1:x", 400)]


@pytest.mark.parametrize(("version", "status"), VERSIONS)
def test_a_version_is_a_number_of_any_length(app_of, version, status):
    answer = ask(app_of(), "GET", f"/v1/models/toy/versions/{version}")
    assert answer.status_code == status
    assert status == 200 or len(answer.text) < 200


def test_a_fault_of_the_server_is_json(app_of):
    answer = ask(app_of(), "POST", PREDICT, json={"instances": ["bug"]})
    assert answer.status_code == 500 and "log" in answer.json()["error"]


def test_a_text_of_250000_characters_without_a_sentence_end_delays_no_neighbour(app_of):
    read = []

    class Slow(Engine):
        max_source_length, source_tokenizer = 50, FakeTokenizer(tag_ids=(), vocabulary_size=0)

        def translate(self, texts, **options):
            lengths = [len(text.split()) + 1 for text in texts]  # with EOS
            assert max(lengths) <= 50
            words = sum(lengths) - len(texts)
            read.append(words)
            time.sleep(words / 20_000)  # The long text takes 2.5 seconds.
            return super().translate(texts, **options)

    app = app_of(Slow(), languages="en-fr", threads=1)
    text = "word " * 50_000
    fields = {"q": text, "source": "en", "target": "fr"}
    read.clear()

    async def talk(client):
        long = asyncio.create_task(client.post(TRANSLATE, json=fields))
        while sum(read) < 5_000 and not long.done():
            await asyncio.sleep(0.01)
        neighbour = await client.post(PREDICT, json={"instances": ["a"]})
        at = sum(read)
        return neighbour.status_code, at, (await long).json()["translatedText"]

    status, at, translation = with_client(app, talk)
    assert status == 200 and at < 15_000
    assert translation.split() == ["WORD"] * 50_000 and max(read) <= 32 * 50
