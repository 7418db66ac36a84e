"""The page and its module in a real browser."""

import hashlib
import json
import pathlib
import re
import shutil

import numpy as np
import pytest
from browser import Static, find_chromium
from device_plans import in_one_graph
from marian_toys import with_short_translations

import keras_transformer.extras.web
from keras_transformer import Translator
from keras_transformer.decoding.search import score_targets
from keras_transformer.export import export_run, export_web
from keras_transformer.extras.analysis.attention import merge_words, words_of
from keras_transformer.extras.importing.importing import import_run
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.text.languages import Languages

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_chromium() is None, reason="needs Chromium: apt-get install chromium"),
]

TOYS = pathlib.Path(__file__).parents[2] / "data" / "marian"


def visit(browser, url):
    """Opens the page, and waits until it would work without its server."""
    browser.open(url)
    browser.wait(lambda: browser.evaluate("document.documentElement.dataset.offline") == "true")


@pytest.fixture(scope="module")
def visited(browser, web_report, tmp_path_factory):
    """A browser that has been on the page once, its server then stopped, and another server."""
    here, elsewhere = Static(web_report.folder), Static(tmp_path_factory.mktemp("elsewhere"))
    visit(browser, here.url)
    here.stop()
    assert browser.complaints == []
    here.asked.clear()
    yield browser, here, elsewhere
    elsewhere.stop()


@pytest.fixture
def page(visited):
    """The page opened without its server; afterwards nothing may stand in its console."""
    browser, here, _ = visited
    browser.complaints.clear()
    browser.open(here.url)
    browser.wait(lambda: browser.text("#status") == "Ready.")
    yield browser
    assert browser.complaints == []
    assert here.asked == []


def awaited(browser, script):
    options = {"awaitPromise": True, "returnByValue": True}
    answer = browser.call("Runtime.evaluate", expression=script, **options)
    assert "exceptionDetails" not in answer, answer
    return answer["result"].get("value")


def module(browser, expression):
    """An expression over `translator`, as another page would write it."""
    return awaited(
        browser,
        f"""(async () => {{
          const {{ load }} = await import(new URL("translator.js", location.href));
          const translator = (window.translator ??= await load());
          return {expression};
        }})()""",
    )


def translated(browser, texts, beam_size):
    return module(browser, f"translator.translate({json.dumps(texts)}, {{beamSize: {beam_size}}})")


def write(browser, text):
    """Pastes a text, and waits for what follows."""
    browser.evaluate("source.value = ''; source.focus()")
    browser.type(text)
    if not text:
        browser.evaluate("source.dispatchEvent(new Event('input'))")
    settled = (
        "!document.querySelector('#translation.old') && "
        "!document.getElementById('status').textContent.startsWith('Translating')"
    )
    awaited(browser, "new Promise((done) => setTimeout(done, 350))")
    browser.wait(lambda: browser.evaluate(settled))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_translations_are_those_of_litert_in_python(page, web_report, engine, texts, beam_size):
    texts = [text for text in texts if len(engine.source_tokenizer.tokenize(text)) < 13]
    received = translated(page, texts, beam_size)
    expected = Translator.load(web_report.folder).translate(texts, beam_size=beam_size)
    theirs = [(t["text"], sum(part["score"] for part in t["parts"])) for t in received]
    assert [text for text, _ in theirs] == [t.text for t in expected]
    assert [score for _, score in theirs] == pytest.approx([t.score for t in expected], 1e-3)


def test_a_page_with_a_shortlist_translates_as_the_trained_model(
    browser, npm, listed_engine, engine, texts, tmp_path, unverified, converted_here
):
    options = {"beam_size": 1, "source_lengths": [13], "shortlist": True, "npm": npm}
    report = export_web(listed_engine, tmp_path / "page", texts[:20], **options)
    # Four ids of every sentence and 13 times three, the next multiple of 128.
    assert report.manifest["list_sizes"] == {"1x13": 128}
    texts = [text for text in texts if len(engine.source_tokenizer.tokenize(text)) < 13][:40]
    listed = Translator(listed_engine).translate(texts, beam_size=1, shortlist=True)
    expected = [row.text for row in listed]
    assert expected != [row.text for row in Translator(engine).translate(texts, beam_size=1)]
    assert [row.text for row in Translator.load(report.folder).translate(texts)] == expected
    server = Static(report.folder)
    visit(browser, server.url)
    server.stop()
    received = translated(browser, texts, 1)
    browser.open("about:blank")
    assert [translation["text"] for translation in received] == expected
    assert browser.complaints == []


