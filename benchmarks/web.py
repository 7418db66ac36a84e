"""A web export in headless Chromium: bytes, load times, memory, speed; and LiteRT in Python.

python -m benchmarks.web --artifact EXPORT --source FILE --sentences 200
python -m benchmarks.web make --preset transformer_base --tokenizer FILE --folder DIR
python -m benchmarks.web bergamot --artifact EXPORT --model DIR --npm DIR --source FILE

`bergamot` compares the page with `@browsermt/bergamot-translator`, the WebAssembly engine that
Firefox's translations come from, with the same model.
"""

import base64
import functools
import gzip
import http.server
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil

from benchmarks import command_line
from keras_transformer.base.errors import InputError
from keras_transformer.base.reading import read_lines

_BERGAMOT = "@browsermt/bergamot-translator"
_STEPS = 16  # about those of a sentence of Multi30k
_SCRIPT = """(async () => {
  const { load } = await import(new URL("translator.js", location.href));
  const start = performance.now();
  const translator = await load();
  const answer = { load_ms: performance.now() - start };
  const texts = JSON.parse(atob("%s"));
  for (const beamSize of new Set([1, translator.about.beam_size])) {
    const singly = [], begin = performance.now();
    for (const text of texts) singly.push((await translator.translate([text], { beamSize }))[0]);
    const middle = performance.now();
    const order = [...texts.keys()].sort((a, b) => texts[a].length - texts[b].length);
    const together = await translator.translate(order.map((index) => texts[index]), { beamSize });
    const ms = [middle - begin, performance.now() - middle];
    const tokens = singly.flatMap(({ parts }) => parts.flatMap(({ ids }) => ids)).length;
    answer[beamSize] = { ms, tokens, texts: singly.map((result) => result.text),
      scores: singly.map(({ parts }) => parts[0].score), together: [] };
    order.forEach((index, i) => (answer[beamSize].together[index] = together[i].text));
  }
  return answer;
})()"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    requests: list[str] = []

    def log_message(self, *_):
        self.requests.append(self.path)


def _page_memory(browser):
    """Megabytes of the largest process that runs a page."""
    processes = psutil.Process(browser._process.pid).children(recursive=True)
    pages = [process for process in processes if "--type=renderer" in process.cmdline()]
    return round(max(process.memory_info().rss for process in pages) / 1e6)


def _run_script(browser, script):
    options = {"awaitPromise": True, "returnByValue": True}
    result = browser.call("Runtime.evaluate", expression=script, **options)
    if "exceptionDetails" in result:
        raise InputError(f"The page failed: {result['exceptionDetails']}")
    return result["result"]["value"]


def _visit(folder, script):
    """Results of a script on the page, with its server and without, and figures of the visit."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "extras" / "serving"))
    from browser import Browser

    handler = functools.partial(_Handler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        browser.call("Runtime.enable")
        browser.call("Log.enable")
        empty, start = _page_memory(browser), time.perf_counter()

        def open_page():
            browser.open(address)
            browser.wait(lambda: browser.text("#status") == "Ready.")

        open_page()
        seconds = time.perf_counter() - start
        browser.wait(lambda: browser.evaluate("document.documentElement.dataset.offline"))
        names = {path.split("?")[0].lstrip("/") or "index.html" for path in _Handler.requests}
        contents = [(folder / name).read_bytes() for name in names]
        memory = _page_memory(browser)
        online = _run_script(browser, script)
        server.shutdown()
        server.server_close()
        requests = len(_Handler.requests)
        open_page()
        offline = _run_script(browser, script)
        load = {"first": round(online.pop("load_ms")), "offline": round(offline.pop("load_ms"))}
        figures = {
            "first_visit_bytes": sum(map(len, contents)),
            "first_visit_bytes_gzipped": sum(len(gzip.compress(c, 9)) for c in contents),
            "page_ready_seconds": round(seconds, 2),
            "load_ms": load,
            "memory_megabytes": {"empty tab": empty, "page": memory},
            "requests_after_the_server_stopped": len(_Handler.requests) - requests,
            "complaints": browser.complaints,
        }
        browser.close()
    return online, offline, figures


def _compared_with_python(folder, texts, beam_size, page, offline):
    """Figures of one search in the browser, and of LiteRT in Python with one thread."""
    from keras_transformer import Translator

    options = {"beam_size": beam_size, "threads": 1, "long_input": "split"}
    translate = functools.partial(Translator.load(folder).translate, **options)
    translate(texts[:4])
    start = time.perf_counter()
    expected = [translate([text])[0] for text in texts]
    middle = time.perf_counter()
    translate(texts)
    seconds = middle - start, time.perf_counter() - middle
    words = sum(len(text.split()) for text in texts)
    rows = list(zip(texts, page["texts"], page["scores"], expected, strict=True))
    apart = [abs(score - python.score) for _, text, score, python in rows if text == python.text]
    ways = {"browser": [ms / 1000 for ms in page["ms"]], "python": seconds}
    return {
        "sentences": len(texts),
        "equal_to_python": len(apart),
        "score_difference": {"mean": statistics.fmean(apart), "largest": max(apart)},
        "equal_offline": sum(map(str.__eq__, page["texts"], offline["texts"])),
        "equal_in_batches": sum(map(str.__eq__, page["texts"], page["together"])),
        "tokens_per_second": round(page["tokens"] / (page["ms"][0] / 1000)),
        "ms_per_sentence": round(page["ms"][0] / len(texts), 1),
        "words_per_second": {
            name: {"one by one": round(words / singly), "in fours": round(words / together)}
            for name, (singly, together) in ways.items()
        },
        "different": [
            {"source": source, "browser": [text, score], "python": [python.text, python.score]}
            for source, text, score, python in rows
            if text != python.text
        ],
    }


def visit(artifact: pathlib.Path, source: str, sentences: int = 200) -> dict[str, Any]:
    """Translates a text on the page, and once more after its server has stopped.

    Needs Chromium and the package `websockets`.

    Args:
        artifact: Web export.
        source: Text to translate.
        sentences: Number of sentences, the first of the text.
    """
    texts = read_lines(source)[:sentences]
    script = _SCRIPT % base64.b64encode(json.dumps(texts).encode()).decode()
    online, offline, report = _visit(artifact, script)
    for beam_size, page in online.items():
        search = texts, int(beam_size), page, offline[beam_size]
        report[f"beam_size={beam_size}"] = _compared_with_python(artifact, *search)
    return report


_BOTH_SCRIPT = """(async () => {
  const ways = {};
  if (%(names)s.includes("page")) {
    const translator = await (await import("/page/translator.js")).load();
    ways.page = async (texts) =>
      (await translator.translate(texts, { beamSize: 1 })).map(({ text }) => text);
  }
  if (%(names)s.includes("bergamot")) {
    const { BatchTranslator } = await import("/bergamot/translator.js");
    const options = { registryUrl: "/registry.json", batchSize: %(batch_size)d };
    const translator = new BatchTranslator(options);
    const request = { from: "en", to: "pt", html: false };
    ways.bergamot = (texts) => Promise.all(
      texts.map(async (text) => (await translator.translate({ ...request, text })).target.text));
  }
  const texts = %(texts)s;
  const singly = async (translate) => {
    for (const text of texts.slice(0, %(singly)d)) await translate([text]);
  };
  const answer = { texts: {}, together: {}, singly: {} };
  for (const name in ways) {
    answer.texts[name] = await ways[name](texts); // Both begin warm.
    await singly(ways[name]);
    answer.together[name] = [];
    answer.singly[name] = [];
  }
  for (let round = 0; round < %(rounds)d; round++) {
    for (const [kind, call] of [["together", (way) => way(texts)], ["singly", singly]]) {
      for (const name in ways) {
        const start = performance.now();
        await call(ways[name]);
        answer[kind][name].push(performance.now() - start);
      }
    }
  }
  return answer;
})()"""


def bergamot(
    artifact: pathlib.Path,
    model: pathlib.Path,
    npm: pathlib.Path,
    source: str,
    sentences: int = 100,
    singly: int = 30,
    rounds: int = 7,
    batch_size: int = 8,
) -> dict[str, Any]:
    """Translates with the page's module and Bergamot's, interleaved in one Chromium, both greedy.

    Needs Chromium, `websockets` and `npm install @browsermt/bergamot-translator`.

    Args:
        artifact: Web export of the model, which was imported.
        model: Directory of the model for Bergamot: `model*.bin`, `vocab*.spm` and `lex*.bin`.
        npm: Directory where npm installed Bergamot, or its `node_modules`.
        source: Text to translate.
        sentences: Number of sentences that are translated in one call, the first of the text.
        singly: Number of sentences that are also translated one by one.
        rounds: Number of measurements.
        batch_size: Number of sentences that Bergamot's module gives to its engine at once.
    """
    texts = read_lines(source)[:sentences]
    words = [len(text.split()) for text in texts]
    packages = [npm / "node_modules" / _BERGAMOT, npm / _BERGAMOT]
    package = next((path for path in packages if path.is_dir()), None)
    if package is None:
        rule = f"`npm` must be a directory with {_BERGAMOT}"
        raise InputError(f"{rule}. Received: {npm}. Run npm install {_BERGAMOT}.")
    fields = {"texts": json.dumps(texts), "singly": singly, "batch_size": batch_size}
    with tempfile.TemporaryDirectory() as root:
        _lay_out(pathlib.Path(root), artifact, package, model)
        figures = {
            name: _alone_in_browser(root, _BOTH_SCRIPT % {**fields, "names": [name], "rounds": 0})
            for name in ("page", "bergamot")
        }
        both = {**fields, "names": ["page", "bergamot"], "rounds": rounds}
        answer = _in_browser(root, lambda browser, _: _run_script(browser, _BOTH_SCRIPT % both))
    counts = {"together": sum(words), "singly": sum(words[:singly])}
    for name, row in figures.items():
        for kind, count in counts.items():
            seconds = [milliseconds / 1000 for milliseconds in answer[kind][name]]
            row[kind] = {
                "seconds": [round(value, 3) for value in sorted(seconds)],
                "words_per_second": round(count / statistics.median(seconds)),
            }
    texts_of = answer["texts"]
    return {
        **figures,
        "ratio": {
            kind: round(
                statistics.median(answer[kind]["bergamot"])
                / statistics.median(answer[kind]["page"]),
                3,
            )
            for kind in counts
        },
        "sentences": len(texts),
        "equal_texts": sum(map(str.__eq__, texts_of["page"], texts_of["bergamot"])),
    }


def _lay_out(root, artifact, package, model):
    """Makes a site of the export, Bergamot's package and its model."""
    (root / "page").symlink_to(artifact.resolve())
    (root / "bergamot").symlink_to(package.resolve())
    (root / "model").symlink_to(model.resolve())
    (root / "index.html").write_text("<!doctype html><title>Both</title>")
    files = {}
    for name, pattern in {"model": "model*.bin", "vocab": "vocab*.spm", "lex": "lex*.bin"}.items():
        paths = sorted(model.glob(pattern))
        if len(paths) != 1:
            rule = f"`model` must be a directory with one {pattern}."
            raise InputError(f"{rule} Received: {len(paths)} in {model}.")
        files[name] = {"name": f"/model/{paths[0].name}"}
    (root / "registry.json").write_text(json.dumps({"enpt": files}))


def _in_browser(root, function):
    """Result of `function(browser, address)` with an empty page of a site's server open."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "extras" / "serving"))
    from browser import Browser, Static

    server = Static(root)
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        try:
            browser.open(server.url)
            return function(browser, server)
        finally:
            browser.close()
            server.stop()


def _alone_in_browser(root, script):
    """Bytes and memory of a first visit that translates the texts with one module."""

    def visit(browser, server):
        empty = _page_memory(browser)
        start = time.perf_counter()
        _run_script(browser, script)
        seconds = time.perf_counter() - start
        names = {path.lstrip("/") for path in server.asked} - {"", "favicon.ico", "registry.json"}
        contents = [(pathlib.Path(root) / name).read_bytes() for name in names]
        return {
            "bytes": sum(map(len, contents)),
            "bytes_gzipped": sum(len(gzip.compress(content, 9)) for content in contents),
            "memory_megabytes": _page_memory(browser) - empty,
            "first_visit_seconds": round(seconds, 2),
        }

    return _in_browser(root, visit)


def make(preset: str, tokenizer: str, folder: str) -> dict[str, Any]:
    """Exports an untrained model in int8, whose translations all have 16 tokens.

    Args:
        preset: Preset of the model's size.
        tokenizer: Tokenizer of a run.
        folder: Directory to make.
    """
    from keras_transformer import Tokenizer, Transformer
    from keras_transformer.engine import ModelEngine
    from keras_transformer.export import export_web

    vocabulary = Tokenizer.load(tokenizer)
    model = Transformer.from_preset(preset, vocabulary_size=vocabulary.vocabulary_size)
    engine = ModelEngine(model, vocabulary, max_target_length=_STEPS)
    options = {"quantize": "int8", "source_lengths": [32], "overwrite": True}
    return export_web(engine, folder, **options).verification


def main(arguments: Sequence[str] | None = None) -> None:
    command_line.run(visit, make, bergamot, arguments=arguments, default=visit)


if __name__ == "__main__":
    main()
