"""Translates a text in headless Chromium with a web export, and with LiteRT in Python beside it.

    python -m benchmarks.web --artifact EXPORT --source FILE --sentences 200 [--model RUN]
    python -m benchmarks.web --make transformer_base --tokenizer FILE --artifact EXPORT

The folder is served by Python's static server. After the first visit the server is stopped and the
page opened again, which must translate as before. JSON on stdout: bytes of a first visit, load
times, memory, milliseconds a sentence and words a second, one sentence at a time and in batches,
and the sentences whose translations differ, with both scores. With the run that was exported, the
live model gives its opinion of both: its probabilities where they part, and where a beam search
over it leaves each of them out. `--make` writes a folder to measure: a model of that preset's size
in int8, not trained, whose translations all have 16 tokens. Needs Chromium and `websockets`.
"""

import argparse
import base64
import functools
import gzip
import http.server
import json
import math
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "serving"))
import numpy as np  # noqa: E402
from ai_edge_litert import interpreter  # noqa: E402
from browser import Browser  # noqa: E402
from keras import ops  # noqa: E402

from keras_transformer import Translator  # noqa: E402
from keras_transformer.data import read_lines  # noqa: E402
from keras_transformer.ids import BOS_ID, EOS_ID, PAD_ID  # noqa: E402

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
    const together = await translator.translate(order.map((place) => texts[place]), { beamSize });
    const ms = [middle - begin, performance.now() - middle];
    const tokens = alone.flatMap(({ parts }) => parts.flatMap(({ ids }) => ids)).length;
    answer[beamSize] = { ms, tokens, texts: alone.map((each) => each.text),
      scores: alone.map(({ parts }) => parts[0].score),
      ids: alone.map(({ parts }) => parts[0].ids), others: [] };
    order.forEach((place, i) => (answer[beamSize].others[place] = together[i].text));
  }
  return answer;
})()"""


class Handler(http.server.SimpleHTTPRequestHandler):
    asked = []

    def log_message(self, *_):
        self.asked.append(self.path)


def served(folder):
    handler = functools.partial(Handler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def memory(process):
    """Resident megabytes of the largest process of the browser that runs a page."""
    largest = 0
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            if b"--type=renderer" in command and process.args[-2].encode() in parents(path):
                pages = int((path / "statm").read_text().split()[1])
                largest = max(largest, pages * os.sysconf("SC_PAGE_SIZE"))
        except (OSError, ValueError):
            continue
    return round(largest / 1e6)


def parents(path):
    """The command lines of a process' ancestors."""
    found = b""
    while (number := (path / "stat").read_text().rsplit(")", 1)[1].split()[1]) not in "01":
        path = path.parent / number
        found += (path / "cmdline").read_bytes()
    return found


def evaluate(browser, script):
    result = browser.call(
        "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
    )
    assert "exceptionDetails" not in result, result
    return result["result"]["value"]


def python(folder, texts, beam_size):
    """The same by LiteRT in Python with one thread: seconds one by one, in fours, translations."""
    translator = Translator.load(folder)
    run = functools.partial(
        translator.translate, beam_size=beam_size, threads=1, long_input="split"
    )
    run(texts[:4])
    start = time.perf_counter()
    alone = [run([text])[0] for text in texts]
    middle = time.perf_counter()
    run(texts)
    return [middle - start, time.perf_counter() - middle], alone


def without_xnnpack(folder, texts, beam_size):
    """The translations by LiteRT in Python with its own reference kernels."""
    reference = interpreter.OpResolverType.BUILTIN_REF
    made = functools.partial(interpreter.Interpreter, experimental_op_resolver_type=reference)
    with unittest.mock.patch.object(interpreter, "Interpreter", made):
        return python(folder, texts, beam_size)[1]


def compared(here, expected):
    """How many translations are the browser's, and how far the scores of those are apart."""
    pairs = zip(here["texts"], here["scores"], expected, strict=True)
    apart = [abs(score - each.score) for text, score, each in pairs if text == each.text]
    return {
        "equal": len(apart),
        "score_difference": {"mean": statistics.fmean(apart), "largest": max(apart)},
    }


def opinion(live, source, ids, length_penalty):
    """The live model's scores of two translations, and how probable it holds where they part."""
    scored = live.score([source] * 2, ids, length_penalty=length_penalty)
    place = next(i for i, (one, other) in enumerate(zip(*ids, strict=False)) if one != other)
    tokens = [{each.tokens[place]: each.token_log_probabilities[place]} for each in scored]
    return {"scores": [each.score for each in scored], "part_at": place, "tokens": tokens}


def cuts(live, source, translations, beam_size):
    """Where a beam search over the live model leaves each translation out, and by how many nats.

    A plain search with a full pass for each token; None: it is kept to its end. What is kept also
    hangs on the other hypotheses: `narrowest` is the least that decided on any of them so far.
    """
    translations = [tuple(ids) for ids in translations]
    source_ids = live.source_tokenizer.tokenize([source], add_eos=True)
    alive, found, narrowest = {(): 0.0}, [None] * len(translations), math.inf
    for length in range(1, max(map(len, translations)) + 1):
        prefixes = np.array([(BOS_ID, *prefix) for prefix in alive], "int32")
        logits = live.model((np.repeat(source_ids, len(prefixes), axis=0), prefixes))[:, -1]
        values = ops.convert_to_numpy(ops.log_softmax(ops.cast(logits, "float32")))
        totals = {
            (*prefix, token): total + float(row[token])
            for (prefix, total), row in zip(alive.items(), values, strict=True)
            for token in range(len(row))
            if token not in (PAD_ID, BOS_ID)
        }
        ranked = sorted(totals, key=totals.get, reverse=True)[: 2 * beam_size + 1]
        *kept, next_best = [each for each in ranked if each[-1] != EOS_ID][: beam_size + 1]
        narrowest = min(narrowest, totals[kept[-1]] - totals[next_best])
        for number, ids in enumerate(translations):
            if found[number] is None and length <= len(ids):
                last = ranked[beam_size - 1] if ids[length - 1] == EOS_ID else kept[-1]
                if (short := totals[last] - totals[ids[:length]]) > 0:
                    by = {"nats": round(short, 4), "narrowest": round(narrowest, 4)}
                    found[number] = {"token": length - 1, **by}
        alive = {each: totals[each] for each in kept}
    return found


