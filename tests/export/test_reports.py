"""What an export holds and was verified with; an export of another model is refused."""

import functools
import hashlib
import json
import pathlib
import shutil
import types

import numpy as np
import pytest
from fakes import FakeEngine
from small_corpus import PAIRS, recipe_values

from keras_transformer import Tokenizer, export
from keras_transformer.base.errors import InputError, VerificationError
from keras_transformer.engine import opening
from keras_transformer.export import export_ctranslate2, export_run, exporter_of
from keras_transformer.export.litert import export as litert
from keras_transformer.export.litert.file import custom_operations
from keras_transformer.extras.ctranslate2 import export as ctranslate2
from keras_transformer.training import Recipe, RunFolder

pytestmark = pytest.mark.tensorflow

TOKENIZERS = {
    f"{side}_tokenizer.{kind}" for side in ("source", "target") for kind in ("json", "model")
}
FILES = {
    "saved_model": {"saved_model.pb", "variables/variables.index"},
    "litert": {"model.tflite", *TOKENIZERS},
    "ctranslate2": {"model.bin", "source_tokenizer.model", "target_tokenizer.model"},
    "web": {"model.tflite", "index.html", *TOKENIZERS},
    "argos": {"translate-en-GB_de-1_10.argosmodel"},
}
every_format = pytest.mark.parametrize("format", FILES)


@pytest.fixture
def report_of(request):
    """`report_of(format)`: the `ExportReport` of the export in this format."""
    names = {"saved_model": "report"}
    return lambda format: request.getfixturevalue(names.get(format, f"{format}_report"))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("format", ["ctranslate2", "saved_model", "litert", "web", "argos"])
def test_texts_scores_and_alignments_were_compared(request, format):
    names = {"saved_model": "verified_report", "litert": "verified_litert_report"}
    result = request.getfixturevalue(names.get(format, f"{format}_report")).verification
    # Argos' package gives no probability to three of 53 tokens.
    share, limit = {"ctranslate2": (0.5, 0.02), "argos": (0.5, 0.05)}.get(format, (0.95, 1e-3))
    assert result["equal"] >= share * result["texts"] > 0 and result["tolerance"]["equal"] == share
    lacking = {"alignment", "log_probability"} if format == "argos" else set()
    for name in {"score", "log_probability", "alignment"} - lacking:
        assert result[f"mean_{name}_difference"] < limit


@pytest.mark.slow(after=3)
@every_format
def test_the_folder_holds_what_its_manifest_says(report_of, format):
    report = report_of(format)
    folder, files = pathlib.Path(report.folder), report.manifest["files"]
    for name, content in (("export", report.manifest), ("verification", report.verification)):
        expected = json.loads(json.dumps(content))
        assert json.loads((folder / f"{name}.json").read_text()) == expected
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    contents = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    for name in ("export.json", "README.md", "verification.json"):
        del digests[name]
    assert FILES[format] <= set(digests)
    described = {
        name: entry if isinstance(entry, str) else entry["sha256"] for name, entry in files.items()
    }
    assert described == digests
    if "model.tflite" in files:
        content = (folder / "model.tflite").read_bytes()
        assert files["model.tflite"]["bytes"] == len(content)
        assert custom_operations(content) == files["model.tflite"]["custom_operations"] == []


FULL_DISKS = [("saved_model", {"signatures": ["serving_default"]}, "")]
FULL_DISKS += [("litert", {"source_lengths": [7], "beam_size": 1, "n_best": 1}, "/model.tflite")]
FULL_DISKS += [("ctranslate2", {}, "/model.bin")]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("format", "options", "name"), FULL_DISKS)
def test_a_full_disk_names_the_file(
    engine, texts, tmp_path, small_disk, monkeypatch, format, options, name
):
    if format == "litert":  # TensorFlow's converter has files of its own.
        converted = functools.cache(lambda convert=litert.convert: convert(functions.pop()))
        functions = []
        monkeypatch.setattr(litert, "convert", lambda new: functions.append(new) or converted())
        exporter_of(format).export(engine, tmp_path / "first", texts, **options)
        shutil.rmtree(tmp_path / "first")
    with small_disk(3000), pytest.raises(OSError) as caught:
        exporter_of(format).export(engine, tmp_path / "new", texts, **options)
    assert caught.value.filename == f"{tmp_path}/new{name}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("format", ["saved_model", "litert", "ctranslate2", "argos"])
