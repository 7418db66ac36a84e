"""The commands on a run that has learned 32 pairs of sentences by heart."""

import ast
import functools
import gc
import io
import json
import re
import signal
import subprocess
import sys

import pytest
from small_corpus import PAIRS, recipe_values, write_corpus, write_recipe

from keras_transformer import Translator
from keras_transformer.cli.main import run
from keras_transformer.training import RunFolder

pytestmark = pytest.mark.tensorflow

SOURCES = [source for source, _ in PAIRS]
TARGETS = [target for _, target in PAIRS]


def give_stdin(monkeypatch, content):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A run that learned 32 pairs of sentences by heart, through the command line."""
    base = tmp_path_factory.mktemp("learned")
    corpus = write_corpus(base / "corpus")
    for side in ("en", "de"):
        # Eighty times over: most of an epoch's cost is not its steps.
        text = (corpus / f"train.{side}").read_text(encoding="utf-8")
        (corpus / f"many.{side}").write_text(text * 80, encoding="utf-8")
    values = recipe_values(
        corpus, epochs=4, warmup_steps=100, learning_rate_scale=0.3, label_smoothing=0.0
    )
    values["data"]["train"] = {"source": "many.en", "target": "many.de"}
    values["data"]["drop_duplicates"] = False
    # So sure a model ends two hypotheses of hardly any probability before the one that it knows.
    values["decoding"] = {**values.get("decoding", {}), "early_stopping": False}
    recipe = write_recipe(base / "recipe.yaml", values)
    assert run(["train", str(recipe), "--output", str(base / "run")]) == 0
    return base


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """The first command loads the run and compiles, the others go on with its translator.

    Those in a process of their own load it anew.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Translator, "load", functools.cache(Translator.load))
        yield
    gc.collect()  # Their programs take a gigabyte, and collections are rare in tests.


def test_32_real_pairs_are_learned_by_heart_and_translated_back_exactly(
    learned, capsys, monkeypatch
):
    history = RunFolder(learned / "run").history()
    assert history[-1]["val_token_accuracy"] == 1.0
    give_stdin(monkeypatch, "".join(source + "\n" for source in SOURCES).encode())
    for beam in ("1", "2"):
        sys.stdin.seek(0)
        assert run(["translate", "--model", str(learned / "run"), "--beam-size", beam]) == 0
        assert capsys.readouterr().out.splitlines() == TARGETS


def test_markup_is_put_around_the_translations_of_its_words(learned, capsys, monkeypatch):
    give_stdin(monkeypatch, b"<p>Two dogs <i id='1'>play</i> in the <br/>snow.</p>\n")
    assert run(["translate", "--model", str(learned / "run"), "--markup", "html"]) == 0
    found = capsys.readouterr().out.strip()
    # A tag may bring a space of the source with it.
    assert re.sub(r"<.*?>|\s", "", found) == TARGETS[0].replace(" ", "")
    tags = re.findall("<.*?>", found)
    assert sorted(tags) == ["</i>", "</p>", "<br/>", "<i id='1'>", "<p>"]
    assert tags[0] == "<p>" and tags[-1] == "</p>"
    assert tags.index("</i>") > tags.index("<i id='1'>")


def test_evaluate_prints_json_alone(learned, capsys):
    corpus, saved = learned / "corpus", learned / "translations.txt"
    code = run(
        ["evaluate", "--model", str(learned / "run"), "--save", str(saved)]
        + ["--source", str(corpus / "train.en"), "--reference", str(corpus / "train.de")]
    )
    assert code == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["bleu"] == scores["chrf"] == scores["bleu_lowercase"] == 100.0
    assert scores["sentences"] == 32
    assert saved.read_text(encoding="utf-8").splitlines() == TARGETS


