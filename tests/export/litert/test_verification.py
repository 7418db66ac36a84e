"""Spoiled LiteRT files are caught."""

import json

import pytest

from keras_transformer.errors import VerificationError
from keras_transformer.export.litert.export import verify_litert

pytestmark = pytest.mark.tensorflow


def test_every_search_of_every_file_was_compared_at_every_length(litert_report, texts):
    report = litert_report.verification
    assert set(report) == {"bound", "model_ids.tflite", "model.tflite"}
    for file in ("model_ids.tflite", "model.tflite"):
        assert set(report[file]) == {"greedy", "beam"}
        for search in report[file].values():
            assert search["texts"] == sum(search["batch_sizes"]) > len(texts)
            assert search["others"] <= 2 and {0, 1} < set(search["batch_sizes"])


@pytest.mark.slow
def test_other_weights_are_caught_in_any_number_of_bits(litert_report, make_engine, texts):
    other = make_engine(normalize_first=True, seed=2)
    for quantize in ("none", "int8"):
        manifest = {**litert_report.manifest, "quantize": quantize}
        with pytest.raises(VerificationError, match="model_ids.tflite, greedy: expected"):
            verify_litert(litert_report.folder, other, manifest, texts[:5])


def test_a_file_that_does_not_run_is_caught(litert_report, engine, tmp_path, texts):
    (tmp_path / "export.json").write_text(json.dumps(litert_report.manifest))
    (tmp_path / "tokenizer.model").write_bytes(
        (litert_report.folder / "tokenizer.model").read_bytes()
    )
    (tmp_path / "model_ids.tflite").write_bytes(b"\x1c\x00\x00\x00TFL3")
    with pytest.raises(VerificationError, match="must load and run in a fresh process"):
        verify_litert(tmp_path, engine, litert_report.manifest, texts[:5])
