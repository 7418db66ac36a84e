"""Exports that are opened: once, whole, without Keras, and with their directions.

`engine/test_contract.py` shows what their engines do.
"""

import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from device_plans import ONE_GRAPH
from export_fixtures import SEARCH
from translations import check_same

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.engine import ModelEngine
from keras_transformer.export import export_ctranslate2, exporter_of
from keras_transformer.export.saved_model import engine as saved_model
from keras_transformer.extras.ctranslate2 import engine as ctranslate2
from keras_transformer.extras.importing.importing import import_model
from keras_transformer.text.languages import Languages

pytestmark = pytest.mark.tensorflow

TEXTS = ["a man runs.", "two dogs", "", "the old clerk", "a girl", " ", "läuft", "in Köln."]


@pytest.mark.slow
def test_ctranslate2_stops_by_the_rule_of_the_run(tmp_path, unverified):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    # A trained model, as the beams of random weights end alike under both rules.
    data = pathlib.Path(__file__).parents[1] / "data"
    toy = import_model(data / "ctranslate2" / "old_v5_txt")
    limits = {"max_source_length": 64, "max_target_length": 48}
    trained = ModelEngine(toy.model, *toy[1:3], **limits, **ONE_GRAPH)
    export_ctranslate2(trained, tmp_path / "export", beam_size=2)
    exported = Translator.load(tmp_path / "export").engine
    texts = (data / "oracles" / "marian_texts.src").read_text("utf-8").splitlines()
    texts = [text for text in texts if len(text) < 36]
    options = {"beam_size": 2, "length_penalty": 1.0}
    early, late = (
        [
            [row.text for row in engine.translate(texts, early_stopping=is_early, **options)]
            for engine in (trained, exported)
        ]
        for is_early in (True, False)
    )
    assert early[0] == early[1]
    # Without early stopping CTranslate2's rule is another one, which most texts do not notice.
    same = [one == other for one, other in zip(*late, strict=True)]
    assert np.mean(same) > 0.9
    for before, after in zip(early, late, strict=True):
        assert sum(one != other for one, other in zip(before, after, strict=True)) >= 3


@pytest.mark.parametrize("format", ["saved_model", "litert", "ctranslate2"])
def test_its_folder_is_read_only_once(engines_of, folder_of, tmp_path, monkeypatch, format):
    monkeypatch.chdir(tmp_path)
    trained, exported = engines_of(format)
    shutil.copytree(folder_of(format), "copy")
    engine = Translator.load("copy").engine
    shutil.rmtree("copy")
    monkeypatch.chdir("/")
    options = {"threads": 4} if format == "litert" else {}  # later interpreters
    check_same(exported.translate(TEXTS), engine.translate(TEXTS, batch_size=4, **options))
    assert engine.source_tokenizer == trained.source_tokenizer
    assert engine.target_tokenizer == trained.target_tokenizer


@pytest.mark.parametrize(
    ("format", "module", "name"),
    [("saved_model", saved_model, "load_saved_model"), ("ctranslate2", ctranslate2, "_load")],
)
def test_a_replaced_export_is_refused(folder_of, tmp_path, monkeypatch, format, module, name):
    folder, load = shutil.copytree(folder_of(format), tmp_path / "copy"), getattr(module, name)

    def replaced(*arguments):
        change_manifest(folder, name="another export")
        return load(*arguments)

    monkeypatch.setattr(module, name, replaced)
    with pytest.raises(InputError, match="copy: another export has replaced this one while"):
        Translator.load(folder)


SOURCES = (("en-GB", "de"), ("en-US", "de"), ("fr", "de"))
OF_MARIAN = {"position_layout": "halves", "position_frequencies": "marian"}
OF_MARIAN["layer_norm_epsilon"] = 1e-6


@pytest.mark.parametrize("format", ["ctranslate2", "hugging_face", "marian", "argos"])
def test_an_export_has_all_directions_of_several_sources(make_engine, tmp_path, unverified, format):
    trained, folder = make_engine(**(OF_MARIAN if format == "marian" else {})), tmp_path / "export"
    trained.languages = Languages(directions=SOURCES)
    fields = {"argos": {"languages": "en-US,de"}, "marian": {"length_normalization": "marian"}}
    manifest = exporter_of(format).export(trained, folder, **fields.get(format, {})).manifest
    written = json.loads((folder / "export.json").read_text("utf-8"))["language_tokens"]
    assert Languages.from_dict(written).directions == SOURCES
    assert manifest["languages"] == (("en-US", "de") if format == "argos" else None)
    if format == "hugging_face":
        card = (folder / "README.md").read_text("utf-8")
        assert "language:\n- en-GB\n- en-US\n- fr\n- de\n---\n" in card
        assert "from British English, American English and French to German\n" in card
    if format == "ctranslate2":
        translator = Translator.load(folder)
        assert translator.directions == [*SOURCES]
        translator.translate(TEXTS[:2], source_language=["en-US", "fr"], target_language="de")
        with pytest.raises(InputError, match="`source_language` must be one of en-GB, en-US, fr"):
            translator.translate(TEXTS[:2], source_language="es")


