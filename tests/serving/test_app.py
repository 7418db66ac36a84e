"""The live server: protocol, limits, versions, death of processes, shutdown."""

import concurrent.futures
import contextlib
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
from live_server import (
    Client,
    Server,
    end_with_parent,
    free_port,
    processes_below,
    save_model,
)

pytestmark = pytest.mark.tensorflow

PREDICT = "/v1/models/toy:predict"
EXAMPLES = pathlib.Path(__file__).parents[2] / "export" / "ray_serve"


def error_of(answer, status):
    """The message of an answer that must be an error."""
    assert answer.status == status, (answer.status, answer.body[:300])
    assert set(answer.json) == {"error"}
    assert "\n" not in answer.json["error"]
    return answer.json["error"]


def test_rows_and_columns_are_answered_as_tensorflow_serving_does(server):
    row = server.predict({"instances": ["ab", {"b64": "Y2Q="}]}).json
    assert row["predictions"][1] == {"score": 1.0, "translation": "CD"}
    columns = server.predict({"inputs": {"text": ["ab", "cd"]}}).json
    assert columns == {"outputs": {"score": [1.0, 1.0], "translation": ["AB", "CD"]}}
    assert server.predict({"inputs": ["a" * 2000, "a\0b"]}).json["outputs"]["translation"] == [
        "A" * 2000,
        "A\0B",
    ]


