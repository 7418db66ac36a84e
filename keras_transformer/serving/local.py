"""Starts Ray on this machine and deploys the application: `keras-transformer serve`."""

import contextlib
import errno
import logging
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

from keras_transformer.errors import InputError, say
from keras_transformer.files import temporary_folder
from keras_transformer.ray_here import private_ray
from keras_transformer.serving.server_options import (
    MAX_REQUESTS,
    LocalOptions,
    ServerOptions,
    files_of,
    served_export,
)
from keras_transformer.serving.translated_files import folder_of_files

_CAUSE = re.compile(r"^[^\S\n]*(?:\w+\.)*+\w*(?:Error|Exception): (.+)$", re.MULTILINE)
_STOP_SECONDS = 30
_PROGRESS_SECONDS = 2
_WATCH_SECONDS = 5
_GIVE_UP_SECONDS = 20  # without a replica, after one has failed to start
_SETTINGS = {
    # A replica that fails its health check has hung, so do not wait for it.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "keras_transformer.serving.guard.middlewares",
}


def serve_here(options: ServerOptions, local: LocalOptions) -> None:
    """Serves an export until SIGTERM or SIGINT, then answers the accepted requests.

    It serves the files that the export has at the start, whatever replaces them.

    Raises:
        InputError: The export does not exist, the address is in use, `[serve]` is not installed, or
            all replicas have ended and none can be started.
    """
    export = served_export(options)
    _free_port(local.host, local.port)  # Raises its error before Ray is started.
    metrics_port = _free_port("127.0.0.1", local.metrics_port)
    if options.allowed_hosts is None and not _is_local(local.host):
        options = options.model_copy(update={"allowed_hosts": "*"})
    replicas = options.max_replicas if options.replicas == "auto" else options.replicas
    os.environ[MAX_REQUESTS] = str(replicas * options.max_ongoing)
    say("Ray is being started")
    with (
        _private_copy(export) as copy,
        folder_of_files() as files,
        private_ray(metrics_port=metrics_port, settings=_SETTINGS),
    ):
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        # Only now, because Ray's own processes take free ports.
        port = local.port or _free_port(local.host, 0)
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={
                    "host": local.host,
                    "port": port,
                    "request_timeout_s": options.request_timeout,
                },
                logging_config={"log_level": "WARNING", "enable_access_log": False},
            )
        except Exception as error:  # Ray raises no narrower class.
            cause = _cause_in(str(error), str(error))
            raise InputError(f"{local.host}:{port}: Ray Serve cannot be started: {cause}") from None
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
            _deploy(options, export, copy, files)
            is_ready = True
            _watch(options, export, copy)
        except KeyboardInterrupt:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            say("stopping; accepted requests are answered first")
            # A replica that is still warming up has accepted no requests, and may take minutes.
            with contextlib.suppress(Exception):  # The signal may also have ended Ray.
                if is_ready and "RUNNING" in _status_of(export.name).replica_states:
                    _replace_replicas(export.name, options)


def _free_port(host, port):
    """Returns the port, or a free port for 0; raises `InputError` if the address is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        except OSError as error:
            reason = error.strerror or error
            is_taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
            advice = " Give another `port`." if is_taken else ""
            raise InputError(f"{host}:{port}: cannot be listened on: {reason}.{advice}") from None
        return probe.getsockname()[1]


def _is_local(host):
    return host in ("localhost", "::1") or host.startswith("127.")


@contextlib.contextmanager
def _private_copy(export):
    """Yields an export of the same files, which nobody replaces: links to them, or copies."""
    with temporary_folder(Path(tempfile.gettempdir(), "kt-export-")) as folder:
        for path in files_of(export.folder):
            target = folder / path.relative_to(export.folder)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                source = path.resolve()  # Where the export has a link, the file may be replaced.
                try:
                    os.link(source, target)
                except OSError:  # Another file system, or another user's file.
                    shutil.copyfile(source, target)
            except OSError as error:
                rule = f"{path}: cannot be copied to {tempfile.gettempdir()}"
                raise InputError(
                    f"{rule}: {error.strerror}. TMPDIR names another folder."
                ) from None
        path = folder / Path(export.path).relative_to(export.folder)
        yield export._replace(path=str(path), folder=folder)


def _status_of(name):
    """Returns Ray's status of the deployment."""
    from ray import serve

    return serve.status().applications[name].deployments["Server"]


def _wait_for_old_replicas(name, seconds):
    """Waits until only replicas of the last deployment are there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        states = _status_of(name).replica_states
        if not any(count for state, count in states.items() if state != "RUNNING"):
            return
        time.sleep(0.1)


def _replace_replicas(name, options):
    """Has all later requests refused, and waits until the replicas have answered theirs.

    Without an application Ray's proxy would lose requests that no replica has taken yet.
    """
    from ray import serve

    from keras_transformer.serving.app import build_waiting

    serve.run(build_waiting("The server is being stopped"), name=name, route_prefix="/")
    _wait_for_old_replicas(name, options.request_timeout + _STOP_SECONDS)


def _watch(options, export, copy):
    """Watches the replicas; raises `InputError` if all have ended and none can be started."""
    failed_since = None
    while True:
        time.sleep(_WATCH_SECONDS)
        try:
            problem = _problem_of(_status_of(export.name))
        except Exception as error:  # Ray raises no narrower class; its controller may come back.
            problem = f"Ray has ended: {_cause_in('', str(error))}"
        if problem is None:
            failed_since = None
            continue
        failed_since = failed_since or time.monotonic()
        if time.monotonic() - failed_since >= _GIVE_UP_SECONDS:
            problem = problem.replace(str(copy.folder), str(export.folder))
            raise InputError(f"{options.model} is no longer served: {problem}")


def _problem_of(status):
    """Returns why no replica runs, None while one runs or is being started."""
    if status.replica_states.get("RUNNING") or status.status_trigger != "REPLICA_STARTUP_FAILED":
        return None
    return f"no replica starts: {_cause_in(status.message, status.message)}"


def _cause_in(status, message):
    """Returns the last cause in a status, which contains a chain of tracebacks, or the message."""
    return " ".join([message, *_CAUSE.findall(status)][-1].split())[:500]


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


def _deploy(options, export, copy, files):
    """Deploys the copy of an export, with a folder for translated files.

    Raises:
        InputError: No replica starts.
    """
    from ray import serve

    from keras_transformer.serving.app import build, build_waiting

    started, name = time.monotonic(), export.name
    try:
        serve.run(build_waiting("The model is being loaded"), name=name, route_prefix="/")
        say(f"{options.model} is being loaded; until it is ready, requests get 503")
        with _printed_progress(options.model, started) as file:
            serve.run(build(options, file, copy, str(files)), name=name, route_prefix="/")
        _wait_for_old_replicas(name, _STOP_SECONDS)
    except InputError:
        raise
    except Exception as error:
        cause = _cause_in("", str(error))
        with contextlib.suppress(Exception):  # A signal may have ended Ray.
            cause = _cause_in(_status_of(name).message, str(error))
        cause = cause.replace(str(copy.folder), str(export.folder))
        raise InputError(f"{options.model} is not served: {cause}") from None
    say(f"{options.model} answers after {time.monotonic() - started:.1f} s")
