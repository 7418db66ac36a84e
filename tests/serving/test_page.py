"""The page at `/`, in a real browser."""

import pytest
from browser import find_chromium

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_chromium() is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture
def page(browser, server):
    """The page, just opened, with the focus where one types."""
    browser.open(f"http://127.0.0.1:{server.port}/")
    assert browser.evaluate("document.activeElement.id") == "text"
    return browser


def translate(page, text):
    page.type(text)
    page.press_enter()
    page.wait(lambda: not page.evaluate("document.getElementById('go').disabled"))


@pytest.mark.slow
def test_a_typed_text_is_translated_with_its_alignment(page):
    translate(page, "two dogs")
    assert page.text("#translation") == "TWO DOGS"
    assert page.text("#model") == "toy"
    assert page.text("#matrix tbody").split() == ["TWO", "100%", "0%", "DOGS", "0%", "100%"]
    assert page.text("#matrix thead").split() == ["two", "dogs"]
    # One of the two best translations is missing: there is no list of one.
    assert page.text("#others") == ""
    assert page.text("#error") == ""


def test_what_is_typed_is_text_and_never_markup(page):
    hostile = "<img src=x onerror=document.title='owned'>"
    translate(page, hostile)
    assert page.text("#translation") == hostile.upper()
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.evaluate("document.title") == "Translate"


def test_an_error_of_the_server_is_shown(page):
    translate(page, "fail")
    assert "this text fails" in page.text("#error")
    assert page.text("#translation") == ""


def test_the_page_loads_nothing_from_elsewhere(page):
    translate(page, "a")
    names = page.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert names and all(name.startswith(page.evaluate("location.origin")) for name in names)
