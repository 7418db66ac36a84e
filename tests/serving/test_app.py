"""The live server: protocol, limits, versions, death of processes, shutdown."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import pytest
from live_server import Client, Server, free_port, processes_below, save_model, wait_for

from keras_transformer.decoding.search_options import FILTERS, DecodingOptions
from keras_transformer.errors import InputError
from keras_transformer.serving import LocalOptions, ServerOptions, local

psutil = pytest.importorskip("psutil", reason="comes with the extra [serve]")
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

PREDICT, TRANSLATE = "/v1/models/toy:predict", "/translate"
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
both_routes = pytest.mark.parametrize("route", ["predict", "libretranslate"])
EXAMPLES = pathlib.Path(__file__).parents[2] / "export" / "ray_serve"


def error_of(answer, status):
    """The message of an answer that must be an error."""
    assert answer.status == status, (answer.status, answer.body[:300])
    assert set(answer.json) == {"error"}
    assert "\n" not in answer.json["error"]
    return answer.json["error"]


def translations_of(answer):
    """The translations of a list of texts, in either protocol."""
    if "translatedText" in answer.json:
        return answer.json["translatedText"]
    return answer.json["outputs"]["translation"]


def test_rows_and_columns_are_answered_as_tensorflow_serving_does(server):
    rows = server.predict({"instances": ["ab", {"b64": "Y2Q="}]}).json["predictions"]
    assert rows[1] == {"score": 1.0, "translation": "CD"}
    columns = server.predict({"inputs": {"text": ["ab", "cd"]}}).json
    assert columns == {"outputs": {"score": [1.0, 1.0], "translation": ["AB", "CD"]}}
    marked = server.predict({"inputs": ["<b>ab</b> cd &amp;"], "markup": "html"}).json
    assert marked["outputs"]["translation"] == ["<b>AB</b> CD &amp;"]


def test_every_signature_of_the_export_is_served(server):
    def ask(name, **inputs):
        return server.predict({"signature_name": name, "inputs": inputs}).json["outputs"]

    infinite = float("-inf")
    assert ask("beam", text=["a"]) == {"translation": [["A", ""]], "score": [[1.0, infinite]]}
    # A batch has one value of each of these options; sentences with other values do not join it.
    options = {name: [getattr(DecodingOptions, name)] * 16 for name in FILTERS}
    options |= {"temperature": [0.5, 2.0, 0.5, 0.5] * 4, "top_k": [0, 0, 3, 0] * 4}
    options["top_p"] = [0.25, 0.25, 0.25, 0.75] * 4
    sampled = ask("sample", text=["a", "b", "c", "d"] * 4, seed=[3, 5, 7, 9] * 4, **options)
    assert sampled["translation"] == ["a 3 0.5 0", "b 5 2.0 0", "c 7 0.5 3", "d 9 0.5 0"] * 4
    assert sampled["score"] == [0.25, 0.25, 0.25, 0.75] * 4
    aligned = ask("align", text=["two dogs", "a"])
    assert aligned["target_tokens"] == [["TWO", "DOGS"], ["A", ""]]
    assert aligned["alignment"] == [[[1, 0], [0, 1]], [[1, 0], [0, 0]]]


def test_status_and_metadata_have_tensorflow_servings_form(server):
    status = {"error_code": "OK", "error_message": ""}
    states = [{"version": "1", "state": "AVAILABLE", "status": status}]
    for path in ("", "/versions/1", "/labels/stable"):
        assert server.get(f"/v1/models/toy{path}").json == {"model_version_status": states}
    told = server.get("/v1/models/toy/metadata").json
    assert told["model_spec"] == {"name": "toy", "signature_name": "", "version": "1"}
    signatures = told["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "beam", "align", "sample"}


def test_other_addresses_are_errors_of_one_line(server):
    assert error_of(server.get("/v1/models/other"), 404) == (
        'Servable not found for request: Latest("other") This server has `toy`.'
    )
    error_of(server.get("/v1/models/toy/versions/7"), 404)
    error_of(server.predict({"inputs": ["a"]}, "/versions/7"), 404)
    error_of(server.predict({"inputs": ["a"]}, "/labels/new"), 404)
    error_of(server.request("POST", "/v1/models/toy:classify", b"{}"), 400)
    assert "Malformed" in error_of(server.get(PREDICT), 400)
    assert error_of(server.get("/nothing"), 404)
    error_of(server.predict(b"{"), 400)
    assert server.get("/healthz").body == b"ok\n"
    assert server.request("HEAD", "/").status == 200


@pytest.mark.parametrize(("route", "status"), [("predict", 413), ("libretranslate", 400)])
def test_too_large_a_request_is_refused_at_once(server, route, status):
    ask = getattr(server, route)
    error_of(ask(b"a" * 1_000_000), 413)
    assert "50" in error_of(ask(["a"] * 51), status)
    assert "2000" in error_of(ask(["a" * 2001]), status)
    error_of(ask(b"a" * 10_000 for _ in range(100)), 413)  # Chunked: its length is not said.


FIELDS = {"q": "two dogs", "source": "en", "target": "fr"}
PARTS = "".join(
    f'--X\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
    for name, value in FIELDS.items()
)
CLIENTS = {
    "Weblate": ("", JSON, json.dumps({**FIELDS, "q": ["two", "dogs"], "api_key": ""})),
    "Weblate, older": ("", FORM, "api_key=&q=two+dogs&source=en&target=fr"),
    "kiss-translator": (
        "",
        JSON,
        json.dumps({**FIELDS, "source": "auto", "format": "text", "alternatives": 3}),
    ),
    "Linguist": ("", "multipart/form-data; boundary=X", f"{PARTS}--X--\r\n"),
    "Subtitle Edit": ("", JSON, json.dumps({**FIELDS, "q": "two<br />dogs"})),
    "deep-translator": ("?q=two+dogs&source=en&target=fr&format=text&api_key=x", None, None),
}
ANSWERS = {"Weblate": ["TWO", "DOGS"], "Subtitle Edit": "TWO<br />DOGS"}


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_of_libretranslate_are_answered(server, name):
    query, kind, body = CLIENTS[name]
    headers = {"content-type": kind} if kind else {}
    answer = server.request("POST", f"/translate{query}", body, headers)
    assert answer.status == 200, answer.body
    assert answer.json["translatedText"] == ANSWERS.get(name, "TWO DOGS")
    if name == "kiss-translator":  # The second hypothesis of this model is missing.
        assert answer.json["alternatives"] == [] and answer.json["detectedLanguage"]


def test_the_client_of_the_registry_is_answered(server):
    clients = pytest.importorskip("libretranslatepy", reason="comes with the extra [test]")
    client = clients.LibreTranslateAPI(f"http://127.0.0.1:{server.port}", api_key="any")
    assert client.translate("two dogs", "en", "fr") == "TWO DOGS"
    assert [language["code"] for language in client.languages()] == ["en", "fr"]
    assert client.detect("How are you today, my good friend?")[0]["language"] == "en"


def test_a_file_is_translated_and_fetched_by_its_address(server):
    file = PARTS + '--X\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
    body = f"{file} Two dogs.\n\n1\n\r\n--X--\r\n".encode()
    headers = {"content-type": "multipart/form-data; boundary=X"}
    answer = server.request("POST", "/translate_file", body, headers)
    assert answer.status == 200, answer.body
    url = answer.json["translatedFileUrl"]
    with urllib.request.urlopen(url) as fetched:
        assert fetched.read() == b" TWO DOGS.\n\n1\n"
    folders = [*pathlib.Path(tempfile.gettempdir()).glob("kt-files-*/*.a_fr.txt")]
    assert len(folders) == 1 and url.endswith(folders[0].name)


def test_too_large_an_answer_is_refused(server):
    long = {"signature_name": "align", "inputs": {"text": ["a " * 900]}}
    assert "answer" in error_of(server.predict(long), 413)


HEADERS = [({"host": "localhost:1"}, 200), ({"host": "evil.example"}, 403)]
HEADERS += [({"host": "[evil"}, 403), ({"origin": "http://evil.example"}, 403)]
HEADERS += [({"sec-fetch-site": "cross-site"}, 403)]
HEADERS += [({"sec-fetch-site": "same-origin", "origin": "http://own.example"}, 200)]
# Chromium sends no `sec-fetch-site` to another machine without TLS.
HEADERS += [({"origin": "chrome-extension://abc"}, 200)]
HEADERS += [({"sec-fetch-site": "cross-site", "origin": "moz-extension://abc"}, 403)]


@both_routes
@pytest.mark.parametrize(("headers", "status"), HEADERS)
def test_pages_of_other_sites_get_nothing(server, route, headers, status):
    assert getattr(server, route)(["a"], headers=headers).status == status


KINDS = [("predict", "text/plain", 415), ("predict", FORM, 200)]
KINDS += [("libretranslate", "text/plain", 400), ("libretranslate", FORM, 400)]


@pytest.mark.parametrize(("route", "kind", "status"), KINDS)
def test_a_content_type_is_that_of_the_protocol(server, route, kind, status):
    assert getattr(server, route)(["a"], headers={"content-type": kind}).status == status


@both_routes
def test_an_upgrade_to_http2_is_refused_and_never_loses_its_body_silently(server, route):
    headers = {"upgrade": "h2c", "connection": "Upgrade, HTTP2-Settings", "http2-settings": "A"}
    answer = getattr(server, route)(["a"], headers=headers)
    # Ray's proxy refuses a body that it reads after the headers, this package one that it drops.
    refused_by_ray = answer.status == 400 and b"Invalid HTTP request" in answer.body
    assert refused_by_ray or "Upgrade" in error_of(answer, 400)
    assert server.translate("a") == ["A"]


# Ray's proxy decodes them all as UTF-8.
STRANGE = ["serve-multiplexed-model-id", "serve_multiplexed_model_id", "x-session-id"]
STRANGE += ["x-request-id", "x-request-timeout-seconds", "x-request-disconnect-disabled", "x-a"]


@both_routes
def test_headers_of_rays_own_callers_change_nothing(server, route):
    headers = dict.fromkeys(STRANGE, "\xff".encode("latin-1"))
    assert getattr(server, route)(["a"], headers=headers).status == 200
    # No request is answered within a microsecond.
    headers = {"x-request-timeout-seconds": "0.000001"}
    assert getattr(server, route)(["a"], headers=headers).status == 200


def test_the_list_of_rays_applications_is_hidden(server):
    assert error_of(server.get("/-/routes"), 404) == "Not found"


def send_trailers(port, path):
    """Sends a chunked request with 40 MB of trailers, or as many as are taken."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        with contextlib.suppress(OSError):  # Closed, or not read any more.
            connection.sendall(head.encode() + b"2\r\n{}\r\n0\r\n")
            for _ in range(5000):
                connection.sendall(b"x: " + b"y" * 8000 + b"\r\n")