def test_an_export_translates_as_the_run_does(learned, capsys, monkeypatch):
    exported = str(learned / "exported")
    code = run(
        ["export", "--model", str(learned / "run"), "--format", "saved_model"]
        + ["--output", exported, "--signatures", "serving_default"]
    )
    assert code == 0
    captured = capsys.readouterr()
    (line,) = captured.out.splitlines()
    assert line.startswith(f"{exported}: SavedModel, ")
    assert re.search(r"(\d+) of \1 translations equal the trained model's", line)
    assert all(each.startswith("keras-transformer: ") for each in captured.err.splitlines())
    give_stdin(monkeypatch, (SOURCES[3] + "\n\n" + SOURCES[5] + "\n").encode())
    assert run(["translate", "--model", exported]) == 0
    assert capsys.readouterr().out == f"{TARGETS[3]}\n\n{TARGETS[5]}\n"


def test_json_tells_the_tokens_their_probabilities_and_the_alignment(learned, capsys, monkeypatch):
    give_stdin(monkeypatch, f"{SOURCES[0]}\n\n{SOURCES[1]}\n".encode())
    options = ["--beam-size", "2", "--n-best", "2", "--json", "--alignment"]
    assert run(["translate", "--model", str(learned / "run"), *options]) == 0
    best, blank, _ = map(json.loads, capsys.readouterr().out.splitlines())
    assert (best["line"], best["source"], best["translation"]) == (1, SOURCES[0], TARGETS[0])
    assert "".join(best["tokens"]) == "▁" + TARGETS[0].replace(" ", "▁") + "</s>"
    assert best["log_probability"] == pytest.approx(sum(best["token_log_probabilities"]))
    for each in (best, *best["alternatives"]):
        rows = each["alignment"]
        assert len(rows) == len(each["tokens"]) == len(each["token_log_probabilities"])
        assert {len(row) for row in rows} == {len(best["source_tokens"])}
        assert [sum(row) for row in rows] == pytest.approx([1] * len(rows), abs=1e-3)
    assert len(best["alternatives"]) == 1
    assert (blank["line"], blank["translation"], blank["tokens"]) == (2, "", [])


