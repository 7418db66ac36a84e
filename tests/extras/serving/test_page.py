"""The page of a server in a real browser."""

import json
import pathlib
import runpy

import pytest

HOSTILE = "<img src=x onerror=document.title='owned'>"


@pytest.fixture
def page(browser, server):
    """The page, just opened, with the focus where one types."""
    browser.complaints.clear()
    browser.open(f"http://127.0.0.1:{server.port}/")
    browser.wait(lambda: browser.text("#files"))
    assert browser.evaluate("document.activeElement.id") == "text"
    yield browser
    assert browser.complaints == []


def settled(page):
    page.wait(lambda: page.evaluate("!isBusy"))
    return page.text("#translation")


def typed(page, text, modifiers=2):
    """The translation of a text that is typed in place of another, and of Ctrl+Enter."""
    page.evaluate("text.value = ''; text.focus()")
    page.type(text)
    page.press("Enter", 13, modifiers=modifiers)
    return settled(page)


def focused(page):
    return page.evaluate("document.activeElement.id")


def test_a_typed_text_is_translated_with_its_alignment_or_its_error_is_shown(page):
    assert typed(page, "two dogs") == "TWO DOGS"
    assert page.text("#model") == "toy"
    assert page.text("#matrix tbody").split() == ["TWO", "100%", "0%", "DOGS", "0%", "100%"]
    assert page.text("#matrix thead").split() == ["two", "dogs"]
    # One of the two best translations is missing: there is no list of one.
    assert page.text("#hypotheses") == page.text("#error") == ""
    assert page.evaluate("document.getElementById('translation').lang") == "fr"
    loaded = page.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded and all(name.startswith(page.evaluate("location.origin")) for name in loaded)
    assert typed(page, "fail", modifiers=4) == ""  # Cmd
    assert "this text fails" in page.text("#error")
    assert any("500" in complaint or "400" in complaint for complaint in page.complaints)
    page.complaints.clear()


def test_what_is_typed_is_text_and_never_markup(page):
    assert typed(page, HOSTILE) == HOSTILE.upper()
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.evaluate("document.title") == "Translate"


def test_the_box_grows_with_its_paragraphs_which_remain_in_the_translation(page):
    page.type("first")
    low = page.evaluate("text.offsetHeight")
    for number in range(12):
        page.press_enter()  # It makes a line, and translates nothing.
        page.type(f"line {number}")
    assert page.text("#translation") == ""
    assert page.evaluate("text.offsetHeight") > 2 * low
    assert page.evaluate("text.scrollHeight <= text.clientHeight")  # All of it is seen.
    page.press("Enter", 13, modifiers=2)
    lines = ["FIRST", *(f"LINE {number}" for number in range(12))]
    assert settled(page).split("\n") == lines
    assert page.text("#matrix") == ""  # An alignment is of one segment.
    page.evaluate("text.value = ''; text.dispatchEvent(new Event('input'))")
    assert page.evaluate("text.offsetHeight") == low


def test_all_is_done_without_a_mouse_and_told_to_who_does_not_see(page):
    order = []
    for _ in range(3):
        order.append(focused(page))
        page.press("Tab", 9)
    assert order == ["text", "go", "file"]
    assert typed(page, "two\n\ndogs") == "TWO\n\nDOGS"
    assert focused(page) == "text"  # A disabled button would have lost it.
    for _ in range(3):
        page.press("Tab", 9)
    assert focused(page) == "copy"
    granted = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    page.call("Browser.grantPermissions", **granted)
    page.press_enter()
    page.wait(lambda: page.text("#status") == "Copied")
    read = {"expression": "navigator.clipboard.readText()", "awaitPromise": True}
    answer = page.call("Runtime.evaluate", **read)
    assert answer["result"]["value"] == "TWO\n\nDOGS"
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    named = {(n["role"]["value"], n.get("name", {}).get("value")) for n in nodes if "role" in n}
    assert {("textbox", "Text"), ("button", "Translate"), ("button", "Copy")} < named
    assert ("region", "Translation") in named
    (files,) = [node for node in nodes if node.get("name", {}).get("value") == "or a file"][:1]
    assert ".txt" in files["description"]["value"]
    live = "document.getElementById('translation').ariaLive"
    assert page.evaluate(live) == "polite"
    # Without HTTPS there is no `clipboard`.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    typed(page, "a cat")
    page.evaluate("document.getElementById('copy').focus()")
    page.press_enter()
    page.wait(lambda: page.text("#status") == "Copied")
    page.evaluate("text.value = ''; text.focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="v", commands=["paste"], modifiers=2)
    page.wait(lambda: page.evaluate("text.value") == "A CAT")


@pytest.mark.parametrize("way", ["chosen", "dropped"])
def test_a_file_is_translated_whole(page, tmp_path, way):
    path = tmp_path / "a & b.srt"
    path.write_text("1\n00:00:01,000 --> 00:00:02,000\ntwo dogs\n")
    if way == "chosen":
        root = page.call("DOM.getDocument")["root"]["nodeId"]
        node = page.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        page.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])
    else:
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            page.call("Input.dispatchDragEvent", type=kind, x=200, y=100, data=data)
    page.wait(lambda: page.text("#translation"))
    assert "a & b.srt" in page.text("#translation")
    fetched = "fetch(document.querySelector('#translation a').href).then(a => a.text())"
    answer = page.call("Runtime.evaluate", expression=fetched, awaitPromise=True)
    assert answer["result"]["value"] == "1\n00:00:01,000 --> 00:00:02,000\nTWO DOGS\n"
    assert page.evaluate("document.getElementById('file').value") == ""  # To choose it again.
    assert page.text("#copy") == "" and not page.evaluate("!!document.querySelector('.drop')")


