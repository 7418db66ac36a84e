"""The page of attention: what is in it, and what it does in a real browser."""

import base64
import json
import re

import numpy as np
import pytest

from keras_transformer.extras.analysis.attention import Attention, entropy, merge_words, words_of
from keras_transformer.extras.analysis.report import attention_page

SOURCE = ["▁two", "▁do", "gs", "▁pl", "ay", ".", "</s>"]
TARGET = ["▁zwei", "▁Hun", "de", ".", "</s>"]
HOSTILE = "</script><img src=x onerror=document.title='owned'><!--"


def random_weights(queries, keys, causal=False):
    """Weights of two layers with three heads."""
    weights = np.random.default_rng(queries * keys).exponential(size=(2, 3, queries, keys)) ** 3
    weights = np.tril(weights) if causal else weights
    return (weights / weights.sum(-1, keepdims=True)).astype("float32")


ATTENTION = Attention(random_weights(7, 7), random_weights(5, 5, True), random_weights(5, 7))


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_holds_the_weights_and_names_nothing_elsewhere():
    page = attention_page(ATTENTION, SOURCE, TARGET, HOSTILE)
    data = data_of(page)
    assert data["title"] == HOSTILE
    assert page.count("<script") == 2 and "<img" not in page
    assert re.findall(r"(?:src|href)=|https?:|url\(|import", page.replace("src=x", "")) == []
    for kind, weights in zip(data["kinds"], ATTENTION, strict=True):
        whole = np.frombuffer(base64.b64decode(kind["weights"]), "<u2").reshape(weights.shape)
        np.testing.assert_allclose(whole / 65535, weights, atol=1e-5)
    # A row is labelled with the token that its step writes; the first one has read the beginning.
    _, decoder, cross = data["kinds"]
    assert data["sides"][cross["query"]]["tokens"] == TARGET
    assert data["sides"][decoder["key"]]["tokens"] == ["<s>", *TARGET[:-1]]
    # A model without a decoder has a page, too.
    only = ATTENTION._replace(decoder=np.zeros((0,) * 4), cross=np.zeros((0,) * 4))
    assert [kind["name"] for kind in data_of(attention_page(only, SOURCE))["kinds"]] == ["encoder"]


def test_tokens_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"a token for each row.*shape \(2, 3, 7, 7\), 6 and 6"):
        attention_page(ATTENTION, SOURCE[1:], TARGET)


@pytest.fixture
def page(browser, tmp_path):
    """The page, just opened; afterwards nothing may stand in its console."""
    file = tmp_path / "attention.html"
    file.write_text(attention_page(ATTENTION, SOURCE, TARGET, HOSTILE), encoding="utf-8")
    browser.complaints.clear()
    browser.open(file.as_uri())
    settle(browser)
    yield browser
    assert browser.complaints == []


def settle(browser):
    """Waits until what was asked for is drawn."""
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    browser.call("Runtime.evaluate", expression=frame, awaitPromise=True)