def test_a_streamed_line_ends_as_its_translation_and_obeys_its_prefix(learned, capsys, monkeypatch):
    (learned / "prefixes").write_text("\nEine Katze\n", encoding="utf-8")
    prefixes = ["--target-prefixes", str(learned / "prefixes")]
    give_stdin(monkeypatch, f"{SOURCES[0]}\n{SOURCES[1]}\n".encode())
    assert run(["translate", "--model", str(learned / "run"), *prefixes, "--stream"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == TARGETS[0]
    assert second.startswith("Eine Katze")


def test_a_text_that_is_too_long_is_split_or_named_by_its_line(learned, capsys, monkeypatch):
    long = " ".join(SOURCES * 4)
    content = "".join(text + "\n" for text in (SOURCES[0], SOURCES[1], long, SOURCES[2])).encode()
    give_stdin(monkeypatch, content)
    command = ["translate", "--model", str(learned / "run"), "--beam-size", "1"]
    assert run(command) == 0
    captured = capsys.readouterr()
    split = captured.out.splitlines()
    assert split[:2] == TARGETS[:2] and split[3] == TARGETS[2] and split[2].count(".") > 8
    *_, last = captured.err.splitlines()
    assert last.endswith(
        "1 of 4 texts are longer than 48 tokens and were split between sentences or words."
    )

    give_stdin(monkeypatch, content)
    assert run([*command, "--long-input", "refuse"]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines() == TARGETS[:2]
    *_, last = captured.err.splitlines()
    assert last.startswith("keras-transformer: stdin, line 3: A text must have at most 48 tokens")
    assert "can be split (--long-input split)" in last and "text 1" not in last

    give_stdin(monkeypatch, content)
    assert run([*command, "--long-input", "truncate"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 4
    *_, last = captured.err.splitlines()
    assert last.startswith("keras-transformer: stdin, lines 1 to 4: 1 of 4 texts are longer than")


def test_a_run_explains_itself_and_translates_without_heads(learned, capsys, tmp_path):
    output = tmp_path / "seen"
    command = ["inspect", "--model", str(learned / "run"), "--source", SOURCES[0]]
    command += ["--output", str(output), "--beam-size", "1"]
    assert run([*command, "--without-heads", "cross.0.2"]) == 2
    assert "the heads of each layer are encoder [2], decoder [2], cross [2]" in (
        capsys.readouterr().err
    )
    assert not output.exists()
    assert run([*command, "--without-heads", "cross.0.0,cross.0.1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["translation"] == TARGETS[0]
    # Without attention to the source, nothing of the source is known.
    assert report["without_heads"]["translation"] != TARGETS[0]
    assert len(report["alignment"].split()) == len(TARGETS[0].split())
    assert {"attention.html", "heads.csv"} <= {path.name for path in output.iterdir()}
    assert sum(report["roles"].values()) == 6
    assert run(command) == 2  # What is there stays.
    assert "exists already. Give --overwrite" in capsys.readouterr().err
    (output / "thesis.txt").write_text("three years")
    assert run([*command, "--overwrite"]) == 2
    assert "did not make: thesis.txt" in capsys.readouterr().err


def test_score_finds_what_was_learned_more_probable_than_anything_else(learned, capsys):
    corpus = learned / "corpus"
    swapped = [*TARGETS[16:], *TARGETS[:16]]
    (corpus / "swapped.de").write_text("".join(text + "\n" for text in swapped), encoding="utf-8")
    scores = {}
    for name in ("train.de", "swapped.de"):
        files = ["--source", str(corpus / "train.en"), "--target", str(corpus / name)]
        assert run(["score", "--model", str(learned / "run"), *files]) == 0
        scores[name] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["target"] for each in scores["train.de"]] == TARGETS
    for right, wrong in zip(*scores.values(), strict=True):
        assert right["log_probability"] > wrong["log_probability"]
        assert len(right["tokens"]) == len(right["token_log_probabilities"])


def test_a_ctranslate2_export_translates_as_its_readme_says(learned, capsys, monkeypatch):
    pytest.importorskip("ctranslate2", reason="comes with the extra [peers]")
    exported = learned / "ctranslate2"
    command = ["export", "--model", str(learned / "run"), "--format", "ctranslate2"]
    assert run([*command, "--output", str(exported), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == str(exported)
    (code,) = re.findall(r"```python\n(.*?)```", (exported / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(exported)
    exec(code.replace('["A text."]', repr(SOURCES)), {})
    assert ast.literal_eval(capsys.readouterr().out) == TARGETS


@pytest.fixture
def heeds_ctrl_c():
    """A shell makes what it runs in the background ignore Ctrl-C, and processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_between_two_lines_ends_the_command_quietly(learned, heeds_ctrl_c):
    command = [sys.executable, "-m", "keras_transformer", "translate", "--beam-size", "1"]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*command, "--model", str(learned / "run")], **streams) as process:
        process.stdin.write(f"{SOURCES[0]}\n".encode())
        process.stdin.flush()
        # The answer comes although stdin is still open.
        assert process.stdout.readline().decode() == TARGETS[0] + "\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        told = process.stderr.read().decode()
    assert told.splitlines()[-1] == "keras-transformer: interrupted"
    assert "Traceback" not in told


def test_a_reader_that_leaves_early_ends_the_command_quietly(learned):
    text = "".join(source + "\n" for source in SOURCES * 40).encode()
    command = f"{sys.executable} -m keras_transformer translate --beam-size 1"
    command += f" --model {learned / 'run'} | head -1"
    command += "; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], input=text, capture_output=True, timeout=180)
    assert done.stdout.decode().splitlines() == [TARGETS[0], "141"]
    assert b"Traceback" not in done.stderr and b"Broken" not in done.stderr