def test_every_signature_of_the_export_is_served(server):
    def ask(name, **inputs):
        return server.predict({"signature_name": name, "inputs": inputs}).json["outputs"]

    infinite = float("-inf")
    assert ask("beam", text=["a"]) == {"translation": [["A", ""]], "score": [[1.0, infinite]]}
    options = {"temperature": [0.5, 2.0], "top_k": [0, 0], "top_p": [0.25, 0.25]}
    sampled = ask("sample", text=["a", "b"], seed=[3, 5], **options)
    assert sampled == {"translation": ["a 3 0.5", "b 5 2.0"], "score": [0.25, 0.25]}
    aligned = ask("align", text=["two dogs", "a"])
    assert aligned["target_tokens"] == [["TWO", "DOGS"], ["A", ""]]
    assert aligned["alignment"] == [[[1, 0], [0, 1]], [[1, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("text", "fields", "translation"),
    [
        ("<b>ab</b> cd &amp;", {"markup": "html"}, "<b>AB</b> CD &amp;"),
        ("ab {x}", {"markup": "placeholders"}, "AB {x}"),
        ("ab cd", {"tag": "2fr"}, "<2FR> AB CD"),
        ("ab cd", {"glossary": {"ab": "gh"}}, "GH CD"),
        ("ab <i>cd</i>", {"glossary": {"cd": "gh"}, "markup": "html"}, "AB <i>GH</i>"),
    ],
)
def test_markup_tag_and_glossary_are_fields_of_a_request(server, text, fields, translation):
    answer = server.predict({"inputs": [text], **fields}).json
    assert answer["outputs"]["translation"] == [translation]
    unknown = server.predict({"inputs": ["a", "b"], "tag": "2de"})
    assert "2fr" in error_of(unknown, 400)


def test_status_and_metadata_have_tensorflow_servings_form(server):
    status = {"error_code": "OK", "error_message": ""}
    states = [{"version": "1", "state": "AVAILABLE", "status": status}]
    for place in ("", "/versions/1", "/labels/stable"):
        assert server.get(f"/v1/models/toy{place}").json == {"model_version_status": states}
    told = server.get("/v1/models/toy/metadata").json
    assert told["model_spec"] == {"name": "toy", "signature_name": "", "version": "1"}
    signatures = told["metadata"]["signature_def"]["signature_def"]
    assert set(signatures) == {"serving_default", "beam", "align", "sample"}


def test_other_addresses_are_errors_of_one_line(server):
    error_of(server.get("/v1/models/other"), 404)
    error_of(server.get("/v1/models/toy/versions/7"), 404)
    error_of(server.predict({"inputs": ["a"]}, "/versions/7"), 404)
    error_of(server.predict({"inputs": ["a"]}, "/labels/new"), 404)
    error_of(server.request("POST", "/v1/models/toy:classify", b"{}"), 400)
    assert "Malformed" in error_of(server.get(PREDICT), 400)
    assert error_of(server.get("/nothing"), 404)
    error_of(server.predict(b"{"), 400)
    assert server.get("/healthz").body == b"ok\n"
    assert server.request("HEAD", "/").status == 200


def test_too_large_a_request_is_refused_at_once(server):
    error_of(server.predict(b'{"inputs": ["' + b"a" * 1_000_000 + b'"]}'), 413)
    assert "50" in error_of(server.predict({"inputs": ["a"] * 10_000}), 413)
    assert "2000" in error_of(server.predict({"inputs": ["a", "a" * 2001]}), 413)
    long = {"signature_name": "align", "inputs": {"text": ["a " * 900]}}
    assert "answer" in error_of(server.predict(long), 413)

    def parts():
        for _ in range(100):
            yield b"a" * 10_000

    error_of(server.request("POST", PREDICT, parts()), 413)  # Chunked: its length is not said.


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:1"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "[evil"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "http://own.example"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 200),
    ],
)
def test_pages_of_other_sites_get_nothing(server, headers, status):
    assert server.request("POST", PREDICT, b'{"inputs": ["a"]}', headers).status == status


def test_an_upgrade_to_http2_is_refused_and_never_loses_its_body_silently(server):
    headers = {"upgrade": "h2c", "connection": "Upgrade, HTTP2-Settings", "http2-settings": "A"}
    answer = server.request("POST", PREDICT, b'{"inputs": ["a"]}', headers)
    # Ray's proxy refuses a body that it reads after the headers, this package one that it drops.
    refused_by_ray = answer.status == 400 and b"Invalid HTTP request" in answer.body
    assert refused_by_ray or "Upgrade" in error_of(answer, 400)
    assert server.translate("a") == ["A"]


def send_trailers(port):
    """Sends a chunked request with 40 MB of trailers, or as many as are taken."""
    head = f"POST {PREDICT} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        with contextlib.suppress(OSError):  # Closed, or not read any more.
            connection.sendall(head.encode() + b"2\r\n{}\r\n0\r\n")
            for _ in range(5000):
                connection.sendall(b"x: " + b"y" * 8000 + b"\r\n")


def memory_of(pids):
    """Megabytes of processes."""
    pages = [int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.fixture
def nginx(server, tmp_path):
    """Port of the documented proxy in front of the server."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx: apt-get install nginx-light")
    port = free_port()
    folders = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{each}_temp_path {tmp_path}/{each};" for each in folders)
    text = (EXAMPLES / "nginx.conf").read_text()
    text = text.replace("127.0.0.1:8501", f"127.0.0.1:{server.port}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
    text = text.replace("http {", f"http {{ {paths}").replace("worker_processes auto;", "")
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid; daemon off;\n{text}")
    command = ["nginx", "-p", tmp_path, "-e", tmp_path / "log", "-c", tmp_path / "nginx.conf"]
    running = subprocess.Popen(command)
    yield port
    running.terminate()
    running.wait(timeout=30)


def test_the_documented_proxy_serves_and_bounds_what_strangers_send(server, nginx):
    client, body = Client(nginx), b'{"inputs": ["a"]}'

    def ask(*arguments):
        return client.request("POST", PREDICT, *arguments)

    client.wait(client.is_ready, 30)
    assert ask(body, {"host": "any.example"}).json["outputs"]["translation"] == ["A"]
    assert ask(body, {"upgrade": "h2c", "connection": "Upgrade"}).status == 200
    assert ask(b"a" * 1_100_000).status == 413
    assert ask(body, {"x": "y" * 40_000}).status == 400
    # Ray's proxy alone would keep them all.
    watched = processes_below(server.process.pid, b"ray::ProxyActor")
    watched += processes_below(os.getpid(), b"nginx")
    before = memory_of(watched)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(send_trailers, [nginx] * 3))
    assert memory_of(watched) < before + 60
    assert server.translate("a") == ["A"]


def test_one_sentence_that_fails_fails_alone(server):
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        held = hold(server, pool)
        bad = pool.submit(server.predict, {"inputs": ["fail"]})
        good = [pool.submit(server.translate, f"a{i}") for i in range(6)]
        assert [each.result() for each in good] == [[f"A{i}"] for i in range(6)]
        assert "this text fails" in error_of(bad.result(), 400)
        assert [each.result().status for each in held] == [200, 200]


def test_a_full_queue_rejects_at_once_and_loses_nothing(server):
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        held = hold(server, pool)
        asked = [pool.submit(server.predict, {"inputs": [f"{i} a", f"{i} b"]}) for i in range(58)]
        answers = [each.result() for each in asked]
        assert [each.result().status for each in held] == [200, 200]
    assert {answer.status for answer in answers} == {200, 503}
    for i, answer in enumerate(answers):
        if answer.status == 200:
            assert answer.json["outputs"]["translation"] == [f"{i} A", f"{i} B"]


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
    body = b'{"inputs": [' + b",".join([b"[]"] * 66_000) + b"]}"
    waits, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            started = time.monotonic()
            assert server.get("/healthz").status == 200
            waits.append(time.monotonic() - started)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(10):
        error_of(server.predict(body), 413)
    stop.set()
    asking.join()
    # Once or twice another program may have had the cores.
    assert sum(each > 0.3 for each in waits) < 5, waits


def test_the_metrics_are_on_rays_prometheus_endpoint(server):
    server.translate("a", "b", "c")
    url = server.log.split("metrics at ")[1].split()[0]

    def exposition():
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()

    # Every one that the dashboard draws. Ray's proxy and the replica report at different times.
    dashboard = json.loads((EXAMPLES / "grafana.json").read_text(encoding="utf-8"))
    drawn = [each["expr"] for panel in dashboard["panels"] for each in panel["targets"]]
    expected = {name for expression in drawn for name in re.findall(r"\bray_\w+", expression)}
    assert len(expected) == 7
    server.wait(lambda: expected <= set(re.findall(r"^\w+", exposition(), re.MULTILINE)), 60)


def test_rays_folder_is_private_to_its_user(server):
    (folder,) = pathlib.Path(tempfile.gettempdir()).glob(f"kt-ray-{server.process.pid}-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_tensorflow_servings_rest_client_needs_no_change(server):
    program = pathlib.Path(__file__).parents[2] / "export" / "tf_serving" / "rest_client.py"
    url = f"http://127.0.0.1:{server.port}/v1/models/toy"
    finished = subprocess.run(
        [sys.executable, program, f"--url={url}", "--batch=2"],
        input=b"one\r\n\nthree",
        capture_output=True,
        timeout=60,
    )
    assert finished.stdout.decode() == "ONE\n\nTHREE\n", finished.stderr


@pytest.mark.parametrize("loop", [["--clients=7"], ["--rate=50"]])
def test_the_load_test_counts_every_answer(server, tmp_path, loop):
    (tmp_path / "text").write_text("one\n\ntwo two\nfail\n")
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.serve", "load", *loop]
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
    assert report["incomplete_answers"] == 0
    milliseconds = report["milliseconds"]
    assert 0 < milliseconds["p50"] <= milliseconds["p95"] <= milliseconds["p99"]
    assert report["memory_megabytes"][0][1] > 100


def test_a_killed_replica_costs_its_requests_alone_which_are_not_sent_again(server):
    (replica,) = server.replicas()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        held = hold(server, pool, "endless")
        os.kill(replica, signal.SIGKILL)
        assert all(each.result().status == 500 for each in held)  # Ray's proxy says so.
        # A batch that was sent again would hold these up.
        for each in [pool.submit(server.translate, f"a{i}") for i in range(6)]:
            assert each.result()[0].startswith("A")
    assert len(server.replicas()) == 1 and server.replicas() != [replica]


def start(model, log):
    """`keras-transformer serve`, which may never answer."""
    command = [sys.executable, "-m", "keras_transformer", "serve", f"--model={model}", "--port=0"]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    with open(log, "wb") as file:
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env=environment,
            process_group=0,
            preexec_fn=end_with_parent,
        )


_STARTED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_app import start
print(start(*sys.argv[2:]).pid, flush=True)
sys.stdin.read()
"""


def test_a_model_that_is_never_warm_is_503_and_ends_with_the_tests_that_started_it(tmp_path):
    save_model(tmp_path / "endless", endless_text=".*")
    here, log_file = str(pathlib.Path(__file__).parent), tmp_path / "log"
    command = [sys.executable, "-c", _STARTED, here, str(tmp_path / "endless"), str(log_file)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as tests:
        pid = int(tests.stdout.readline())
        deadline = time.monotonic() + 300
        while "compiling" not in (log := log_file.read_text()):
            assert time.monotonic() < deadline, log
            time.sleep(0.1)
        assert re.search(r"endless: compiling \d+ shapes of batches after \d+ s\n", log)
        # Until it is ready, all that waits is told to come again.
        client = Client(int(re.search(r"http://127.0.0.1:(\d+)/", log)[1]), "/v1/models/endless")
        for answer in (client.get("/readyz"), client.get("/"), client.predict({"inputs": ["a"]})):
            assert int(answer.headers["retry-after"]) > 0
            assert "is being loaded" in error_of(answer, 503)
        assert client.get("/healthz").status == 200
        known = [pid, *processes_below(pid, b"")]
        assert len(known) > 3
        tests.kill()  # Linux then sends the server SIGTERM.
    # A replica that is not ready has accepted nothing: it is not waited for.
    deadline = time.monotonic() + 25
    while left := [each for each in known if pathlib.Path("/proc", str(each)).exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert log_file.read_text().endswith("stops, after what it accepted\n")


@pytest.fixture(scope="module")
def hung(toy, tmp_path_factory):
    """A server whose two threads hang in a batch: its replica, the answers, the waiting ones."""
    limits = {"batch-timeout": 2, "request-timeout": 60}
    running = Server(toy, tmp_path_factory.mktemp("hung") / "log", **limits)
    try:
        running.wait(lambda: len(running.replicas()) == 1)  # That of the start has gone.
        (replica,) = running.replicas()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            held = hold(running, pool, "endless")
            waiting = [pool.submit(running.predict, {"inputs": [f"a{i}"]}) for i in range(5)]
            running.wait(lambda: running.get("/readyz").status == 503)
            answers = [[each.result() for each in some] for some in (held, waiting)]
        running.wait(running.is_ready)
        assert running.translate("a") == ["A"] and running.replicas() != [replica]
    finally:
        running.process.kill()
        running.process.communicate(timeout=60)
    yield running, replica, *answers


def test_hung_batches_are_504_and_their_process_is_replaced(hung):
    *_, held, waiting = hung
    for each in held:
        assert "has not ended within 2 seconds" in error_of(each, 504)
    for each in waiting:
        assert "its process is replaced" in error_of(each, 503)


def test_a_taken_port_and_a_folder_without_an_export_end_in_one_line(server, tmp_path):
    from keras_transformer.errors import InputError
    from keras_transformer.serving import LocalOptions, ServerOptions
    from keras_transformer.serving.local import serve_here

    with pytest.raises(InputError, match=f"127.0.0.1:{server.port}: cannot be listened on"):
        serve_here(ServerOptions(model=str(server.path)), LocalOptions(port=server.port))
    with pytest.raises(InputError, match="no such folder"):
        serve_here(ServerOptions(model=str(tmp_path / "none")), LocalOptions())
    command = [
        sys.executable,
        "-m",
        "keras_transformer",
        "serve",
        f"--model={tmp_path}",
        "--port=0",
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 2 and "expected an export" in finished.stderr
    assert finished.stderr.count("\n") == 1


_BUSY = """
import subprocess, sys
import ray
from keras_transformer.serving.local import private_ray

start, left = ray.init, []

def busy(**options):
    if len(left) < failures:
        left.append(subprocess.Popen(["sleep", "300"]))
        raise Exception("The node timed out.")
    start(**options)

ray.init = busy
for failures in (2, 3):  # Both starts fail, then the first one.
    try:
        with private_ray(1):
            sys.stderr.write("started")
    except Exception as error:
        sys.stderr.write(f"{error}\\n")
sys.exit(any(process.wait(10) == 0 for process in left))
"""


def test_a_start_of_ray_that_fails_is_tried_once_more_and_leaves_nothing():
    # Ray reads them when it is imported, which the program does first.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    finished = subprocess.run(
        [sys.executable, "-c", _BUSY],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **token},
    )
    told = "Ray cannot be started: The node timed out.\nstarted"
    assert finished.returncode == 0 and finished.stderr.endswith(told), finished.stderr


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


def test_a_typed_text_is_translated_with_its_alignment(page):
    typed(page, "two dogs")
    assert page.text("#translation") == "TWO DOGS"
    assert page.text("#model") == "toy"
    assert page.text("#matrix tbody").split() == ["TWO", "100%", "0%", "DOGS", "0%", "100%"]
    assert page.text("#matrix thead").split() == ["two", "dogs"]
    # One of the two best translations is missing: there is no list of one.
    assert page.text("#others") == ""
    assert page.text("#error") == ""


def test_what_is_typed_is_text_and_never_markup(page):
    hostile = "<img src=x onerror=document.title='owned'>"
    typed(page, hostile)
    assert page.text("#translation") == hostile.upper()
    assert page.evaluate("document.querySelectorAll('main img').length") == 0
    assert page.evaluate("document.title") == "Translate"


def test_an_error_of_the_server_is_shown(page):
    typed(page, "fail")
    assert "this text fails" in page.text("#error")
    assert page.text("#translation") == ""


def test_the_page_loads_nothing_from_elsewhere(page):
    typed(page, "a")
    names = page.evaluate("performance.getEntriesByType('resource').map(e => e.name)")
    assert names and all(name.startswith(page.evaluate("location.origin")) for name in names)


def test_a_server_that_is_told_to_stop_finishes_its_accepted_requests(server):
    pid = server.process.pid
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        held = [pool.submit(server.translate, "busy", f"a{i}") for i in range(4)]
        time.sleep(0.5)
        code, stdout = server.stop()
        assert [each.result() for each in held] == [["BUSY", f"A{i}"] for i in range(4)]
    assert (code, stdout) == (0, b"")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    assert server.log.count("Traceback") == 0
    assert not list(pathlib.Path(tempfile.gettempdir()).glob(f"kt-ray-{pid}-*"))


def test_a_driver_that_is_killed_leaves_nothing_behind(hung):
    """The last test: Ray's agents try for a minute to report the end of their raylet."""
    running, replica, *_ = hung
    running.wait(lambda: not processes_below(1, f"kt-ray-{running.process.pid}".encode()), 120)
    for pid in [replica, *running.known]:
        running.wait(lambda pid=pid: not pathlib.Path("/proc", str(pid)).exists(), 120)
