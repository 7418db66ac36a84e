"""The commands on a run that has learned 32 pairs of sentences by heart."""

import contextlib
import functools
import gc
import io
import json
import re
import sys

import pytest
from device_plans import one_graph
from small_corpus import PAIRS, recipe_values, repeat_pairs, write_corpus, write_recipe

from keras_transformer import Translator
from keras_transformer.cli.main import run
from keras_transformer.training import RunFolder

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


def give_stdin(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that learned the pairs by heart, through the command line, and what that wrote."""
    base = tmp_path_factory.mktemp("learned")
    corpus = write_corpus(base / "corpus")
    options = {"epochs": 3, "learning_rate": 0.00375, "label_smoothing": 0.0}
    options["jit_compile"] = False
    options["ema_momentum"] = 0.9  # The last steps alone still move the model by a token or two.
    values = recipe_values(corpus, **options)
    repeat_pairs(corpus, values, 110)
    # So sure a model ends two hypotheses of hardly any probability before the one that it knows.
    values["decoding"] = {**values.get("decoding", {}), "early_stopping": False}
    recipe = write_recipe(base / "recipe.yaml", values)
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        assert run(["train", str(recipe), "--output", str(base / "run")]) == 0
    return base / "run", stdout.getvalue(), stderr.getvalue()


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """The first command loads the run and compiles, the others use its translator."""
    with one_graph(), pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Translator, "load", functools.cache(Translator.load))
        yield
    gc.collect()  # Their programs take a gigabyte, and collections are rare in tests.


def test_progress_goes_to_stderr_and_the_result_to_stdout(learned):
    folder, stdout, stderr = learned
    assert stdout == f"{folder}\n"
    assert "3520 of 3520 pairs kept" in stderr
    (epoch,) = [line for line in stderr.splitlines() if line.startswith("epoch 1/3: loss ")]
    figures = r"loss [\d.]+, val_loss [\d.]+, accuracy [\d.]+ in training(?: with dropout)?, "
    figures += r"[\d.]+ in validation, [\d,]+ tokens/s, [\d.]+ s$"
    assert re.search(figures, epoch)
    assert "\b" not in stderr and "step" not in stderr.split("non-padding tokens")[1]


def test_32_real_pairs_are_learned_by_heart_and_translated_exactly(learned, capsys, monkeypatch):
    folder, *_ = learned
    assert RunFolder(folder).history()[-1]["val_token_accuracy"] == 1.0
    give_stdin(monkeypatch, "".join(source + "\n" for source in SOURCES).encode())
    for beam in ("1", "2"):
        sys.stdin.seek(0)
        assert run(["translate", "--model", str(folder), "--beam-size", beam]) == 0
        assert capsys.readouterr().out.splitlines() == TARGETS


def test_markup_is_put_around_the_translations_of_its_words(learned, capsys, monkeypatch):
    give_stdin(monkeypatch, b"<p>Two dogs <i id='1'>play</i> in the <br/>snow.</p>\n")
    assert run(["translate", "--model", str(learned[0]), "--markup", "html"]) == 0
    translation = capsys.readouterr().out.strip()
    # A tag may bring a space of the source with it.
    assert re.sub(r"<.*?>|\s", "", translation) == TARGETS[0].replace(" ", "")
    tags = re.findall("<.*?>", translation)
    assert sorted(tags) == ["</i>", "</p>", "<br/>", "<i id='1'>", "<p>"]
    assert tags[0] == "<p>" and tags[-1] == "</p>"
    assert tags.index("</i>") > tags.index("<i id='1'>")


def test_a_text_that_is_too_long_is_split_or_named_by_its_line(learned, capsys, monkeypatch):
    texts = SOURCES[0], SOURCES[1], " ".join(SOURCES * 4), SOURCES[2]
    give_stdin(monkeypatch, "".join(text + "\n" for text in texts).encode())
    command = ["translate", "--model", str(learned[0]), "--beam-size", "1"]
    assert run(command) == 0
    captured = capsys.readouterr()
    # The run has learned from single sentences, each of which is short enough.
    assert captured.out.splitlines()[2] == " ".join(TARGETS * 4) and captured.err == ""
    sys.stdin.seek(0)
    command.append("--no-split-sentences")
    assert run(command) == 0
    captured = capsys.readouterr()
    first, second, split, third = captured.out.splitlines()
    assert [first, second, third] == TARGETS[:3] and split.count(".") > 8
    assert captured.err.endswith(
        "1 of 4 texts are longer than 48 tokens and were split "
        "between sentences, words or characters.\n"
    )
    sys.stdin.seek(0)
    assert run([*command, "--set", "long_input=refuse"]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines() == TARGETS[:2]
    *_, last = captured.err.splitlines()
    assert last.startswith("keras-transformer: stdin, line 3: A text must have at most 48 tokens")
    assert "can be split (`--set long_input=split`)" in last and "text 1" not in last


def test_a_run_explains_itself_and_translates_without_heads(learned, capsys, tmp_path):
    output = tmp_path / "seen"
    assert run(["inspect", "--model", str(learned[0])]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["run"] == str(learned[0]) and described["kind"] == "transformer"
    command = ["inspect", "--model", str(learned[0]), "--text", SOURCES[0]]
    command += ["--output", str(output), "--beam-size", "1"]
    assert run([*command, "--without-heads", "cross.0.2"]) == 2
    heads = "the heads of each layer are encoder [2], decoder [2], cross [2]"
    assert heads in capsys.readouterr().err
    assert not output.exists()
    assert run([*command, "--without-heads", "cross.0.0,cross.0.1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["translation"] == TARGETS[0]
    # Without attention to the source, nothing of the source is known.
    assert report["without_heads"]["translation"] != TARGETS[0]
    assert len(report["alignment"].split()) == len(TARGETS[0].split())
    assert {"attention.html", "heads.csv"} <= {path.name for path in output.iterdir()}
    assert sum(report["roles"].values()) == 6
