"""The application: what its routes answer, and where they work."""

import asyncio
import io
import json
import re
import threading
import time
import types
import urllib.parse
import zipfile

import pytest
from fakes import FakeTokenizer
from upper_case import Engine, ask, with_client

from keras_transformer.base.errors import InputError
from keras_transformer.engine.steps.glossary import Glossary
from keras_transformer.extras.serving import detection, endpoints, libretranslate, protocol
from keras_transformer.extras.serving.libretranslate import LibreTranslate

pytestmark = pytest.mark.tensorflow

PREDICT, TRANSLATE = "/v1/models/toy:predict", "/translate"
DIRECTION = {"source": "en", "target": "fr"}
A_FILE = {"data": DIRECTION, "files": {"file": ("a.txt", b"a")}}
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("path", [PREDICT, TRANSLATE, TRANSLATE + "?"])
@pytest.mark.parametrize(("letters", "source"), [(10, "en"), (5000, "en"), (10, "auto")])
def test_only_a_short_request_of_a_known_language_is_read_in_the_loop_of_all_clients(
    app_of, monkeypatch, path, letters, source
):
    readers = []
    identifier = types.SimpleNamespace(rank=lambda text: [("en", 1.0)])
    monkeypatch.setattr(detection, "language_identifier", lambda purpose: identifier)

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


def test_blocks_of_html_are_counted_up_to_the_limit_and_only_of_long_texts(app_of, monkeypatch):
    counted, count_blocks = [], endpoints.count_blocks
    monkeypatch.setattr(
        endpoints, "count_blocks", lambda text: counted.append(text) or count_blocks(text)
    )
    app, text = app_of(languages="en-fr", max_sentences=100), "<p>a" * 40
    body = {"markup": "html", "instances": [text] * 90}
    query = {"format": "html", "q": [text] * 90, "source": "en", "target": "fr"}
    for path, fields, status in ((PREDICT, body, 413), (TRANSLATE, query, 400)):
        answer = ask(app, "POST", path, json=fields)
        assert answer.status_code == status and "120" in answer.json()["error"]
        assert counted == [text] * 3  # 120 blocks are more than 100.
        counted.clear()
    body["instances"] = query["q"] = ["<p>a"]  # A text of four characters has at most three blocks.
    for path, fields in ((PREDICT, body), (TRANSLATE, query)):
        assert ask(app, "POST", path, json=fields).status_code == 200 and not counted


SENTENCES = " ".join(f"Dog {number} sees a cat." for number in range(300))
PARAGRAPH = "<p>" + "The dog sees a cat. " * 9 + "It sleeps!</p>\n<td>42</td>\n"
PAGE = "<html><body><b>Dogs</b> run.\n" + PARAGRAPH * 1000


def test_the_defaults_take_a_paragraph_a_page_and_a_list_of_texts(app_of):
    engine = Engine()
    app = app_of(engine, languages="en-fr")
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


HEADERS = [
    ({"host": host}, status)
    for status, hosts in {
        200: "LOCALHOST:8501 localhost. own.example:1 127.0.0.1:8501 [::1]:8501 192.0.2.1",
        403: "evil.example own.example.evil 127.0.0.1.evil [evil evil@localhost.evil a.own.example",
    }.items()
    for host in hosts.split()
]
PAGES = [({"origin": "http://localhost"}, 200), ({"origin": "http://localhost:1"}, 403)]
PAGES += [({"origin": "null"}, 403), ({"origin": "chrome-extension://abc"}, 200)]
PAGES += [({"sec-fetch-site": site}, 200) for site in ("same-origin", "none")]
PAGES += [({"sec-fetch-site": site}, 403) for site in ("same-site", "cross-site")]
PAGES += [({"sec-fetch-site": "cross-site", "origin": "http://localhost"}, 403)]
PAGES += [({"sec-fetch-site": "same-origin", "origin": "http://proxied.example"}, 200)]


