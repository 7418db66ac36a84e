"""`keras-transformer serve`: Ray on this machine, with the application and a watch for versions."""

import concurrent.futures
import contextlib
import importlib.util
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.owned_folder import held_folder
from keras_transformer.serving.options import LocalOptions, ServerOptions
from keras_transformer.serving.replica import export_digest

_NEEDED = ("ray", "starlette", "uvicorn", "fastapi")
_CAUSE = re.compile(r"^\s*(?:[\w.]+\.)?(?:InputError|\w*Error|\w*Exception): (.+)$", re.MULTILINE)
# Smallest object store that Ray takes: batches are far smaller, and small ones do not use it.
_OBJECT_STORE_BYTES = 100 * 2**20
_STOP_SECONDS = 30


def say(message: str) -> None:
    """Writes one line to stderr."""
    print(f"keras-transformer serve: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def private_ray(
    cpus: int | None = None, store_bytes: int = _OBJECT_STORE_BYTES, metrics_port: int | None = None
) -> Iterator[Path]:
    """Starts Ray on this machine for the context, for this user alone; gives its folder.

    It listens on 127.0.0.1 (its metrics on every address), sends nothing to anybody, has no
    dashboard, and prints nothing to stdout. Its folder is readable by this user alone and is
    removed at the end; a token keeps other users from giving it work.

    Args:
        cpus: CPUs that Ray gives out; by default the machine's.
        store_bytes: Size of the object store.
        metrics_port: Port of the metrics for Prometheus.

    Raises:
        InputError: Ray is not installed, or cannot be started.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise InputError(
            "Ray needs more packages: pip install 'keras_transformer[serve]'. "
            f"Missing: {', '.join(missing)}."
        )
    # Ray reads its settings while it is imported.
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray gives its workers low priority (15): any other program would starve a server.
        "RAY_worker_niceness": "0",
        # A thread that waits for replicas when Ray ends would start another Ray.
        "RAY_ENABLE_AUTO_CONNECT": "0",
        # A replica that fails its health check has hung: it is not waited for.
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    import ray

    # Short: a socket's path may have 107 bytes. Ray opens its own folder to all users.
    start = Path(tempfile.gettempdir(), "kt-ray-")
    with held_folder(start, 0o700) as folder, _quiet():
        # Ray's processes inherit this: a signal to the process group is the driver's business.
        ours = {signal.SIGTERM, signal.SIGINT}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=store_bytes,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder / "r"),
                _metrics_export_port=metrics_port,
            )
        except Exception as error:  # Ray raises nothing narrower where a machine is too busy.
            raise InputError(f"Ray cannot be started: {error}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield folder
        finally:
            # In a thread: where somebody has ended Ray's processes, it would wait for a minute.
            ending = threading.Thread(target=_end_ray, daemon=True)
            ending.start()
            ending.join(_STOP_SECONDS)


@contextlib.contextmanager
def _quiet():
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _end_ray():
    import ray

    with contextlib.suppress(Exception):
        if "ray.serve" in sys.modules and ray.is_initialized():
            ray.serve.shutdown()
    with contextlib.suppress(Exception):
        ray.shutdown()


def serve(options: ServerOptions, local: LocalOptions) -> None:
    """Serves an export until SIGTERM or SIGINT, then answers what was accepted.

    Raises:
        InputError: There is nothing to serve, the address is taken, or `[serve]` is missing.
    """
    if not os.path.exists(options.model):
        rule = f"{options.model}: expected an export or numbered folders with one each."
        raise InputError(f"{rule} Received: no such folder.")
    port = _free_port(local.host, local.port)
    metrics_port = _free_port("127.0.0.1", local.metrics_port)
    if options.allowed_hosts is None and not _is_local(local.host):
        options = options.model_copy(update={"allowed_hosts": "*"})
    with private_ray(metrics_port=metrics_port) as folder:
        server = _Server(options, local, port, metrics_port)
        server.run()
        if server.deploying.is_alive():
            # Its next call to a Ray that has ended would end this process with 1: so it ends here,
            # and Ray's processes with it.
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)


def _free_port(host, port):
    """Returns the port, a free one for 0; raises `InputError` if the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"{host}:{port}: cannot be listened on: {reason}.") from None
        return probe.getsockname()[1]


def _is_local(host):
    return host in ("localhost", "::1") or host.startswith("127.")


