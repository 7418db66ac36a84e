import io
import json
import sys

import pytest

from benchmarks import command_line, serve
from keras_transformer.errors import InputError


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.51, 6), (0.95, 10), (1.0, 10)])
def test_a_percentile_is_the_smallest_value_that_enough_others_do_not_exceed(share, expected):
    values = [7, 3, 10, 1, 2, 9, 8, 4, 6, 5]
    assert serve.percentile(values, share) == expected


@pytest.mark.slow
def test_a_cold_start_ends_when_the_server_is_ready(monkeypatch, tmp_path, capsys):
    """A server that is ready half a second after it printed its address."""
    program = tmp_path / "server.py"
    program.write_text(
        "import http.server, sys, time\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        ready = self.path == '/readyz' and time.monotonic() > start + 0.5\n"
        "        self.send_response(200 if ready else 503)\n"
        "        self.end_headers()\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), Handler)\n"
        "start = time.monotonic()\n"
        "print(f'http://127.0.0.1:{server.server_port}/v1/models/m', file=sys.stderr, flush=True)\n"
        "server.serve_forever()\n"
    )
    monkeypatch.setattr(serve, "_SERVE", [sys.executable, str(program)])
    serve.main(["cold-start", "model", "--rounds", "1"])
    report = json.loads(capsys.readouterr().out)["model"]
    assert min(report["first"], *report["seconds"]) >= 0.5 and len(report["seconds"]) == 1
    monkeypatch.setattr(serve, "_SERVE", [sys.executable, "-c", "exit('no such model')"])
    with pytest.raises(SystemExit):
        serve.main(["cold-start", "model"])
    assert "no such model" in capsys.readouterr().err


def test_a_server_of_several_directions_is_asked_for_its_first(monkeypatch):
    listed = [{"code": "en", "targets": ["en", "de", "fr"]}, {"code": "de", "targets": ["de"]}]
    answer = io.StringIO(json.dumps(listed))
    monkeypatch.setattr(serve.urllib.request, "urlopen", lambda url: answer)
    asked = serve._requests_of("http://localhost/v1/models/m", "translate", "")
    assert asked.body(["a"]) == {"q": ["a"], "source": "en", "target": "de"}


def test_a_failed_process_is_one_line():
    with pytest.raises(InputError, match="exit code 3"):
        command_line.call("-c", "exit(3)", module=None)
    assert command_line.call("-c", "print(input())", module=None, text="in") == "in\n"
