"""The short scripts of `training/` and `export/`, called as a reader calls them."""

import contextlib
import http.server
import io
import itertools
import json
import pathlib
import re
import runpy
import sys
import threading

import keras
import pytest
from device_plans import one_graph

from keras_transformer.cli.dates import date_corpus
from keras_transformer.models import config

pytestmark = pytest.mark.tensorflow

ROOT = pathlib.Path(__file__).parents[1]
TOY = ROOT / "tests" / "data" / "marian" / "opus"
SUBJECTS = {"the child": "la infano", "the cat": "la kato", "the tree": "la arbo"}
SUBJECTS |= {"the river": "la rivero", "the house": "la domo"}
VERBS = {"moves": "movas", "sees": "vidas", "likes": "sxatas", "finds": "trovas"}
ONE_SHAPE = "--max-shapes", 1
PAIRS = [
    (f"{one} {verb} {other}", f"{SUBJECTS[one]} {VERBS[verb]} {SUBJECTS[other]}")
    for one, verb, other in itertools.product(SUBJECTS, VERBS, SUBJECTS)
]


def call(script, *arguments):
    """Runs a script in this process; returns what it prints."""
    printed = io.StringIO()
    stdout = contextlib.redirect_stdout(printed)
    with one_graph(rows=(128,)), pytest.MonkeyPatch.context() as patch, stdout:
        compile = keras.Model.compile  # Each shape of batches would be compiled.
        owner = next(base for base in keras.Model.__mro__ if "compile" in vars(base))
        patch.setattr(owner, "compile", lambda *a, **k: compile(*a, **{**k, "jit_compile": False}))
        patch.setattr(sys, "argv", [script, *map(str, arguments)])
        runpy.run_path(str(ROOT / script), run_name="__main__")
    return printed.getvalue()


def write_sides(folder, name, sources, targets):
    paths = [folder / f"{name}.source", folder / f"{name}.target"]
    for path, lines in zip(paths, (sources, targets), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory):
    """The directory that `fine_tune.py` writes, and what it prints."""
    folder = tmp_path_factory.mktemp("fine_tuned")
    domain = write_sides(folder, "domain", *zip(*PAIRS, strict=True))
    # As many lines as the domain has: searches then have batches of the same shapes.
    general = ["the cats find 1 tree", "yes, the river moves", "a happy child", "the red stone"]
    general, _ = write_sides(folder, "general", general * 25, general * 25)
    arguments = ["--domain", *domain, "--general", general, "--epochs", 1, *ONE_SHAPE]
    printed = call("training/fine_tune.py", TOY, *arguments, "--output", folder / "output")
    return folder / "output", printed


def test_a_script_has_at_most_80_lines_and_a_line_in_its_readme():
    for folder, count in (("training", 3), ("export", 2)):
        readme = (ROOT / folder / "README.md").read_text(encoding="utf-8")
        names = re.findall(r"^\| \[(\w+\.py)\]", readme, flags=re.MULTILINE)
        assert len(names) == count
        for name in names:
            assert len((ROOT / folder / name).read_text("utf-8").splitlines()) <= 80


@pytest.mark.slow
def test_fit_trains_on_text_files_and_prints_bleu(tmp_path, monkeypatch):
    sizes = dict(model_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    tiny = {**config.PRESETS["transformer_tiny"], **sizes}
    monkeypatch.setitem(config.PRESETS, "transformer_tiny", tiny)
    corpus = date_corpus(500, 10)
    train = write_sides(tmp_path, "train", corpus.train_source, corpus.train_target)
    held_out = write_sides(tmp_path, "val", corpus.held_out_source, corpus.held_out_target)
    output = tmp_path / "fit"
    arguments = ["--train", *train, "--validation", *held_out, "--output", output, *ONE_SHAPE]
    printed = call("training/fit.py", *arguments, "--vocabulary-size", 300, "--epochs", 1)
    assert "500 of 500 pairs kept" in printed
    assert f"{corpus.held_out_source[0]} -> " in printed
    assert re.search(r"BLEU \d+\.\d+, nrefs:1", printed)
    names = {"model.keras", "tokenizer.model", "train", "validation"}
    assert {path.name for path in output.iterdir()} == names


@pytest.mark.slow
def test_layers_in_a_functional_model_are_saved_and_exported():
    printed = call("training/layers_in_keras.py", "--epochs", 1)
    assert "of 200 held-out dates are right" in printed
    assert "give the same logits" in printed


@pytest.mark.slow
def test_fine_tune_compares_the_adapted_model_with_the_original(fine_tuned):
    _, printed = fine_tuned
    scores = dict(re.findall(r"^(\w+, \w+) text: BLEU (\d+\.\d+)$", printed, re.MULTILINE))
    assert list(scores) == [
        f"{run}, {text}" for run in ("original", "adapted") for text in ("domain", "general")
    ]
    assert scores["original, general"] == "100.0"


def test_a_request_waits_for_the_server_and_is_sent_again_after_503(monkeypatch):
    statuses = iter([503, 200, 503, 200, 400])  # of /readyz twice, then of requests

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer({})

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            rows = [{"translation": text.upper()} for text in request["instances"]]
            self.answer({"predictions": rows, "error": "no such field"})

        def answer(self, content):
            self.send_response(next(statuses))
            self.send_header("Retry-After", "7")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *_):
            pass

    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1/models/translator"
        assert call("export/serve_request.py", url, "one", "two") == "ONE\nTWO\n"
        assert pauses == [1, 7]  # The first one is for a server that is not ready.
        script = runpy.run_path(str(ROOT / "export" / "serve_request.py"))
        with pytest.raises(ValueError, match="no such field"):
            script["translate"](url, ["one"], markup="xml")
        server.shutdown()
