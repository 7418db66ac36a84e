"""READMEs and the site: options and extras exist; the Python blocks run as they stand."""

import argparse
import ast
import contextlib
import importlib
import io
import itertools
import pathlib
import re
import runpy
import shlex
import sys
import unittest.mock

import keras
import numpy as np
import pytest
from small_corpus import write_corpus

from keras_transformer.cli import main as cli
from keras_transformer.models import config
from keras_transformer.training import Recipe

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "PLATFORM_NOTES.md")]
PAGES += sorted(p for top in ("training", "export") for p in (ROOT / top).rglob("README.md"))
OWN_TEXT = ROOT / "docs" / "howto" / "train.md"
SITE = [p for p in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "_work"} & {*p.parts}]
BLOCKS = re.findall(r"```python\n(.*?)```", README + OWN_TEXT.read_text("utf-8"), re.DOTALL)


def block_with(text):
    (example,) = [block for block in BLOCKS if text in block]
    return example


def test_layers_make_a_functional_classifier():
    names = {}
    exec(block_with("classifier = keras.Model"), names)
    ids = np.array([[5, 7, 11, 0, 0]])
    assert names["classifier"](ids).shape == (1, 2)


@pytest.mark.slow
def test_five_lines_of_plain_keras_train_on_arrays_and_then_on_text(tmp_path, monkeypatch):
    # The preset's layers are all alike; each costs seconds of compilation, as XLA does.
    compile = keras.Model.compile
    monkeypatch.setattr(
        keras.Model, "compile", lambda *a, **k: compile(*a, **{**k, "jit_compile": False})
    )
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
    from_text = from_text.replace("batch_tokens=4096", "batch_tokens=4096, max_shapes=1")
    exec(from_text.replace("epochs=10", "epochs=1"), names)
    assert len(names["model"].history.history["loss"]) == 1
    assert "32 of 32 pairs kept" in str(names["report"])


def test_the_extras_are_those_of_the_setup():
    setup = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    keywords = [node for node in ast.walk(setup) if isinstance(node, ast.keyword)]
    (extras,) = [keyword.value.keys for keyword in keywords if keyword.arg == "extras_require"]
    extras = {key.value for key in extras}
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `\[([\w-]+)\]` \|", page, flags=re.MULTILINE)) == extras
    for page in [*PAGES, *SITE]:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?:\.|keras_transformer|extra `)\[([\w,-]+)\]", text)
        assert {name for names in named for name in names.split(",")} <= extras, page


_PROGRAM = re.compile(
    r"(?:^|[ &|])(keras-transformer(?= [a-z])|python -m benchmarks\.[a-z]\w*"
    r"|python training/\w+\.py(?= -))(?![\w-])(.*)"
)


def commands(text):
    """`(program, words)` of each call of our command line or of a program that measures."""
    text = text.replace("\\\n", " ")
    fenced = re.findall(r"```(?:bash|text)\n(.*?)```", text, flags=re.DOTALL)
    spans = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for line in [*"\n".join(fenced).split("\n"), *(" ".join(span.split()) for span in spans)]:
        for program, rest in _PROGRAM.findall(line):
            # What may be left out stands in brackets.
            shell = shlex.shlex(re.sub(r"[][]", "", rest), posix=True, punctuation_chars="<>|&;")
            shell.whitespace_split = True
            words = itertools.takewhile(lambda word: not re.match("[<>|&;]", word), shell)
            yield program.split()[-1], tuple(words)


class Parsed(Exception):
    """Ends a program where it has parsed its options."""


def parsed(program, words):
    """Options of a call; raises `SystemExit` where the program does not take them."""
    real = argparse.ArgumentParser.parse_args

    def parse_args(self, arguments=None, namespace=None):
        raise Parsed(real(self, arguments, namespace))

    with contextlib.ExitStack() as stack:
        patch = unittest.mock.patch.object
        stack.enter_context(patch(argparse.ArgumentParser, "parse_args", parse_args))
        stack.enter_context(patch(sys, "argv", [program, *words]))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        try:
            if program == "keras-transformer":
                cli.run(words)
            elif program.endswith(".py"):
                runpy.run_path(str(ROOT / program), run_name="__main__")
            else:
                importlib.import_module(program).main()
        except Parsed as ending:
            return ending.args[0]


def test_every_command_that_a_page_or_a_program_shows_takes_its_options():
    texts = [page.read_text(encoding="utf-8") for page in [*PAGES, *SITE]]
    programs = (*ROOT.glob("training/*.py"), *ROOT.glob("benchmarks/*.py"))
    for path in (*ROOT.glob("training/recipes/*.yaml"), *programs):
        doc = path.read_text(encoding="utf-8")
        doc = ast.get_docstring(ast.parse(doc)) if path.suffix == ".py" else doc
        texts.append("```bash\n" + re.sub("^[# ]+", "", doc or "", flags=re.MULTILINE) + "\n```")
    shown = {command for text in texts for command in commands(text)}
    assert len(shown) > 100
    for program, words in sorted(shown):
        if len(words) <= (program == "keras-transformer") or "--help" in words:  # Its name alone.
            with pytest.raises(SystemExit, match="^0$"):
                parsed(program, [*words, "--help"])
            continue
        options = parsed(program, words)
        if words[0] == "train":
            recipe = ROOT / options.recipe
            overrides = options.set or []
            if not recipe.exists():  # A recipe of a reader.
                recipe = ROOT / "training/recipes/multi30k_en_de.yaml"
            # The run to start from need not be here.
            of_origin = ("training.start_from=runs/", "training.lora_rank=")
            overrides = [text for text in overrides if not text.startswith(of_origin)]
            Recipe.load(recipe, overrides)
