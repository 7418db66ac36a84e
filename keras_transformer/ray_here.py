"""Ray on this machine, for the server and for the translation of files (extra `serve`)."""

import contextlib
import importlib.util
import logging
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from keras_transformer.errors import InputError, missing_package
from keras_transformer.files import temporary_folder

_NEEDED = ("ray", "starlette", "python_multipart", "uvicorn", "fastapi", "psutil")
# Smallest object store that Ray allows: requests are far smaller, and small requests do not use it.
_OBJECT_STORE_BYTES = 100 * 2**20
_STOP_SECONDS = 30
# Ray's time limit of 30 s for its processes may be too short while other programs use all cores.
_STARTS = 2
# Ray reads its settings while it is imported.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives its workers low priority (15): any other program would starve a server.
    "RAY_worker_niceness": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


def check_ray() -> None:
    """Raises `InputError` if the extra `serve` is not installed."""
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise missing_package("Ray Serve", ", ".join(missing), "serve")


@contextlib.contextmanager
def private_ray(
    cpus: int | None = None,
    store_bytes: int = _OBJECT_STORE_BYTES,
    metrics_port: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Starts Ray on this machine for the context, for only this user.

    It listens on 127.0.0.1 (its metrics on all networks), sends no usage data, has no dashboard,
    and prints nothing to stdout. Only this user can read its folder, which is removed at the end. A
    token keeps other users from submitting work.

    Args:
        cpus: Number of CPUs that Ray assigns; by default the machine's.
        store_bytes: Size of the object store.
        metrics_port: Port of the metrics for Prometheus.
        settings: Further environment variables of Ray's, where they are not set.

    Raises:
        InputError: Ray is not installed, or cannot be started.
    """
    check_ray()
    for name, value in {**_SETTINGS, **(settings or {})}.items():
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
