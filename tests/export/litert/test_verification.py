"""Spoiled LiteRT files are refused."""

import json
import shutil

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.errors import VerificationError
from keras_transformer.export import export_litert
from keras_transformer.export.litert import search
from keras_transformer.export.litert.export import verify_litert

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore:.*tokens and were cut")]


def test_texts_and_scores_were_compared(litert_report):
    report = litert_report.verification
    assert report["equal"] >= 0.95 * report["texts"] > 0
    assert report["mean_score_difference"] < 1e-4
    assert report["mean_log_probability_difference"] < 1e-3


@pytest.mark.parametrize("beam_size", [1, 3])
def test_every_signature_translates_odd_texts_as_the_trained_model(
    litert_report, engine, texts, beam_size
):
    """Texts of every length of the file, and more than any of them takes."""
    exported = Translator.load(litert_report.folder)
    odd = ["", " \t", "\u200b", "Grüße, 你好 😀", "a\x00b", "ﬁne e\u0301", " ".join(texts[:9])]
    chosen = [*odd, *texts[:40]]
    options = {"beam_size": beam_size, "length_penalty": 0.8, "long_input": "truncate"}
    expected = engine.translate(chosen, **options)
    for batch_size in (1, 7):
        found = exported.translate(chosen, batch_size=batch_size, **options)
        assert [each.text for each in found] == [each.text for each in expected]
        for name in ("score", "log_probability"):
            values = [[getattr(each, name) for each in side] for side in (found, expected)]
            np.testing.assert_allclose(*values, rtol=1e-3)


def one_weight_changed(engine, monkeypatch):
    right = search.LiteRTSearch.__init__

    def changed(self, *arguments):
        right(self, *arguments)
        self.output_matrix = self.output_matrix.copy()
        self.output_matrix[5] += 9.0  # the weights of one token

    monkeypatch.setattr(search.LiteRTSearch, "__init__", changed)


def positions_swapped(engine, monkeypatch):
    right = search.position_table
    monkeypatch.setattr(search, "position_table", lambda *each: right(*each)[::-1].copy())


def vocabulary_shifted(engine, monkeypatch):
    right = search.LiteRTSearch.__init__

    def shifted(self, *arguments):
        right(self, *arguments)
        self.output_matrix = np.roll(self.output_matrix, 1, axis=0)

    monkeypatch.setattr(search.LiteRTSearch, "__init__", shifted)


@pytest.mark.parametrize(
    ("spoil", "quantize"),
    [(one_weight_changed, "none"), (positions_swapped, "int8"), (vocabulary_shifted, "int8")],
)
def test_a_spoiled_file_is_refused(engine, texts, tmp_path, monkeypatch, spoil, quantize):
    pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    spoil(engine, monkeypatch)
    options = {"quantize": quantize, "source_lengths": [13], "beam_size": 1}
    with pytest.raises(VerificationError, match="differs from the trained model"):
        export_litert(engine, tmp_path / "new", texts, **options)
    assert list(tmp_path.iterdir()) == []


def test_other_weights_are_refused_by_the_tolerance_of_float16(litert_report, make_engine, texts):
    other = make_engine(normalize_first=True, seed=2)
    manifest = {**litert_report.manifest, "quantize": "float16"}
    with pytest.raises(VerificationError, match="translations are equal"):
        verify_litert(litert_report.folder, other, manifest, texts)


def test_a_file_that_does_not_run_is_refused(litert_report, engine, tmp_path, texts):
    folder = shutil.copytree(litert_report.folder, tmp_path / "copy")
    (folder / "model.tflite").write_bytes(b"\x1c\x00\x00\x00TFL3")
    with pytest.raises(VerificationError, match="must load and run in a new process"):
        verify_litert(folder, engine, litert_report.manifest, texts[:5])
    manifest = json.loads((folder / "export.json").read_text())
    assert manifest == litert_report.manifest
