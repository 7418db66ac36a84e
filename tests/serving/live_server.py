"""A small SavedModel with a translator's signatures, and a server of it."""

import contextlib
import ctypes
import hashlib
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

from keras_transformer.export.signature import SAMPLING_INPUTS
from keras_transformer.files import FORMAT_VERSION, MANIFEST

FAKE = pathlib.Path(__file__).with_name("fake_serve.py")
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_BUSY_STEPS = 100_000  # about a second
WORDS = "a man ran rat mat sat tram start stars arms".split()  # of `light`, a model of few letters
LIMITS = {"max-text-characters": 2000, "max-ongoing": 24, "max-batch-size": 8}
LIMITS |= {"languages": "en-fr", "request-timeout": 10}
RARE_LIMITS = {"max_body_bytes": 200_000, "max_sentences": 50, "max_answer_bytes": 200_000}
RARE_LIMITS |= {"batch_timeout": 4, "warm_up_tokens": 3}


def save_model(folder, endless_text="endless"):
    """Writes an export whose "translation" is the text in upper case.

    A text that begins with "busy" takes a while, "endless" one until its process is killed; one
    that has "fail" in it fails. `align` gives the words and an identity matrix; `beam` two
    translations, the second missing; `sample` the text with its seed, temperature and `top_k`, and
    `top_p` as the score.

    Args:
        folder: Where it is written.
        endless_text: Pattern of a text that never ends; `".*"` makes the warm-up endless.
    """
    import tensorflow as tf

    def default(text):
        tf.debugging.Assert(
            ~tf.reduce_any(tf.strings.regex_full_match(text, ".*fail.*")), ["this text fails"]
        )
        busy = tf.cast(tf.strings.regex_full_match(text, "busy.*"), tf.int32) * _BUSY_STEPS
        endless = tf.cast(tf.strings.regex_full_match(text, endless_text), tf.int32) * 10**9
        steps = tf.reduce_max(tf.concat([busy, endless, [0]], 0))
        start = tf.eye(16)
        state = tf.while_loop(lambda i, _: i < steps, lambda i, m: (i + 1, m @ m), (0, start))[1]
        score = tf.fill(tf.shape(text), state[0, 0])
        return {"translation": tf.strings.upper(text), "score": score}

    def beam(text):
        missing = {"translation": "", "score": -float("inf")}
        return {
            name: tf.stack([best, tf.fill(tf.shape(text), missing[name])], 1)
            for name, best in default(text).items()
        }

    def align(text):
        words = tf.strings.split(text).to_tensor("")
        there = tf.cast(tf.not_equal(words, ""), tf.float32)
        matrix = tf.eye(tf.shape(words)[1])[None] * there[:, :, None]
        tokens = {"source_tokens": words, "target_tokens": tf.strings.upper(words)}
        return {**default(text), "alignment": matrix, **tokens}

    def sample(text, seed, temperature, top_k, top_p, **_):
        parts = [text, tf.strings.as_string(seed), tf.strings.as_string(temperature, 1)]
        parts.append(tf.strings.as_string(top_k))
        return {"translation": tf.strings.join(parts, " "), "score": top_p + 0.0 * temperature}

    def described(tensors):
        return {
            name: {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}
            for name, tensor in tensors.items()
        }

    numbers = {name: tensor.dtype for name, tensor in SAMPLING_INPUTS.items()}
    signatures, descriptions = {}, {}
    for function in (default, beam, align, sample):
        name = function.__name__ if function is not default else "serving_default"
        types_of_inputs = {"text": "string", **(numbers if name == "sample" else {})}
        inputs = {key: tf.TensorSpec((None,), type, key) for key, type in types_of_inputs.items()}
        signature = tf.function(function).get_concrete_function(**inputs)
        signatures[name] = signature
        outputs = described(signature.structured_outputs)
        descriptions[name] = {"inputs": described(inputs), "outputs": outputs}
    tf.saved_model.save(tf.Module(), str(folder), signatures=signatures)
    graph = (pathlib.Path(folder) / "saved_model.pb").read_bytes()
    manifest = {"format": "keras_transformer.saved_model", "kind": "transformer", "tags": ["2fr"]}
    manifest["format_version"] = FORMAT_VERSION
    manifest |= {"beam_size": 2, "length_penalty": 0.0, "n_best": 1, "signatures": descriptions}
    manifest |= {"largest_chunk": 32, "max_source_length": 64, "max_target_length": 64}
    manifest |= {"shapes": {"rows": [1, 2], "source_lengths": [16]}}
    manifest["files"] = {"saved_model.pb": hashlib.sha256(graph).hexdigest()}
    (pathlib.Path(folder) / "export.json").write_text(json.dumps(manifest))


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


class InProcess(Client):
    """Asks an application, by a client of Starlette's."""

    def __init__(self, test_client):
        super().__init__(None)
        self._client = test_client

    def request(self, method, path, body=None, headers=()):
        answer = self._client.request(method, path, content=body, headers=dict(headers))
        return as_answer(answer.status_code, answer.headers, answer.content)


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
        paths = map(str, FAKE.parents[:3])
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
