"""`keras-transformer serve` in processes: start, limits, death, new versions, end."""

import concurrent.futures
import contextlib
import http.client
import io
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

import pytest
from live_server import (
    Client,
    Server,
    error_of,
    fake_export,
    free_port,
    processes_below,
    translations_of,
    wait_for,
)

from benchmarks import serve as benchmark
from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.extras.serving import LocalOptions, ServerOptions

psutil = pytest.importorskip("psutil", reason="comes with the extra [test]")
server_module = pytest.importorskip(
    "keras_transformer.extras.serving.server", reason="comes with the extra [serve]"
)
pytestmark = pytest.mark.slow

PREDICT = "/v1/models/toy:predict"
FORM = "application/x-www-form-urlencoded"
EXPORT = pathlib.Path(__file__).parents[3] / "export"


@contextlib.contextmanager
def asking(server, clients=8, text="a"):
    """Asks again and again; a list of the statuses, and of errors of lost connections."""
    statuses, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            try:
                statuses.append(server.predict([text]).status)
            except (OSError, http.client.HTTPException) as error:
                statuses.append(type(error).__name__)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def hold(server, pool, text="busy"):
    """Has a process, or two, translate a while."""
    bodies = [
        {"signature_name": name, "inputs": [text]}  # Never in one batch.
        for name in ("serving_default", "beam")
    ]
    held = [pool.submit(server.predict, body) for body in bodies]
    time.sleep(0.3)
    return held