def memory_of(pids):
    """Megabytes of processes."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6


@contextlib.contextmanager
def documented_proxy(folder, upstream):
    """Port of the documented proxy in front of another port."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx: apt-get install nginx-light")
    port = free_port()
    folders = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{name}_temp_path {folder}/{name};" for name in folders)
    text = (EXAMPLES / "nginx.conf").read_text()
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
    text = text.replace("http {", f"http {{ {paths}").replace("worker_processes auto;", "")
    (folder / "nginx.conf").write_text(f"pid {folder}/pid; daemon off;\n{text}")
    command = ["nginx", "-p", folder, "-e", folder / "log", "-c", folder / "nginx.conf"]
    running = subprocess.Popen(command)
    wait_for(lambda: is_listening(port), 30)
    yield port
    running.terminate()
    running.wait(timeout=30)


def is_listening(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True
    return False


@pytest.fixture
def nginx(server, tmp_path):
    """Port of the documented proxy in front of the server."""
    with documented_proxy(tmp_path, server.port) as port:
        yield port


@pytest.fixture
def unreachable(tmp_path):
    """Port of the documented proxy in front of a port that nothing listens on."""
    with documented_proxy(tmp_path, free_port()) as port:
        yield port


def test_the_documented_proxy_serves_and_bounds_what_strangers_send(server, nginx):
    client, body = Client(nginx), b'{"inputs": ["a"]}'

    def ask(*arguments):
        return client.request("POST", PREDICT, *arguments)

    wait_for(client.is_ready, 30)
    assert translations_of(ask(body, {"host": "any.example"})) == ["A"]
    assert translations_of(client.libretranslate(["a"], {"host": "any.example"})) == ["A"]
    assert ask(body, {"upgrade": "h2c", "connection": "Upgrade"}).status == 200
    assert ask(b"a" * 1_100_000).status == 413
    assert ask(body, {"x": "y" * 40_000}).status == 400
    assert ask(body, dict.fromkeys(STRANGE, b"\xff")).status == 200
    assert error_of(client.get("/-/routes"), 404) and error_of(client.get("/-/healthz"), 404)
    # A client that closes its side when it has sent its request.
    with socket.create_connection(("127.0.0.1", nginx), timeout=60) as connection:
        head = f"POST {PREDICT} HTTP/1.0\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ") and b'["A"]' in answer
    # Ray's proxy alone would keep them all.
    watched = processes_below(server.process.pid, "ray::ProxyActor")
    watched += processes_below(os.getpid(), "nginx")
    before = memory_of(watched)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(send_trailers, [nginx] * 3, [PREDICT, TRANSLATE, TRANSLATE]))
    assert memory_of(watched) < before + 60
    assert server.translate("a") == ["A"]


