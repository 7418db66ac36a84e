"""The scripts of `export/` write what the formats allow, and translate as the trained model."""

import contextlib
import io
import pathlib
import runpy
import sys
import types

import pytest

from keras_transformer import export

pytestmark = pytest.mark.tensorflow

ROOT = pathlib.Path(__file__).parents[2]


def call(monkeypatch, name, *arguments):
    """Calls a script in this process; returns the lines that it prints."""
    printed, script = io.StringIO(), str(ROOT / "export" / name)
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    with contextlib.redirect_stdout(printed):
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue().splitlines()


@pytest.mark.slow
def test_a_savedmodel_translates_with_tensorflow_alone(monkeypatch, report, engine):
    texts = ["a man runs.", "two dogs"]
    lines = call(monkeypatch, "saved_model.py", "translate", report.folder, *texts)
    expected = engine.translate(texts, beam_size=3, length_penalty=0.8)
    assert [line.split("  ", 1)[1] for line in lines] == [result.text for result in expected]
    assert [float(line.split("  ")[0]) for line in lines] == pytest.approx(
        [result.score for result in expected], abs=1e-3
    )


def test_a_run_is_exported_with_options_of_the_format(monkeypatch, tmp_path):
    calls = []

    def export_run(run, folder, format, **options):
        calls.append((run, folder))
        export.FORMATS[format].options()(**options)  # Refuses an option that the format lacks.
        return types.SimpleNamespace(summary=lambda: "exported")

    monkeypatch.setattr(export, "export_run", export_run)
    assert call(monkeypatch, "saved_model.py", "write", tmp_path, "folder") == ["exported"]
    assert calls == [(str(tmp_path), "folder")]
    with pytest.raises(SystemExit, match="translate FOLDER"):
        call(monkeypatch, "saved_model.py", "read", tmp_path)
