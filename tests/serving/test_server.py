"""The live server: TensorFlow Serving's protocol, hostile clients, reload, death, shutdown."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from live_server import Server, processes_below, save_model

pytestmark = pytest.mark.tensorflow

PREDICT = "/v1/models/toy:predict"


def error_of(answer, status):
    """The message of an answer that must be an error."""
    assert answer.status == status, (answer.status, answer.body[:300])
    assert set(answer.json) == {"error"}
    assert "\n" not in answer.json["error"]
    return answer.json["error"]


def test_rows_and_columns_are_answered_as_tensorflow_serving_does(server):
    row = server.predict({"instances": ["ab", {"b64": "Y2Q="}]}).json
    assert row == {
        "predictions": [
            {"score": 1.0, "translation": "AB"},
            {"score": 1.0, "translation": "CD"},
        ]
    }
    named = server.predict({"instances": [{"text": "ab"}]}).json
    assert named == {"predictions": [{"score": 1.0, "translation": "AB"}]}
    columns = server.predict({"inputs": {"text": ["ab", "cd"]}}).json
    assert columns == {"outputs": {"score": [1.0, 1.0], "translation": ["AB", "CD"]}}
    assert server.predict({"inputs": ["ab"]}).json["outputs"]["translation"] == ["AB"]


def test_a_single_output_has_no_name(server):
    body = {"signature_name": "sample", "inputs": {"text": ["a", "b"], "seed": [3, 5]}}
    assert server.predict(body).json == {"outputs": ["a 3", "b 5"]}
    rows = [{"text": "a", "seed": 7}]
    answer = server.predict({"signature_name": "sample", "instances": rows})
    assert answer.json == {"predictions": ["a 7"]}


def test_rows_of_different_lengths_are_padded_and_come_back_as_long_as_the_request_needs(server):
    body = {"signature_name": "ids", "inputs": [[2, 3, 5], [7]]}
    assert server.predict(body).json == {
        "outputs": {"ids": [[4, 6, 10], [14, 0, 0]], "sums": [10, 7]}
    }


def test_status_and_metadata_have_tensorflow_servings_form(server):
    states = server.get("/v1/models/toy").json["model_version_status"]
    assert states[0] == {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    assert server.get("/v1/models/toy/versions/1").json == {"model_version_status": states[:1]}
    told = server.get("/v1/models/toy/metadata").json
    assert told["model_spec"] == {"name": "toy", "signature_name": "", "version": "1"}
    signatures = told["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "beam", "align", "sample", "ids"}
    assert signatures["ids"]["inputs"]["source_ids"]["dtype"] == "DT_INT32"
    sizes = signatures["ids"]["inputs"]["source_ids"]["tensor_shape"]["dim"]
    assert [dim["size"] for dim in sizes] == ["-1", "-1"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"{", "JSON Parse error"),
        (b'{"inputs": ["\xff"]}', "UTF-8"),
        (b'{"inputs": ["a\x00b"]}', "JSON Parse error"),
        (b"[" * 100_000, "nested"),
        (b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", ""),
        (b'{"inputs": ' + b"9" * 5000 + b"}", "JSON Parse error"),
        (b"[1]", "not object"),
        (b'{"inputs": ["a"], "instances": ["a"]}', "only one"),
        (b'{"signature_name": "x", "inputs": ["a"]}', "serving_default"),
        (b'{"signature_name": 5, "inputs": ["a"]}', "string"),
        (b'{"texts": ["a"]}', "Missing"),
        (b'{"inputs": {"txt": ["a"]}}', "Missing named input: text"),
        (b'{"instances": [{"txt": "a"}]}', "keys must be equal to: text"),
        (b'{"instances": []}', "No values"),
        (b'{"instances": "a"}', "list"),
        (b'{"inputs": "a"}', "list"),
        (b'{"inputs": [5]}', "string"),
        (b'{"inputs": [["a"]]}', "string"),
        (b'{"inputs": [null]}', "string"),
        (b'{"inputs": ["\\ud800"]}', "surrogate"),
        (b'{"inputs": [{"b64": "?"}]}', "base64"),
        (b'{"inputs": [{"b64": "/w=="}]}', "UTF-8"),
        (b'{"signature_name": "sample", "inputs": {"text": ["a"], "seed": [1.5]}}', "int32"),
        (b'{"signature_name": "sample", "inputs": {"text": ["a"], "seed": [4e9]}}', "int32"),
        (b'{"signature_name": "sample", "inputs": {"text": ["a"], "seed": [1, 2]}}', "same"),
        (b'{"signature_name": "sample", "inputs": ["a"]}', "multiple"),
        (b'{"signature_name": "ids", "inputs": [5]}', "list"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_what_is_wrong(server, body, says):
    assert says.lower() in error_of(server.predict(body), 400).lower()


def test_what_is_too_large_is_refused_at_once(server):
    error_of(server.predict(b'{"inputs": ["' + b"a" * 1_000_000 + b'"]}'), 413)
    assert "50" in error_of(server.predict({"inputs": ["a"] * 10_000}), 413)
    assert "2000" in error_of(server.predict({"inputs": ["a", "a" * 2001]}), 413)
    assert server.translate("a" * 2000, "a\x00b") == ["A" * 2000, "A\x00B"]


def raw(server, data, until=b""):
    """What comes back on a connection of its own, until the server closes it."""
    with server.connect() as connection:
        connection.sendall(data)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except ConnectionResetError:
            pass
    return received


def test_zeros_at_the_end_of_an_answer_are_part_of_it(server):
    body = {"signature_name": "ids", "inputs": [[2, 0, 0]]}
    assert server.predict(body).json == {"outputs": {"ids": [[4, 0, 0]], "sums": [2]}}
    # No other request's sentence makes it longer.
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        bodies = [{"signature_name": "ids", "inputs": [[2] * i]} for i in range(1, 10)]
        answers = list(pool.map(server.predict, bodies))
    assert [each.json["outputs"]["ids"] for each in answers] == [[[4] * i] for i in range(1, 10)]


def test_a_page_that_has_a_name_lead_here_gets_nothing(server):
    for host, status in (("localhost:1", 200), ("evil.example", 403)):
        assert server.request("GET", "/healthz", headers={"host": host}).status == status
    headers = {"origin": "http://evil.example", "content-type": "text/plain"}
    error_of(server.request("POST", PREDICT, b'{"inputs": ["a"]}', headers), 403)


def test_one_sentence_that_fails_fails_alone(server):
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        held = pool.submit(server.translate, "busy")
        time.sleep(0.2)
        bad = pool.submit(server.predict, {"inputs": ["fail"]})
        good = [pool.submit(server.translate, f"a{i}") for i in range(6)]
        assert [each.result() for each in good] == [[f"A{i}"] for i in range(6)]
        assert "this text fails" in error_of(bad.result(), 400)
        assert held.result() == ["BUSY"]


def test_a_full_queue_rejects_at_once_and_loses_nothing(server):
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        held = hold(server, pool)
        asked = [
            pool.submit(server.predict, {"inputs": [f"{i} {j}" for j in range(10)]})
            for i in range(30)
        ]
        answers = [each.result() for each in asked]
        assert [each.result().status for each in held] == [200, 200]
    rejected = [answer for answer in answers if answer.status == 429]
    assert rejected and "queue" in error_of(rejected[0], 429)
    assert rejected[0].headers["retry-after"] == "1"
    for i, answer in enumerate(answers):
        if answer.status != 429:
            wanted = [f"{i} {j}" for j in range(10)]
            assert answer.json["outputs"]["translation"] == wanted


def metrics_of(server):
    lines = server.get("/metrics").body.decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#")
    }


def test_the_metrics_count_what_happened(server):
    before = metrics_of(server)
    server.translate("a", "b", "c")
    server.predict(b"{")
    raw(server, b"no http\r\n\r\n")
    after = metrics_of(server)

    def added(name):
        name = f"keras_transformer_{name}"
        return after[name] - before.get(name, 0.0)

    assert added('requests_total{status="200"}') == 1
    assert added('rejections_total{reason="400"}') == 1
    assert added('rejections_total{reason="connection_400"}') == 1
    assert added("request_seconds_count") == 1
    assert added('batch_sentences_sum{signature="serving_default"}') == 3
    assert after["keras_transformer_replicas"] == 1
    assert server.get("/monitoring/prometheus/metrics").status == 200
    assert server.get("/healthz").body == b"ok\n"


def hold(server, pool, text="busy"):
    """Gives both threads of the replica a batch that takes a while."""
    held = []
    for _ in range(2):
        held.append(pool.submit(server.predict, {"inputs": [text]}))
        time.sleep(0.1)  # Not in one batch.
    return held


def test_a_killed_replica_costs_what_it_held_and_comes_back(server):
    (replica,) = server.replicas()
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        held = hold(server, pool, "endless")
        waiting = [pool.submit(server.predict, {"inputs": [f"a{i}"]}) for i in range(20)]
        time.sleep(0.1)
        os.kill(replica, signal.SIGKILL)
        assert all("replica" in error_of(each.result(), 503) for each in held)
        for i, each in enumerate(waiting):
            assert each.result().json == {"outputs": {"score": [1.0], "translation": [f"A{i}"]}}
    assert len(server.replicas()) == 1 and server.replicas() != [replica]
    server.wait(lambda: server.get("/readyz").status == 200)


def test_a_new_version_takes_over_and_a_broken_one_is_refused(server):
    save_model(server.path / "new", mark="2: ")
    answers = []
    os.rename(server.path / "new", server.path / "2")
    try:
        deadline = time.monotonic() + 300
        while answers[-1:] != [["2: A"]]:
            assert time.monotonic() < deadline, server.log[-2000:]
            answers.append(server.translate("a"))
        assert set(map(tuple, answers)) == {("A",), ("2: A",)}
        shutil.copytree(server.path / "2", server.path / "3")
        data = next((server.path / "3" / "variables").glob("*.index"))
        data.write_bytes(b"broken")
        (server.path / "3" / "saved_model.pb").write_bytes(b"no graph")
        server.wait(lambda: "version 3 is refused" in server.log)
        states = server.get("/v1/models/toy").json["model_version_status"]
        states = {state["version"]: state for state in states}
        assert states["2"]["state"] == "AVAILABLE"
        assert states["3"]["state"] == "END"
        assert "saved_model" in states["3"]["status"]["error_message"]
        assert server.translate("a") == ["2: A"]
    finally:
        shutil.rmtree(server.path / "3", ignore_errors=True)


@pytest.mark.parametrize("loop", [["--clients=7"], ["--rate=50"]])
def test_the_load_test_counts_every_answer(server, tmp_path, loop):
    (tmp_path / "text").write_text("one\n\ntwo two\nfail\n")
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_test", *loop]
        + [f"--url=http://127.0.0.1:{server.port}/v1/models/toy"]
        + [f"--text={tmp_path / 'text'}", "--seconds=5", "--requests=30"]
        + [f"--memory-of={server.process.pid}"],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert report["statuses"] == {"200": 20, "400": 10}  # Every third line fails.
    assert report["answers_that_miss_sentences"] == 0
    milliseconds = report["milliseconds"]
    assert 0 < milliseconds["p50"] <= milliseconds["p95"] <= milliseconds["p99"]
    assert report["memory_megabytes"][0][1] > 100


def test_tensorflow_servings_rest_client_needs_no_change(server):
    program = pathlib.Path(__file__).parents[2] / "export" / "tf_serving" / "rest_client.py"
    finished = subprocess.run(
        [
            sys.executable,
            program,
            f"--url=http://127.0.0.1:{server.port}/v1/models/toy",
            "--batch=2",
        ],
        input=b"one\r\n\nthree",
        capture_output=True,
        timeout=60,
    )
    mark = server.translate("")[0]  # Another version may have taken over before.
    assert finished.stdout.decode() == f"{mark}ONE\n{mark}\n{mark}THREE\n", finished.stderr


def test_a_taken_port_and_an_empty_folder_are_told_in_one_line(server, tmp_path):
    from keras_transformer.errors import InputError
    from keras_transformer.serving import ServerOptions, serve

    with pytest.raises(InputError, match=f"127.0.0.1:{server.port}: cannot be listened on"):
        serve(server.path, ServerOptions(port=server.port))
    with pytest.raises(InputError, match="saved_model.pb"):
        serve(tmp_path, ServerOptions())


def test_other_files_of_the_version_that_answers_take_over(toy, tmp_path):
    shutil.copytree(toy / "1", tmp_path / "toy" / "1")
    running = Server(tmp_path / "toy", tmp_path / "log", replicas=2)
    try:
        save_model(tmp_path / "new", mark="new: ")
        (replica, _) = running.replicas()
        os.rename(tmp_path / "toy" / "1", tmp_path / "old")
        os.rename(tmp_path / "new", tmp_path / "toy" / "1")
        os.kill(replica, signal.SIGKILL)  # The one that takes its place must not mix in.
        answers = []
        deadline = time.monotonic() + 300
        while answers[-1:] != [["new: A"]]:
            assert time.monotonic() < deadline, running.log[-2000:]
            answer = running.predict({"inputs": ["a"]})
            if answer.status == 200:
                answers.append(answer.json["outputs"]["translation"])
        answers += [running.translate("a") for _ in range(20)]
        assert answers == sorted(answers)  # "A" is before "new: A": none of the old comes back.
        # While another version is being loaded, which will never be warm, it stops at once.
        save_model(tmp_path / "endless", endless_text=".*")
        os.rename(tmp_path / "endless", tmp_path / "toy" / "2")
        running.wait(lambda: processes_below(running.process.pid, b"ServeReplica:toy-2"))
        time.sleep(1)
        started = time.monotonic()
        assert running.stop() == (0, b""), running.log[-2000:]
        assert time.monotonic() - started < 60
    finally:
        running.stop()


def test_a_server_that_is_told_to_stop_finishes_what_it_accepted(server):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        held = [pool.submit(server.translate, "busy", f"a{i}") for i in range(4)]
        time.sleep(0.3)
        code, stdout = server.stop()
        answers = [each.result() for each in held]
    mark = answers[0][0].removesuffix("BUSY")  # Another version may have taken over before.
    assert answers == [[f"{mark}BUSY", f"{mark}A{i}"] for i in range(4)]
    assert (code, stdout) == (0, b"")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    assert server.log.count("Traceback") == 0