def test_the_documented_proxy_tells_when_the_server_cannot_be_reached(unreachable):
    answer = Client(unreachable).predict(["a"])
    assert "cannot be reached" in error_of(answer, 503) and answer.headers["retry-after"] == "5"


def test_a_full_queue_rejects_at_once_and_loses_nothing(server):
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        held = hold(server, pool)
        asks = [server.predict, server.libretranslate] * 29
        asked = [pool.submit(ask, [f"{i} a", f"{i} b"]) for i, ask in enumerate(asks)]
        answers = [future.result() for future in asked]
        assert [future.result().status for future in held] == [200, 200]
    assert {answer.status for answer in answers} == {200, 503}
    for i, answer in enumerate(answers):
        if answer.status == 200:
            assert translations_of(answer) == [f"{i} A", f"{i} B"]
        else:
            assert error_of(answer, 503) and answer.headers["retry-after"] == "1"


def test_a_full_server_is_alive_and_ready(server):
    statuses, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            statuses.append(server.predict(["busy a"]).status)

    asking = [threading.Thread(target=ask) for _ in range(80)]
    for thread in asking:
        thread.start()
    wait_for(lambda: statuses.count(503) > 20, 60)
    health = [server.get(path).status for path in ("/readyz", "/healthz", "/health") * 5]
    stop.set()
    for thread in asking:
        thread.join()
    assert health == [200] * 15
    assert set(statuses) == {200, 503}


