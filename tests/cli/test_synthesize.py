"""Pairs made of text in one language: complete, in order, whoever dies, and fit for a recipe."""

import gzip
import io
import json
import sys

import pytest
from small_corpus import recipe_values

from keras_transformer import Translation, Translator
from keras_transformer.cli import main as cli
from keras_transformer.data import read_pairs
from keras_transformer.text.directions import Directions
from keras_transformer.training import Recipe

LINES = ["Ein  Hund.", "", "Zwei\tHunde.", "Drei.", "Vier.", "Fünf."]


class Upper:
    """Writes in upper case; its second hypothesis has a mark; it may be interrupted at a text."""

    def __init__(self):
        self.seen, self.interrupted_at = [], None
        self.labels, self.turns, self.reads_sources, self.engine = None, None, True, self
        self.long_inputs, self.lines_at_once = ("refuse", "split"), 1024
        self.directions = Directions(None)

    def check_options(self, **options):
        pass

    def translate(self, texts, n_best=1, **options):
        if self.interrupted_at in texts:
            raise KeyboardInterrupt
        self.seen += texts
        hypotheses = [(Translation(f"{text.upper()} 2", -2.5),) for text in texts]
        return [
            Translation(text.upper(), -0.5, alternatives=other[: (n_best - 1) * bool(text)])
            for text, other in zip(texts, hypotheses, strict=True)
        ]


@pytest.fixture
def upper(tmp_path, monkeypatch):
    upper = Upper()
    monkeypatch.setattr(Translator, "load", lambda *arguments: upper)
    (tmp_path / "run").mkdir()
    (tmp_path / "mono.de").write_text("".join(line + "\n" for line in LINES))
    monkeypatch.chdir(tmp_path)
    return upper


def synthesize(capsys, *arguments):
    code = cli.run(["synthesize", "--model", "run", *arguments])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else captured.err


@pytest.mark.parametrize("back", [False, True])
def test_each_hypothesis_is_a_pair_with_a_score_that_a_recipe_takes(upper, tmp_path, capsys, back):
    options = ["--back"] * back + ["--n-best", "2", "--set", "chunk_lines=2"]
    code, report = synthesize(capsys, "mono.de", "--output", "out", *options)
    assert code == 0 and report["lines_translated"] == 6
    pairs, scores = [], []
    for line in LINES:
        line = line.replace("\t", " ").replace("  ", " ")
        hypotheses = [line.upper()] + [f"{line.upper()} 2"] * bool(line)
        pairs += [(text, line) if back else (line, text) for text in hypotheses]
        scores += ["-0.5000", "-2.5000"][: len(hypotheses)]
    assert list(zip(*read_pairs("out/mono.de.csv"), strict=True)) == pairs
    assert (tmp_path / "out" / "mono.de.csv.scores").read_text().splitlines() == scores
    values = recipe_values(tmp_path)
    values["data"]["train"] = report["train"]
    (corpus,) = Recipe.from_dict(values).data.train
    assert corpus.source == str(tmp_path / "out" / "mono.de.csv")
    assert (corpus.name, corpus.tag) == ("mono-de", "bt" if back else None)


def test_the_corpora_of_a_recipe_have_names_of_their_own(upper, tmp_path, capsys):
    inputs = ["news a.de", "news-a.de", "news-a.de-2", "über.de"]
    for name in inputs:
        (tmp_path / name).write_text("a\n")
    code, report = synthesize(capsys, *inputs, "--output", "out")
    assert code == 0
    values = recipe_values(tmp_path)
    values["data"]["train"] = report["train"]
    corpora = Recipe.from_dict(values).data.corpora("train")
    sources = [corpus.source for corpus in corpora]
    assert sources == sorted(str(tmp_path / "out" / f"{name}.csv") for name in inputs)
    names = [corpus.name for corpus in corpora]
    assert names == ["news-a-de", "news-a-de-2", "news-a-de-3", "über-de"]


def test_an_interrupted_command_continues_where_it_stopped(upper, tmp_path, capsys):
    (tmp_path / "more.de.gz").write_bytes(gzip.compress(b"a\nb\nc\n"))
    arguments = ["mono.de", "more.de.gz", "--set", "chunk_lines=2", "--n-best", "2"]
    assert synthesize(capsys, *arguments, "--output", "whole")[0] == 0
    upper.interrupted_at, upper.seen = "Fünf.", []
    assert synthesize(capsys, *arguments, "--output", "out")[0] == 130
    assert upper.seen == LINES[:4] and not list((tmp_path / "out").glob("*.csv"))
    upper.interrupted_at, upper.seen = None, []
    code, said = synthesize(capsys, *arguments, "--output", "out", "--back")
    assert code == 2 and "out: holds the output of another job" in said
    code, report = synthesize(capsys, *arguments, "--output", "out")
    assert (code, report["lines_translated"]) == (0, 5)
    assert upper.seen == [*LINES[4:], "a", "b", "c"]
    for name in ("mono.de.csv", "mono.de.csv.scores", "more.de.csv"):
        whole = (tmp_path / "whole" / name).read_text()
        assert (tmp_path / "out" / name).read_text() == whole


def test_lines_of_stdin_become_pairs_on_stdout(upper, monkeypatch, capsys):
    expected = {"--n-best": "a,A\na,A 2\nb,B\nb,B 2\n", "--back": "A,a\nB,b\n"}
    for option, pairs in expected.items():
        stdin = io.TextIOWrapper(io.BytesIO(b"a\nb\n"), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        assert cli.run(["synthesize", "--model", "run", option, *["2"] * (option != "--back")]) == 0
        assert capsys.readouterr().out == pairs


MISTAKES = [(["--workers", "2"], "`--workers` needs --engine ray.")]
MISTAKES += [(["--set", "ray_address=a"], "`--set ray_address` needs --engine ray.")]
MISTAKES += [(["mono.de"], "FILE and --output need each other")]
MISTAKES += [(["--engine", "ray"], "--engine ray needs both.")]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES)
def test_a_mistake_is_one_line(upper, capsys, arguments, says):
    code, said = synthesize(capsys, *arguments)
    assert code == 2 and says in said and len(said.splitlines()) == 1