@pytest.mark.slow
def test_the_page_of_an_imported_model_gives_the_runs_texts(
    browser, npm, tmp_path, unverified, converted_here
):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    run = with_short_translations(import_run(TOYS / "opus", tmp_path / "run"))
    # Any tokens that both vocabularies have, as the languages of M2M100 have them.
    source, target = RunFolder(run).tokenizers()
    pieces = [set(side.pieces_of(range(4, side.vocabulary_size))) for side in (source, target)]
    tokens = dict(zip(("en", "eo", "de"), sorted(set.intersection(*pieces)), strict=False))
    Languages(tokens, "source", target_prefix="target").save(tmp_path / "run" / "languages.json")
    export_run(run, tmp_path / "page", "web", npm=npm, source_lengths=[24])
    # Up to 24 tokens: a longer text is translated in parts.
    texts = ["yes, a small house", "a cat", "ж cats find 1 tree", "the river moves"]
    targets, options = ["eo", "de", "eo", "de"], {"beamSize": 3, "source": "en"}
    translate = in_one_graph(run).translate
    expected = translate(texts, source_language="en", target_language=targets)
    assert (
        expected[0].text != translate(texts[:1], source_language="en", target_language="de")[0].text
    )
    server = Static(tmp_path / "page")
    try:
        visit(browser, server.url)
        assert browser.evaluate("document.getElementById('to').value") == "eo"
        named = json.dumps({**options, "target": targets})
        received = module(browser, f"translator.translate({json.dumps(texts)}, {named})")
        # A code that people type is the nearest language.
        typed = json.dumps({**options, "source": "en_US", "target": "epo"})
        (again,) = module(browser, f"translator.translate({json.dumps(texts[:1])}, {typed})")
        assert again["text"] == received[0]["text"]
        aligned = module(browser, f"translator.align({json.dumps(received[0]['parts'][0])})")
        assert aligned["source"] == texts[0].split()
        long = json.dumps([">>epo<< " + "the old child sees a house. " * 6])
        named = json.dumps({**options, "target": "eo"})
        (long,) = module(browser, f"translator.translate({long}, {named})")
        assert len(long["parts"]) > 1
        assert all(part["source"].startswith(">>epo<< ") for part in long["parts"])
        assert browser.complaints == []
    finally:
        server.stop()
        browser.open("about:blank")
    assert [translation["text"] for translation in received] == [t.text for t in expected]


def test_lines_stay_lines_and_the_choice_of_search_is_kept(page):
    write(page, "a man runs\n\ntwo dogs")
    lines = page.evaluate("[...document.querySelectorAll('#translation p')].map(p => p.innerText)")
    first, _, last = translated(page, ["a man runs", "", "two dogs"], 3)
    assert lines == [first["text"], "", last["text"]]
    page.evaluate("search.value = 1; search.dispatchEvent(new Event('change'))")
    write(page, "a man runs")
    assert page.text("#translation") == translated(page, ["a man runs"], 1)[0]["text"]