def hold(server, pool, text="busy"):
    """Gives both threads of the replica a batch that takes a while."""
    bodies = [
        {"signature_name": name, "inputs": [text]}  # Never in one batch.
        for name in ("serving_default", "beam")
    ]
    held = [pool.submit(server.predict, body) for body in bodies]
    time.sleep(0.3)
    return held


def test_a_legal_mebibyte_stops_no_other_client(server):
    items = b"[" + b",".join([b"[]"] * 66_000) + b"]}"
    requests = [lambda: server.predict(b'{"inputs": ' + items)]
    requests += [lambda: server.libretranslate(b'{"q": ' + items)]
    requests += [lambda: server.libretranslate(b"q=a&" * 49_000, {"content-type": FORM})]
    blocks = {"markup": "html", "instances": ["<p>a" * 500] * 95}
    requests += [lambda: server.predict(blocks)]
    waits, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            started = time.monotonic()
            assert server.get("/healthz").status == 200
            waits.append(time.monotonic() - started)

    asking = threading.Thread(target=ask)
    asking.start()
    for request in requests * 4:
        assert request().status in (400, 413)
    stop.set()
    asking.join()
    # Once or twice another program may have had the cores.
    assert sum(wait > 0.3 for wait in waits) < 5, waits


def test_the_metrics_are_on_rays_prometheus_endpoint(server):
    server.translate("a", "b", "c")
    url = server.log.split("metrics at ")[1].split()[0]

    def exposition():
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()

    # Every one that the dashboard draws. Ray's proxy and the replica report at different times.
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))
    drawn = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expected = {name for expression in drawn for name in re.findall(r"\bray_\w+", expression)}
    assert len(expected) == 7
    server.wait(lambda: expected <= set(re.findall(r"^\w+", exposition(), re.MULTILINE)), 60)

    def counts():
        """Numbers of batches: of any size, of at most 8 sentences."""
        name, text = "^ray_keras_transformer_batch_sentences", exposition()
        series = rf"{name}_count.* (\S+)$", rf'{name}_bucket.*le="8.0".* (\S+)$'
        return [sum(map(float, re.findall(pattern, text, re.M))) for pattern in series]

    # No batch is larger than `max-batch-size`, though the export would take 32 sentences at once.
    # Ray computes a histogram's sum from the middles of its buckets; only the counts are exact.
    before, _ = counts()
    server.translate(*["a"] * 50)
    server.wait(lambda: counts()[0] >= before + 50 / 8, 60)
    any_size, small = counts()
    assert any_size == small


