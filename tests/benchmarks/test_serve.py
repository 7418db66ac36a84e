import concurrent.futures
import json
import sys
import threading
import time
import zipfile

import pytest

from benchmarks import serve, servers


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.51, 6), (0.95, 10), (1.0, 10)])
def test_a_percentile_is_the_smallest_value_that_enough_others_do_not_exceed(share, expected):
    values = [7, 3, 10, 1, 2, 9, 8, 4, 6, 5]
    assert serve.percentile(values, share) == expected


# Ready half a second after its start; a growing list is its memory, and its mode is its fault.
SERVER = """
import http.server, json, sys, time
port, seconds, mode = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
kept, start = [], time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, status, fields):
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        listed = [{"code": "de", "targets": ["de"]}, {"code": "en", "targets": ["en", "de"]}]
        status = 501 if mode == "unknown" else 200 if time.monotonic() > start + 0.5 else 503
        self.answer(status, listed)
    def do_POST(self):
        fields = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert (fields["source"], fields["target"]) == ("en", "de"), fields
        time.sleep(seconds)
        kept.append(bytearray(b"x" * 300_000) if mode == "grows" else b"")
        texts = [text if mode == "copies" else text.upper() for text in fields["q"]]
        self.answer(500 if mode == "fails" and len(kept) > 1 else 200, {"translatedText": texts})
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def command(seconds=0.0, mode="right"):
    return [sys.executable, "-c", SERVER, "{port}", str(seconds), mode]


@pytest.fixture
def of_servers(monkeypatch, tmp_path, capsys):
    """`of_servers(action, settings, ...)`: the report of the program on made-up servers."""
    (tmp_path / "text").write_text("one\n\ntwo dogs\n")

    def of_servers(action, settings, *words):
        monkeypatch.setattr(serve, "commands", lambda *_: settings)
        start = [action, "--model", "any", "--text", str(tmp_path / "text")]
        serve.main([*start, *words])
        return json.loads(capsys.readouterr().out)

    return of_servers


@pytest.mark.slow
def test_a_cold_start_ends_when_the_server_is_ready(monkeypatch, capsys):
    monkeypatch.setattr(serve, "SERVE", command())
    start = time.monotonic()
    serve.main(["cold-start", "model", "--rounds", "1"])
    elapsed = time.monotonic() - start
    report = json.loads(capsys.readouterr().out)["model"]
    (seconds,) = report["seconds"]
    assert min(report["first"], seconds) >= 0.5 and report["first"] + seconds < elapsed + 0.2
    monkeypatch.setattr(serve, "SERVE", [sys.executable, "-c", "exit('no such model')"])
    with pytest.raises(SystemExit):
        serve.main(["cold-start", "model"])
    assert "no such model" in capsys.readouterr().err


@pytest.mark.slow
def test_servers_are_compared_at_their_best_settings(of_servers):
    settings = {"first": {"slow": command(0.2), "fast": command()}, "second": {"usual": command()}}
    words = ["--clients", "1", "2", "--seconds", "0.5"]
    first, second = of_servers("compare", settings, *words)["servers"]
    assert (first["best setting"], second["best setting"]) == ("fast", "usual")
    assert first["settings"]["slow"] < first["settings"]["fast"]
    assert min(first[f"requests/s, {count} clients"] for count in (1, 2)) > 20
    assert first["ready s"] >= 0.5 and first["MiB (PSS)"] > 5 and first["processes"] == 1
    assert second["equal texts"] == "2 of 2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "told"),
    [("copies", "expected translations"), ("fails", "must be answered"), ("unknown", "targets")],
)
def test_errors_are_not_counted_as_translations(of_servers, capsys, mode, told):
    with pytest.raises(SystemExit):
        of_servers("compare", {"peer": {"usual": command(0, mode)}}, "--seconds", "0.2")
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_memory_is_a_curve_over_the_requests(of_servers, monkeypatch):
    monkeypatch.setattr(serve, "_MEMORY_EVERY_SECONDS", 0.2)
    settings = {name: {"usual": command(0.01, name)} for name in ("grows", "steady")}
    report = of_servers("memory", settings, *"--requests 200 --clients 2".split())
    grown, steady = report["servers"]
    assert grown["requests"] == steady["requests"] == 200
    assert grown["errors"] == steady["errors"] == 0
    assert grown["at the end"] - grown["MiB at the start"] > 30
    assert steady["at the end"] - steady["MiB at the start"] < 10
    curve = [*report["curves"]["grows"].items()]
    assert [int(count) for count, _ in curve] == sorted(int(count) for count, _ in curve)


def test_libretranslate_gets_the_model_and_the_beam_of_the_export(tmp_path, capsys):
    (tmp_path / "export.json").write_text('{"beam_size": 3}')
    with zipfile.ZipFile(tmp_path / "a.argosmodel", "w") as archive:
        archive.writestr("translate-en_de/metadata.json", "{}")
    others = {"libretranslate": [sys.executable, str(tmp_path / "a.argosmodel")], "bergamot": []}
    names = "serve", "libretranslate", "bergamot"
    table = servers.commands(names, tmp_path, str(tmp_path), others)
    assert [*table] == ["serve", "libretranslate"]  # What is not installed is skipped aloud.
    assert "bergamot is skipped" in capsys.readouterr().err
    assert (tmp_path / "packages" / "translate-en_de" / "metadata.json").exists()
    for words in table["libretranslate"].values():
        assert "ARGOS_BEAM_SIZE=3" in words and f"ARGOS_PACKAGES_DIR={tmp_path}/packages" in words
        assert any("{port}" in word for word in words)


def test_requests_to_bergamot_that_wait_are_one_call_of_the_engine():
    testclient = pytest.importorskip("starlette.testclient", reason="comes with the extra [test]")
    from benchmarks.bergamot_server import application

    calls, is_free = [], threading.Event()

    def engine(texts):
        is_free.wait(30)
        calls.append(texts)
        return [text.upper() for text in texts]

    with (
        testclient.TestClient(application([engine])) as client,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        bodies = [["first"], ["two", "dogs"], ["a"], []]
        answers = [pool.submit(client.post, "/translate", json={"q": texts}) for texts in bodies]
        time.sleep(0.5)
        is_free.set()
        answers = [answer.result().json()["translatedText"] for answer in answers]
    assert answers == [["FIRST"], ["TWO", "DOGS"], ["A"], []]
    assert len(calls) <= 2 and sorted(sum(calls, [])) == ["a", "dogs", "first", "two"]
