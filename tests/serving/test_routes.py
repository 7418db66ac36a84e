"""The application without Ray: what its routes answer, and where they work."""

import asyncio
import threading

import pytest

from keras_transformer.serving import protocol
from keras_transformer.serving.libretranslate import LibreTranslate

httpx = pytest.importorskip("httpx2", reason="comes with the extra [serve]")
pytestmark = pytest.mark.tensorflow

PREDICT, TRANSLATE = "/v1/models/toy:predict", "/translate"
FORM = {"content-type": "application/x-www-form-urlencoded"}


def ask(app, *requests):
    """The answers to requests at the same time: a path and arguments of httpx each."""

    async def answers():
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(
                *(client.request(method, path, **more) for method, path, more in requests)
            )

    return asyncio.run(answers())


def post(path, fields, **more):
    return "POST", path, {"json": fields, **more}


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
    (answer,) = ask(app_of(languages="en-fr"), post(path, fields))
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
        (answer,) = ask(app, post(path, fields))
        assert answer.status_code == status and "120" in answer.json()["error"]
        assert counted == [text] * 3  # 120 blocks are more than 100.
        counted.clear()
