"""Former names of options work as before, say the present name, and are not shown."""

import pathlib
import re
import shlex

import pytest

from keras_transformer.cli import main

SAMPLES = "inspect --model r --text a --output o --samples a b"
RENAMED = [
    ("translate --model m --format html", "translate --model m --document-format html"),
    ("translate --model m --format=html", "translate --model m --document-format=html"),
    ("evaluate --model m --save f", "evaluate --model m --output f"),
    ("evaluate --model m --save=a=b", "evaluate --model m --output=a=b"),
    ("evaluate --model m --tmx-languages en-de", "evaluate --model m --languages en-de"),
    (SAMPLES.replace("--samples", "--corpus"), SAMPLES),
    (
        "export --model r --format web --output o --verify-with f",
        "export --model r --format web --output o --samples f",
    ),
    ("clean a.tmx --output o --tmx-languages a-b", "clean a.tmx --output o --languages a-b"),
    ("clean a b --output o --source-language en", "clean a b --output o --from en"),
    ("clean a b --output o --target-language=de", "clean a b --output o --to=de"),
    ("glossary a.tmx --tmx-languages en-de", "glossary a.tmx --languages en-de"),
]
FORMER_FLAGS = {"--tmx-languages", "--source-language", "--target-language", "--verify-with"}
FORMER_FLAGS |= {"--save", "--corpus", "--input"}


def flags_in(text):
    return set(re.findall(r"--[\w-]+", text))


def parsed(command):
    values = vars(main._parser().parse_args(shlex.split(command)))
    return {name: value for name, value in values.items() if name != "options_of_command"}


@pytest.mark.parametrize(("former", "present"), RENAMED)
def test_a_former_name_is_the_present_one_and_says_so_in_one_line(former, present, capsys):
    values = parsed(former)
    (line,) = capsys.readouterr().err.splitlines()
    (old,) = {word.split("=")[0] for word in former.split()} - {
        word.split("=")[0] for word in present.split()
    }
    assert line.startswith(f"keras-transformer: `{old}` is now `--")
    assert values == parsed(present)
    assert capsys.readouterr().err == ""


def test_a_name_that_is_given_twice_is_said_once(capsys):
    parsed("export --model r --format web --output o --verify-with a --verify-with b")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_what_follows_two_hyphens_is_a_file(capsys):
    assert parsed("clean --output o -- --tmx-languages b")["corpora"] == ["--tmx-languages", "b"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["translate --model m --output o", "synthesize --model m"])
def test_former_files_are_kept_and_say_so_in_one_line(command, capsys):
    values = parsed(f"{command} --input a b --input c")
    assert values["input"] == ["a", "b", "c"]
    assert capsys.readouterr().err.count("`--input` is now `FILE`") == 1


def test_former_files_are_translated_after_the_others(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "keras_transformer.bulk.corpus.translate_corpus",
        lambda model, files, output, **options: seen.append(files) or {},
    )
    for engine in ("translate", "synthesize"):
        monkeypatch.setattr("os.listdir", lambda path: [])
        command = [engine, "a", "--model", "m", "--output", "o", "--engine", "ray", "--input", "b"]
        assert main.run(command) == 0
    assert seen == [["a", "b"]] * 2


def test_a_former_run_and_its_corpora_are_taken_and_say_so_in_one_line(tmp_path, capsys):
    values = parsed("shortlist r --corpus a.en --corpus a.de")
    assert values["corpus"] == ["a.en", "a.de"]
    assert len(capsys.readouterr().err.splitlines()) == 1
    command = ["shortlist", str(tmp_path), "--corpus", "a.en", "a.de"]
    assert main.run(command) == 2
    first, mistake = capsys.readouterr().err.splitlines()
    assert "`RUN --corpus FILE` is now `--model RUN FILE`" in first
    assert "a.en" in mistake or str(tmp_path) in mistake
    assert main.run([*command, "--model", "r"]) == 2
    assert "without --corpus" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "present"), [("source", "text"), ("target", "translation")])
def test_names_of_a_sentence_that_programs_rely_on_work_silently(flag, present, capsys):
    values = parsed(f"inspect --model r --{flag} a --output o")
    assert values == parsed(f"inspect --model r --{present} a --output o")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [name for row in main._COMMANDS.values() for name in row])
def test_no_help_shows_a_former_name(command, capsys):
    with pytest.raises(SystemExit):
        main.run([command, "--help-all"])
    assert not flags_in(capsys.readouterr().out) & FORMER_FLAGS


def test_the_page_of_commands_shows_no_former_name():
    page = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
    assert not flags_in(page.read_text(encoding="utf-8")) & FORMER_FLAGS