CONTRAST = """(selector) => {
  const canvas = document.createElement("canvas").getContext("2d");
  const paint = (color) => { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); };
  const luminance = () => [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const style = getComputedStyle(document.querySelector(selector));
  document.body.style.backgroundColor = "Canvas";
  paint(getComputedStyle(document.body).backgroundColor);
  paint(style.backgroundColor);
  const behind = luminance();
  paint(style.color);
  const [low, high] = [luminance(), behind].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""


def contrast(page, selector):
    """Ratio of the luminances of a text and of what is behind it, as WCAG computes it."""
    return page.evaluate(f"({CONTRAST})({json.dumps(selector)})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_by_day_and_by_night(page, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.call("Emulation.setEmulatedMedia", features=features)
    typed(page, "fail")
    assert contrast(page, "#error") > 4.5
    page.complaints.clear()
    typed(page, "two dogs")
    page.evaluate("document.body.style.backgroundColor = 'Canvas'")
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (color == "rgb(255, 255, 255)") == (scheme == "light")
    for selector in ("#translation", "td", "th", "textarea", "#go"):
        assert contrast(page, selector) > 4.5, selector
    page.call("Emulation.setEmulatedMedia", features=[])


# Another server, behind a proxy at another address: answers by their address.
STUB = """
const asked = [];
const list = { translation: [["UNO", "UN", ""]], score: [[-0.5, -1.25, null]] };
const answers = {
  "frontend/settings": { language: { target: { code: "es" } }, filesTranslation: true,
                         supportedFilesFormat: [".txt"] },
  "languages": [{ code: "en", name: "English", targets: ["en", "fr", "es"] },
                { code: "fr", name: "French", targets: ["fr"] },
                { code: "es", name: "Spanish", targets: ["es"] }],
  "v1/models/toy/metadata": { metadata: { signature_def: { signature_def: { beam: {} } } } },
  "v1/models/toy:predict": { outputs: list },
  "translate": { translatedText: "UNO" },
  "translate_file": { translatedFileUrl: "http://inner:1/download_file/0.a%20b.txt" },
};
window.fetch = async (path, options) => {
  const body = options?.body;
  asked.push([path, body instanceof FormData ? body.get("target") : body]);
  return path in answers ? new Response(JSON.stringify(answers[path]))
                         : new Response("<h1>Bad gateway</h1>", { status: 502 });
};
document.getElementById("target").replaceChildren();
start();
"""


def test_a_target_is_chosen_and_answers_of_other_servers_are_shown(page):
    page.evaluate(STUB)
    page.wait(lambda: page.text("#languages"))
    options = "[...document.querySelectorAll('option')].map((o) => o.value + o.textContent)"
    assert page.evaluate(options) == ["frFrench", "esSpanish"]
    assert page.evaluate("document.getElementById('target').value") == "es"
    page.evaluate("document.getElementById('target').value = 'fr'")
    assert typed(page, "one") == "UNO"
    asked = dict(page.evaluate("asked"))
    assert json.loads(asked["translate"]) == {"q": "one", "source": "auto", "target": "fr"}
    # The third hypothesis is missing.
    assert page.text("#list").splitlines() == ["UNO (-0.500)", "UN (-1.250)"]
    page.evaluate("answers.translate.translatedText = 'DOS'")
    assert typed(page, "two") == "DOS"
    assert page.text("#hypotheses") == ""  # They are of another translation.
    page.evaluate("show(translateFile, new File(['a'], 'a b.txt'))")
    assert "a b.txt" in settled(page)
    link = page.evaluate("document.querySelector('#translation a').href")
    assert link == page.evaluate("location.href") + "download_file/0.a%20b.txt"
    assert dict(page.evaluate("asked"))["translate_file"] == "fr"
    page.evaluate("delete answers.translate")
    assert typed(page, "three") == "" and "502" in page.text("#error")


WITHOUT_LANGUAGES = """
const ask_server = window.fetch;
window.fetch = (path, options) => /settings|languages/.test(path)
  ? Promise.resolve(new Response('{"error": "unknown"}', { status: 501 }))
  : ask_server(path, options);
"""


def test_a_page_of_a_server_without_languages_translates_texts(browser, server):
    browser.open("about:blank")
    browser.call("Page.enable")
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=WITHOUT_LANGUAGES)
    browser.open(f"http://127.0.0.1:{server.port}/")
    try:
        assert typed(browser, "two dogs") == "TWO DOGS"
        assert browser.text("#files") == browser.text("#error") == ""
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **script)
        browser.open("about:blank")


@pytest.mark.slow
def test_the_pictures_of_the_documentation_are_of_the_page(server, tmp_path):
    program = pathlib.Path(__file__).parents[3] / "docs" / "_ext" / "page_pictures.py"
    take = runpy.run_path(str(program))["take"]
    take(f"http://127.0.0.1:{server.port}/", tmp_path)
    light, dark = (tmp_path / f"serve_{scheme}.png" for scheme in ("light", "dark"))
    assert light.read_bytes()[:4] == dark.read_bytes()[:4] == b"\x89PNG"
    assert light.read_bytes() != dark.read_bytes()
    assert 5_000 < light.stat().st_size < 150_000