def memory_of(pids):
    """Megabytes of processes."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / 1e6


def send(port, head, chunk, count):
    """Sends a request of many chunks, or as many as are taken, and returns its first bytes back."""
    head = f"POST {PREDICT} HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        with contextlib.suppress(OSError):  # Closed, or not read any more.
            connection.sendall(head.encode())
            for _ in range(count):
                connection.sendall(chunk)
        with contextlib.suppress(OSError):
            return connection.recv(99)


CHUNK = b"f4240\r\n" + b"a" * 1_000_000 + b"\r\n"
BODIES = [("content-length: 300000000", b"a" * 1_000_000), ("transfer-encoding: chunked", CHUNK)]


@pytest.mark.parametrize(("head", "chunk"), BODIES)
def test_a_body_beyond_the_limit_is_refused_and_never_in_memory(server, head, chunk):
    before = memory_of(server.workers())
    assert send(server.port, head, chunk, 300).startswith(b"HTTP/1.1 413 ")
    assert memory_of(server.workers()) < before + 30
    assert server.translate("a") == ["A"]


def test_requests_of_one_connection_are_answered_in_their_order(server):
    texts = [f"a{number}" for number in range(20)]
    sent = b""
    for text in texts:
        body = json.dumps({"inputs": [text]}).encode()
        sent += f"POST {PREDICT} HTTP/1.1\r\nhost: localhost\r\n".encode()
        sent += b"connection: close\r\n" * (text == texts[-1])
        sent += f"content-length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(sent)
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert re.findall(r'"translation": \["(\w+)"\]', answer) == [text.upper() for text in texts]


def test_official_clients_are_answered_by_all_processes(server):
    libretranslatepy = pytest.importorskip("libretranslatepy", reason="comes with the extra [test]")
    client = libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{server.port}", api_key="any")
    assert client.translate("two dogs", "en", "fr") == "TWO DOGS"
    assert [language["code"] for language in client.languages()] == ["en", "fr"]
    assert client.detect("How are you today, my good friend?")[0]["language"] == "en"
    deepl = pytest.importorskip("deepl", reason="comes with the extra [test]")
    client = deepl.DeepLClient("any", server_url=f"http://127.0.0.1:{server.port}")
    handles = [
        client.translate_document_upload(f"{number} busy.", filename="a.txt", target_lang="FR")
        for number in range(6)
    ]
    for number, handle in enumerate(handles):
        wait_for(lambda handle=handle: client.translate_document_get_status(handle).done, 60)
        output = io.BytesIO()
        client.translate_document_download(handle, output)
        assert output.getvalue().decode() == f"{number} BUSY."


def test_schemathesis_finds_no_request_that_the_specification_of_libretranslate_misses(
    server, tmp_path
):
    pytest.importorskip("schemathesis", reason="comes with the extra [test]")
    # No schema says what a file of a format is.
    (tmp_path / "schemathesis.toml").write_text(
        '[[operations]]\ninclude-path = "/translate_file"\n'
        "checks.positive_data_acceptance.enabled = false\n"
    )
    command = [sys.executable, "-m", "schemathesis.cli", "run", "--max-examples=30", "--no-color"]
    command += ["--seed=7", f"http://127.0.0.1:{server.port}/spec"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout
    assert "6 selected" in finished.stdout


def test_an_upgrade_to_http2_is_refused_and_never_loses_its_body_silently(server):
    headers = {"upgrade": "h2c", "connection": "Upgrade, HTTP2-Settings", "http2-settings": "A"}
    for path in (PREDICT, "/translate"):
        answer = server.request("POST", path, b'{"inputs": ["a"]}', headers)
        assert "Upgrade" in error_of(answer, 400)


def test_a_full_server_refuses_at_once_and_loses_nothing(server):
    with concurrent.futures.ThreadPoolExecutor(80) as pool:
        asks = [server.predict, server.libretranslate] * 40
        asked = [pool.submit(ask, [f"busy {i}", f"{i} b"]) for i, ask in enumerate(asks)]
        answers = [future.result() for future in asked]
    assert {answer.status for answer in answers} == {200, 503}
    for i, answer in enumerate(answers):
        if answer.status == 200:
            assert translations_of(answer) == [f"BUSY {i}", f"{i} B"]
        else:
            assert error_of(answer, 503) and answer.headers["retry-after"] == "1"


def test_500_clients_leave_it_alive_and_ready(server):
    waits = []
    with contextlib.ExitStack() as connections, asking(server, 50, "busy a") as statuses:
        for _ in range(450):
            address = ("127.0.0.1", server.port)
            connection = connections.enter_context(socket.create_connection(address, timeout=60))
            connection.sendall(b"GET /readyz HTTP/1.1\r\nhos")  # and no more
        server.wait(lambda: len(statuses) > 100, 60)
        for path in ("/readyz", "/healthz", "/health") * 5:
            started = time.monotonic()
            assert server.get(path).status == 200
            waits.append(time.monotonic() - started)
    assert sorted(waits)[10] < 1, waits
    assert set(statuses) <= {200, 503}


def test_the_metrics_are_those_of_all_processes(server):
    dashboard = json.loads((EXPORT / "container" / "grafana.json").read_text(encoding="utf-8"))
    drawn = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expected = {name for expression in drawn for name in re.findall(r"keras_\w+", expression)}
    assert len(expected) == 7

    def metrics():
        return server.get("/metrics").body.decode()

    def counts():
        """Numbers of batches: of any size, of at most 8 sentences."""
        name = "^keras_transformer_batch_sentences"
        series = rf"{name}_count.* (\S+)$", rf'{name}_bucket.*le="8.0".* (\S+)$'
        return [sum(map(float, re.findall(pattern, metrics(), re.M))) for pattern in series]

    server.translate("a", "b", "c")
    assert expected <= set(re.findall(r"^\w+", metrics(), re.M))
    before, _ = counts()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # Both processes translate.
        list(pool.map(lambda _: server.translate(*["a"] * 50), range(8)))
    any_size, small = counts()
    assert any_size == small and any_size >= before + 8 * 50 / 8
    assert re.search(r"^keras_transformer_model_version 1.0$", metrics(), re.M)


def test_hung_batches_are_504_and_their_process_is_replaced(server):
    before, ready = set(server.workers()), server.log.count("answers after")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for future in hold(server, pool, "endless"):
            assert "has not ended within 4 seconds" in error_of(future.result(), 504)

    def are_replaced():
        new = set(server.workers()) - before  # one or both
        started = server.log.count("answers after") - ready
        return len(server.workers()) == 2 and len(new) == started > 0

    time.sleep(2)  # They still answer for a second.
    server.wait(are_replaced)
    assert server.translate("a") == ["A"]


def test_a_killed_process_costs_its_requests_alone_and_comes_back(server):
    killed, ready = server.workers()[0], server.log.count("answers after")
    with asking(server) as statuses:
        server.wait(lambda: len(statuses) > 50)
        os.kill(killed, signal.SIGKILL)
        at = len(statuses)
        server.wait(lambda: server.log.count("answers after") > ready)
        assert statuses[at:].count(200) > 20  # of the other process
    assert len(server.workers()) == 2 and killed not in server.workers()
    lost = [status for status in statuses if status != 200]
    assert len(lost) <= 8 and 503 not in lost, lost


def test_a_deleted_export_changes_nothing_and_a_killed_server_leaves_no_process(tmp_path):
    model = fake_export(tmp_path / "toy")
    server = Server(model, tmp_path / "log")
    server.wait(server.is_ready)
    shutil.rmtree(model)
    os.kill(*server.workers(), signal.SIGKILL)
    assert server.translate("a") == ["A"]  # It waits for the next process.
    workers = server.workers()
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(map(psutil.pid_exists, workers)), 30)


def test_a_new_version_replaces_the_old_one_without_a_refused_request(tmp_path):
    models = tmp_path / "toy"
    fake_export(models / "1")
    server = Server(models, tmp_path / "log", processes=2)
    server.wait(lambda: server.log.count("answers after") == 2)
    old = set(server.workers())

    def version():
        return server.get("/v1/models/toy").json["model_version_status"][0]["version"]

    with asking(server, 4) as statuses:
        fake_export(models / "2", load_seconds=2)
        server.process.send_signal(signal.SIGHUP)
        server.wait(lambda: server.log.count("answers after") == 4)
        server.wait(lambda: len(server.workers()) == 2 and not old & set(server.workers()))
        time.sleep(0.5)
    assert set(statuses) == {200} and len(statuses) > 50
    assert version() == "2"
    # The next version is damaged: the served one stays, also when a process dies.
    fake_export(models / "3", damaged=True)
    before = set(server.workers())
    server.process.send_signal(signal.SIGHUP)
    server.wait(lambda: "the served version stays" in server.log)
    assert f"{models}/3: damaged." in server.log
    assert set(server.workers()) == before and version() == "2"
    os.kill(before.pop(), signal.SIGKILL)
    server.wait(lambda: server.log.count("answers after") == 5)
    assert {version() for _ in range(20)} == {"2"}
    # A signal while a new version is loaded ends the server.
    fake_export(models / "4", load_seconds=60)
    server.process.send_signal(signal.SIGHUP)
    server.wait(lambda: len(server.workers()) == 3)
    started = time.monotonic()
    assert server.stop()[0] == 0 and time.monotonic() - started < 20


def test_before_the_model_is_loaded_nothing_is_ready_and_the_end_is_at_once(tmp_path):
    server = Server(fake_export(tmp_path / "toy", endless=True), tmp_path / "log")
    server.wait(server.workers)
    time.sleep(1)
    with pytest.raises(OSError):
        server.get("/readyz")
    started = time.monotonic()
    assert server.stop()[0] == 0 and time.monotonic() - started < 10


def test_a_process_that_cannot_start_ends_the_server_with_a_line(tmp_path):
    damaged = fake_export(tmp_path / "toy", damaged=True)
    server = Server(damaged, tmp_path / "log")
    assert server.process.wait(timeout=25) == 2
    assert f"keras-transformer: {damaged}: damaged.\n" in server.log
    assert f"{damaged} is not served" in server.log.splitlines()[-1]
    assert "Traceback" not in server.log


@pytest.mark.tensorflow
def test_the_command_serves_a_saved_model(report, engine, tmp_path):
    program, rare = ["-m", "keras_transformer"], {"warm_up_tokens": 0}
    server = Server(report.folder, tmp_path / "log", program, rare)
    server.wait(server.is_ready)
    texts = ["two dogs sit", "a man"]
    expected = Translator(engine).translate(texts, beam_size=3, length_penalty=0.8)
    assert server.translate(*texts) == [translation.text for translation in expected]
    started = time.monotonic()
    assert server.stop() == (0, b"") and time.monotonic() - started < 10


def test_a_taken_port_is_one_line(server):
    taken = f"127.0.0.1:{server.port}: cannot be listened on: .*. Give another `port`.$"
    with pytest.raises(InputError, match=taken):
        server_module.serve_here(ServerOptions(model="any"), LocalOptions(port=server.port))


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


@pytest.mark.parametrize("loop", [["--rate=50"], ["--clients=7", "--route=translate"]])
def test_the_load_test_counts_every_answer(server, tmp_path, capsys, loop):
    (tmp_path / "text").write_text("one\n\ntwo two\nfail\n")
    command = ["load", *loop, f"--url=http://127.0.0.1:{server.port}/v1/models/toy"]
    command += [f"--text={tmp_path}/text", "--seconds=5", f"--memory-of={server.process.pid}"]
    benchmark.main([*command, "--requests=30"])
    report = json.loads(capsys.readouterr().out)
    assert report["statuses"] == {"200": 20, "400": 10}  # Every third line fails.
    assert report["incomplete_answers"] == 0
    milliseconds = report["milliseconds"]
    assert 0 < milliseconds["p50"] <= milliseconds["p95"] <= milliseconds["p99"]
    assert report["memory_megabytes"][0][2] > 100


@contextlib.contextmanager
def documented_proxy(folder, upstream):
    """Port of the documented proxy in front of another port."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx: apt-get install nginx-light")
    port = free_port()
    folders = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{name}_temp_path {folder}/{name};" for name in folders)
    text = (EXPORT / "container" / "nginx.conf").read_text()
    text = text.replace("127.0.0.1:8501", f"127.0.0.1:{upstream}")
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
    # A client that closes its side when it has sent its request.
    with socket.create_connection(("127.0.0.1", nginx), timeout=60) as connection:
        head = f"POST {PREDICT} HTTP/1.0\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ") and b'["A"]' in answer
    # The server alone would hold them until the connection ends.
    watched = [*server.workers(), *processes_below(os.getpid(), "nginx")]
    before = memory_of(watched)
    trailers = b"x: " + b"y" * 8000 + b"\r\n"
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        head = "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0"
        list(pool.map(lambda _: send(nginx, head, trailers, 5000), range(3)))
    assert memory_of(watched) < before + 60
    assert server.translate("a") == ["A"]


