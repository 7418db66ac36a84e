"""`keras-transformer serve`: uvicorn's supervisor, and what its worker processes run."""

import contextlib
import errno
import functools
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from keras_transformer.base.errors import InputError, print_message
from keras_transformer.base.files import temporary_folder
from keras_transformer.extras.serving.server_options import (
    LocalOptions,
    ServerOptions,
    files_of,
    served_export,
)
from keras_transformer.extras.serving.translated_files import folder_of_files

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_START_SECONDS = 600  # in which a process of a new version must have loaded it
_HEALTH_SECONDS = 30  # in which a process must answer its supervisor
_FIRST_REQUEST_SECONDS = 1  # in which a new connection of a process that ends may still ask
_REPORT_SECONDS = 2
_STOP = (signal.SIGTERM, signal.SIGINT)


def serve_here(options: ServerOptions, local: LocalOptions) -> None:
    """Serves an export until SIGTERM or SIGINT, then answers the accepted requests.

    It serves the files that the export has at the start or at SIGHUP, whatever replaces them.

    Raises:
        InputError: The export does not exist, the address is in use, or a process cannot start.
    """
    if options.allowed_hosts is None and not _is_local(local.host):
        options = options.model_copy(update={"allowed_hosts": "*"})
    with contextlib.ExitStack() as owned:
        listening = owned.enter_context(_listening(local.host, local.port))
        files = str(owned.enter_context(folder_of_files()))
        metrics = temporary_folder(Path(tempfile.gettempdir(), "kt-metrics-"))
        os.environ[METRICS_FOLDER] = str(owned.enter_context(metrics))
        owned.callback(os.environ.pop, METRICS_FOLDER, None)

        def application():
            export = served_export(options)
            copy = owned.enter_context(private_copy(export))
            return functools.partial(_worker, options, copy, str(export.folder), files)

        config = uvicorn.Config(
            application(),
            factory=True,
            workers=local.processes,
            http=_Connection,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=round(options.request_timeout) + 5,
            timeout_worker_healthcheck=_HEALTH_SECONDS,
        )
        host = f"[{local.host}]" if ":" in local.host else local.host
        name, port = served_export(options).name, listening.getsockname()[1]
        print_message(f"http://{host}:{port}/v1/models/{name}")
        supervisor = _Supervisor(config, listening, application)
        supervisor.run()
        if not supervisor.is_told_to_stop:
            raise InputError(f"{options.model} is not served: a process cannot start, see above.")


class _Supervisor(Multiprocess):
    """Starts processes, again after they have died or hung, and in turn at SIGHUP.

    Args:
        config: What the processes run.
        listening: Socket that they share.
        application: Function that returns what they run from SIGHUP on.
    """

    def __init__(self, config, listening, application):
        super().__init__(config, [listening])
        self._application = application
        self.is_told_to_stop = False
        for number in _STOP:  # At once, also while processes are replaced.
            signal.signal(number, self._stop)

    def _stop(self, number, frame):
        if not self.is_told_to_stop:
            self.is_told_to_stop = True
            # In a thread, because this one may hold the lock of the event.
            threading.Thread(target=self._end).start()

    def _end(self):
        print_message("stopping; accepted requests are answered first")
        self.should_exit.set()

    def keep_subprocess_alive(self):
        for process in self.processes:  # Otherwise a death is noticed when its time is over.
            process.child_conn.close()
        super().keep_subprocess_alive()

    def handle_hup(self):
        """Replaces all processes, each when the new one has loaded; or keeps them all."""
        before, old = self.config.app, self.processes[-1]
        try:
            self.config.app = self._application()
        except InputError as error:
            print_message(f"{error} The served version stays.")
            return
        self.config.timeout_worker_healthcheck = _START_SECONDS
        super().handle_hup()
        self.config.timeout_worker_healthcheck = _HEALTH_SECONDS
        if self.processes[-1] is old and not self.is_told_to_stop:
            self.config.app = before
            print_message("The new version cannot start; the served version stays.")


class _Connection(HttpToolsProtocol):
    """A client's connection, which may send its first request when its process begins to end."""

    def shutdown(self):
        seconds = _FIRST_REQUEST_SECONDS if self.cycle is None else 0
        self.loop.call_later(seconds, self._end)

    def _end(self):
        if not self.transport.is_closing():
            super().shutdown()


def _worker(options, export, name, files):
    """Returns the application of a process, when it has loaded the model.

    Args:
        options: Options of the server.
        export: Private copy of the export.
        name: Path of the export, for messages.
        files: Folder for translated files.
    """
    for number in _STOP:  # A process that loads has accepted nothing, and ends at once.
        before = signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    started = last = time.monotonic()

    def report(text):
        nonlocal last
        if (now := time.monotonic()) - last > _REPORT_SECONDS:
            last = now
            print_message(f"{options.model}: {text} after {now - started:.0f} s")

    try:
        from keras_transformer.extras.serving.app import Api, application

        app = application(Api(export, options, files, report))
    except InputError as error:
        print_message(str(error).replace(str(export.folder), name))
        sys.exit(STARTUP_FAILURE)
    except Exception:
        traceback.print_exc()
        sys.exit(STARTUP_FAILURE)
    _remove_metrics_of_dead()
    for number in _STOP:
        signal.signal(number, before)
    print_message(f"{options.model} answers after {time.monotonic() - started:.1f} s")

    @contextlib.asynccontextmanager
    async def lifespan(app):
        yield
        os._exit(0)  # A thread that hangs would hold it up.

    app.router.lifespan_context = lifespan
    return app


def _end_with_parent():
    """Ends this process when its supervisor has died."""
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGTERM)


def _remove_metrics_of_dead():
    """Removes the gauges of processes that have ended."""
    from prometheus_client.multiprocess import mark_process_dead

    for path in Path(os.environ[METRICS_FOLDER]).glob("gauge_live*.db"):
        pid = int(re.search(r"\d+", path.stem)[0])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            mark_process_dead(pid)


def _listening(host, port):
    """Returns a socket at the address; raises `InputError` if the address is in use."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        is_taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = " Give another `port`." if is_taken else ""
        raise InputError(f"{host}:{port}: cannot be listened on: {reason}.{advice}") from None
    return listening


def _is_local(host):
    return host in ("localhost", "::1") or host.startswith("127.")


@contextlib.contextmanager
def private_copy(export):
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
