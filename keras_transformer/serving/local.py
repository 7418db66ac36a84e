"""Starts Ray on this machine and deploys the application: `keras-transformer serve`."""

import contextlib
import importlib.util
import logging
import os
import re
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.errors import InputError, missing_package, say
from keras_transformer.files import temporary_folder
from keras_transformer.serving.server_options import LocalOptions, ServerOptions, served_export

_NEEDED = ("ray", "starlette", "python_multipart", "uvicorn", "fastapi", "psutil")
_CAUSE = re.compile(r"^\s*(?:[\w.]+\.)?(?:InputError|\w*Error|\w*Exception): (.+)$", re.MULTILINE)
# Smallest object store that Ray allows: requests are far smaller, and small requests do not use it.
_OBJECT_STORE_BYTES = 100 * 2**20
_STOP_SECONDS = 30
_PROGRESS_SECONDS = 2
_DAY_SECONDS = 86_400
# Ray's time limit of 30 s for its processes may be too short while other programs use all cores.
_STARTS = 2
# Ray reads its settings while it is imported.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives its workers low priority (15): any other program would starve a server.
    "RAY_worker_niceness": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # A replica that fails its health check has hung, so do not wait for it.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


def check_ray() -> None:
    """Raises `InputError` if the extra `serve` is not installed."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise missing_package("Ray Serve", ", ".join(missing), "serve")


@contextlib.contextmanager
def private_ray(
    cpus: int | None = None, store_bytes: int = _OBJECT_STORE_BYTES, metrics_port: int | None = None
) -> Iterator[None]:
    """Starts Ray on this machine for the context, for only this user.

    It listens on 127.0.0.1 (its metrics on all networks), sends no usage data, has no dashboard,
    and prints nothing to stdout. Only this user can read its folder, which is removed at the end. A
    token keeps other users from submitting work.

    Args:
        cpus: Number of CPUs that Ray assigns; by default the machine's.
        store_bytes: Size of the object store.
        metrics_port: Port of the metrics for Prometheus.

    Raises:
        InputError: Ray is not installed, or cannot be started.
    """
    check_ray()
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # Short, because a socket's path may have only 107 bytes. Ray opens its own folder to all users.
    start = Path(tempfile.gettempdir(), "kt-ray-")
    with (
        temporary_folder(start) as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        # Ray's processes inherit it: only the driver reacts to a signal to the process group.
        stop_signals = {signal.SIGTERM, signal.SIGINT}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
        try:
            _start_ray(
                folder,
                num_cpus=cpus,
                object_store_memory=store_bytes,
                _metrics_export_port=metrics_port,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield
        finally:
            # In a thread, because Ray waits for a minute if its processes have been killed.
            thread = threading.Thread(target=_end_ray, daemon=True)
            thread.start()
            thread.join(_STOP_SECONDS)


def _start_ray(folder, **options):
    """Starts Ray, and tries again if its processes were not ready in time."""
    import psutil
    import ray

    process = psutil.Process()
    for attempt in range(_STARTS):
        before = set(process.children())
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder / str(attempt)),
                **options,
            )
            return
        except Exception as error:  # Ray raises no narrower class, and leaves its processes.
            for child in set(process.children()) - before:
                child.kill()
            cause = error
    raise InputError(f"Ray cannot be started: {cause}")


def _end_ray():
    import ray

    with contextlib.suppress(Exception):
        ray.shutdown()


def serve_here(options: ServerOptions, local: LocalOptions) -> None:
    """Serves an export until SIGTERM or SIGINT, then answers the accepted requests.

    Raises:
        InputError: The export does not exist, the address is in use, or `[serve]` is not installed.
    """
    export = served_export(options)
    port = _free_port(local.host, local.port)
    metrics_port = _free_port("127.0.0.1", local.metrics_port)
    if options.allowed_hosts is None and not _is_local(local.host):
        options = options.model_copy(update={"allowed_hosts": "*"})
    say("Ray is being started")
    with private_ray(metrics_port=metrics_port):
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(
            proxy_location="HeadOnly",
            http_options={
                "host": local.host,
                "port": port,
                "request_timeout_s": options.request_timeout + 30,
            },
            logging_config={"log_level": "WARNING", "enable_access_log": False},
        )
        host = f"[{local.host}]" if ":" in local.host else local.host
        addresses = (
            f"http://{host}:{port}/v1/models/{export.name}",
            f"metrics at http://127.0.0.1:{metrics_port}/metrics",
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.default_int_handler)
        is_ready = False
        try:
            for address in addresses:
                say(address)
            _deploy(options, export.name)
            is_ready = True
            while True:
                time.sleep(_DAY_SECONDS)
        except KeyboardInterrupt:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            say("stops, after what it accepted")
            # A replica that is still warming up has accepted no requests, and may take minutes.
            with contextlib.suppress(Exception):  # The signal may also have ended Ray.
                deployment = serve.status().applications[export.name].deployments["Server"]
                if is_ready and "RUNNING" in deployment.replica_states:
                    serve.delete(export.name)


def _free_port(host, port):
    """Returns the port, or a free port for 0; raises `InputError` if the address is in use."""
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


def _wait_for_old_replicas(name):
    """Waits until the replica that answered 503 has ended."""
    from ray import serve

    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        states = serve.status().applications[name].deployments["Server"].replica_states
        if not any(count for state, count in states.items() if state != "RUNNING"):
            return
        time.sleep(0.1)


@contextlib.contextmanager
def _printed_progress(model, started):
    """Yields the path of a file, and prints what replicas append to it.

    Of several lines that come at once, only the last is printed.
    """
    finished = threading.Event()
    with tempfile.TemporaryDirectory(prefix="kt-progress-") as folder:
        path = Path(folder, "progress")
        path.touch()

        def tell():
            reported = last = ""
            while not finished.wait(_PROGRESS_SECONDS):
                with contextlib.suppress(OSError):
                    last = (path.read_text(encoding="utf-8").splitlines() or [""])[-1]
                if last != reported:
                    say(f"{model}: {last} after {time.monotonic() - started:.0f} s")
                    reported = last

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield str(path)
        finally:
            finished.set()
            thread.join()


def _deploy(options, name):
    """Deploys the application; raises `InputError` if no replica starts."""
    from ray import serve

    from keras_transformer.serving.app import build, build_waiting

    started = time.monotonic()
    try:
        serve.run(build_waiting(), name=name, route_prefix="/")
        say(f"{options.model} is being loaded; until it is ready, requests get 503")
        with _printed_progress(options.model, started) as file:
            serve.run(build(options, file), name=name, route_prefix="/")
        _wait_for_old_replicas(name)
    except InputError:
        raise
    except Exception as error:
        # The status contains a chain of tracebacks, of which the last has the cause.
        message = str(error)
        with contextlib.suppress(Exception):  # A signal may have ended Ray.
            status = serve.status().applications[name].deployments["Server"].message
            message = [message, *_CAUSE.findall(status)][-1]
        message = " ".join(message.split())[:500]
        raise InputError(f"{options.model} is not served: {message}") from None
    say(f"{options.model} answers after {time.monotonic() - started:.1f} s")
