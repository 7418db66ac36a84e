"""Spoiled CTranslate2 models are caught."""

import numpy as np
import pytest

from keras_transformer.errors import VerificationError
from keras_transformer.export import export_ctranslate2
from keras_transformer.export.ctranslate2 import export as ctranslate2
from keras_transformer.export.ctranslate2.export import verify_ctranslate2
from keras_transformer.files import file_digests

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def report(engine, texts, tmp_path_factory):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    folder = tmp_path_factory.mktemp("ctranslate2") / "model"
    return export_ctranslate2(engine, folder, verification_texts=texts)


def test_all_it_can_do_was_compared_and_each_file_has_its_digest(report, texts):
    found = report.verification["ctranslate2"]
    assert set(found) == {"greedy", "beam", "score", "align"}
    assert found["beam"]["texts"] > len(texts) and found["greedy"]["others"] <= 2
    written = {"export.json", "README.md", "verification.json"}
    digests = {name: each for name, each in file_digests(report.folder).items()}
    assert report.manifest["files"] == {k: v for k, v in digests.items() if k not in written}
    assert "model.bin" in report.manifest["files"]


def test_other_weights_are_caught_and_nothing_is_left(make_engine, texts, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    engine = make_engine(normalize_first=True)
    right = ctranslate2.convert_to_ctranslate2

    def wrong(model, *rest, **options):
        # A converter that forgets a bias.
        bias = model.decoder.blocks[0].feed_forward.projections[1].bias
        kept = np.asarray(bias)
        bias.assign(0 * kept)
        right(model, *rest, **options)
        bias.assign(kept)

    monkeypatch.setattr(ctranslate2, "convert_to_ctranslate2", wrong)
    with pytest.raises(VerificationError, match="^ctranslate2, greedy: expected"):
        export_ctranslate2(engine, tmp_path / "new", verification_texts=texts[:20])
    assert list(tmp_path.iterdir()) == []


def test_int8_is_verified_by_its_bound(engine, texts, tmp_path):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    options = {"quantize": "int8", "verification_texts": texts[:20]}
    report = export_ctranslate2(engine, tmp_path / "new", **options)
    assert report.manifest["quantize"] == "int8"
    assert 0 < report.verification["ctranslate2"]["greedy"]["mean_score_difference"]


def test_a_folder_that_does_not_load_is_told_in_one_line(report, engine, tmp_path, texts):
    with pytest.raises(VerificationError, match=r"\(engine\). Received: exit status"):
        verify_ctranslate2(tmp_path, engine, report.manifest, texts[:3])
