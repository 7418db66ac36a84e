"""Training on several hosts through `keras.distribution`; each host has its rows of a batch.

It needs Keras' JAX backend: TensorFlow's `MultiWorkerMirroredStrategy` does not work with `fit` in
Keras 3. All hosts compute the same steps on the same global batches. The first host's run folder is
the run; the other hosts write to temporary folders.
"""

import atexit
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile
import time
from typing import Any

import keras

from keras_transformer.base.errors import InputError, TrainingError
from keras_transformer.base.files import temporary_folder
from keras_transformer.engine.model_engine import engine_of

_CONNECTION = re.compile(r"Gloo|NCCL")
_ADDRESS = re.compile(r"[^\s,:]+:\d{1,5}")
# After this silence a host counts as ended, and the other hosts end.
_SILENCE_SECONDS = 40
_GOODBYE_SECONDS = 5


@dataclasses.dataclass(frozen=True)
class Host:
    """This host in a training on several hosts; by default the only host.

    Args:
        index: Index of this host, from 0; the first host writes the run folder.
        count: Number of hosts.
        shards: Number of parts of a batch's rows on all hosts: one part per device.
    """

    index: int = 0
    count: int = 1
    shards: int = 1

    def folder(self, output: str | os.PathLike, resume: bool) -> pathlib.Path:
        """Returns the folder to write: `output` on the first host, a temporary copy on others."""
        path = pathlib.Path(output)
        if self.index:
            stack = contextlib.ExitStack()
            atexit.register(stack.close)
            start = pathlib.Path(tempfile.gettempdir(), "keras_transformer_host-")
            path = stack.enter_context(temporary_folder(start)) / "run"
            if resume and pathlib.Path(output).is_dir():
                shutil.copytree(output, path)
        if self.count > 1:
            from jax.experimental import multihost_utils

            # The other hosts must have read the folder before the first host tidies it up.
            multihost_utils.sync_global_devices("the run folder has been read")
        return path

    def engine(self, model: keras.Model, *tokenizers: Any, **options: Any) -> Any:
        """Returns an engine of a model in training that computes only on this host."""
        make_engine = engine_of if keras.distribution.distribution() is None else _LocalEngine
        return make_engine(model, *tokenizers, **options)

    @contextlib.contextmanager
    def convert_peer_errors(self):
        """Translates JAX's errors about a host that has ended.

        Raises:
            TrainingError: Another host has ended, or cannot be reached.
        """
        if self.count == 1:
            yield
            return
        import jax

        try:
            yield
            self._leave()
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            # Errors of the connection have either class.
            if isinstance(error, ValueError) and not _CONNECTION.search(str(error)):
                raise
            raise TrainingError(
                f"training stopped on host {self.index} of {self.count}: another host has ended, "
                "or cannot be reached. Start all hosts again with --resume. "
                f"({str(error).strip().splitlines()[0]:.200})"
            ) from None

    def _leave(self):
        """Ends the connection, on the first host last, because its end would end the others."""
        import jax
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("the training has ended")
        if self.index:
            jax.distributed.shutdown()
        else:
            time.sleep(_GOODBYE_SECONDS)


SINGLE_HOST = Host()


class _LocalEngine:
    """Searches with a copy of the model, whose weights are only on this host's devices."""

    def __init__(self, model, *tokenizers, **options):
        self._trained = model
        with _on_this_host():
            local_model = type(model)(model.config, dtype=model.dtype_policy)
            self._engine = engine_of(local_model, *tokenizers, **options)
        self.source_tokenizer, self.target_tokenizer = tokenizers

    def translate(self, *arguments, **options):
        with _on_this_host():
            self._engine.model.set_weights(self._trained.get_weights())
            return self._engine.translate(*arguments, **options)


@contextlib.contextmanager
def _on_this_host():
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)


def join_hosts(hosts: str, index: int | None = None) -> Host:
    """Connects this process with the other hosts of a training, before anything is computed.

    All devices of all hosts take part, each with its rows of a batch.

    Args:
        hosts: `host:port,host:port,…`, the same on all hosts, which connect to the first address;
            or `auto` to ask the launcher (Slurm, Open MPI, Kubernetes, Cloud TPU).
        index: Index of this host in `hosts`, from 0; None with `auto`.

    Raises:
        InputError: The backend is not JAX, an address or the index is invalid, or the hosts did not
            connect.
    """
    if keras.backend.backend() != "jax":
        raise InputError(
            "Several hosts train on Keras' JAX backend: set KERAS_BACKEND=jax (TensorFlow's "
            "MultiWorkerMirroredStrategy does not work with `fit` in Keras 3). Received: "
            f"backend={keras.backend.backend()!r}."
        )
    import jax

    _meet(hosts, {} if hosts == "auto" else _addresses(hosts, index))
    # Every host makes its own rows, so that Keras must not divide batches.
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    # Initial weights must be the same on all hosts, even if a checkpoint replaces them.
    keras.utils.set_random_seed(1)
    return Host(jax.process_index(), jax.process_count(), jax.device_count())


def _meet(hosts, options):
    import jax

    # The service would swallow SIGTERM, which may end a training, because it has its checkpoints.
    jax.config.update("jax_enable_preemption_service", False)
    # Without it, JAX aborts this process when another host ends, before our error message.
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(
            **options,
            heartbeat_timeout_seconds=_SILENCE_SECONDS,
            shutdown_timeout_seconds=_GOODBYE_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        reason = f"the hosts did not meet: {str(error).strip().splitlines()[0]:.300}"
        advice = " Without a launcher, give the address of each host." if hosts == "auto" else ""
        raise InputError(f"--hosts {hosts}: {reason}{advice}") from None


def _addresses(hosts, index):
    addresses = hosts.split(",")
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise InputError(
                "--hosts must be addresses host:port separated by commas, or auto. "
                f"Received: {address!r}."
            )
    if index is None or not 0 <= index < len(addresses):
        raise InputError(
            f"--host-index must be 0 to {len(addresses) - 1}, this host's place in --hosts. "
            f"Received: {index}."
        )
    return dict(coordinator_address=addresses[0], num_processes=len(addresses), process_id=index)