@pytest.mark.parametrize(("headers", "status"), HEADERS + PAGES)
def test_a_page_of_another_site_can_send_nothing_and_read_nothing(one_app, headers, status):
    app, body = one_app(allowed_hosts="own.example"), {"instances": ["a"]}
    assert ask(app, "POST", PREDICT, json=body, headers=headers).status_code == status
    # Browsers keep an answer from pages of other sites, unless these have the server's name.
    read = ask(app, "GET", "/v1/models/toy", headers=headers)
    assert read.status_code == (status if "host" in headers else 200)


TIMES = b"1\r\n00:00:01,000 --> 00:00:02,000\r\n%s\r\n"
FILES = {
    "letter.txt": (b"\xef\xbb\xbf%s  A cat!\r\n\r\n12:30\r\n", "letter_fr.txt"),
    "A page.HTML": (b"<!doctype html><p><b>%s</b></p><script>a</script>", "a_page_fr.html"),
    "Ноты.md": (b"# %s\n\n```\ncode\n```\n", "ноты_fr.md"),
    "film.srt": (TIMES, "film_fr.srt"),
    "film.vtt": (b"WEBVTT\n\n00:01.000 --> 00:02.000\n%s\n", "film_fr.vtt"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_translated_and_fetched_as_from_libretranslate(one_app, name):
    (form, translated_name), app = FILES[name], one_app(languages="en-fr")
    content, expected = form % b"Two dogs.", (form % b"TWO DOGS.").replace(b"A cat", b"A CAT")

    async def talk(client):
        async def translated(source, **options):
            fields = {"source": source, "target": "fr", "api_key": ""}
            files = {"file": (name, content)}
            answer = await client.post("/translate_file", data=fields, files=files, **options)
            assert answer.status_code == 200, answer.text
            return answer.json()["translatedFileUrl"]

        url = await translated("en")
        assert url.startswith("http://localhost/download_file/") and url.isascii()
        fetched = await client.get(url)
        assert fetched.content == expected
        assert fetched.headers["content-type"] == "application/octet-stream"
        assert fetched.headers["x-content-type-options"] == "nosniff"
        told = urllib.parse.unquote(fetched.headers["content-disposition"]).lower()
        told = told.replace('"', "").replace("*=utf-8''", "=")
        assert told == f"attachment; filename={translated_name}"
        assert (await client.get(url + "x")).status_code == 404
        # A text in the target language stays.
        assert (await client.get(await translated("fr"))).content == content

    with_client(app, talk)


def book(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        package = '<rootfile full-path="a.opf" media-type="application/oebps-package+xml"/>'
        archive.writestr("META-INF/container.xml", package)
        archive.writestr("a.opf", '<item href="a" media-type="application/xhtml+xml"/>')
        archive.writestr("a", text)
    return file.getvalue()


def test_a_book_is_translated_and_fetched_unless_its_text_is_larger_than_a_request(one_app):
    app = one_app(languages="en-fr", max_body_bytes=8000)

    async def talk(client):
        files = {"file": ("a.epub", book("<p><b>Two dogs.</b></p>"))}
        answer = await client.post("/translate_file", data=DIRECTION, files=files)
        fetched = await client.get(answer.json()["translatedFileUrl"])
        with zipfile.ZipFile(io.BytesIO(fetched.content)) as archive:
            assert archive.read("a") == b"<p><b>TWO DOGS.</b></p>"
        files = {"file": ("a.epub", book("<p>Two dogs</p>" * 600))}
        refused = await client.post("/translate_file", data=DIRECTION, files=files)
        assert refused.status_code == 400 and "`max_body_bytes`" in refused.json()["error"]

    with_client(app, talk)


FORWARDED = [
    ({"proto": "https, http"}, "https://localhost/"),
    ({"proto": "HTTPS"}, "https://"),
    ({"host": "a.org, b.org"}, "http://a.org/"),
    ({"host": "[::1]:80"}, "http://[::1]:80"),
    ({"host": "a.org:8443", "proto": "https,http"}, "https://a.org:8443/"),
    *(({"proto": wrong}, None) for wrong in ("javascript", "https:", ",https", "ht tp", " ")),
    *(({"host": wrong}, None) for wrong in ("a b", "a/b", "u@a", "[::1", "a:b", "?", ",a")),
]


@pytest.mark.parametrize(("headers", "expected"), FORWARDED)
def test_the_address_of_a_file_is_that_of_the_proxy_that_clients_see(one_app, headers, expected):
    headers = {f"x-forwarded-{name}": value for name, value in headers.items()}
    app = one_app(languages="en-fr")
    answer = ask(app, "POST", "/translate_file", **A_FILE, headers=headers)
    if expected is None:
        assert answer.status_code == 400 and "X-Forwarded-" in answer.json()["error"]
    else:
        assert answer.json()["translatedFileUrl"].startswith(expected)


LIMITS = {"languages": "en-fr", "max_body_bytes": 8000, "max_sentences": 30}
LIMITS |= {"max_text_characters": 2000}


async def chunks():
    for _ in range(9):
        yield b"a" * 1000


# Method and path, what is sent, status, what the answer says.
ANSWERS = [
    ("GET /healthz", {}, 200, "^ok\n$"),
    ("HEAD /", {}, 200, "^$"),
    ("GET /nothing", {}, 404, ""),
]
ANSWERS += [(f"GET {PREDICT}", {}, 400, "Malformed"), ("POST /v1/models/toy:classify", {}, 400, "")]
ANSWERS += [("GET /v2/nothing", {}, 404, ""), ("GET /v2/translate", {}, 405, "")]
ANSWERS += [("GET /v1/models/other", {}, 404, r"Latest.*other.*This server has `toy`")]
PLACES = ("versions/7", "labels/new")
ANSWERS += [(f"POST /v1/models/toy/{place}:predict", {}, 404, "") for place in PLACES]
ANSWERS += [
    (f"GET /v1/models/toy/versions/{version}", {}, status, "^.{,200}$")
    for status, numbers in {
        200: ("1", "001", "0" * 5000 + "1"),
        404: ("2", "0", "9" * 5000),
        400: ("", "-1", "x", "٣", "1.0", "1:x"),
    }.items()
    for version in numbers
]
ANSWERS += [(f"POST {PREDICT}", {"json": {"instances": ["bug"]}}, 500, "log")]
DEEPL = {"text": ["bug"], "target_lang": "FR"}
ANSWERS += [("POST /v2/translate", {"json": DEEPL}, 500, "log")]
ANSWERS += [
    (f"POST /v2/{name}", {"content": b"a" * 8001}, 413, "") for name in ("translate", "document")
]
ASKED = {PREDICT: {"inputs": ["a"]}, TRANSLATE: {"q": "a", **DIRECTION}}
KINDS = [(PREDICT, "text/plain", 0, 415), (PREDICT, FORM["content-type"], 0, 200)]
KINDS += [(TRANSLATE, kind, 0, 400) for kind in ("text/plain", FORM["content-type"])]
SIZES = [(8000, 200), (8001, 413)]
KINDS += [(path, "application/json", *size) for path in ASKED for size in SIZES]
for path, kind, size, status in KINDS:
    content = {"content": json.dumps(ASKED[path]).ljust(size), "headers": {"content-type": kind}}
    ANSWERS += [(f"POST {path}", content, status, "")]
for path, name, status in ((PREDICT, "inputs", 413), (TRANSLATE, "q", 400)):
    ANSWERS += [(f"POST {path}", {"content": chunks()}, 413, "8000")]
    for texts, says in ((["a"] * 31, "30"), (["a" * 2001], "2000")):
        ANSWERS += [(f"POST {path}", {"json": {**ASKED[path], name: texts}}, status, says)]
ANSWERS += [
    ("POST /translate_file", {"data": {**DIRECTION, **fields}, "files": files}, status, says)
    for fields, files, status, says in (
        ({}, {"q": ("", b"a")}, 400, "empty file"),
        ({}, {"file": ("a.txt", b"")}, 400, "empty file"),
        ({}, {"file": ("a.docx", b"a")}, 400, r"format not supported. Known: .txt.*\.docx"),
        ({}, {"file": ("a.po", b"a")}, 400, r"format not supported.*\.po"),
        ({}, {"file": ("a.srt", b"a")}, 400, "a.srt: expected lines with times"),
        ({"target": "xx"}, {"file": ("a.txt", b"a")}, 400, "xx is not supported"),
        ({}, {"file": ("a.txt", b"\xff\xfe\xfd")}, 400, "a.txt.*: "),
        ({}, {"file": ("a.txt", b"a" * 9000)}, 413, "`max_body_bytes`"),
        ({}, {"file": ("a.txt", b"Two dogs. A cat. " * 20)}, 413, "`max_sentences`"),
    )
]


@pytest.mark.parametrize(("asked", "sent", "status", "says"), ANSWERS)
def test_a_request_is_answered_with_its_status_and_a_line(one_app, asked, sent, status, says):
    answer = ask(one_app(**LIMITS), *asked.split(" "), **sent)
    assert answer.status_code == status and re.search(says, answer.text), answer.text
    if status >= 400:
        ((name, message),) = answer.json().items()
        assert "\n" not in message and name == ("message" if " /v2/" in asked else "error")


def test_without_the_folder_of_documents_files_are_501_and_settings_say_so(app_of, monkeypatch):
    def missing(name):
        raise InputError("This needs the folder keras_transformer/extras/documents: install it.")

    monkeypatch.setattr(libretranslate, "check_folder", missing)
    app = app_of(languages="en-fr")
    settings = ask(app, "GET", "/frontend/settings").json()
    assert (settings["filesTranslation"], settings["supportedFilesFormat"]) == (False, [])
    answer = ask(app, "POST", "/translate_file", **A_FILE)
    assert answer.status_code == 501 and "/extras/documents" in answer.json()["error"]


@pytest.mark.parametrize("can_align", [True, False])
def test_only_a_model_with_alignments_translates_pages(app_of, can_align):
    engine = Engine()
    engine.capabilities = frozenset({"translate", *["align"] * can_align})
    settings = ask(app_of(engine, languages="en-fr"), "GET", "/frontend/settings").json()
    assert {".txt", ".md", ".srt", ".vtt"} < {*settings["supportedFilesFormat"]}
    assert settings["filesTranslation"] is True
    assert (".html" in settings["supportedFilesFormat"]) == can_align


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
        except endpoints.Rejection as error:
            refused.append(error.status)

    monkeypatch.setattr(LibreTranslate, "translated_file", translated_file)
    engine = Engine()
    app = app_of(engine, languages="en-fr", request_timeout=0.5)

    async def talk(client):
        answer = await client.post("/translate_file", **A_FILE)
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


@pytest.mark.parametrize(("batch_timeout", "status"), [(0.3, 503), (60, 200)])
def test_a_thread_that_does_not_end_soon_after_its_request_is_told_by_readyz(
    app_of, monkeypatch, batch_timeout, status
):
    released = threading.Event()
    monkeypatch.setattr(LibreTranslate, "translated_file", lambda *arguments: released.wait(60))
    app = app_of(languages="en-fr", request_timeout=0.2, batch_timeout=batch_timeout)

    async def talk(client):
        answers = [await client.post("/translate_file", **A_FILE), await client.get("/readyz")]
        for _ in range(8 if status == 200 else 100):
            await asyncio.sleep(0.05)
            if (await client.get("/readyz")).status_code != 200:
                break
        answers += [await client.get("/readyz")]
        released.set()
        await asyncio.sleep(0.2)
        return [answer.status_code for answer in (*answers, await client.get("/readyz"))]

    try:
        assert with_client(app, talk) == [504, 200, status, status]
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

    async def talk(client):
        posts = (client.post("/translate_file", **A_FILE) for _ in range(4))
        return [answer.status_code for answer in await asyncio.gather(*posts)]

    assert with_client(app, talk) == [200] * 4
    assert counts == [1] * 4


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"Two dogs. A cat.\n" * 200, 0),  # sentences
        (b"-\n" * 301, 0),  # copied, without the model
        (b"Two dogs.\n" * 300, 300),
    ],
)
def test_texts_of_a_file_are_counted_before_the_first_is_translated(app_of, content, texts):
    engine = Engine()
    app = app_of(engine, languages="en-fr", max_sentences=300)
    fields, files = {"source": "en", "target": "fr"}, {"file": ("a.txt", content)}
    answer = ask(app, "POST", "/translate_file", data=fields, files=files)
    assert answer.status_code == (200 if texts else 413)
    assert sum(len(texts_of_call) for texts_of_call, _ in engine.calls) == texts


