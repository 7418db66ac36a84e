"""The application without Ray: what its routes answer, and where they work."""

import asyncio
import threading
import time

import pytest
from upper_case import Engine

from keras_transformer.serving import protocol
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


@pytest.mark.parametrize("path", [PREDICT, TRANSLATE])
@pytest.mark.parametrize(("letters", "is_short"), [(10, True), (5000, False)])
def test_only_a_short_request_is_read_and_answered_in_the_loop_of_all_clients(
    app_of, monkeypatch, path, letters, is_short
):
    readers = []

    def noting(function):
        def noted(*arguments):
            readers.append(threading.current_thread() is threading.main_thread())
            return function(*arguments)

        return noted

    for owner, name in ((protocol.Parser, "parse"), (LibreTranslate, "read")):
        monkeypatch.setattr(owner, name, noting(getattr(owner, name)))
    text = "a" * letters
    fields = {"q": text, "source": "en", "target": "fr"}
    fields = fields if path == TRANSLATE else {"instances": [text]}
    answer = ask(app_of(languages="en-fr"), "POST", path, json=fields)
    assert answer.status_code == 200 and "A" * letters in answer.text
    assert readers == [is_short]


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
