import json
import os
import re
import signal

import pytest

from keras_transformer import export as export_package
from keras_transformer.cli.main import run
from keras_transformer.export.exporter import ExportReport, log_duration
from keras_transformer.owned_folder import OwnedFolder

EXPORT = ["export", "--model", "run", "--output", "new"]


@pytest.fixture
def asked(monkeypatch):
    asked = []

    def export(run, output, format, **options):
        asked.append((format, run, output, options))
        return REPORT

    monkeypatch.setattr(export_package, "export_run", export)
    return asked


REPORT = ExportReport("new", {"files": {"a": "b"}}, {"beam": {}}, 1.234)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["saved_model"], {}),
        (
            ["saved_model", "--beam-size", "3", "--length-penalty", "1", "--verify-with", "f"],
            {"beam_size": 3, "length_penalty": 1.0, "verify_with": "f"},
        ),
        (["saved_model", "--signatures", "greedy", "score"], {"signatures": ["greedy", "score"]}),
        (["ctranslate2", "--overwrite"], {"overwrite": True}),
        (["litert"], {}),
        (
            ["tflite", "--quantize", "int8", "--n-best", "2", "--source-lengths", "7", "9"],
            {"quantize": "int8", "n_best": 2, "source_lengths": [7, 9]},
        ),
        (
            ["web", "--quantize", "int8", "--npm", "d", "--source-lengths", "7"],
            {"quantize": "int8", "npm": "d", "source_lengths": [7]},
        ),
    ],
)
def test_options_of_a_format_reach_the_library(asked, arguments, expected, capsys):
    assert run([*EXPORT, "--format", *arguments]) == 0
    given = {"verify_with": None, "overwrite": False, **expected}
    assert asked == [(arguments[0], "run", "new", given)]
    assert json.loads(capsys.readouterr().out) == {
        "output": "new",
        "seconds": 1.2,
        "files": {"a": "b"},
        "verification": {"beam": {}},
    }


def test_each_phase_is_a_line_on_stderr_and_the_result_alone_is_on_stdout(monkeypatch, capsys):
    def export(run, output, *_, **options):
        with log_duration("traced"), log_duration("saved"):
            return REPORT

    monkeypatch.setattr(export_package, "export_run", export)
    for _ in range(2):  # The second time as the first: nothing of a command stays.
        assert run([*EXPORT, "--format", "saved_model"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)["output"] == "new"
        found = re.findall(r"^keras-transformer: (\w+): 0\.\d s$", captured.err, re.MULTILINE)
        assert found == ["saved", "traced"] and captured.err.count("\n") == 2


def test_sigterm_ends_the_command_and_nothing_half_done_is_left(monkeypatch, tmp_path):
    def export(run, output, *_, **options):
        with OwnedFolder(output).staged():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    def unhandled(*_):
        raise AssertionError("The command leaves SIGTERM to its caller.")

    monkeypatch.setattr(export_package, "export_run", export)
    before = signal.signal(signal.SIGTERM, unhandled)
    try:
        command = ["export", "--model", "run", "--format", "saved_model"]
        with pytest.raises(SystemExit) as ended:
            run([*command, "--output", str(tmp_path / "new")])
        assert signal.getsignal(signal.SIGTERM) is unhandled
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143 and os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", ["--n-best", "--signatures"])
def test_options_that_a_ctranslate2_model_does_not_fix_are_refused(asked, option, capsys):
    assert run([*EXPORT, "--format", "ctranslate2", option, "1"]) == 2
    assert f"{option} does not go with --format ctranslate2" in capsys.readouterr().err
    assert asked == []


def test_options_of_other_formats_are_refused(asked, capsys):
    assert run([*EXPORT, "--format", "saved_model", "--quantize", "int8"]) == 2
    assert "--quantize does not go with --format saved_model" in capsys.readouterr().err
    assert asked == []
