"""A small SavedModel with a translator's signatures, and a server of it."""

import contextlib
import ctypes
import hashlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import types

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
LIMITS = {
    "max-body-bytes": 200_000,
    "max-sentences": 50,
    "max-text-bytes": 2000,
    "max-answer-bytes": 200_000,
    "max-ongoing": 24,
    "max-queue": 10,
    "request-timeout": 30,
    "warm-up-tokens": 3,
    "max-batch-size": 8,
}


def save_model(folder, mark="", busy_steps=200_000, endless_text="endless"):
    """Writes an export whose "translation" is the text in upper case, after `mark`.

    A placeholder keeps its case, an annotated term becomes its translation. A text that begins with
    "busy" takes a while, "endless" one until its process is killed; one that has "fail" in it
    fails. `align` gives the words and an identity matrix; `beam` two translations, the second
    missing; `sample` the text with its seed and temperature.

    Args:
        folder: Where it is written.
        mark: Beginning of each translation.
        busy_steps: Steps of a busy text.
        endless_text: Pattern of a text that never ends; `".*"` makes the warm-up endless.
    """
    import tensorflow as tf

    def work(text):
        tf.debugging.Assert(
            ~tf.reduce_any(tf.strings.regex_full_match(text, ".*fail.*")), ["this text fails"]
        )
        busy = tf.cast(tf.strings.regex_full_match(text, "busy.*"), tf.int32) * busy_steps
        endless = tf.cast(tf.strings.regex_full_match(text, endless_text), tf.int32) * 10**9
        steps = tf.reduce_max(tf.concat([busy, endless, [0]], 0))
        start = tf.eye(16)
        state = tf.while_loop(lambda i, _: i < steps, lambda i, m: (i + 1, m @ m), (0, start))[1]
        upper = tf.strings.regex_replace(tf.strings.upper(text), "<PH_", "<ph_")
        annotation = "<TERM_BEGIN> .*?<TERM_AS> (.*?)<TERM_END>"
        upper = tf.strings.regex_replace(upper, annotation, r"\1")
        return mark + upper, tf.fill(tf.shape(text), state[0, 0])

    def default(text):
        translation, score = work(text)
        return {"translation": translation, "score": score}

    def beam(text):
        translation, score = work(text)
        missing = tf.fill(tf.shape(score), -float("inf"))
        return {
            "translation": tf.stack([translation, tf.fill(tf.shape(text), "")], 1),
            "score": tf.stack([score, missing], 1),
        }

    def align(text):
        translation, score = work(text)
        words = tf.strings.split(text).to_tensor("")
        length = tf.shape(words)[1]
        there = tf.cast(tf.not_equal(words, ""), tf.float32)
        matrix = tf.eye(length)[None] * there[:, :, None]
        tokens = {"source_tokens": words, "target_tokens": tf.strings.upper(words)}
        return {"translation": translation, "score": score, "alignment": matrix, **tokens}

    def sample(text, seed, temperature, top_k, top_p):
        parts = [text, tf.strings.as_string(seed), tf.strings.as_string(temperature, 1)]
        return {"translation": tf.strings.join(parts, " "), "score": top_p + 0.0 * temperature}

    def spec(name, dtype):
        return tf.TensorSpec((None,), dtype, name=name)

    text = spec("text", tf.string)
    signatures = {"serving_default": default, "beam": beam, "align": align}
    signatures = {
        name: tf.function(function, [text]).get_concrete_function()
        for name, function in signatures.items()
    }
    signatures["sample"] = tf.function(sample).get_concrete_function(
        text,
        spec("seed", tf.int32),
        spec("temperature", tf.float32),
        spec("top_k", tf.int32),
        spec("top_p", tf.float32),
    )
    tf.saved_model.save(tf.Module(), str(folder), signatures=signatures)
    described = {}
    for name, function in signatures.items():
        inputs, outputs = function.structured_input_signature[1], function.structured_outputs
        inputs = inputs or {each.name: each for each in function.structured_input_signature[0]}
        described[name] = {
            side: {
                key: {"dtype": each.dtype.name, "shape": each.shape.as_list()}
                for key, each in tensors.items()
            }
            for side, tensors in (("inputs", inputs), ("outputs", outputs))
        }
    graph = (pathlib.Path(folder) / "saved_model.pb").read_bytes()
    manifest = {
        "format": "keras_transformer.saved_model",
        "kind": "transformer",
        "beam_size": 2,
        "length_penalty": 0.0,
        "n_best": 1,
        "largest_chunk": 32,
        "max_source_length": 64,
        "max_target_length": 64,
        "shapes": {"rows": [1, 2], "source_lengths": [16]},
        "signatures": described,
        "placeholders": [2],
        "tags": ["2fr"],
        "terms": True,
        "files": {"saved_model.pb": hashlib.sha256(graph).hexdigest()},
    }
    (pathlib.Path(folder) / "export.json").write_text(json.dumps(manifest))


