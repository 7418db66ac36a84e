import io
import sys

import pytest

from keras_transformer import Translation, Translator
from keras_transformer.cli import run


class Recorder:
    """Stands for a translator: answers anything, and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def translate(self, texts, **options):
        self.asked.append(options)
        others = (Translation("other", -2.0),) * (options.get("n_best", 1) - 1)
        return [Translation(text.upper(), -1.0, alternatives=others) for text in texts]

    def stream(self, text, **options):
        self.asked.append(options)
        return iter(text.upper().split()[:1])

    def score(self, sources, targets, **options):
        self.asked.append(options)
        return [Translation(text, -1.0, tokens=(text,)) for text in targets]


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(Translator, "load", lambda path: recorder)
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
