"""The clients and settings of `export/tf_serving`."""

import concurrent.futures
import io
import json
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
pytestmark = pytest.mark.tensorflow

FOLDER = pathlib.Path(__file__).parents[2] / "export" / "tf_serving"
LINES = ["a man runs.", "", "Grüße\u2028aus Köln", "a\rwoman\r", "two dogs"]


def in_lines(texts):
    return "".join(" ".join(text.splitlines()) + "\n" for text in texts)


def run(program, *arguments):
    stdin = ("\ufeff" + "\r\n".join(LINES)).encode()
    command = [sys.executable, FOLDER / program, "--batch", "3", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=120)


@pytest.fixture
def broken(served):
    """`served`, but each translation has line breaks inside and at its end."""

    def broken(texts):
        translations, scores = served(texts)
        return [f"one\n{text}\r\n" for text in translations], scores

    return broken


@pytest.mark.slow
def test_the_grpc_client_translates_lines_and_tells_the_servers_error(broken, monkeypatch, capsys):
    reason = "comes with the extra [serving-api]"
    grpc = pytest.importorskip("grpc", reason=reason)
    apis = pytest.importorskip("tensorflow_serving.apis", reason=reason)
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            if request.model_spec.name != "translator":
                context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
            assert request.model_spec.signature_name == "serving_default"
            response = predict_pb2.PredictResponse()
            values = broken(tf.make_ndarray(request.inputs["text"]))
            for name, value in zip(("translation", "score"), values, strict=True):
                response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
            return response

    assert apis
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        done = run("grpc_client.py", "--address", address)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stdout.decode() == in_lines(broken(LINES)[0])
        # In this process: the client imports TensorFlow.
        error = f"^grpc_client: {address}: NOT_FOUND, no such model$"
        for arguments, message in ((["--model", "other"], error), (["--batch", "0"], "^2$")):
            monkeypatch.setattr(sys, "argv", ["grpc_client", "--address", address, *arguments])
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a man\n")))
            with pytest.raises(SystemExit, match=message):
                runpy.run_path(str(FOLDER / "grpc_client.py"), run_name="__main__")
        assert "must be a positive integer. Received: 0." in capsys.readouterr().err
    finally:
        server.stop(None)


NEEDED = [("tf_serving/grpc_client.py", "grpc", "grpcio tensorflow-serving-api")]
NEEDED += [("tf_serving/warmup.py", "tensorflow_serving", "tensorflow-serving-api")]
NEEDED += [("litert/translate.py", "ai_edge_litert", "ai-edge-litert sentencepiece")]


@pytest.mark.parametrize(("program", "package", "command"), NEEDED)
def test_a_program_says_which_packages_to_install(monkeypatch, program, package, command):
    path = FOLDER.parent / program
    imported = [name for name in sys.modules if name.startswith(f"{package}.")]
    for name in (package, *imported):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert re.fullmatch(f"{path.stem}: [^\n]+: pip install {re.escape(command)}", ended.value.code)
    assert package in ended.value.code


@pytest.fixture
def requests(report, engine, texts, tmp_path):
    """Each request that the program writes for `report`, and what it lists of the request."""
    reason = "comes with the extra [serving-api]"
    messages = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2", reason=reason)
    (tmp_path / "export.json").write_bytes((report.folder / "export.json").read_bytes())
    write_requests = runpy.run_path(str(FOLDER / "warmup.py"))["write_requests"]
    listed = write_requests(tmp_path, engine.source_tokenizer, texts)
    path = tmp_path / "assets.extra" / "tf_serving_warmup_requests"
    records = [
        messages.PredictionLog.FromString(row.numpy()) for row in tf.data.TFRecordDataset(path)
    ]
    assert {record.WhichOneof("log_type") for record in records} == {"predict_log"}
    return list(zip([record.predict_log.request for record in records], listed, strict=True))


@pytest.mark.slow
def test_the_warmup_requests_are_answered_in_every_signature_and_shape(
    requests, report, signatures
):
    rows = []
    for request, (name, count, _) in requests:
        assert request.model_spec.signature_name == name
        inputs = {key: tf.constant(tf.make_ndarray(t)) for key, t in request.inputs.items()}
        outputs = signatures[name](**inputs)
        assert {len(tensor) for tensor in (*inputs.values(), *outputs.values())} == {count}
        rows += [count] if name == "serving_default" else []
    assert {name for _, (name, *_) in requests} == set(report.manifest["signatures"])
    assert rows == report.manifest["shapes"]["rows"]


def test_the_texts_of_warmup_requests_need_the_listed_lengths(requests, engine):
    for request, (name, _, length) in requests:
        if name == "serving_default":
            text = tf.make_ndarray(request.inputs["text"])[0].decode()
            assert 0 < len(engine.source_tokenizer.tokenize(text)) < length


def test_warmup_requests_name_a_language_where_a_signature_takes_it(tmp_path, tokenizer):
    reason = "comes with the extra [serving-api]"
    messages = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2", reason=reason)
    names = ("text", "source_language")
    inputs = {name: {"dtype": "string", "shape": [None]} for name in names}
    manifest = {"shapes": {"rows": [1, 2], "source_lengths": [16, 32, 48, 64, 70]}}
    manifest["signatures"] = {"serving_default": {"inputs": inputs}}
    manifest["language_tokens"] = {"tokens": {"de": ">>de<<", "fr": ">>fr<<"}}
    (tmp_path / "export.json").write_text(json.dumps(manifest))
    write_requests = runpy.run_path(str(FOLDER / "warmup.py"))["write_requests"]
    shapes = [(rows, length) for length in (16, 32, 48) for rows in (1, 2)]
    expected = [("serving_default", *shape) for shape in shapes]
    assert write_requests(tmp_path, tokenizer, ["a man runs in the park."] * 50) == expected
    (record, *_) = tf.data.TFRecordDataset(tmp_path / "assets.extra" / "tf_serving_warmup_requests")
    request = messages.PredictionLog.FromString(record.numpy()).predict_log.request
    assert tf.make_ndarray(request.inputs["source_language"]).tolist() == [b"de"]


def test_the_settings_fit_the_export(report):
    batching = (FOLDER / "batching.config").read_text()
    sizes = [int(size) for size in re.findall(r"^allowed_batch_sizes: (\d+)", batching, re.M)]
    assert sizes == [1, 2, 4, 8, 16, 32]  # a batch of 32 is cut by the graph
    assert set(report.manifest["shapes"]["rows"]) <= set(sizes)
    assert f"max_batch_size {{ value: {sizes[-1]} }}" in batching
    assert "`largest_chunk` in export.json" in batching and "largest_chunk" in report.manifest


def test_the_settings_parse_as_the_servers_messages():
    reason = "comes with the extra [serving-api]"
    module = "tensorflow_serving.config.model_server_config_pb2"
    messages = pytest.importorskip(module, reason=reason)
    from google.protobuf import text_format

    text = (FOLDER / "models.config").read_text()
    (model,) = text_format.Parse(text, messages.ModelServerConfig()).model_config_list.config
    assert (model.name, model.base_path) == ("translator", "/models/translator")
    assert model.model_version_policy.latest.num_versions == 2