def end_with_parent():
    """Lets Linux send a server SIGTERM when the tests that started it end, however they end."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port():
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Client:
    """Asks a server.

    Args:
        port: Its port on this machine.
        url: Path of the model below it.
    """

    log = ""

    def __init__(self, port, url="/v1/models/toy"):
        self.port, self.url = port, url

    def wait(self, condition, seconds=300):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(0.1)

    def request(self, method, path, body=None, headers=()):
        """The status, the headers and the body of one answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            content = answer.read()
            is_json = answer.headers["content-type"] == "application/json"
            return types.SimpleNamespace(
                status=answer.status,
                headers=answer.headers,
                body=content,
                json=json.loads(content) if is_json and content else None,
            )

    def get(self, path):
        return self.request("GET", path)

    def predict(self, body, place=""):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode("utf-8")
        return self.request("POST", f"{self.url}{place}:predict", body)

    def is_ready(self):
        with contextlib.suppress(OSError):
            return self.request("GET", self.url.split("/v1/")[0] + "/readyz").status == 200
        return False

    def translate(self, *texts):
        """The translations of texts; an error is an assertion's."""
        answer = self.predict({"inputs": {"text": texts}})
        assert answer.status == 200, answer.body
        return answer.json["outputs"]["translation"]


class Server(Client):
    """`keras-transformer serve` in a process of its own."""

    def __init__(self, path, log, **options):
        self.path, self._log = path, log
        arguments = [f"--{name}={value}" for name, value in {**LIMITS, **options}.items()]
        package = pathlib.Path(__file__).parents[2]
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "keras_transformer", "serve", f"--model={path}", "--port=0"]
                + arguments,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, "PYTHONPATH": str(package)},
                process_group=0,
                preexec_fn=end_with_parent,
            )
        super().__init__(self._started())
        # Processes of Ray, by which a test sees that none is left.
        self.known = processes_below(self.process.pid, b"")

    @property
    def log(self):
        return pathlib.Path(self._log).read_text(errors="replace")

    def _started(self):
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self.process.poll() is None:
            if "http://" in self.log:
                address = self.log.split("http://")[1].split("/")[0]
                port = int(address.rpartition(":")[2])
                self.wait(Client(port).is_ready)
                return port
            time.sleep(0.1)
        raise AssertionError(f"no server: {self.log[-3000:]}")

    def replicas(self):
        """Process ids of the replicas."""
        return processes_below(self.process.pid, b"ServeReplica:toy:Server")

    def stop(self):
        """SIGTERM; the exit code and what was written to stdout."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            stdout, _ = self.process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        return self.process.returncode, stdout


def processes_below(ancestor, title):
    """Ids of the processes below one whose title has `title` in it."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdecimal()
                and title in (entry / "cmdline").read_bytes()
                and _is_below(entry.name, ancestor)
            ):
                found.append(int(entry.name))
    return found


def _is_below(pid, ancestor):
    pid = int(pid)
    while pid > 1 and pid != ancestor:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid == ancestor
