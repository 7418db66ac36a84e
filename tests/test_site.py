"""The built site in a real browser; .ci/run builds it first. Elsewhere these tests are skipped."""

import json
import pathlib

import pytest
from browser import Static, find_chromium

SITE = pathlib.Path(__file__).parents[1] / "docs" / "_build"

DATES = {"20 novembre 2025": "2025-11-20", "3 August 1983": "1983-08-03"}
DATES |= {"Friday, May 1, 1998": "1998-05-01", "14 luglio 2035": "2035-07-14"}

pytestmark = [
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="needs the site: docs/conf.py"),
    pytest.mark.skipif(find_chromium() is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def address():
    server = Static(SITE)
    yield server.url
    server.stop()


@pytest.mark.skipif(not (SITE / "translator").is_dir(), reason="needs npm while the site is built")
def test_the_translator_on_the_first_page_reads_dates(browser, address):
    browser.open(address + "index.html")
    inside = "document.querySelector('#translator').contentDocument.querySelector"

    def text(selector):
        shown = f"(() => {{ try {{ return {inside}({json.dumps(selector)}).innerText }}"
        return browser.evaluate(shown + " catch { return '' } })()")

    browser.wait(lambda: text("#status") == "Ready.")
    source = json.dumps("\n".join(DATES))
    browser.evaluate(f"{inside}('#source').value = {source}")
    browser.evaluate(f"{inside}('#source').dispatchEvent(new Event('input'))")
    browser.wait(lambda: text("#status").endswith(" ms"))  # It says how long it took.
    # A model of some minutes' training may miss some.
    right = set(text("#translation").split()) & set(DATES.values())
    assert len(right) >= len(DATES) - 2, text("#translation")


@pytest.mark.skipif(
    not (SITE / "tutorials" / "see_inside.html").exists(),
    reason="needs the site's tutorials",
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
    others = {"_static", "_downloads", "translator"}  # Not the site's own pages.
    pages = [p for p in pages if not others & set(p.relative_to(SITE).parts)]
    sizes = dict(width=390, height=800, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setDeviceMetricsOverride", **sizes)
    for page in pages:
        browser.open(address + page.relative_to(SITE).as_posix())
        loaded = browser.evaluate(
            "JSON.stringify(performance.getEntriesByType('resource').map((entry) => entry.name))"
        )
        assert [url for url in json.loads(loaded) if not url.startswith(address)] == [], page
        width = browser.evaluate("document.documentElement.scrollWidth")
        assert width <= 400, (page, width)
        # Jupyter's first line of a program of the shell is hidden.
        assert "%%bash" not in page.read_text(encoding="utf-8"), page
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_every_tutorial_is_a_notebook_too():
    notebooks = sorted((SITE / "notebooks").glob("*.ipynb"))
    tutorials = sorted((SITE.parent / "tutorials").glob("*.md"))
    assert [path.stem for path in notebooks] == [path.stem for path in tutorials]
    for path in notebooks:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert "%pip install" in "".join(notebook["cells"][0]["source"])
        assert sum(cell["cell_type"] == "code" for cell in notebook["cells"]) > 5
