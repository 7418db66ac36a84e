"""Every signature gives the same through both loaders; spoiled models are refused."""

import shutil

import numpy as np
import pytest

from keras_transformer.engine.saved_model import IDS
from keras_transformer.errors import VerificationError
from keras_transformer.export import export_saved_model
from keras_transformer.export.saved_model import signatures as signatures_module
from keras_transformer.export.saved_model.export import (
    SIGNATURES,
    SavedModelExporter,
)
from keras_transformer.export.saved_model.warmup import signature_inputs

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow

ODD = ["", " \t\n", "\u3000", "Grüße, señor!", "你好，世界 😀", "e\u0301\u200b ﬁ", "a\x00b\tc"]


def verify(report, engine, texts, folder=None):
    folder = folder or report.folder
    return SavedModelExporter().verify(engine, folder, report.manifest, texts)


def in_session(folder):
    """`call(signature, inputs)` by the loader of TensorFlow Serving and the C library."""
    session = tf.compat.v1.Session(graph=tf.Graph())
    with session.graph.as_default():
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(folder))
        handles = [op for op in session.graph.get_operations() if op.type == "VarHandleOp"]
        ready = [tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles]
        assert handles and all(session.run(ready))

    def call(name, inputs):
        signature = meta.signature_def[name]
        given = {signature.inputs[key].name: values for key, values in inputs.items()}
        outputs = {key: info.name for key, info in signature.outputs.items()}
        return session.run(outputs, given)

    return call


@pytest.fixture(scope="module")
def session(report):
    return in_session(report.folder)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_gives_the_same_through_both_loaders(
    name, report, session, signatures, engine, texts
):
    """Odd texts, none, and one of more tokens than the model takes."""
    too_long = " ".join(texts[:9])
    described = report.manifest["signatures"][name]
    for batch in ([*ODD, too_long, *texts[:2]], []):
        inputs = signature_inputs(name, batch, engine.source_tokenizer)
        tensors = {}
        for key, spec in signatures[name].structured_input_signature[1].items():
            shape = None if inputs[key] else [0] * spec.shape.rank
            tensors[key] = tf.constant(inputs[key], spec.dtype, shape)
        through_module = {key: each.numpy() for key, each in signatures[name](**tensors).items()}
        arrays = {key: each.numpy() for key, each in tensors.items()}
        through_session = session(name, arrays)
        assert set(through_module) == set(through_session) == set(described["outputs"])
        for key, ours in through_module.items():
            theirs, shape = through_session[key], described["outputs"][key]["shape"]
            assert ours.dtype == theirs.dtype and len(ours) == len(batch)
            assert len(ours.shape) == len(shape)
            assert all(size in (None, real) for size, real in zip(shape, ours.shape, strict=True))
            if ours.dtype == object or ours.dtype.kind == "i":
                np.testing.assert_array_equal(theirs, ours)
            else:
                np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


def test_the_model_of_ids_alone_gives_the_same(report, signatures, engine, texts):
    inputs = signature_inputs("serving_ids", texts[:5], engine.source_tokenizer)
    arrays = {key: np.array(values, "int32") for key, values in inputs.items()}
    expected = signatures["serving_ids"](**{k: tf.constant(v) for k, v in arrays.items()})
    call = in_session(f"{report.folder}/{IDS}")
    for name in ("serving_default", "serving_ids"):
        found = call(name, arrays)
        np.testing.assert_array_equal(found["ids"], expected["ids"].numpy())
        np.testing.assert_allclose(found["score"], expected["score"].numpy(), rtol=1e-4)


def test_texts_scores_and_alignments_were_compared(report):
    found = report.verification
    assert found["equal"] >= 0.95 * found["texts"] > 0
    assert found["mean_score_difference"] < 1e-4 and found["mean_alignment_difference"] < 1e-4


def test_a_folder_that_does_not_load_is_refused(report, engine, tmp_path):
    with pytest.raises(VerificationError, match="run in a new process.*exit status"):
        verify(report, engine, ["a man"], tmp_path)


def test_one_other_weight_is_refused(report, engine, texts):
    bias = engine.model.decoder.final_norm.beta
    before = bias.numpy()
    bias.assign(before + np.eye(len(before))[3] * 2)
    try:
        with pytest.raises(VerificationError, match="differs from the trained model"):
            verify(report, engine, texts)
    finally:
        bias.assign(before)


def test_another_table_of_weights_is_refused(report, make_engine, engine, texts, tmp_path):
    folder = shutil.copytree(report.folder, tmp_path / "model")
    other = make_engine(normalize_first=True, seed=2)
    with pytest.raises(VerificationError, match="translations are equal, expected at least"):
        verify(report, other, texts, folder)


def test_shifted_alignments_are_refused(make_engine, texts, tmp_path, monkeypatch):
    right = signatures_module.score_targets

    def shifted(*arguments):
        by_token, alignment = right(*arguments)
        return by_token, tf.roll(alignment, 1, axis=1)

    monkeypatch.setattr(signatures_module, "score_targets", shifted)
    options = {"beam_size": 1, "signatures": ["align"]}
    with pytest.raises(VerificationError, match="`alignment` differs by"):
        export_saved_model(make_engine(normalize_first=True), tmp_path / "new", texts, **options)
    assert list(tmp_path.iterdir()) == []
