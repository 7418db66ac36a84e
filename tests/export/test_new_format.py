"""A format that is new: its row, an exporter, options of `export/options.py`, and a README."""

import importlib.util
import json
import sys

import pytest

from keras_transformer.cli.main import run
from keras_transformer.export import exporter_of
from keras_transformer.formats import FORMATS, Format

pytestmark = pytest.mark.tensorflow

EXPORTER = """
import numpy as np
from keras_transformer.export.exporter import Exporter

class ToyExporter(Exporter):
    def write(self, engine, folder, options):
        np.savez(folder / "weights.npz", *engine.model.get_weights())
        return {"beam_size": options["beam_size"]}

    def verify(self, engine, folder, manifest, texts):
        return {"texts": 7, "equal": 7}
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The row of a format whose exporter has only what every exporter must have."""
    (tmp_path / "toy.py").write_text(EXPORTER)
    (tmp_path / "readme.md").write_text("# $name\nof $kind, beam size $beam_size\n")
    name = "keras_transformer.toy"
    spec = importlib.util.spec_from_file_location(name, tmp_path / "toy.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    options = FORMATS["hugging_face"].options
    row = Format("toy", "toy's model", options, "toy:ToyExporter", next_command=None)
    monkeypatch.setitem(FORMATS, "toy", row)
    return row


def test_an_exporter_needs_no_more_than_files_and_a_verification(toy, make_engine, tmp_path):
    report = exporter_of("toy").export(make_engine(), tmp_path / "out", beam_size=3)
    assert (tmp_path / "out" / "README.md").read_text() == "# out\nof transformer, beam size 3\n"
    manifest = json.loads((tmp_path / "out" / "export.json").read_text("utf-8"))
    assert (manifest["format"], manifest["beam_size"]) == ("keras_transformer.toy", 3)
    line = report.summary()
    assert "toy's model" in line and "7 of 7 translations equal the trained model's" in line
    assert line.endswith(f" s). Other programs: {tmp_path}/out/README.md") and "Next" not in line


def test_the_command_offers_the_format_with_its_options(toy, capsys):
    with pytest.raises(SystemExit):
        run(["export", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert ", argos, toy" in shown and ", hugging_face, toy: --early-stopping" in shown
