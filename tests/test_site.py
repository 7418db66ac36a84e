"""The built site in a real browser; .ci/run builds it first. Elsewhere these tests are skipped."""

import functools
import http.server
import json
import pathlib
import threading

import pytest
from browser import find_chromium

SITE = pathlib.Path(__file__).parents[1] / "docs" / "_build"

DATES = {
    "Freitag, 20. November 2026": "2026-11-20",
    "20 novembre 2025": "2025-11-20",
    "Friday, May 1, 1998": "1998-05-01",
    "3 August 1983": "1983-08-03",
    "14 luglio 2035": "2035-07-14",
}

pytestmark = [
    pytest.mark.skipif(
        not (SITE / "index.html").exists(), reason="needs the site: see docs/conf.py"
    ),
    pytest.mark.skipif(find_chromium() is None, reason="needs Chromium: apt-get install chromium"),
]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=SITE)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(not (SITE / "translator").is_dir(), reason="needs npm while the site is built")
def test_the_translator_on_the_first_page_reads_dates(browser, address):
    browser.open(address + "index.html")
    inside = "document.querySelector('#translator').contentDocument.querySelector"

    def text(selector):
        shown = f"(() => {{ try {{ return {inside}({json.dumps(selector)}).innerText }}"
        return browser.evaluate(shown + " catch { return '' } })()")

    browser.wait(lambda: text("#status") == "Ready.")
    given = json.dumps("\n".join(DATES))
    browser.evaluate(f"{inside}('#source').value = {given}")
    browser.evaluate(f"{inside}('#source').dispatchEvent(new Event('input'))")
    browser.wait(lambda: text("#status").endswith(" ms"))  # It says how long it took.
    # A model of some minutes' training may miss one.
    right = set(text("#translation").split()) & set(DATES.values())
    assert len(right) >= len(DATES) - 2, text("#translation")


@pytest.mark.skipif(
    not (SITE / "tutorials" / "see_inside.html").exists(), reason="needs that tutorial"
)
def test_the_attention_page_inside_a_tutorial_is_alive(browser, address):
    browser.open(address + "tutorials/see_inside.html")
    drawn = """(() => {
        const frame = document.querySelector("iframe[title=attention]");
        return frame?.contentDocument?.querySelectorAll("#grid canvas").length ?? 0;
    })()"""
    browser.wait(lambda: browser.evaluate(drawn) > 0, seconds=30)


def test_no_page_leaves_the_site_for_what_it_needs_and_none_is_wider_than_a_phone(browser, address):
    pages = sorted(SITE.rglob("*.html"))
    pages = [p for p in pages if not {"_static", "translator"} & set(p.relative_to(SITE).parts)]
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    for page in pages:
        browser.open(address + page.relative_to(SITE).as_posix())
        loaded = browser.evaluate(
            "JSON.stringify(performance.getEntriesByType('resource').map((each) => each.name))"
        )
        assert [each for each in json.loads(loaded) if not each.startswith(address)] == [], page
        width = browser.evaluate("document.documentElement.scrollWidth")
        assert width <= 400, (page, width)
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_every_tutorial_is_a_notebook_too():
    written = sorted((SITE / "notebooks").glob("*.ipynb"))
    tutorials = sorted((SITE.parent / "tutorials").glob("*.md"))
    assert [each.stem for each in written] == [each.stem for each in tutorials]
    for each in written:
        notebook = json.loads(each.read_text(encoding="utf-8"))
        kinds = [cell["cell_type"] for cell in notebook["cells"]]
        assert notebook["nbformat"] == 4 and notebook["metadata"]["kernelspec"]["name"] == "python3"
        assert "%pip install" in "".join(notebook["cells"][0]["source"])
        assert kinds.count("code") > 5 and "markdown" in kinds
