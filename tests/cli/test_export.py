import dataclasses
import json
import re

import pytest

from keras_transformer import export as export_package
from keras_transformer.cli.main import run
from keras_transformer.export.exporter import ExportReport, log_step
from keras_transformer.formats import FORMATS

EXPORT = ["export", "--model", "run", "--output", "new"]


@pytest.fixture
def asked(monkeypatch):
    asked = []

    def export(run, output, format, **options):
        asked.append((format, run, output, options))
        return REPORT

    monkeypatch.setattr(export_package, "export_run", export)
    return asked


MANIFEST = {"format": "keras_transformer.saved_model", "files": {"a": "b"}}
REPORT = ExportReport("new", MANIFEST, {"texts": 64, "equal": 63}, 71.234)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("saved_model", {}),
        ("saved_model --beam-size 3 --length-penalty 1", {"beam_size": 3, "length_penalty": 1.0}),
        ("saved_model --signatures greedy score", {"signatures": ["greedy", "score"]}),
        ("ctranslate2 --overwrite --samples f", {"overwrite": True, "verify_with": "f"}),
        ("litert --set n_best=2 --source-lengths 7 9", {"n_best": 2, "source_lengths": [7, 9]}),
        ("web --quantize int8 --set npm=d", {"quantize": "int8", "npm": "d"}),
        ("argos --languages en-de", {"languages": "en-de"}),
    ],
)
def test_options_of_a_format_reach_the_library(asked, arguments, expected, capsys):
    assert run([*EXPORT, "--format", *arguments.split(), "--json"]) == 0
    options = {"verify_with": None, "overwrite": False, **expected}
    assert asked == [(arguments.split()[0], "run", "new", options)]
    answer = {"output": "new", "seconds": 71.2, "bytes": 0, "files": {"a": "b"}}
    answer["verification"] = {"texts": 64, "equal": 63}
    assert json.loads(capsys.readouterr().out) == answer


def test_help_and_formats_have_the_same_names(capsys):
    with pytest.raises(SystemExit):
        run(["export", "--help"])
    titles = re.findall(r"^([a-z][a-z\d_, ]+):$", capsys.readouterr().out, re.MULTILINE)
    named = {name for title in titles for name in title.split(", ")}
    assert named - {"options", "all formats", "rare options"} == set(FORMATS)


def test_each_step_is_a_line_on_stderr_and_a_closing_line_on_stdout(monkeypatch, capsys, tmp_path):
    (tmp_path / "weights").write_bytes(b"w" * 2_350_000)
    (tmp_path / "export.json").write_text('{"files": {"weights": ""}}')

    def export(run, output, *_, **options):
        log_step("tracing")
        log_step("comparing")
        return dataclasses.replace(REPORT, folder=output)

    monkeypatch.setattr(export_package, "export_run", export)
    command = ["export", "--model", "run", "--output", str(tmp_path), "--format", "saved_model"]
    command += ["--overwrite"]
    for _ in range(2):  # The second time as the first: nothing of a command stays.
        assert run(command) == 0
        captured = capsys.readouterr()
        assert captured.err == "keras-transformer: tracing\nkeras-transformer: comparing\n"
        assert captured.out == (
            f"{tmp_path}: SavedModel, 2.4 MB, 63 of 64 translations equal the trained model's "
            f"(71 s). Next: keras-transformer translate --model {tmp_path} < in.txt; other "
            f"programs: {tmp_path}/README.md\n"
        )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"format": "keras_transformer.litert"}, "LiteRT model, 0.0 MB, 63 of 64 translations"),
        ({"format": "keras_transformer.web"}, "http.server --bind 127.0.0.1 --directory new 8000;"),
        ({"labels": ["a"]}, "63 of 64 labels equal the trained model's"),
        (
            {"format": "keras_transformer.marian", "command": "a --model b < in | c --config d"},
            "Next: a --model new/b < in | c --config new/d; other programs: new/README.md",
        ),
        ({"format": "keras_transformer.marian"}, "model's (71 s). Other programs: new/README.md"),
    ],
)
def test_the_closing_line_says_what_was_made(fields, expected):
    line = dataclasses.replace(REPORT, manifest={**MANIFEST, **fields}).summary()
    assert expected in line and "\n" not in line


@pytest.mark.parametrize(
    ("format", "option"),
    [("ctranslate2", "--set n_best"), ("argos", "--beam-size"), ("saved_model", "--set npm")],
)
def test_options_of_other_formats_are_refused(asked, format, option, capsys):
    assert run([*EXPORT, "--format", format, *f"{option}=1".split()]) == 2
    assert f"`{option}` is not an option of --format {format}" in capsys.readouterr().err
    assert asked == []
