"""READMEs and the site: links, options and extras exist; the Python blocks run as they stand."""

import ast
import contextlib
import functools
import importlib
import io
import pathlib
import re
import sys
import unittest.mock

import keras
import numpy as np
import pytest
from small_corpus import write_corpus

from keras_transformer import cli, config

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted(p for top in ("training", "export") for p in (ROOT / top).rglob("README.md"))
OWN_TEXT = ROOT / "docs" / "howto" / "your_own_text.md"
SITE = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if not {"_build", "_work"} & set(path.parts)
]
BLOCKS = re.findall(
    r"```python\n(.*?)```", README + OWN_TEXT.read_text(encoding="utf-8"), flags=re.DOTALL
)


def block_with(text):
    (found,) = [block for block in BLOCKS if text in block]
    return found


def test_layers_make_a_functional_classifier():
    names = {}
    exec(block_with("classifier = keras.Model"), names)
    ids = np.array([[5, 7, 11, 0, 0]])
    assert names["classifier"](ids).shape == (1, 2)


@pytest.mark.slow
def test_five_lines_of_plain_keras_train_on_arrays_and_then_on_text(tmp_path, monkeypatch):
    # The preset's layers are all alike; each costs seconds of compilation.
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    tiny = {**config.PRESETS["transformer_tiny"], **layers}
    monkeypatch.setitem(config.PRESETS, "transformer_tiny", tiny)
    rng = np.random.default_rng(1)
    ids = rng.integers(4, 90, (16, 8)).astype("int32")
    names = {"source_ids": ids, "target_ids": np.pad(ids, ((0, 0), (1, 0)), constant_values=1)}
    plain = block_with("model.compile(").replace("vocabulary_size=8000", "vocabulary_size=90")
    exec(plain.replace("warmup_steps=1000", "warmup_steps=10"), names)
    losses = names["model"].history.history["loss"]
    assert len(losses) == 10 and losses[-1] < losses[0]
    if keras.backend.backend() != "tensorflow":
        return
    write_corpus(tmp_path)
    monkeypatch.chdir(tmp_path)
    from_text = block_with("ParallelDataset(").replace("8000", "90")
    exec(from_text.replace("epochs=10", "epochs=1"), names)
    assert len(names["model"].history.history["loss"]) == 1
    assert "32 of 32 pairs kept" in str(names["report"])


def test_the_extras_are_those_of_the_setup():
    setup = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (extras,) = [
        keyword.value.keys
        for node in ast.walk(setup)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "extras_require"
    ]
    extras = {key.value for key in extras}
    (line,) = [line for line in README.split("\n") if line.startswith("setup.py ")]
    assert set(re.findall(r"\[([\w-]+)\]", line)) == extras
    for page in [*PAGES, *SITE]:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?:\.|keras_transformer|extra `)\[([\w,-]+)\]", text)
        assert {name for names in named for name in names.split(",")} <= extras, page


def test_pythons_static_server_is_never_shown_to_the_network():
    sources = [
        path for top in ("keras_transformer", "export") for path in (ROOT / top).rglob("*.py")
    ]
    lines = [
        line
        for path in [*PAGES, *SITE, *sources]
        for line in path.read_text(encoding="utf-8").splitlines()
        if "-m http.server" in line
    ]
    assert lines and [line for line in lines if "--bind 127.0.0.1" not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([\w-]*)\)", prose):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [
                re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings
            ]


_PROGRAM = r"keras-transformer |(?:KERAS_BACKEND=\w+ )?python -m (?=benchmarks\.)"


def commands(text):
    """`(command, option)` of every option that a page gives to our command line or a benchmark."""
    text = text.replace("\\\n", " ")
    fenced = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in [*"\n".join(fenced).split("\n"), *(" ".join(span.split()) for span in spans)]:
        words = re.match(rf"(?:{_PROGRAM})([\w.]+)([^<>#&|]*)", line)
        if words:
            yield from ((words[1], option) for option in re.findall(r" (--[\w-]+)", words[2]))


@functools.cache
def help_of(command):
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        if command.startswith("benchmarks."):
            with unittest.mock.patch.object(sys, "argv", [command, "--help"]):
                importlib.import_module(command).main()
        cli.run([command, "--help"])
    return re.findall(r"--[\w-]+", shown.getvalue())


def test_every_option_that_a_page_shows_is_one_of_its_command():
    shown = {
        each for page in [*PAGES, *SITE] for each in commands(page.read_text(encoding="utf-8"))
    }
    assert len(shown) > 20
    assert [each for each in sorted(shown) if each[1] not in help_of(each[0])] == []