def test_the_documented_proxy_tells_when_the_server_cannot_be_reached(tmp_path):
    with documented_proxy(tmp_path, free_port()) as port:
        answer = Client(port).predict(["a"])
    assert "cannot be reached" in error_of(answer, 503) and answer.headers["retry-after"] == "5"


def test_a_server_that_is_told_to_stop_finishes_its_accepted_requests(server):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        endless = pool.submit(server.predict, {"signature_name": "beam", "inputs": ["endless"]})
        held = [pool.submit(server.translate, "busy", f"a{i}") for i in range(3)]
        time.sleep(0.2)
        folders = [*pathlib.Path(tempfile.gettempdir()).glob(f"kt-*-{server.process.pid}-*")]
        assert len(folders) == 3 and {stat.S_IMODE(path.stat().st_mode) for path in folders} == {
            0o700
        }
        opened = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        opened.connect()
        time.sleep(0.2)
        server.process.terminate()
        time.sleep(0.4)
        opened.request("GET", "/healthz")  # Its connection was accepted before.
        assert opened.getresponse().status == 200
        stdout, _ = server.process.communicate(timeout=30)
        assert [future.result() for future in held] == [["BUSY", f"A{i}"] for i in range(3)]
        assert endless.result().status == 504
    assert (server.process.returncode, stdout) == (0, b"")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    assert server.log.count("Traceback") == 0
    assert not any(path.exists() for path in folders)
