"""The folder for browsers: what is in it, and what is refused."""

import hashlib
import json
import re

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.errors import InputError, VerificationError
from keras_transformer.export import export_web
from keras_transformer.export.litert.model import LiteRTAlignment
from keras_transformer.export.web.export import PACKAGES, find_packages

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow


@pytest.mark.filterwarnings("ignore:.*tokens and were cut")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_the_folder_translates_and_aligns_as_the_trained_model(
    web_report, engine, texts, beam_size
):
    options = {"beam_size": beam_size, "length_penalty": 0.8, "long_input": "truncate"}
    found = Translator.load(web_report.folder).translate(texts[:20], alignment=True, **options)
    expected = engine.translate(texts[:20], alignment=True, **options)
    for ours, theirs in zip(expected, found, strict=True):
        assert (theirs.text, theirs.ids) == (ours.text, ours.ids)
        assert theirs.score == pytest.approx(ours.score, rel=1e-4)
        np.testing.assert_allclose(theirs.alignment, ours.alignment, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tokens and were cut")
def test_a_page_has_ssru_and_marians_search(make_engine, npm, texts, tmp_path):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    engine = make_engine(decoder="ssru", output_bias=True)
    search = {"length_normalization": "marian", "word_penalty": 0.2, "max_length_ratio": 1.5}
    search |= {"beam_size": 3, "length_penalty": 0.7}
    options = {"npm": npm, "source_lengths": [13], **search}
    report = export_web(engine, tmp_path / "page", texts[:20], **options)
    shared = {"alignment": True, "long_input": "truncate"}
    assert report.manifest["align_lengths"] == {13: 17}
    found = Translator.load(tmp_path / "page").translate(texts[:20], **shared)
    expected = engine.translate(texts[:20], **shared, **search)
    for ours, theirs in zip(expected, found, strict=True):
        assert theirs.ids == ours.ids
        assert theirs.score == pytest.approx(ours.score, rel=1e-4)
        np.testing.assert_allclose(theirs.alignment, ours.alignment, atol=1e-4)


def test_every_file_is_listed_and_no_operation_is_foreign(web_report):
    folder, files = web_report.folder, web_report.manifest["files"]
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {*files, "export.json", "verification.json", "README.md"}
    for name in files:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == files[name]["sha256"]
    assert files["model.tflite"]["custom_operations"] == []


def test_nothing_names_another_place(web_report):
    for path in web_report.folder.glob("*"):
        if path.suffix in (".js", ".html", ".css", ".svg", ".webmanifest"):
            text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
            assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+/", text) == [], path.name
    assert "@litertjs" not in (web_report.folder / "litert" / "index.js").read_text("utf-8")


def test_the_service_worker_keeps_what_exists_and_changes_with_the_files(web_report):
    head = (web_report.folder / "service-worker.js").read_text("utf-8").splitlines()[:2]
    version, digests = (json.loads(re.search(r"= (.*);", line)[1]) for line in head)
    assert re.fullmatch("[0-9a-f]{16}", version)
    assert {"index.html", "model.tflite", "translator.js", "tokenizer.json"} <= set(digests)
    listed = {name: each["sha256"] for name, each in web_report.manifest["files"].items()}
    assert digests == {name: listed[name] for name in digests}


def test_shifted_alignments_are_refused(engine, npm, texts, tmp_path, monkeypatch):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    right = LiteRTAlignment.__call__

    def shifted(self, source_ids, target_ids):
        weights = right(self, source_ids, target_ids)["alignment"]
        return {"alignment": tf.concat([weights[:, :, 1:], weights[:, :, :1]], axis=2)}

    monkeypatch.setattr(LiteRTAlignment, "__call__", shifted)
    options = {"quantize": "int8", "beam_size": 1, "source_lengths": [13]}
    with pytest.raises(VerificationError, match="`alignment` differs by"):
        export_web(engine, tmp_path / "new", texts[:20], npm=npm, **options)
    assert list(tmp_path.iterdir()) == []


def test_missing_and_other_packages_are_named(tmp_path, engine, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"npm install @litertjs/core@2.5 .*Received: none in"):
        export_web(engine, tmp_path / "out", npm=tmp_path)
    for name in PACKAGES:
        (tmp_path / "node_modules" / name).mkdir(parents=True)
    with pytest.raises(InputError, match="Received: no @litertjs/core in"):
        find_packages()
    for name, version in dict.fromkeys(PACKAGES, "2.4.9").items():
        package = tmp_path / "node_modules" / name / "package.json"
        package.write_text(json.dumps({"version": version}))
    with pytest.raises(InputError, match=r"Received: @litertjs/core 2\.4\.9 in"):
        find_packages(tmp_path)
    assert not (tmp_path / "out").exists()
