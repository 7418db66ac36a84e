"""Translates chunks of files with Ray Data: an engine per actor, here or on a cluster."""

import contextlib
import logging
import os
import secrets
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError, require
from keras_transformer.base.files import temporary_folder
from keras_transformer.extras.bulk.chunks import Worker, chunks_of
from keras_transformer.extras.bulk.options import BulkOptions

_STORE_BYTES = 256 * 2**20
_MAX_FAILURES = 3  # Number of times that a chunk is tried, because a worker may end.
_STOP_SECONDS = 30
# Ray reads its settings while it is imported.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives its workers low priority (15): any other program would starve them.
    "RAY_worker_niceness": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


@contextlib.contextmanager
def translated_over_ray(
    files: list[dict[str, Any]], worker: dict[str, Any], options: BulkOptions
) -> Iterator[Iterable[dict[str, Any]]]:
    """Yields the rows that actors `Worker(**worker)` make of the chunks of files.

    Raises:
        InputError: Ray cannot be started or joined, or workers repeatedly fail on a chunk.
    """
    threads = options.threads or 1
    workers = options.workers or max((os.cpu_count() or 1) // threads, 1)
    with _ray(options.ray_address, workers * threads):
        import ray

        rows = _rows(files, options.chunk_lines, {**worker, "threads": threads}, workers)
        try:
            yield rows
        # Errors of Ray, and of a worker that Ray passes on.
        except (ray.exceptions.RayError, RuntimeError) as error:
            cause = " ".join(str(getattr(error, "cause", None) or error).split())
            raise InputError(
                f"Workers failed {_MAX_FAILURES} times on a part of the text; translated parts "
                f"remain. Received: {cause[-300:]}"
            ) from None


def _ray(address, cpus):
    """Returns a context in which Ray is started on this machine, or connected to a cluster."""
    if address is None:
        return private_ray(cpus, _STORE_BYTES)
    ray = require("ray", "Ray", "cluster")
    try:
        return ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises no narrower class.
        raise InputError(f"The cluster {address} cannot be joined: {error}") from None


def _rows(files, chunk_lines, worker, workers):
    """Returns Ray Data's rows of translated chunks, for chunks that have no finished part."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # `translated_over_ray` makes one line of an error.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    # Ray deprecates this argument without a replacement.
    warnings.filterwarnings("ignore", message="`ray_remote_args`")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    # One chunk per block, so that a chunk is written as soon as it is translated.
    context.target_max_block_size = context.target_min_block_size = 1
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)

    chunks = ray.data.from_items(files, override_num_blocks=len(files)).flat_map(
        lambda file: chunks_of(file, chunk_lines),
        num_cpus=0,
        scheduling_strategy=this_node,
        max_retries=_MAX_FAILURES,
    )
    translated = chunks.map(
        Worker,
        fn_constructor_kwargs=worker,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=worker["threads"],
        # Limited, because a text may end its process each time.
        max_restarts=-1,
        max_task_retries=_MAX_FAILURES - 1,
    )
    return translated.iter_rows()


@contextlib.contextmanager
def private_ray(cpus: int, store_bytes: int) -> Iterator[None]:
    """Starts Ray on this machine for the context, for only this user.

    It listens on 127.0.0.1, sends no usage data and has no dashboard. Only this user can read its
    folder, which is removed at the end. A token keeps other users from submitting work.

    Args:
        cpus: Number of CPUs that Ray assigns.
        store_bytes: Size of the object store.

    Raises:
        InputError: Ray is not installed, or cannot be started.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    ray = require("ray", "Ray", "cluster")
    # Short, because a socket's path may have only 107 bytes. Ray opens its own folder to all users.
    start = Path(tempfile.gettempdir(), "kt-ray-")
    with temporary_folder(start) as folder:
        # Ray's processes inherit it: only the driver reacts to a signal to the process group.
        stop_signals = {signal.SIGTERM, signal.SIGINT}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop_signals)
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                object_store_memory=store_bytes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(folder / "ray"),
            )
        except Exception as error:  # Ray raises no narrower class.
            raise InputError(f"Ray cannot be started: {error}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield
        finally:
            # In a thread, because Ray waits for a minute if its processes have been killed.
            thread = threading.Thread(target=ray.shutdown, daemon=True)
            thread.start()
            thread.join(_STOP_SECONDS)