def test_a_chosen_word_shows_what_it_attended_to(page, engine):
    write(page, "two dogs sit")
    (translation,) = translated(page, ["two dogs sit"], 3)
    part = translation["parts"][0]
    aligned = {**part, **module(page, f"translator.align({json.dumps(part)})")}
    source = engine.source_tokenizer.tokenize(["two dogs sit"], add_eos=True)
    ids = np.array(source, "int32"), np.array([aligned["ids"]], "int32")
    weights = np.asarray(score_targets(engine.model, *ids)[1])[0]
    assert aligned["source"] == ["two", "dogs", "sit"]
    # Of a word the mean of its tokens' rows, over which the sum of each source word is taken; the
    # ends are left out, and a translation that is one word shows its tokens.
    target_ids = [id for id in aligned["ids"] if id != 2]
    of_source = words_of(engine.source_tokenizer.pieces_of(source[0][:-1]))
    of_target = words_of(engine.target_tokenizer.pieces_of(target_ids))
    of_target = of_target if of_target[-1] else range(len(target_ids))
    merged = merge_words(weights[: len(target_ids), :-1], of_target, of_source)
    np.testing.assert_allclose(aligned["weights"], merged, atol=1e-4)
    assert aligned["target"] == part["words"]
    page.evaluate("document.querySelector('.word').focus()")
    page.press_enter()
    page.wait(lambda: page.text("#attention"))
    assert page.text("#words").split()[0].startswith("two")
    page.evaluate("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert page.text("#attention") == ""


HOSTILE = "<img src=x onerror=document.title='owned'>"
TEXTS = {"empty": "", "blank": " \t ", "special": "</s><s><pad>", "markup": HOSTILE}
TEXTS |= {"emoji": "👨‍👩‍👧‍👦 😀 ✨" * 9, "right to left": "שלום עולם. مرحبا بالعالم؟"}
TEXTS |= {"1,000 characters": "a man. " * 143, "one word": "x" * 1000}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_text_is_translated_whole_and_is_never_markup(page, text):
    write(page, text)
    assert "error" not in page.evaluate("document.getElementById('status').className")
    (whole,) = translated(page, [text], 1)
    fields = ("before", "source", "after")
    assert "".join(part[name] for part in whole["parts"] for name in fields) == text
    directions = page.evaluate("[source, translation].map((each) => each.dir)")
    assert directions == ["auto", "auto"]
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.evaluate("document.title") == "Translator"


def test_neither_the_page_nor_its_worker_reaches_another_place(visited, page):
    browser, _, elsewhere = visited
    tried = f"fetch({json.dumps(elsewhere.url)}).then(() => 'reached', () => 'refused')"
    assert awaited(browser, tried) == "refused"
    worker = awaited(
        browser,
        """fetch("worker.js").then((each) => each.headers.get("Content-Security-Policy"))""",
    )
    assert "connect-src 'self'" in worker
    assert elsewhere.asked == []
    assert all("Content Security Policy" in complaint for complaint in browser.complaints)
    browser.complaints.clear()


def test_one_that_gives_up_and_one_that_asks_for_another_beam_are_told(page):
    given_up = "translator.translate(['a man'], { signal: AbortSignal.abort() })"
    assert module(page, f"{given_up}.catch((error) => error.name)") == "AbortError"
    other = module(page, "translator.translate(['a'], { beamSize: 2 }).catch(String)")
    assert other == "RangeError: beamSize must be 1 or 3. Received: 2."


@pytest.fixture
def deployed(browser, web_report, tmp_path):
    """A copy of the folder that may be changed, and its server."""
    folder = shutil.copytree(web_report.folder, tmp_path / "deployed")
    server = Static(folder)
    yield folder, server
    server.stop()
    browser.open("about:blank")
    browser.complaints.clear()


def test_sentences_are_translated_by_themselves_as_in_python(browser, deployed):
    folder, server = deployed
    manifest = json.loads((folder / "export.json").read_text("utf-8"))
    manifest |= {"split_sentences": True, "copy_symbols": True, "keep_case": True}
    (folder / "export.json").write_text(json.dumps(manifest), "utf-8")
    browser.open(server.url)
    browser.wait(lambda: browser.text("#status") == "Ready.")
    texts = ["  a man ran! two dogs sit!\u00a0 a mat.\r\n\r\n12:30\n", "42", " ", "", "a cat"]
    texts += ["A BEHIND! a"]
    received = translated(browser, texts, 1)
    expected = Translator.load(folder).translate(texts, beam_size=1)
    assert [row["text"] for row in received] == [row.text for row in expected]
    assert [len(row["parts"]) for row in received] == [4, 1, 1, 0, 1, 2]
    # Capitals that would have too many tokens in their usual case are translated as they are.
    (row,) = translated(browser, ["TWO DOGDOGS SIT!"], 1)
    assert len(row["parts"]) == 1 and row["text"]
    # The text shown has the white space, too, and numbers are no buttons.
    write(browser, "a man ran.  12:30")
    shown = browser.evaluate("document.querySelector('#translation p').textContent")
    assert shown == translated(browser, ["a man ran.  12:30"], 3)[0]["text"]
    assert "12:30" not in browser.evaluate(
        "[...document.querySelectorAll('.word')].map((word) => word.textContent)"
    )


REGISTERED = """navigator.serviceWorker.register("service-worker.js").then(
  ({ installing, waiting, active }) => new Promise((done) => {
    const worker = installing ?? waiting ?? active;
    const ends = ["redundant", "installed", "activated"];
    const look = () => ends.includes(worker.state) && done(worker.state);
    worker.onstatechange = look;
    look();
  }))"""


@pytest.mark.parametrize("name", ["source_tokenizer.json", "export.json"])
def test_a_half_finished_deployment_is_not_kept(browser, deployed, name):
    folder, server = deployed
    whole = (folder / name).read_text("utf-8")
    # A file of another version, or a manifest of one.
    digest = hashlib.sha256((folder / "source_tokenizer.json").read_bytes()).hexdigest()
    (folder / name).write_text(whole.replace(digest, "0" * 64) + " ", "utf-8")
    browser.open(server.url)
    browser.wait(lambda: browser.text("#status") == "Ready.")
    assert awaited(browser, REGISTERED) == "redundant"
    (folder / name).write_text(whole, "utf-8")
    visit(browser, server.url)


def test_an_open_page_keeps_its_version_and_the_next_one_is_whole(browser, deployed):
    folder, server = deployed
    for _ in range(2):  # The service worker answers the second time.
        visit(browser, server.url)
    style = folder / "page.css"
    before = style.read_bytes()
    style.write_bytes(before + b"/* new */")
    old, new = (hashlib.sha256(content).hexdigest() for content in (before, style.read_bytes()))
    for name in ("export.json", "service-worker.js"):
        text = (folder / name).read_text("utf-8").replace(old, new)
        text = re.sub('VERSION = "[0-9a-f]+"', 'VERSION = "new"', text)
        (folder / name).write_text(text, "utf-8")
    assert awaited(browser, REGISTERED) == "activated"
    update = "navigator.serviceWorker.ready.then((each) => each.update())"
    awaited(browser, f"{update}.then(() => undefined)")
    browser.wait(lambda: awaited(browser, REGISTERED) in ("installed", "activated"))
    awaited(browser, "new Promise((done) => setTimeout(done, 500))")  # To take over, if it would.
    style_now = "fetch('page.css').then((each) => each.text()).then((each) => each.includes('new'))"
    assert awaited(browser, style_now) is False

    def is_new():
        browser.open("about:blank")
        browser.open(server.url)
        browser.wait(lambda: browser.text("#status") == "Ready.")
        return awaited(browser, style_now)

    browser.wait(is_new)
    server.stop()
    browser.open(server.url)
    browser.wait(lambda: browser.text("#status") == "Ready.")


def test_other_projects_of_an_origin_are_left_alone(browser, deployed):
    folder, server = deployed
    (folder / "other.html").write_text("<script>document.title = 'another'</script>")
    for _ in range(2):  # The service worker answers the second time.
        visit(browser, server.url)
    browser.open(server.url + "other.html")
    browser.wait(lambda: browser.evaluate("document.title") == "another")
    # Later something else altogether is served there.
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "index.html").write_text("<title>later</title>")
    browser.open(server.url)
    browser.wait(lambda: browser.evaluate("document.title") == "later")
    left = "Promise.all([caches.keys(), navigator.serviceWorker.getRegistrations()])"
    assert awaited(browser, f"{left}.then((each) => each.flat().length)") == 0


@pytest.mark.parametrize(
    ("name", "heading"), [("translator", "Translator"), ("en-de", "Translator en-de")]
)
def test_the_heading_has_the_name_of_the_export_and_no_word_twice(browser, tmp_path, name, heading):
    static = pathlib.Path(keras_transformer.extras.web.__file__).parent / "static"
    shutil.copytree(static, tmp_path / "a")
    files = {file: {"bytes": 1} for file in ("model.tflite", "tokenizers.js", "s.json")}
    about = {"name": name, "files": files, "runtime": [], "beam_size": 1}
    about |= {"source_tokenizer": "s.model", "target_tokenizer": "s.model"}
    stub = f"export const load = async () => ({{ about: {json.dumps(about)} }});"
    (tmp_path / "a" / "translator.js").write_text(stub)
    here = Static(tmp_path / "a")
    browser.open(here.url)
    browser.wait(lambda: browser.text("#status") == "Ready.")
    assert browser.evaluate("document.querySelector('h1').textContent.trim()") == heading
    here.stop()