@pytest.mark.parametrize("format", ["ctranslate2", "argos"])
def test_the_one_direction_of_a_run_is_that_of_its_export(
    make_engine, tmp_path, unverified, format
):
    trained = make_engine()
    trained.languages = Languages(directions=(("en", "eo"),))
    manifest = exporter_of(format).export(trained, tmp_path / "export").manifest
    assert manifest["languages"] == ("en", "eo")


def test_an_export_names_no_direction_that_the_model_lacks(make_engine, tmp_path):
    trained = make_engine()
    for directions, named in (([("en", "eo")], "fr-it"), ([(None, "de"), (None, "eo")], "en-it")):
        trained.languages = Languages(directions=directions)
        with pytest.raises(InputError, match=f"direction of the model: .*. Received: {named}.$"):
            exporter_of("hugging_face").export(trained, tmp_path / "export", languages=named)
    assert not any(tmp_path.iterdir())


WITHOUT_KERAS = """
import sys
# With None in a module's place its import ends in ImportError.
sys.modules.update(dict.fromkeys(["keras", "tensorflow", "tensorflow_text"]))
sys.argv = ["keras-transformer", "translate", "--model", sys.argv[1]]
from keras_transformer.cli.main import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("format", "name"), [("litert", "model.tflite"), ("ctranslate2", ".")])
def test_the_command_translates_without_tensorflow_or_keras(engines_of, folder_of, format, name):
    command = [sys.executable, "-c", WITHOUT_KERAS, str(folder_of(format) / name)]
    stdin = "".join(f"{text}\n" for text in TEXTS)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    expected = [row.text for row in Translator(engines_of(format)[0]).translate(TEXTS, **SEARCH)]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_middle(path):
    """What LiteRT and CTranslate2 would load without a complaint, or crash."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_manifest(folder, **fields):
    manifest = json.loads((folder / "export.json").read_text())
    (folder / "export.json").write_text(json.dumps({**manifest, **fields}))


def rename_operation(folder):
    path = folder / "saved_model.pb"
    path.write_bytes(path.read_bytes().replace(b"SentencepieceOp", b"SentencepieceXX"))
    files = json.loads((folder / "export.json").read_text())["files"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    change_manifest(folder, files={**files, path.name: digest})


OTHER = "is not the file that was exported"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n"
DAMAGES = [
    ("saved_model", lambda folder: (folder / "export.json").unlink(), "without export.json"),
    ("saved_model", lambda folder: cut(folder / "export.json"), "a JSON object"),
    ("saved_model", lambda folder: (folder / "export.json").write_text("[]"), "a JSON object"),
    ("saved_model", lambda folder: change_manifest(folder, beam_size="4"), '"beam_size" or with'),
    ("saved_model", lambda folder: cut(folder / "saved_model.pb"), f"saved_model.pb {OTHER}"),
    ("saved_model", lambda folder: change_middle(next(folder.glob("variables/*.data*"))), OTHER),
    ("saved_model", lambda folder: shutil.rmtree(folder / "variables"), "data.* is missing"),
    ("saved_model", rename_operation, "Received: unknown operations: SentencepieceXX"),
    ("litert", lambda folder: change_middle(folder / "model.tflite"), OTHER),
    ("litert", lambda folder: (folder / "source_tokenizer.model").unlink(), "e_tokenizer.m"),
    ("litert", lambda folder: change_middle(folder / "target_tokenizer.model"), f"l {OTHER}"),
    ("litert", lambda folder: (folder / "model.tflite").write_text(POINTER), "a Git LFS pointer"),
    ("litert", lambda folder: change_manifest(folder, files={}), OTHER),
    ("litert", lambda folder: change_manifest(folder, files=5), '"files" or with another type'),
    (
        "litert",
        lambda folder: change_manifest(folder, format_version=1),
        "format_version=1 inst",
    ),
    # Version 0.3 wrote SavedModels of other signatures with this number.
    (
        "saved_model",
        lambda folder: change_manifest(folder, format_version=2),
        "format_version=2 inst",
    ),
    ("ctranslate2", lambda folder: change_middle(folder / "model.bin"), f"model.bin {OTHER}"),
    ("ctranslate2", lambda folder: (folder / "export.json").unlink(), "a CTranslate2 model that"),
]


@pytest.mark.parametrize(("format", "damage", "message"), DAMAGES)
def test_a_damaged_folder_is_named_in_one_line(folder_of, tmp_path, format, damage, message):
    folder = shutil.copytree(folder_of(format), tmp_path / "copy")
    damage(folder)
    with pytest.raises(InputError, match=message) as error:
        Translator.load(folder)
    assert str(error.value).startswith(str(folder)) and "\n" not in str(error.value)
