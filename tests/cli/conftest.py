"""A translator whose work is known, and streams that are read while they are written."""

import io
import os
import sys
import threading
import warnings

import numpy as np
import pytest
from markup_engines import SayingEngine, in_order

from keras_transformer import Translation, Translator
from keras_transformer.base.errors import InputError, TooLongError
from keras_transformer.cli.main import run
from keras_transformer.engine import Engine


class Recorder(Engine):
    """A translator and its engine: writes upper case, and remembers texts and options.

    It refuses a text that says LONG, and warns of a text that says SPLIT.
    """

    def __init__(self):
        self.texts, self.asked, self.engine, self.refused = [], [], self, None

    def _ask(self, texts, options):
        for index, text in enumerate(texts):
            if "LONG" in text:
                raise InputError(f"Too long. Received: 99 tokens: {text!r}", index)
            if "SPLIT" in text:
                warnings.warn(f"1 of {len(texts)} texts\nwas split.", stacklevel=3)
        self.texts.append(list(texts))
        self.asked.append(options)

    def check_options(self, **options):
        self.checked = options

    def translate(self, texts, **options):
        self._ask(texts, options)
        hypotheses = (Translation("other", -2.0),) * (options.get("n_best", 1) - 1)
        return [Translation(text.upper(), -1.0, alternatives=hypotheses) for text in texts]

    def stream(self, text, target_prefix="", **options):
        self._ask([text], options)
        words = (target_prefix + text.upper()).split()
        return (" ".join(words[: count + 1]) for count in range(len(words)))

    def score(self, sources, targets, **options):
        sides = [*sources], [*targets]
        assert sides != self.refused, "asked again for what was refused, perhaps for ever"
        for texts in sides:  # as an engine, one side after the other
            if long := [index for index, text in enumerate(texts) if "LONG" in text]:
                self.refused = sides
                raise TooLongError(f"At most 9 tokens. Received: {texts[long[0]]!r}", long)
        self._ask(targets, options)
        alignment = np.float32([[0.123456]]) if options.get("alignment") else None
        fields = {"log_probability": -3.0, "alignment": alignment}
        return [Translation(text, -1.0, tokens=(text,), **fields) for text in targets]


@pytest.fixture(autouse=True)
def folder_with_a_run(monkeypatch, tmp_path_factory):
    """Commands look first whether the path of a model, `run`, is there."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "run").mkdir()
    monkeypatch.chdir(folder)


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(Translator, "load", lambda path, **options: recorder)
    return recorder


@pytest.fixture
def call(recorder, monkeypatch, capsys):
    """`call("translate", …)`: exit code, stdout, stderr, and what the translator was asked."""

    def call(*arguments, stdin="a b\nc\n"):
        source = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", source)
        recorder.asked.clear()
        code = run([*arguments, "--model", "run"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err, recorder.asked

    return call


@pytest.fixture
def translate(monkeypatch, capfdbinary, tmp_path):
    """Runs `translate` in `tmp_path`; returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, stdin=b"", engine=None):
        engine = engine or SayingEngine(in_order)
        monkeypatch.setattr(Translator, "load", lambda path, **options: Translator(engine))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(["translate", "--model", "run", *arguments])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


@pytest.fixture
def summary():
    """`summary(counts)`: the pattern of the line that sums up what was done with files."""

    def pattern(counts, warnings=0):
        return rf"keras-transformer: {counts}, seconds: \d+\.\d, warnings: {warnings}\n"

    return pattern


@pytest.fixture
def lines():
    """`lines("a", "b")`: a stream of these lines that is all there."""
    return lambda *texts: io.BytesIO("".join(text + "\n" for text in texts).encode())


@pytest.fixture
def pipe():
    """A pipe's ends: a binary stream, and `write(bytes)`, which `close` follows."""
    reading, writing = os.pipe()
    stream, sink = os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0)
    with stream, sink:
        yield stream, sink


@pytest.fixture
def in_background():
    """`in_background(function)` calls it in a thread and returns the thread."""

    def in_background(function):
        thread = threading.Thread(target=function, daemon=True)
        thread.start()
        return thread

    return in_background