def make(preset, tokenizer, folder):
    """Exports an untrained model of a preset's size; it hardly ever ends a sentence by itself."""
    from keras_transformer import Tokenizer, Transformer
    from keras_transformer.engine import ModelEngine
    from keras_transformer.export import export_web

    tokenizer = Tokenizer.load(tokenizer)
    model = Transformer.from_preset(preset, vocabulary_size=tokenizer.vocabulary_size)
    engine = ModelEngine(model, tokenizer, max_target_length=_STEPS)
    report = export_web(engine, folder, quantize="int8", source_lengths=[32], overwrite=True)
    print(json.dumps(report.verification, indent=2))


def visited(folder, script):
    """What a script gives on the page, twice, the second time without its server; and the visit."""
    server = served(folder)
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(profile)
        browser.call("Runtime.enable")
        browser.call("Log.enable")
        empty = memory(browser._process)
        address = f"http://127.0.0.1:{server.server_port}/"
        start = time.perf_counter()
        browser.open(address)
        browser.wait(lambda: browser.text("#status") == "Ready.")
        first = time.perf_counter() - start
        browser.wait(lambda: browser.evaluate("document.documentElement.dataset.offline"))
        size = {}
        for name in {path.split("?")[0].lstrip("/") or "index.html" for path in Handler.asked}:
            content = (folder / name).read_bytes()
            size[name] = [len(content), len(gzip.compress(content, 9))]
        page = memory(browser._process)
        found = evaluate(browser, script)
        server.shutdown()
        server.server_close()
        asked = len(Handler.asked)
        browser.open(address)
        browser.wait(lambda: browser.text("#status") == "Ready.")
        again = evaluate(browser, script)
        visit = {
            "first_visit_bytes": [sum(column) for column in zip(*size.values(), strict=True)],
            "files": dict(sorted(size.items(), key=lambda item: -item[1][0])),
            "page_ready_seconds": round(first, 2),
            "load_ms": {"first": round(found.pop("load_ms")), "offline": round(again["load_ms"])},
            "memory_megabytes": {"empty tab": empty, "page": page},
            "requests_after_the_server_stopped": len(Handler.asked) - asked,
            "complaints": browser.complaints,
        }
        browser.close()
    return found, again, visit


def beside_python(folder, texts, beam_size, here, offline, live):
    """One search in the browser, beside LiteRT in Python and the live model, if that is given."""
    seconds, expected = python(folder, texts, beam_size)
    control = without_xnnpack(folder, texts, beam_size) if live else None
    penalty = json.loads((folder / "export.json").read_text("utf-8"))["length_penalty"]
    different = []
    for place, each in enumerate(expected):
        if here["texts"][place] == each.text:
            continue
        pair = {"source": texts[place], "browser": [here["texts"][place], here["scores"][place]]}
        pair["python"] = [each.text, each.score]
        if live:
            pair["python_without_xnnpack"] = [control[place].text, control[place].score]
            ids = [here["ids"][place], list(each.ids)]
            pair["live"] = opinion(live, texts[place], ids, penalty)
            pair["live"]["cut"] = cuts(live, texts[place], ids, beam_size)
        different.append(pair)
    words = sum(len(text.split()) for text in texts)
    rates = [words / (ms / 1000) for ms in here["ms"]], [words / each for each in seconds]
    report = {
        "sentences": len(texts),
        "tokens_a_sentence": round(here["tokens"] / len(texts), 1),
        "python": compared(here, expected),
        "equal_offline": sum(map(str.__eq__, here["texts"], offline["texts"])),
        "equal_in_batches": sum(map(str.__eq__, here["texts"], here["others"])),
        "tokens_a_second": round(here["tokens"] / (here["ms"][0] / 1000)),
        "ms_a_sentence": round(here["ms"][0] / len(texts), 1),
        "words_a_second": {
            name: {"alone": round(alone), "batches of 4": round(batches)}
            for name, (alone, batches) in zip(("browser", "python"), rates, strict=True)
        },
        "different": different,
    }
    return report | ({"python_without_xnnpack": compared(here, control)} if live else {})


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.web", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--artifact", required=True, metavar="FOLDER")
    parser.add_argument("--source", metavar="FILE")
    parser.add_argument("--sentences", type=int, default=200, metavar="N")
    parser.add_argument("--model", metavar="RUN", help="what the folder was exported from")
    parser.add_argument("--make", metavar="PRESET", help="write the folder, and measure nothing")
    parser.add_argument("--tokenizer", metavar="FILE", help="of the folder to make")
    options = parser.parse_args()
    if options.make:
        return make(options.make, options.tokenizer, options.artifact)
    texts = read_lines(options.source)[: options.sentences]
    script = _SCRIPT % base64.b64encode(json.dumps(texts).encode()).decode()
    folder = pathlib.Path(options.artifact)
    found, again, report = visited(folder, script)
    live = Translator.load(options.model).engine if options.model else None
    for beam_size, here in found.items():
        given = folder, texts, int(beam_size), here, again[beam_size], live
        report[f"beam_size={beam_size}"] = beside_python(*given)
    print(json.dumps(report, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
