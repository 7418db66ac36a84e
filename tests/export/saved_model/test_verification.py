"""Spoiled SavedModels are caught, through both of TensorFlow's loaders."""

import shutil

import pytest

from keras_transformer.errors import VerificationError
from keras_transformer.export.saved_model.verification import verify_saved_model

pytestmark = pytest.mark.tensorflow


def test_a_folder_that_does_not_load_fails(engine, tmp_path):
    manifest = {"beam_size": 3, "length_penalty": 0.8, "signatures": {"serving_default": {}}}
    with pytest.raises(VerificationError, match="run in a fresh process.*exit status"):
        verify_saved_model(tmp_path, engine, manifest, ["a man"])


def test_both_models_and_all_signatures_were_verified(report):
    found = report.verification
    names = list(report.manifest["signatures"])
    for loader in ("session", "module"):
        assert list(found[loader]) == names
        assert list(found[f"ids {loader}"]) == ["serving_ids"]
        assert found[loader]["serving_default"]["texts"] > 200
    # The ids of the texts, by which the live model scores them.
    (cut, every, none), ids = (
        found["session"][name]["batch_sizes"] for name in ("serving_default", "serving_ids")
    )
    assert ids == [cut, every - 5, none]  # without the blank ones, of which some have ids
    for name in names:
        both = [found[loader][name] for loader in ("session", "module")]
        sizes = {size for each in both for size in each["batch_sizes"]}
        assert 0 in sizes and max(sizes) >= 32 and (1 in sizes or name == "beam")
        assert all(each["others"] <= 2 for each in both)


@pytest.mark.slow
def test_another_models_weights_are_caught(report, make_engine, tmp_path):
    shutil.copytree(report.folder, tmp_path / "model")
    other = make_engine(normalize_first=True, seed=2)
    manifest = dict(report.manifest)
    manifest["signatures"] = {"score": manifest["signatures"]["score"]}
    with pytest.raises(VerificationError, match="session, score: expected"):
        verify_saved_model(tmp_path / "model", other, manifest, ["a man", "two dogs"])