@pytest.mark.parametrize(
    "loop", [["--clients=7"], ["--rate=50"], ["--clients=7", "--route=translate"]]
)
def test_the_load_test_counts_every_answer(server, tmp_path, loop):
    (tmp_path / "text").write_text("one\n\ntwo two\nfail\n")
    command = [sys.executable, "-m", "benchmarks.serve", "load", *loop]
    command += [f"--url=http://127.0.0.1:{server.port}/v1/models/toy", "--requests=30"]
    command += [f"--text={tmp_path}/text", "--seconds=5", f"--memory-of={server.process.pid}"]
    root = pathlib.Path(__file__).parents[2]
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert report["statuses"] == {"200": 20, "400": 10}  # Every third line fails.
    assert report["incomplete_answers"] == 0
    milliseconds = report["milliseconds"]
    assert 0 < milliseconds["p50"] <= milliseconds["p95"] <= milliseconds["p99"]
    assert report["memory_megabytes"][0][1] > 100


def test_hung_batches_are_504_and_their_process_is_replaced(server):
    (replica,) = server.replicas()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        held = hold(server, pool, "endless")
        asks = [server.predict, server.libretranslate] * 2
        waiting = [pool.submit(ask, [f"a{i}"]) for i, ask in enumerate(asks)]
        server.wait(lambda: server.get("/readyz").status == 503)
        for future in held:
            assert "has not ended within 4 seconds" in error_of(future.result(), 504)
        for future in waiting:
            assert "its process is replaced" in error_of(future.result(), 503)
    server.wait(lambda: server.is_ready() and replica not in server.replicas())
    assert server.translate("a") == ["A"]


def test_a_killed_replica_costs_its_requests_alone_which_are_not_sent_again(server, toy):
    (replica,) = server.replicas()
    # People may change it while it is served.
    (toy / "1" / "README.md").write_text("changed")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        held = hold(server, pool, "endless")
        os.kill(replica, signal.SIGKILL)
        for future in held:
            assert "process of this request has ended" in error_of(future.result(), 503)
            assert future.result().headers["retry-after"] == "1"
        # A batch that was sent again would hold these up.
        for future in [pool.submit(server.translate, f"a{i}") for i in range(6)]:
            assert future.result()[0].startswith("A")
    assert len(server.replicas()) == 1 and server.replicas() != [replica]


_BUSY = """
import subprocess, sys
import ray
from keras_transformer.cli.main import run

start, left = ray.init, []

def busy(**options):
    if len(left) < 3:
        left.append(subprocess.Popen(["sleep", "300"]))
        raise Exception("The node timed out.")
    start(**options)

ray.init = busy
# Both starts fail, then only the first one.
codes = [run(["serve", "--port=0", "--model", sys.argv[1]]) for _ in range(2)]
sys.exit(codes != [2, 0] or any(process.wait(10) == 0 for process in left))
"""


@pytest.mark.slow
def test_a_start_of_ray_is_tried_again_and_a_model_that_is_never_warm_is_503(tmp_path):
    save_model(tmp_path / "endless", endless_text=".*")
    # Ray reads them when it is imported, which the program does first.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    server = Server(["-c", _BUSY, str(tmp_path / "endless")], tmp_path / "log", **token)
    assert "keras-transformer: Ray cannot be started: The node timed out.\n" in server.log
    # At once: Ray's proxy listens before it has an application.
    for _ in range(20):
        assert int(server.get("/readyz").headers["retry-after"]) > 0
        error_of(server.get("/"), 503)
        assert server.get("/healthz").status == 200
        time.sleep(0.1)
    server.wait(lambda: "compiling" in server.log)
    assert re.search(r"endless: compiling \d+ shapes of batches after \d+ s\n", server.log)
    # Until it is ready, all that waits is told to come again.
    for answer in (server.get("/readyz"), server.get("/"), server.predict({"inputs": ["a"]})):
        assert int(answer.headers["retry-after"]) > 0
        assert "is being loaded" in error_of(answer, 503)
    assert server.get("/healthz").status == 200
    known = processes_below(server.process.pid)
    assert len(known) > 3
    server.process.terminate()
    # A replica that is not ready has accepted nothing: it is not waited for.
    assert server.process.wait(timeout=25) == 0
    wait_for(lambda: not any(map(psutil.pid_exists, known)), 25)
    assert server.log.endswith("stopping; accepted requests are answered first\n")