def test_the_language_of_a_file_is_that_of_its_text_in_its_encoding(app_of, monkeypatch):
    ranked: list[str] = []
    identifier = types.SimpleNamespace(rank=lambda text: ranked.append(text) or [("en", 1.0)])
    monkeypatch.setattr(detection, "language_identifier", lambda purpose: identifier)
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
        await asyncio.sleep(0.2)
        assert len(read) <= count + 1 < 50  # All hundred would take two seconds.
        return other.status_code, (await client.get("/readyz")).status_code

    assert with_client(app, talk) == (200, 200)


HELD = [PREDICT, TRANSLATE, "/detect", "/translate_file"]
HELD += [
    "/v2/translate",
    "/v2/languages",
    "/v2/document",
    "/v2/document/A",
    "/v2/document/A/result",
]


def test_a_request_beyond_those_that_a_replica_holds_is_503_at_once_and_not_read(app_of):
    app, held = app_of(max_ongoing=2, batch_wait_ms=0), asyncio.Event()

    async def slow():
        yield b'{"instances": '
        await held.wait()
        yield b'["a"]}'

    async def talk(client):
        holding = [asyncio.create_task(client.post(PREDICT, content=slow())) for _ in range(2)]
        await asyncio.sleep(0.05)
        for path in HELD:
            refused = await asyncio.wait_for(client.post(path, content=slow()), 5)
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert "holds 2 requests" in "".join(refused.json().values())
        ready = [
            (await client.get(path)).status_code for path in ("/readyz", "/healthz", "/v2/usage")
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
METHODS += [("DELETE", "/v1/models/toy", 400, "GET, HEAD")]
MODELS = ("toy", "toy/versions/1", "toy/labels/stable")
METHODS += [("GET", f"/v1/models/{model}:predict", 400, "POST") for model in MODELS]


@pytest.mark.parametrize(("method", "path", "status", "allowed"), METHODS)
def test_another_method_is_refused_with_those_that_are_allowed(
    one_app, method, path, status, allowed
):
    answer = ask(one_app(**LIMITS), method, path)
    allow = ", ".join(sorted(answer.headers["allow"].split(", ")))
    assert (answer.status_code, allow) == (status, allowed)
    assert "Malformed request" in answer.json()["error"]


def test_no_text_of_a_client_is_a_label_of_the_metrics(app_of):
    sent = [("GET", "/v1/models/mine"), ("GET", "/v1/models/toy/labels/mine"), ("GET", "/mine")]
    sent += [("GET", "/download_file/mine"), ("POST", "/v2/document/mine"), ("MINE", "/translate")]
    sent += [("POST", "/translate?q=a&source=mine&target=fr"), ("GET", "/v2/languages?type=mine")]

    async def talk(client):
        for method, path in sent:
            assert (await client.request(method, path)).status_code >= 400
        unknown = {"signature_name": "mine", "instances": ["a"], "tag": "mine"}
        assert (await client.post(PREDICT, json=unknown)).status_code == 400
        return (await client.get("/metrics")).text

    metrics = with_client(app_of(languages="en-fr"), talk)
    assert 'route="/v2/document/{id}"' in metrics and "mine" not in metrics


def test_the_page_shows_the_name_of_the_model_as_text_and_loads_nothing(app_of):
    answer = ask(app_of(name="<script>alert(1)"), "GET", "/")
    assert "alert(1)" in answer.text and "<script>alert" not in answer.text
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[:2] == ["default-src 'none'", "connect-src 'self'"]


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
