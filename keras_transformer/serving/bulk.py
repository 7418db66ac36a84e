"""Translates files with Ray Data: an engine per actor, on this machine or on a cluster."""

import contextlib
import logging
import os
import warnings
from collections.abc import Sequence
from typing import Any

from keras_transformer.engine import bulk
from keras_transformer.engine.bulk import (
    MAX_FAILURES,
    Mapper,
    Records,
    Worker,
    chunks_of,
)
from keras_transformer.errors import InputError
from keras_transformer.serving.server_options import BulkOptions

_STORE_BYTES = 256 * 2**20


def translate_corpus(
    model: str | os.PathLike,
    inputs: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    records: Records = "text",
    with_ray: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Translates text files with Ray Data, or in this process; see `engine.bulk.translate_corpus`.

    Args:
        model: Path of a run folder or an export, the same on all machines of the cluster.
        inputs: Paths of the files, read on this machine.
        output: Folder to make.
        records: What is written of each line.
        with_ray: False translates in this process, by default with all cores.
        **options: Fields of `serving.server_options.BulkOptions`, and options of
            `Translator.translate`.
    """
    names_of_bulk = BulkOptions.model_fields.keys() & options.keys()
    bulk_options = BulkOptions(**{name: options.pop(name) for name in names_of_bulk})
    mapper = RayMapper(bulk_options) if with_ray else Mapper(bulk_options.threads)
    return bulk.translate_corpus(
        model, inputs, output, records, mapper, bulk_options.chunk_lines, **options
    )


class RayMapper(Mapper):
    """Translates chunks in actors of Ray Data; see `engine.bulk.Mapper`."""

    def __init__(self, options: BulkOptions):
        threads = options.threads or 1
        super().__init__(threads)
        self._workers = options.workers or max((os.cpu_count() or 1) // threads, 1)
        self._address = options.ray_address

    @property
    def failures(self) -> tuple[type[BaseException], ...]:
        """Errors of Ray, and of a worker that Ray passes on."""
        import ray

        return ray.exceptions.RayError, RuntimeError

    @contextlib.contextmanager
    def rows(self, files, chunk_lines, worker):
        with _ray(self._address, self._workers * worker["threads"]):
            yield _translated(files, chunk_lines, worker, self._workers)


def _ray(address, cpus):
    """Returns a context in which Ray is started on this machine, or connected to a cluster."""
    from keras_transformer.serving.local import check_ray, private_ray

    if address is None:
        return private_ray(cpus, _STORE_BYTES)
    check_ray()
    import ray

    try:
        return ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises no narrower class.
        raise InputError(f"The cluster {address} cannot be joined: {error}") from None


def _translated(files, chunk_lines, engine, workers):
    """Returns Ray Data's rows of translated chunks, for chunks that have no finished part."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # `engine.bulk` makes one line of an error.
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
        max_retries=MAX_FAILURES,
    )
    translated = chunks.map(
        Worker,
        fn_constructor_kwargs=engine,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=engine["threads"],
        # Limited, because a text may end its process each time.
        max_restarts=-1,
        max_task_retries=MAX_FAILURES - 1,
    )
    return translated.iter_rows()