def point(browser, selector, *events, shift=False):
    """Moves the mouse onto an element, and sends more events there."""
    element = f"document.querySelector({json.dumps(selector)})"
    browser.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
    x, y = browser.evaluate(
        f"(() => {{ const b = {element}.getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    mouse = {"x": x, "y": y, "modifiers": 8 if shift else 0}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **mouse)
    for event in events:
        button = {"button": "left", "clickCount": 1}
        browser.call("Input.dispatchMouseEvent", type=event, **mouse, **button)
    settle(browser)


def click(browser, selector, shift=False):
    point(browser, selector, "mousePressed", "mouseReleased", shift=shift)


def press(browser, key, code):
    keys = {"key": key, "code": key, "windowsVirtualKeyCode": code}
    for kind in ("rawKeyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, **keys)
    settle(browser)


def choose(browser, name, value):
    browser.evaluate(f"{name}.value = {json.dumps(value)}; {name}.onchange()")
    settle(browser)


def held(browser):
    pressed = "[...document.querySelectorAll('.tokens [aria-pressed=true]')]"
    return browser.evaluate(f"{pressed}.map((each) => each.textContent)")


def lines(browser):
    return int(browser.evaluate("document.getElementById('lines').dataset.lines"))


def painted(browser):
    """How much ink is on the canvas."""
    return browser.evaluate(
        "(() => { const c = document.getElementById('lines');"
        " return c.getContext('2d').getImageData(0, 0, c.width, c.height).data"
        ".reduce((sum, value) => sum + value, 0); })()"
    )


def mean_of_heads(query):
    """What the page says of a row of the last layer's cross attention."""
    row = ATTENTION.cross[-1, :, query].mean(0)
    best = [column for column in np.argsort(-row)[:5] if row[column] > 0.005]
    return ", ".join(f"{SOURCE[column]} {round(100 * row[column])}%" for column in best)


def test_hovering_shows_one_token_and_leaving_shows_all_again(page):
    every, ink = lines(page), painted(page)
    assert every == (ATTENTION.cross[-1] > 0.005).sum()
    point(page, "#queries [data-unit=q1]")
    assert page.text("#detail") == f"▁Hun attends to {mean_of_heads(1)}"
    assert lines(page) == (ATTENTION.cross[-1, :, 1] > 0.005).sum()
    assert 0 < painted(page) < ink
    point(page, "#keys [data-unit=k2]")
    assert page.text("#detail").startswith("gs is attended to by ")
    assert lines(page) == (ATTENTION.cross[-1, :, :, 2] > 0.005).sum()
    point(page, "h1")
    assert lines(page) == every


def test_clicks_and_keys_hold_tokens_and_escape_lets_go(page):
    click(page, "#queries [data-unit=q0]")
    assert held(page) == ["▁zwei"]
    click(page, "#queries [data-unit=q2]", shift=True)
    assert held(page) == ["▁zwei", "de"]
    point(page, "h1")
    assert lines(page) == (ATTENTION.cross[-1][:, [0, 2]] > 0.005).sum()
    click(page, "#queries [data-unit=q4]")
    assert held(page) == ["</s>"]
    press(page, "Escape", 27)
    assert held(page) == []
    # The keyboard moves and holds, too.
    page.evaluate("document.querySelector('#queries button').focus()")
    press(page, "ArrowDown", 40)
    press(page, "ArrowRight", 39)
    assert page.evaluate("document.activeElement.dataset.unit") == "k1"
    page.press_enter()
    settle(page)
    assert held(page) == ["▁do"]


def test_choices_of_kind_layer_and_head_are_drawn(page):
    choose(page, "kind", "0")
    choose(page, "layer", "0")
    assert lines(page) == (ATTENTION.encoder[0] > 0.005).sum()
    for head in range(3):
        bits = entropy(ATTENTION.encoder[0, head]).mean()
        shown = page.text(f"#heads button:nth-child({head + 2})")
        assert shown.split("\n")[-1] == f"{bits:.2f} bits"
    click(page, "#heads button:nth-child(3)")
    assert lines(page) == (ATTENTION.encoder[0, [0, 2]] > 0.005).sum()
    click(page, "#heads button:nth-child(3)", shift=True)
    assert lines(page) == (ATTENTION.encoder[0, 1] > 0.005).sum()
    page.evaluate("k.value = 10; k.oninput()")
    settle(page)
    assert lines(page) == 10


def test_a_thumbnail_opens_its_head(page):
    click(page, "#grid [data-place='0.2']")
    assert page.evaluate("layer.value") == "0"
    assert lines(page) == (ATTENTION.cross[0, 2] > 0.005).sum()
    bits = entropy(ATTENTION.cross[0, 2]).mean()
    assert page.text("#grid [aria-current=true]") == f"0.2 · {bits:.1f} bits"


def test_words_and_hidden_sinks_give_what_the_arrays_give(page):
    choose(page, "level", "words")
    page.evaluate("sinks.click()")
    settle(page)
    merged = merge_words(ATTENTION.cross[-1], words_of(TARGET), words_of(SOURCE))
    visible = merged * [1, 1, 1, 0]  # `</s>`; the full stop is of the word `play.`
    expected = visible / visible.sum(-1, keepdims=True)
    assert page.text("#keys").split() == ["two", "dogs", "play.", "</s>"]
    for head in range(3):
        shown = page.evaluate(f"Array.from(matrix(1, {head}).weights)")
        np.testing.assert_allclose(shown, expected[head].ravel(), atol=1e-4)


def test_what_a_sentence_says_is_text_and_nothing_is_fetched(page):
    assert page.text("#pair") == HOSTILE
    assert page.evaluate("document.title") == "Attention"
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    # The policy holds: what a script puts into the page does not run.
    page.evaluate(
        "document.body.appendChild(document.createElement('script')).textContent = 'window.ran = 1'"
    )
    assert page.evaluate("window.ran") is None
    assert [text for text in page.complaints if "Content Security Policy" not in text] == []
    page.complaints.clear()