def test_another_model_is_refused(report_of, make_engine, other_tokenizer, texts, format):
    sides = {"target_tokenizer": other_tokenizer, "tie_embeddings": "decoder"}
    other = make_engine(seed=2, normalize_first=True, **sides if format != "argos" else {})
    report = report_of(format)
    with pytest.raises(VerificationError, match="translations are equal, expected at least"):
        exporter_of(format).verify(other, report.folder, report.manifest, texts[:20])


@pytest.mark.slow
def test_a_spoiled_export_is_refused_and_nothing_is_left(engine, texts, tmp_path, monkeypatch):
    """One weight is another; int8 has the widest tolerance."""
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    right = ctranslate2._weights

    def changed(*arguments):
        weights = right(*arguments)
        (bias,) = weights["decoder_top_ln_bias"]()
        bias = bias + 9.0 * (np.arange(bias.size) == 3)
        weights["decoder_top_ln_bias"] = lambda: [bias]
        return weights

    monkeypatch.setattr(ctranslate2, "_weights", changed)
    with pytest.raises(VerificationError, match="translations are equal"):
        export_ctranslate2(engine, tmp_path / "new", texts, quantize="int8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_float16_takes_half_and_is_verified(ctranslate2_report, engine, texts, tmp_path):
    report = export_ctranslate2(engine, tmp_path / "new", texts, quantize="float16")
    models = (pathlib.Path(x.folder, "model.bin") for x in (report, ctranslate2_report))
    half, whole = (path.stat().st_size for path in models)
    assert half < 0.7 * whole
    result = report.verification
    assert 0 < result["mean_score_difference"] and 0 < result["mean_alignment_difference"] < 0.02


@pytest.mark.usefixtures("uncollected")
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_a_model_after_quantize_is_refused(make_engine, tmp_path):
    engine = make_engine()
    engine.model.quantize("int8")
    for format in ("litert", "ctranslate2", "web", "marian"):
        with pytest.raises(InputError, match=r"before\. Received: int8 in \S+/\S+\.$"):
            exporter_of(format).export(engine, tmp_path / "new")


def test_a_run_is_verified_with_its_samples_and_its_corpus_is_not_read(tmp_path, monkeypatch):
    tokenizer = Tokenizer.train_from_texts(PAIRS[0], 29)
    run, verified_with = RunFolder(tmp_path / "run"), []
    recipe = Recipe.from_dict(recipe_values(tmp_path / "missing"))
    run.create(recipe.to_dict(), (tokenizer, tokenizer), {})
    exporter = types.SimpleNamespace(
        export=lambda _, output, texts, *__, **options: verified_with.append(texts)
    )
    monkeypatch.setattr(opening, "engine_of_run", lambda folder, plan: FakeEngine(labels=["a"]))
    monkeypatch.setattr(export, "exporter_of", lambda format: exporter)
    export_run(run.path, tmp_path / "new")
    run.write_sample_pairs(PAIRS[:5])
    export_run(run.path, tmp_path / "new")
    (tmp_path / "other.en").write_text("A dog.\n", encoding="utf-8")
    export_run(run.path, tmp_path / "new", verify_with=tmp_path / "other.en")
    with pytest.raises(InputError, match="`format` must be one of saved_model, .* format='onnx'"):
        export_run(run.path, tmp_path / "new", format="onnx")
    # None: the export takes its built-in sentences.
    assert verified_with == [[], [source for source, _ in PAIRS[:5]], ["A dog."]]


def test_an_export_has_the_runs_search_without_what_options_exclude(tmp_path, monkeypatch, capsys):
    tokenizer = Tokenizer.train_from_texts(PAIRS[0], 29)
    run, options_of_exports = RunFolder(tmp_path / "run"), []
    values = recipe_values(tmp_path / "missing")
    search = {"length_normalization": "marian", "word_penalty": 0.2, "banned_ids": [7]}
    recipe = Recipe.from_dict({**values, "decoding": search})
    run.create(recipe.to_dict(), (tokenizer, tokenizer), {})
    exporter = types.SimpleNamespace(
        search={}, export=lambda *_, **options: options_of_exports.append(options)
    )
    monkeypatch.setattr(opening, "engine_of_run", lambda folder, plan: FakeEngine())
    monkeypatch.setattr(export, "exporter_of", lambda format: exporter)
    export_run(run.path, tmp_path / "new", "marian")
    export_run(run.path, tmp_path / "new", "marian", length_normalization="gnmt")
    marian, gnmt = options_of_exports
    assert marian["word_penalty"] == 0.2 and "word_penalty" not in gnmt
    lost = "without options of the run, so texts may differ: banned_ids=(7,)\n"
    assert lost in capsys.readouterr().err
