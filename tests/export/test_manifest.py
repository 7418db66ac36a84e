import hashlib
import os

import pytest

from keras_transformer.files import file_digests

pytestmark = pytest.mark.tensorflow


def test_every_file_has_its_digest_and_links_are_read_once(tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b" / "c").write_bytes(b"two")
    os.link(tmp_path / "a", tmp_path / "b" / "d")
    one, two = (hashlib.sha256(each).hexdigest() for each in (b"one", b"two"))
    read, digest = [], hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda f, n: read.append(f.name) or digest(f, n))
    assert file_digests(tmp_path) == {"a": one, "b/c": two, "b/d": one}
    assert len(read) == 2


def test_the_ids_need_no_custom_operation_and_share_the_weights(report):
    found = report.manifest
    assert found["signatures"]["serving_ids"]["custom_ops"] == []
    assert "SentencepieceTokenizeOp" in found["signatures"]["serving_default"]["custom_ops"]
    weights = "variables/variables.data-00000-of-00001"
    assert os.path.samefile(f"{report.folder}/{weights}", f"{report.folder}/ids/{weights}")
    assert found["files"][weights] == found["files"][f"ids/{weights}"]
    assert {"StatelessIf", "While", "StatelessWhile"} & set(found["core_ops"])
    assert not set(found["core_ops"]) & set(found["custom_ops"])


def test_shapes_inputs_and_outputs_are_listed(report):
    found = report.manifest
    assert found["shapes"] == {
        "rows": [1, 2, 4, 8],
        "source_lengths": [13],
        "target_lengths": [16, 17],
    }
    sample = found["signatures"]["sample"]
    assert sample["inputs"] == {
        "seed": {"dtype": "int32", "shape": [None]},
        "temperature": {"dtype": "float32", "shape": [None]},
        "text": {"dtype": "string", "shape": [None]},
        "top_k": {"dtype": "int32", "shape": [None]},
        "top_p": {"dtype": "float32", "shape": [None]},
    }
    assert found["signatures"]["beam"]["outputs"]["translation"] == {
        "dtype": "string",
        "shape": [None, 3],
    }
