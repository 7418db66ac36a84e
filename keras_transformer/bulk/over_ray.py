"""Translates chunks of files with Ray Data: an engine per actor, here or on a cluster."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from keras_transformer.bulk.chunks import Worker, chunks_of
from keras_transformer.bulk.options import BulkOptions
from keras_transformer.errors import InputError
from keras_transformer.ray_here import check_ray, private_ray

_STORE_BYTES = 256 * 2**20
_MAX_FAILURES = 3  # Number of times that a chunk is tried, because a worker may end.


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
    check_ray()
    import ray

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
