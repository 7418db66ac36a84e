"""An artifact as the server runs it."""

import math

import pytest

from keras_transformer.errors import InputError
from keras_transformer.serving.artifact import Artifact

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def artifact(toy):
    return Artifact(toy / "1")


def test_every_signature_that_takes_batches_is_there(artifact):
    assert list(artifact.signatures) == ["align", "beam", "ids", "sample", "serving_default"]
    beam = artifact.signatures["beam"].outputs
    assert beam["score"].shape == (None, 2) and beam["translation"].dtype == "string"


def test_columns_go_in_and_come_out(artifact):
    assert artifact.run("sample", {"text": [b"a", b"b"], "seed": [3, 5]}) == {
        "translation": [b"a 3", b"b 5"]
    }
    beam = artifact.run("beam", {"text": [b"a"]})
    assert {key: values.tolist() for key, values in beam.items()} == {
        "translation": [[b"A", b""]],
        "score": [[1.0, -math.inf]],
    }


def test_the_warm_up_runs_each_power_of_two_and_length(artifact):
    # 1, 2, 4 and 8 sentences; up to 16, 32 and 41 columns.
    assert artifact.warm_up(max_batch_size=5, tokens=40) == 12
    assert artifact.warm_up(max_batch_size=5, tokens=0) == 0


def test_the_warm_up_takes_the_signatures_that_are_named(artifact, monkeypatch):
    ran = []
    monkeypatch.setattr(artifact, "run", lambda name, columns: ran.append((name, columns)))
    names = ("serving_default", "beam")
    assert artifact.warm_up(max_batch_size=2, tokens=1, signatures=names) == 4
    assert [(name, len(columns["text"])) for name, columns in ran] == [
        ("serving_default", 1),
        ("serving_default", 2),
        ("beam", 1),
        ("beam", 2),
    ]


@pytest.mark.parametrize(
    ("name", "received"), [("sample", "inputs seed, text"), ("beem", "no such signature")]
)
def test_what_cannot_be_warmed_up_is_named(artifact, name, received):
    with pytest.raises(InputError, match=f"nothing but texts. Received: {name}, {received}"):
        artifact.warm_up(max_batch_size=2, tokens=1, signatures=("serving_default", name))


def test_what_is_no_savedmodel_is_refused(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"no graph")
    with pytest.raises(InputError, match="incomplete or damaged"):
        Artifact(tmp_path)
