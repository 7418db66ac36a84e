import sys

import pytest

from keras_transformer.export.saved_model.warmup import WARMUP_FILE, write_warmup

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def api():
    return pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2", reason="comes with the extra [serving-api]"
    )


@pytest.fixture(scope="module")
def records(report):
    return [record.numpy() for record in tf.data.TFRecordDataset(f"{report.folder}/{WARMUP_FILE}")]


def test_without_tensorflow_servings_package_there_are_no_requests(engine, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", None)
    assert write_warmup(tmp_path, engine, ["serving_default"], [1]) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_requests_are_replayed_on_the_export_in_every_shape(api, records, report, signatures):
    replayed = {}
    for content in records:
        record = api.PredictionLog.FromString(content)
        assert record.WhichOneof("log_type") == "predict_log"
        request = record.predict_log.request
        inputs = {name: tf.constant(tf.make_ndarray(t)) for name, t in request.inputs.items()}
        outputs = signatures[request.model_spec.signature_name](**inputs)
        rows = {len(tensor) for tensor in (*inputs.values(), *outputs.values())}
        replayed.setdefault(request.model_spec.signature_name, []).append(*rows)
    listed = {name: [rows for rows, _ in dims] for name, dims in report.manifest["warmup"].items()}
    assert replayed == listed
    assert set(replayed) == set(report.manifest["signatures"])
    assert replayed["serving_default"] == report.manifest["shapes"]["rows"]


def test_the_texts_need_the_listed_lengths(api, records, report, engine):
    listed = iter(report.manifest["warmup"]["serving_default"])
    for content in records:
        request = api.PredictionLog.FromString(content).predict_log.request
        if request.model_spec.signature_name == "serving_default":
            _, length = next(listed)
            text = tf.make_ndarray(request.inputs["text"])[0].decode()
            assert 1 < len(engine.source_tokenizer.tokenize(text)) < length
    assert next(listed, None) is None
