"""A web export in headless Chromium: bytes, load times, memory, speed; and LiteRT in Python.

python -m benchmarks.web --artifact EXPORT --source FILE --sentences 200
python -m benchmarks.web make --preset transformer_base --tokenizer FILE --folder DIR
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
from keras_transformer.errors import InputError
from keras_transformer.reading import read_lines

_STEPS = 16  # about those of a sentence of Multi30k
_SCRIPT = """(async () => {
  const { load } = await import(new URL("translator.js", location.href));
  const start = performance.now();
  const translator = await load();
  const answer = { load_ms: performance.now() - start };
  const texts = JSON.parse(atob("%s"));
  for (const beamSize of new Set([1, translator.about.beam_size])) {
    const alone = [], begin = performance.now();
    for (const text of texts) alone.push((await translator.translate([text], { beamSize }))[0]);
    const middle = performance.now();
    const order = [...texts.keys()].sort((a, b) => texts[a].length - texts[b].length);
    const together = await translator.translate(order.map((index) => texts[index]), { beamSize });
    const ms = [middle - begin, performance.now() - middle];
    const tokens = alone.flatMap(({ parts }) => parts.flatMap(({ ids }) => ids)).length;
    answer[beamSize] = { ms, tokens, texts: alone.map((each) => each.text),
      scores: alone.map(({ parts }) => parts[0].score), together: [] };
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
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "serving"))
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
            name: {"one by one": round(words / alone), "in fours": round(words / together)}
            for name, (alone, together) in ways.items()
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
    command_line.run(visit, make, arguments=arguments, default=visit)


if __name__ == "__main__":
    main()
