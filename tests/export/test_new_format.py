"""A format that is new: its class, an exporter, options of `export/options.py`, and a README."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import keras_transformer
from keras_transformer import Translator
from keras_transformer.cli.main import run
from keras_transformer.export import exporter_of
from keras_transformer.export.options import SearchedOptions
from keras_transformer.extras.importing import import_run
from keras_transformer.formats import FORMATS, Format

pytestmark = pytest.mark.tensorflow

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
TOY = pathlib.Path(__file__).parents[1] / "data" / "marian" / "opus"

EXPORTER = """
import numpy as np
from keras_transformer.export.exporter import Exporter

class ToyExporter(Exporter):
    format_name = "toy"

    def write(self, engine, folder, options):
        np.savez(folder / "weights.npz", *engine.model.get_weights())
        return {"beam_size": options["beam_size"]}

    def verify(self, engine, folder, manifest, texts, disposable_weights=False):
        return {"texts": 7, "equal": 7}
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A format whose exporter has only what every exporter must have."""
    (tmp_path / "toy.py").write_text(EXPORTER)
    (tmp_path / "readme.md").write_text("# $name\nof $kind, beam size $beam_size\n")
    name = "keras_transformer.toy"
    spec = importlib.util.spec_from_file_location(name, tmp_path / "toy.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)

    class ToyFormat(Format):
        name = "toy"
        noun = "toy's model"
        folders = ()
        next_command = None

        def options(self):
            return SearchedOptions

        def exporter(self):
            return module.ToyExporter()

    monkeypatch.setitem(FORMATS, "toy", ToyFormat())


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
    assert ", argos, toy" in shown and ", hugging_face, toy: --beam-size" in shown


ENGINE = """
import numpy as np
from keras_transformer.decoding.search_options import exported_search_options
from keras_transformer.engine.ids_engine import IdsEngine
from keras_transformer.engine.request import CALL_OPTIONS, OptionRules
from keras_transformer.export.child_process import engine_process
from keras_transformer.export.exporter import Exporter, write_tokenizers
from keras_transformer.export.manifest import load_tokenizers, opened_export
from keras_transformer.export.verification import TOLERANCES, verify
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.engine.translation import Translation

HIDDEN = ()

class ToyExporter(Exporter):
    format_name = "toy"

    def write(self, engine, folder, options):
        engine.model.save(folder / "toy.keras")
        return {**options, **write_tokenizers(engine, folder)}

    def verify(self, engine, folder, manifest, texts, disposable_weights=False):
        options = exported_search_options(manifest)
        with engine_process(folder, hidden=HIDDEN) as child:
            return verify(child, engine, texts, TOLERANCES["none"], **options)

class ToyEngine(IdsEngine):
    noun = "a toy"
    option_rules = OptionRules(translate=(*CALL_OPTIONS, "length_penalty"))

    def __init__(self, folder):
        import keras

        fields = {"max_source_length": int, "max_target_length": int}
        with opened_export(folder, ("toy",), fields, "a toy") as self.manifest:
            self.source_tokenizer, self.target_tokenizer = load_tokenizers(folder, self.manifest)
            self.model = keras.saving.load_model(folder / "toy.keras")
        self.max_source_length = self.manifest["max_source_length"]
        self.max_target_length = self.manifest["max_target_length"]

    def search(self, jobs, request):
        return [[self.greedy(job.source, request.options)] for job in jobs]

    def greedy(self, source, options):
        ids, log_probabilities = [], []
        while len(ids) < options.resolve_max_length(self.max_target_length):
            target = np.array([[BOS_ID, *ids]])
            logits = self.model({"source_ids": np.array([source]), "target_ids": target})
            row = np.array(logits, "float64")[0, -1]
            row -= np.logaddexp.reduce(row)
            row[[PAD_ID, BOS_ID, UNK_ID]] = -np.inf
            ids.append(int(row.argmax()))
            log_probabilities.append(float(row.max()))
            if ids[-1] == EOS_ID:
                break
        total = sum(log_probabilities)
        return Translation(
            "",
            options.ranking.score(total, len(ids)),
            log_probability=total,
            ids=tuple(ids),
            token_log_probabilities=tuple(log_probabilities),
        )
"""
FORMAT = """
class ToyFormat(Format):
    name = "toy"
    noun = "toy"
    folders = ("toy",)
    file = "toy.keras"

    def options(self):
        from keras_transformer.export.options import SearchedOptions

        return SearchedOptions

    def exporter(self):
        from keras_transformer.toy.toy import ToyExporter

        return ToyExporter()

    def open_export(self, path, threads):
        from keras_transformer.toy.toy import ToyEngine

        return ToyEngine(path)


"""


COMMANDS = """
import sys
from keras_transformer.cli.main import run
from keras_transformer.toy import toy

_, model, out = sys.argv
export = ["export", "--model", model, "--format", "toy", "--beam-size", "1", "--output"]
codes = [run([*export, out]), run(["translate", "--model", out])]
codes.append(run(["translate", "--model", out, "--beam-size", "2"]))
toy.HIDDEN = ("keras",)
print(codes, run([*export, f"{out}_without_keras"]))
"""


def with_a_format(parent):
    """The parent of a copy of the package with a folder and a class for the format `toy`."""
    copy = parent / "keras_transformer"
    shutil.copytree(PACKAGE, copy)
    (copy / "toy").mkdir()
    (copy / "toy" / "__init__.py").touch()
    (copy / "toy" / "toy.py").write_text(ENGINE)
    (copy / "toy" / "readme.md").write_text("# $name\n")
    table = copy / "formats.py"
    before, rows, after = table.read_text("utf-8").partition("_FORMATS: tuple[Format, ...] = (\n")
    table.write_text(f"{before}{FORMAT}{rows}    ToyFormat(),\n{after}", "utf-8")
    return parent


@pytest.mark.slow
def test_a_folder_and_a_class_are_a_format_with_an_engine(tmp_path):
    run, parent, out = tmp_path / "run", with_a_format(tmp_path / "copy"), tmp_path / "out"
    import_run(TOY, run)
    recipe = (run / "recipe.yaml").read_text("utf-8")
    short = recipe.replace("max_target_length: 256", "max_target_length: 6")  # for an eager search
    (run / "recipe.yaml").write_text(short, "utf-8")
    texts = "two dogs\n\nthe old house\n"
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, run, out],
        env={**os.environ, "PYTHONPATH": str(parent)},
        cwd=parent,
        input=texts,
        capture_output=True,
        text=True,
    )
    report, *translations, codes = done.stdout.splitlines()
    assert codes == "[0, 0, 2] 1", done.stderr
    assert re.search(r"toy, .* (\d\d) of \1 translations equal the trained", report)
    expected = Translator.load(run).translate(texts.splitlines(), beam_size=1)
    assert translations == [row.text for row in expected]
    assert "`--beam-size` is fixed at 1 in a toy" in done.stderr
    # Its engine needs Keras.
    assert done.stderr.rstrip().endswith("exit status 1, it imports keras, which is hidden from it")
    assert not (tmp_path / "out_without_keras").exists()
