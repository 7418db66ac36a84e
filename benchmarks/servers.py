"""Servers of translations: how they are started, and when they are ready."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from shutil import which
from typing import Literal, NamedTuple

import psutil

from benchmarks.command_line import log
from keras_transformer.base.errors import InputError
from keras_transformer.base.files import MANIFEST

Name = Literal["serve", "ray", "libretranslate", "bergamot"]
SERVE = [sys.executable, *"-m keras_transformer serve --name measured --port {port}".split()]
# The application as a deployment of Ray Serve here.
_RAY = """
import os, signal, sys
from keras_transformer.extras.cluster import ClusterOptions, build_app
from keras_transformer.extras.cluster.files import private_ray

model, port, replicas = sys.argv[1:]
with private_ray(os.cpu_count(), 100 * 2**20):
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    options = ClusterOptions(model=model, name="measured", replicas=int(replicas))
    serve.run(build_app(options), name="measured", route_prefix="/")
    signal.sigwait({signal.SIGTERM})
    serve.shutdown()
"""
# LibreTranslate, under waitress or gunicorn. It downloads a model that splits texts into sentences.
# Here ends of sentences split them, which takes less time.
_LIBRETRANSLATE = r"""
import re, sys
from argostranslate.sbd import MiniSBDSentencizer
from libretranslate.main import main

MiniSBDSentencizer.split_sentences = lambda self, text: re.split(r"(?<=[.!?])\s+", text)
if __name__ == "__main__":
    main()
else:
    sys.argv = ["--wsgi"]
    app = main()
"""


class Served(NamedTuple):
    """A running server: its process, its address, and the seconds of its start."""

    process: psutil.Process
    url: str
    ready_seconds: float


@contextlib.contextmanager
def served(command: Sequence[str], path: str = "/languages") -> Iterator[Served]:
    """Yields a server that has answered at a path, and ends it; `{port}` is a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    words = [word.replace("{port}", port) for word in command]
    with tempfile.NamedTemporaryFile() as file:
        start = time.monotonic()
        server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=file)
        try:
            while not _has_answered(url + path):
                if server.poll() is not None:
                    raise InputError(pathlib.Path(file.name).read_text(errors="replace")[-2000:])
                time.sleep(0.1)
            yield Served(psutil.Process(server.pid), url, round(time.monotonic() - start, 1))
        finally:
            server.terminate()
            server.wait()


def _has_answered(url):
    try:
        return urllib.request.urlopen(url).status == 200
    except urllib.error.HTTPError as error:
        if error.code == 501:
            raise InputError(error.read().decode(errors="replace")) from None
    except (urllib.error.URLError, ConnectionError):
        pass
    return False


def commands(
    names: Sequence[Name], folder: pathlib.Path, model: str, others: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, list[str]]]:
    """Returns commands by server and setting, each server's usual setting first.

    A server whose Python and model are missing is named in a message, and left out.

    Args:
        names: Servers.
        folder: Empty folder for files of a server.
        model: An export.
        others: Python and model of other programs.
    """
    cores = str(os.cpu_count())
    others = {name: pair for name, pair in others.items() if len(pair) == 2 and which(pair[0])}
    serve = [*SERVE, "--model", model]
    ray = [sys.executable, "-c", _RAY, model, "{port}"]
    servers = {
        "serve": {
            "usual": serve,
            f"{cores} processes": [*serve, "--processes", cores, "--threads", "1"],
            "no wait for batches": [*serve, "--set", "batch_wait_ms=0"],
        },
        "ray": {"usual": [*ray, "1"], f"{cores} replicas": [*ray, cores]},
    }
    if "libretranslate" in others:
        python, package = others["libretranslate"]
        (folder / "application.py").write_text(_LIBRETRANSLATE)
        with zipfile.ZipFile(package) as archive:
            archive.extractall(folder / "packages")
        beam_size = json.loads((pathlib.Path(model) / MANIFEST).read_text("utf-8"))["beam_size"]
        start = ["env", f"PYTHONPATH={folder}", f"HOME={folder}", f"ARGOS_BEAM_SIZE={beam_size}"]
        # An index that is not there: nothing is downloaded.
        start += [f"ARGOS_PACKAGES_DIR={folder}/packages", "ARGOS_PACKAGE_INDEX=file:///nowhere/"]
        waitress = [python, f"{folder}/application.py", "--port", "{port}"]
        workers = ["-m", "gunicorn", "--workers", cores, "--bind", "127.0.0.1:{port}"]
        parallel = [*start, f"ARGOS_INTER_THREADS={cores}", "ARGOS_INTRA_THREADS=1"]
        servers["libretranslate"] = {
            "usual": [*start, *waitress],
            f"16 threads, {cores} translators": [*parallel, *waitress, "--threads", "16"],
            f"gunicorn, {cores} processes": [
                *(*start, "ARGOS_INTRA_THREADS=1", python, *workers, "application:app")
            ],
        }
    if "bergamot" in others:
        python, student = others["bergamot"]
        engine = [sys.executable, "-m", "benchmarks.bergamot_server", python, student]
        engine += ["--port", "{port}"]
        servers["bergamot"] = {
            "usual": [*engine, "--threads", cores],
            f"{cores} processes": [*engine, "--processes", cores],
        }
    for name in names:
        if name not in servers:
            log(f"{name} is skipped: `--{name}` needs a Python that has it, and a model.")
    return {name: servers[name] for name in names if name in servers}
