"""Spoiled CTranslate2 models are refused."""

import numpy as np
import pytest

from keras_transformer.engine import CTranslate2Engine
from keras_transformer.errors import VerificationError
from keras_transformer.export import export_ctranslate2
from keras_transformer.export.ctranslate2 import export as ctranslate2
from keras_transformer.files import file_digests

pytestmark = pytest.mark.tensorflow
pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")


@pytest.fixture(scope="module")
def report(engine, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    return export_ctranslate2(engine, folder, verification_texts=texts)


def test_texts_scores_and_alignments_were_compared_and_each_file_has_its_digest(report):
    found = report.verification
    assert 0.5 * found["texts"] <= found["equal"] <= found["texts"] <= 64
    for name in ("score", "log_probability", "alignment"):
        assert f"mean_{name}_difference" in found
    written = {"export.json", "README.md", "verification.json"}
    digests = {name: each for name, each in file_digests(report.folder).items()}
    assert report.manifest["files"] == {k: v for k, v in digests.items() if k not in written}
    assert "model.bin" in report.manifest["files"]


def test_every_search_score_and_alignment_is_the_trained_models(report, engine, texts):
    """With odd texts, and one of each length up to the longest that fits."""
    exported = CTranslate2Engine(report.folder)
    chosen = ["", " \t", "Grüße, 你好", *texts[:24]]
    for options in ({"beam_size": 1}, {"beam_size": 4, "n_best": 4}):
        options |= {"length_penalty": 0.6, "alignment": True, "long_input": "truncate"}
        found, expected = (each.translate(chosen, **options) for each in (exported, engine))
        same = 0
        for ours, theirs in zip(expected, found, strict=True):
            if ours.text == theirs.text:
                same += 1
                assert theirs.score == pytest.approx(ours.score, rel=0.02, abs=1e-3)
                if ours.ids:
                    np.testing.assert_allclose(theirs.alignment, ours.alignment, atol=1e-3)
        assert same >= len(chosen) - 2
    short = [text for text in texts if len(text) < 10][:20]
    found, expected = (each.score(short, short[::-1]) for each in (exported, engine))
    for ours, theirs in zip(expected, found, strict=True):
        assert theirs.log_probability == pytest.approx(ours.log_probability, rel=1e-3)


def one_weight_changed(monkeypatch):
    right = ctranslate2._fill_ends

    def changed(spec, model, *rest):
        right(spec, model, *rest)
        spec.decoder.layer_norm.beta[3] += 9.0

    monkeypatch.setattr(ctranslate2, "_fill_ends", changed)


def positions_swapped(monkeypatch):
    right = ctranslate2._position_table
    monkeypatch.setattr(ctranslate2, "_position_table", lambda *each: right(*each)[::-1].copy())


def alignments_shifted(monkeypatch):
    right = ctranslate2._empty_spec

    def shifted(*arguments):
        spec = right(*arguments)
        spec.decoder.alignment_heads = np.array(1, "int16")  # the first head instead of all
        return spec

    monkeypatch.setattr(ctranslate2, "_empty_spec", shifted)


@pytest.mark.parametrize(
    ("spoil", "message", "quantize"),
    [
        (one_weight_changed, "translations are equal", "int8"),
        (positions_swapped, "translations are equal", "none"),
        (alignments_shifted, "`alignment` differs", "none"),
    ],
)
def test_a_spoiled_model_is_refused_and_nothing_is_left(
    engine, texts, tmp_path, monkeypatch, spoil, message, quantize
):
    spoil(monkeypatch)
    with pytest.raises(VerificationError, match=message):
        export_ctranslate2(engine, tmp_path / "new", texts, quantize=quantize)
    assert list(tmp_path.iterdir()) == []


def test_weights_of_16_bits_are_verified_too(engine, texts, tmp_path):
    report = export_ctranslate2(engine, tmp_path / "new", texts, quantize="float16")
    assert report.manifest["quantize"] == "float16"
    found = report.verification
    assert 0 < found["mean_score_difference"] and 0 < found["mean_alignment_difference"] < 0.02


def test_a_folder_that_does_not_load_is_told_in_one_line(report, engine, tmp_path, texts):
    with pytest.raises(VerificationError, match=r"\(engine\). Received: exit status"):
        ctranslate2.CTranslate2Exporter().verify(engine, tmp_path, report.manifest, texts[:3])
