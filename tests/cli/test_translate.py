import io
import json
import sys

import pytest

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run
from keras_transformer.text.dialog import Turns
from keras_transformer.text.languages import Languages

SPLIT = {"long_input": "split"}  # what commands do with a long line


def test_lines_and_options_reach_the_translator_and_nothing_else_does(call):
    code, out, err, asked = call("translate", "--set", "top_k=5", "--sampling", "--batch-size", "2")
    assert (code, out, err) == (0, "A B\nC\n", "")
    assert asked == [{"top_k": 5, "sampling": True, "batch_size": 2, **SPLIT}]


def test_threads_are_those_of_the_model_that_is_loaded(call, recorder, monkeypatch):
    loaded = []

    def load(path, **options):
        loaded.append((path, options))
        return recorder

    monkeypatch.setattr(Translator, "load", load)
    for options in ([], ["--threads", "3"]):
        code, *_, asked = call("translate", *options)
        assert code == 0 and "threads" not in asked[-1]
    assert loaded == [("run", {}), ("run", {"threads": 3})]


@pytest.mark.parametrize("command", ["translate", "translate --stream", "synthesize", "score"])
def test_a_command_says_once_which_languages_it_takes(call, recorder, command, tmp_path):
    recorder.languages = Languages(directions=(("en", "pt"), ("pt", "en"), ("nb", "en")))
    options = ["--from", "eng_Latn", "--to", "pt-BR"]
    if command == "score":
        (tmp_path / "texts").write_text("a b\n" * 9)
        options += [f"--{side}={tmp_path / 'texts'}" for side in ("source", "target")]
    code, _, err, _ = call(*command.split(), *options)
    assert (code, err) == (
        0,
        "keras-transformer: The model has no pt-BR; its nearest language is pt.\n",
    )
    assert call(*command.split(), *options[:1], "pt", "--to", "EN", *options[4:])[2] == ""


def test_n_best_is_a_numbered_list_and_1_is_plain_text(call):
    _, out, _, asked = call("translate", "--n-best", "2")
    assert out.startswith("0 ||| A B ||| -1.0000\n0 ||| other ||| -2.0000\n1 ||| C ||| ")
    assert asked[-1]["n_best"] == 2
    assert call("translate", "--n-best", "1")[1] == "A B\nC\n"


def test_json_is_an_object_a_line(call):
    _, out, _, asked = call("translate", "--json", "--set", "alignment=true", "--n-best", "2")
    first, second = map(json.loads, out.splitlines())
    assert (first["line"], first["translation"]) == (1, "A B")
    assert second["alternatives"][0]["translation"] == "other"
    assert asked[-1] == {"n_best": 2, "alignment": True, "batch_size": None, **SPLIT}
    assert call("translate", "--set", "alignment=false")[:2] == (0, "A B\nC\n")


def test_stream_asks_for_one_line_after_the_other(call):
    _, out, _, asked = call("translate", "--stream", "--sampling", "--set", "seed=3")
    assert out == "A B\nC\n"
    assert asked == [{"sampling": True, "seed": 3, **SPLIT}] * 3
    options = ["--tag", "2de", "--split-sentences", "--set", "keep_case=false"]
    *_, asked = call("translate", "--stream", *options)
    assert asked[-1] == {"tag": "2de", "split_sentences": True, "keep_case": False, **SPLIT}


def test_prefixes_come_from_their_file(call, tmp_path):
    (tmp_path / "prefixes").write_text("Ein\n\n")
    code, _, _, asked = call("translate", "--set", f"target_prefixes={tmp_path / 'prefixes'}")
    assert code == 0
    assert asked[-1] == {"target_prefixes": ["Ein", ""], "batch_size": None, **SPLIT}
    code, _, err, _ = call("translate", "--set", "target_prefixes=nowhere")
    assert code == 2
    assert err == "keras-transformer: nowhere: cannot be read: No such file or directory.\n"


CONFLICTS = [
    (["--set", "alignment=true"], "`--set alignment` is written only as JSON: add `--json`.")
]
CONFLICTS += [(["--stream", "--json"], "`--json` is not allowed with --stream.")]
CONFLICTS += [(["--stream", "--glossary", "x"], "`--glossary` is not allowed with --stream.")]
CONFLICTS += [(["--stream", "--n-best", "2"], "`--n-best` is not allowed with --stream.")]
CONFLICTS += [(["--stream", "--markup", "html"], "`--markup` is not allowed with --stream.")]
BY = ["--set", "glossary_by=constraints"]
CONFLICTS += [(["--stream", *BY], "`--set glossary_by` is not allowed with --stream.")]
CONFLICTS += [(["--stream", "--progress"], "`--progress` is not allowed with --stream.")]
CONFLICTS += [(["--stream", "--batch-size", "8"], "`--batch-size` is not allowed with --stream.")]
CONFLICTS += [(["--stream", "--batch-size", "0"], "`--batch-size` is not allowed with --stream.")]


@pytest.mark.parametrize(("arguments", "message"), CONFLICTS)
def test_options_that_do_not_go_together(call, arguments, message):
    code, out, err, asked = call("translate", *arguments)
    assert (code, out, err, asked) == (2, "", f"keras-transformer: {message}\n", [])


@pytest.mark.parametrize(
    ("option", "flag"),
    [
        ("source_language", "--from"),
        ("sampling=True", "--sampling"),
        ("long_input=truncate", "--set long_input=truncate"),
        ("allow_unknown=True", "--set allow_unknown=true"),
    ],
)
def test_a_mistake_names_options_as_they_are_typed(call, recorder, monkeypatch, option, flag):
    def refuse(**options):
        raise InputError(f"Give `{option}`.")

    monkeypatch.setattr(recorder, "check_options", refuse)
    assert call("translate")[:3] == (2, "", f"keras-transformer: Give `{flag}`.\n")


LONG_LINES = [("turns", Turns("</s>"), "truncate"), ("labels", ["a"], "truncate")]
LONG_LINES += [("reads_sources", False, "refuse")]


@pytest.mark.parametrize(("field", "value", "expected"), LONG_LINES)
def test_a_long_line_is_split_where_a_text_can_be(call, recorder, field, value, expected):
    assert call("translate")[3][-1]["long_input"] == "split"
    setattr(recorder, field, value)
    assert call("translate")[3][-1]["long_input"] == expected
    assert call("translate", "--set", "long_input=refuse")[3][-1]["long_input"] == "refuse"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_shown_on_a_terminal(call, monkeypatch):
    for arguments, is_shown in (([], True), (["--no-progress"], False)):
        monkeypatch.setattr(sys, "stderr", Terminal())
        call("translate", *arguments)
        shown = sys.stderr.getvalue()
        # Without a size there is no percentage.
        assert ("2 sentences, " in shown) == is_shown and "%" not in shown


def test_the_bar_knows_the_size_of_a_file(recorder, tmp_path, monkeypatch, capsys):
    (tmp_path / "text").write_text("a\nb\n")
    with open(tmp_path / "text") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert run(["translate", "--model", "run", "--progress"]) == 0
    assert "100%|" in capsys.readouterr().err


def test_the_result_is_utf_8_whatever_the_locale_is(recorder, monkeypatch):
    source = io.TextIOWrapper(io.BytesIO("straße ł\n".encode()))
    result = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", source)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(result, encoding="latin-1"))
    assert run(["translate", "--model", "run"]) == 0
    assert result.getvalue().decode("utf-8") == "STRASSE Ł\n"