def check_time_of_a_body_that_does_not_come(server):
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"POST {PREDICT} HTTP/1.1\r\nhost: localhost\r\n".encode())
        connection.sendall(b"content-length: 99\r\n\r\n{")
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 504 and "No answer within" in json.loads(answer.read())["error"]
    assert 2 <= time.monotonic() - started < 10


@pytest.mark.slow
def test_a_server_whose_process_cannot_be_replaced_ends_with_a_line(tmp_path):
    save_model(tmp_path / "toy")
    command = ["-m", "keras_transformer", "serve", f"--model={tmp_path / 'toy'}", "--port=0"]
    command += ["--set=warm_up_tokens=0", "--request-timeout=2"]
    server = Server(command, tmp_path / "log")
    server.wait(lambda: server.is_ready() and len(server.replicas()) == 1)
    check_time_of_a_body_that_does_not_come(server)
    # In place: a file that replaces this one would not be read.
    with open(tmp_path / "toy" / "saved_model.pb", "ab") as file:
        file.write(b"\0")
    os.kill(*server.replicas(), signal.SIGKILL)
    assert server.process.wait(timeout=120) == 2
    *_, line = server.log.splitlines()
    assert re.search(r"toy is no longer served: no replica starts: .*toy.* damaged\.", line), line


def test_a_taken_port_is_one_line(server, toy):
    taken = f"127.0.0.1:{server.port}: cannot be listened on: .*. Give another `port`.$"
    with pytest.raises(InputError, match=taken):
        local.serve_here(ServerOptions(model=str(toy)), LocalOptions(port=server.port))


@pytest.fixture
def page(browser, server):
    """The page, just opened, with the focus where one types."""
    browser.open(f"http://127.0.0.1:{server.port}/")
    assert browser.evaluate("document.activeElement.id") == "text"
    return browser


def typed(page, text):
    page.type(text)
    page.press_enter()
    page.wait(lambda: not page.evaluate("document.getElementById('go').disabled"))


def test_a_typed_text_is_translated_with_its_alignment_or_its_error_is_shown(page):
    typed(page, "two dogs")
    assert page.text("#translation") == "TWO DOGS"
    assert page.text("#model") == "toy"
    assert page.text("#matrix tbody").split() == ["TWO", "100%", "0%", "DOGS", "0%", "100%"]
    assert page.text("#matrix thead").split() == ["two", "dogs"]
    # One of the two best translations is missing: there is no list of one.
    assert page.text("#hypotheses") == ""
    assert page.text("#error") == ""
    loaded = page.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert loaded and all(name.startswith(page.evaluate("location.origin")) for name in loaded)
    typed(page, "fail")
    assert "this text fails" in page.text("#error") and page.text("#translation") == ""


def test_what_is_typed_is_text_and_never_markup(page):
    hostile = "<img src=x onerror=document.title='owned'>"
    typed(page, hostile)
    assert page.text("#translation") == hostile.upper()
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.evaluate("document.title") == "Translate"


def test_a_server_that_is_told_to_stop_finishes_its_accepted_requests(server):
    (folder,) = pathlib.Path(tempfile.gettempdir()).glob(f"kt-ray-{server.process.pid}-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        held = [pool.submit(server.translate, "busy", f"a{i}") for i in range(4)]
        time.sleep(0.5)
        server.process.terminate()
        later = []
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:  # Until nothing listens any more.
                later.append(server.predict(["b"]))
        stdout, _ = server.process.communicate(timeout=120)
        assert [future.result() for future in held] == [["BUSY", f"A{i}"] for i in range(4)]
        for answer in later:
            assert answer.status == 200 or "being stopped" in error_of(answer, 503)
    assert (server.process.returncode, stdout) == (0, b"")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    assert server.log.count("Traceback") == 0
    assert not folder.exists()