class _Server:
    """Deploys the versions of a model as they appear."""

    def __init__(self, options, local, port, metrics_port):
        self._options = options
        self._local = local
        self._port = port
        self._metrics_port = metrics_port
        self._stop = threading.Event()
        self._current = self._seen = None
        self._states: dict[str, list[str]] = {}
        self._refused: dict[int, tuple] = {}

    def run(self) -> None:
        """Serves until a signal."""
        from ray import serve

        from keras_transformer.serving.app import model_name

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._name = model_name(self._options)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        serve.start(
            proxy_location="HeadOnly",
            http_options={
                "host": self._local.host,
                "port": self._port,
                "request_timeout_s": self._options.request_timeout + 30,
            },
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )
        # Deploying takes minutes; a signal must end it. A daemon: nothing waits for it then.
        done: concurrent.futures.Future = concurrent.futures.Future()
        self.deploying = threading.Thread(target=self._deploy_all, args=(done,), daemon=True)
        self.deploying.start()
        done.add_done_callback(lambda _: self._stop.set())
        self._stop.wait()
        if done.done():
            done.result()
        say("stops, after what it accepted")
        self._drain()
        self.deploying.join(timeout=1)  # A thread that only watches the folder.

    def _deploy_all(self, done):
        from keras_transformer.serving.app import find_versions

        try:
            self._first()
            host = f"[{self._local.host}]" if ":" in self._local.host else self._local.host
            say(f"http://{host}:{self._port}/v1/models/{self._name}")
            say(f"metrics at http://127.0.0.1:{self._metrics_port}/metrics")
            while not self._stop.wait(self._local.poll_seconds):
                versions = find_versions(self._options.model)
                # A folder that is still being copied changes between two looks.
                settled, self._seen = versions == self._seen, versions
                if settled and self._options.version is None:
                    self._update(versions)
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    def _first(self):
        """Deploys the highest version that can be."""
        from keras_transformer.serving.app import chosen_version, find_versions

        first = chosen_version(self._options)
        versions = [each for each in find_versions(self._options.model) if each[0] <= first.number]
        if self._options.version is not None:
            versions = [first]
        errors = []
        for version in versions:
            if self._deploy(version):
                return
            errors.append(self._states[str(version.number)][1])
        raise InputError(errors[0])

    def _update(self, versions):
        present = {version.number for version in versions}
        for number in set(map(int, self._states)) - present:
            self._states.pop(str(number))
        for version in versions:
            if version.number == self._current.number and self._is_unchanged(version):
                return
            if self._refused.get(version.number) == version.stamp:
                continue
            old = self._current
            if self._deploy(version):
                return
            say(f"version {old.number} goes on")
            # The old replicas answer still; now they are what Ray restarts and scales, too.
            self._deploy(old)

    def _is_unchanged(self, version):
        if version.stamp == self._current.stamp:
            return True
        with contextlib.suppress(InputError):
            if export_digest(version.folder) == self._digest:  # Touched, or copied anew.
                self._current = version
                return True
        return False

    def _deploy(self, version):
        """Deploys a version beside the one that answers; returns True when it has taken over."""
        from ray import serve

        from keras_transformer.serving.app import build

        number, started = str(version.number), time.monotonic()
        say(f"version {number} is being loaded from {version.folder}")
        kept = {key: each if each[1] else ["END", ""] for key, each in self._states.items()}
        try:
            digest = export_digest(version.folder)
            chosen = {"model": version.folder, "name": self._name, "version": version.number}
            options = self._options.model_copy(update=chosen)
            bound = build(options, {**kept, number: ["LOADING", ""]})
            self._handle = serve.run(bound, name=self._name, route_prefix="/")
        except Exception as error:
            if self._stop.is_set():
                raise
            message = self._reason() if not isinstance(error, InputError) else str(error)
            self._states[number] = ["END", message or " ".join(str(error).split())[:500]]
            self._refused[version.number] = version.stamp
            say(f"version {number} is refused: {self._states[number][1]}")
            return False
        self._states = {**kept, number: ["AVAILABLE", ""]}
        self._refused.pop(version.number, None)
        self._current, self._digest = version, digest
        say(f"version {number} answers after {time.monotonic() - started:.1f} s")
        return True

    def _reason(self):
        """Returns the last line of Ray Serve's message about an application that did not start."""
        from ray import serve

        status = serve.status().applications.get(self._name)
        if status is None:
            return None
        messages = [each.message for each in status.deployments.values()] + [status.message]
        # The last of a chain of tracebacks, each inside the other, has the cause.
        causes = [cause for message in messages for cause in _CAUSE.findall(message)]
        return causes[-1].strip() if causes else " ".join("; ".join(messages).split())[:500]

    def _drain(self):
        """Waits until all front ends have answered what they accepted."""
        unfinished: dict[str, int] = {}
        deadline = time.monotonic() + self._local.drain_timeout
        with contextlib.suppress(Exception):  # Ray may have been ended by the same signal.
            while self._current is not None and time.monotonic() < deadline:
                name, count = self._handle.drain.remote().result(timeout_s=5)
                unfinished[name] = count
                if len(unfinished) >= self._options.frontends and not any(unfinished.values()):
                    return
                time.sleep(0.05)


def main_options(values: dict[str, Any]) -> tuple[ServerOptions, LocalOptions]:
    """Returns the options of the application and of this machine from one dict."""
    local = {key: values.pop(key) for key in LocalOptions.model_fields if key in values}
    return ServerOptions(**values), LocalOptions(**local)
