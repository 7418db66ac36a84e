import pytest

from keras_transformer.export.saved_model.batches import ROWS, WARMUP_FILE, warmup_record

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def api():
    return pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2", reason="comes with the extra [serving-api]"
    )


@pytest.fixture(scope="module")
def records(report):
    return [each.numpy() for each in tf.data.TFRecordDataset(f"{report.folder}/{WARMUP_FILE}")]


def test_a_record_is_tensorflow_servings_own_on_the_wire(api):
    inputs = {"text": ["a" * 300, "b"], "seed": [3, 5]}  # A length of two bytes, too.
    record = api.PredictionLog.FromString(warmup_record("sample", inputs))
    assert record.WhichOneof("log_type") == "predict_log"
    request = record.predict_log.request
    assert (request.model_spec.signature_name, request.model_spec.name) == ("sample", "")
    assert tf.make_ndarray(request.inputs["text"]).tolist() == [b"a" * 300, b"b"]
    assert tf.make_ndarray(request.inputs["seed"]).tolist() == [3, 5]
    assert set(request.inputs) == {"text", "seed"}
    # Nothing besides, in whatever order.
    assert record.ByteSize() == len(warmup_record("sample", inputs))


@pytest.mark.slow
def test_the_requests_are_replayed_on_the_export_in_every_shape(api, records, report, signatures):
    replayed = {}
    for content in records:
        record = api.PredictionLog.FromString(content)
        assert record.WhichOneof("log_type") == "predict_log"
        request = record.predict_log.request
        inputs = {name: tf.constant(tf.make_ndarray(t)) for name, t in request.inputs.items()}
        outputs = signatures[request.model_spec.signature_name](**inputs)
        rows = {len(each) for each in (*inputs.values(), *outputs.values())}
        replayed.setdefault(request.model_spec.signature_name, []).append(*rows)
    listed = {name: [rows for rows, _ in each] for name, each in report.manifest["warmup"].items()}
    assert replayed == listed
    assert set(replayed) == set(report.manifest["signatures"])
    assert replayed["serving_default"] == list(ROWS)


def test_the_texts_need_the_listed_lengths(api, records, report, engine):
    listed = iter(report.manifest["warmup"]["serving_default"])
    for content in records:
        request = api.PredictionLog.FromString(content).predict_log.request
        if request.model_spec.signature_name == "serving_default":
            _, length = next(listed)
            text = tf.make_ndarray(request.inputs["text"])[0].decode()
            assert 1 < len(engine.source_tokenizer.tokenize(text)) < length
    assert next(listed, None) is None
