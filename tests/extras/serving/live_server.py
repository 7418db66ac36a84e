"""A server of a fake export in processes of its own, and a client."""

import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import types

from keras_transformer.base.files import MANIFEST

FAKE = pathlib.Path(__file__).with_name("fake_serve.py")
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
WORDS = "a man ran rat mat sat tram start stars arms".split()  # of `light`, a model of few letters
LIMITS = {"max-text-characters": 2000, "max-ongoing": 24, "max-batch-size": 8}
LIMITS |= {"languages": "en-fr", "request-timeout": 10}
RARE_LIMITS = {"max_body_bytes": 200_000, "max_sentences": 50, "max_answer_bytes": 200_000}
RARE_LIMITS |= {"batch_timeout": 4, "warm_up_tokens": 3}


def fake_export(folder, **manifest):
    """Makes an export for `fake_serve.py`."""
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def end_with_parent():
    """Lets Linux send a server SIGTERM when the tests that started it end, however they end."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port():
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, seconds=300, log=str):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, log()[-3000:]
        time.sleep(0.1)


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


class Client:
    """Asks a server.

    Args:
        port: Its port on this machine.
        url: Path of the model below it.
    """

    def __init__(self, port, url="/v1/models/toy"):
        self.port, self.url = port, url

    def request(self, method, path, body=None, headers=()):
        """The answer to one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            content = answer.read()
            return as_answer(answer.status, answer.headers, content)

    def get(self, path):
        return self.request("GET", path)

    def predict(self, body, path="", headers=()):
        """Asks as a client of TensorFlow Serving: of a list of texts, or of another body."""
        if isinstance(body, list):
            body = {"inputs": {"text": body}}
        if isinstance(body, dict):
            body = json.dumps(body).encode("utf-8")
        return self.request("POST", f"{self.url}{path}:predict", body, headers)

    def libretranslate(self, body, headers=()):
        """Asks as a client of LibreTranslate: of a list of texts, or of another body."""
        if isinstance(body, list):
            body = {"q": body, "source": "en", "target": "fr"}
        if isinstance(body, dict):
            body = json.dumps(body).encode("utf-8")
        headers = {"content-type": "application/json", **dict(headers)}
        return self.request("POST", "/translate", body, headers)

    def is_ready(self):
        with contextlib.suppress(OSError):
            return self.get(self.url.split("/v1/")[0] + "/readyz").status == 200
        return False

    def translate(self, *texts):
        """The translations of texts; an error is an assertion's."""
        answer = self.predict([*texts])
        assert answer.status == 200, answer.body
        return answer.json["outputs"]["translation"]


def as_answer(status, headers, body):
    """The status, the headers, the body and its JSON, if it is that."""
    is_json = headers["content-type"] == "application/json"
    fields = {"headers": headers, "body": body, "json": json.loads(body) if is_json else None}
    return types.SimpleNamespace(status=status, **fields)


class Server(Client):
    """`fake_serve.py serve` in processes of its own, once it has told its address.

    Args:
        model: Folder of the model.
        log: Path of a file for its messages.
        program: What Python runs.
        rare: Options of the command for `--set`.
        options: Other options.
    """

    def __init__(self, model, log, program=(str(FAKE),), rare=RARE_LIMITS, **options):
        self._log = log
        paths = map(str, FAKE.parents[:4])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, *program, "serve", f"--model={model}"]
        command += ["--port=0", *(f"--{name}={value}" for name, value in options.items())]
        command += [f"--set={name}={value}" for name, value in rare.items()]
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                command,
                env=environment,
                process_group=0,
                preexec_fn=end_with_parent,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        self.wait(lambda: re.search(r"/v1/models/\w+\n", self.log))
        address = re.search(r"http://127.0.0.1:(\d+)(/v1/models/\w+)", self.log)
        super().__init__(int(address[1]), address[2])

    @property
    def log(self):
        return pathlib.Path(self._log).read_text(errors="replace")

    def wait(self, condition, seconds=300):
        """Waits for the condition while the process lives."""

        def is_true():
            assert self.process.poll() is None, self.log[-3000:]
            return condition()

        wait_for(is_true, seconds, lambda: self.log)

    def workers(self):
        """Ids of the processes with a model."""
        return processes_below(self.process.pid, "spawn_main")

    def stop(self):
        """SIGTERM; the exit code and what was written to stdout."""
        self.process.terminate()
        stdout, _ = self.process.communicate(timeout=120)
        return self.process.returncode, stdout


def processes_below(ancestor, title=""):
    """Ids of the processes below one whose title has `title` in it."""
    import psutil

    pids = []
    for process in psutil.Process(ancestor).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if title in " ".join(process.cmdline()):
                pids.append(process.pid)
    return pids
