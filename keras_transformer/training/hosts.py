"""Training on several hosts at once through `keras.distribution`, each with its rows of a batch.

Only on Keras' JAX backend: TensorFlow's `MultiWorkerMirroredStrategy` does not go with `fit` in
Keras 3. All hosts compute the same steps on the same global batches. The first one's run folder
is the run; the others write to temporary folders.
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
import numpy as np

from keras_transformer.engine.model_engine import engine_of
from keras_transformer.errors import InputError, TrainingError
from keras_transformer.locks import held_folder

_CONNECTION = re.compile(r"Gloo|NCCL")
_ADDRESS = re.compile(r"[^\s,:]+:\d{1,5}")
# A host that is silent for so long has ended, and the others end.
_SILENCE_SECONDS = 40
_GOODBYE_SECONDS = 5


@dataclasses.dataclass(frozen=True)
class Host:
    """This host among those of a training, by default the only one.

    Args:
        index: From 0; the first one writes the run folder.
        count: Number of hosts.
        shards: Parts of a batch's rows, over all hosts: one a device that computes by itself.
    """

    index: int = 0
    count: int = 1
    shards: int = 1

    def folder(self, output: str | os.PathLike, resume: bool) -> pathlib.Path:
        """Returns the folder to write: `output`, or a temporary copy on all but the first host."""
        path = pathlib.Path(output)
        if self.index:
            held = contextlib.ExitStack()
            atexit.register(held.close)
            start = pathlib.Path(tempfile.gettempdir(), "keras_transformer_host-")
            path = held.enter_context(held_folder(start, 0o700)) / "run"
            if resume and pathlib.Path(output).is_dir():
                shutil.copytree(output, path)
        if self.count > 1:
            from jax.experimental import multihost_utils

            # The first host tidies the folder up before it goes on.
            multihost_utils.sync_global_devices("the run folder has been read")
        return path

    def agree(self, number: int) -> int:
        """Returns the first host's number, so that all act at one step; all wait for it."""
        if self.count == 1:
            return number
        from jax.experimental import multihost_utils

        return int(multihost_utils.broadcast_one_to_all(np.array(number)))

    def engine(self, model: keras.Model, *tokenizers: Any, **options: Any) -> Any:
        """Returns an engine around a model in training that computes only on this host."""
        is_whole = keras.distribution.distribution() is None
        return (engine_of if is_whole else _OwnEngine)(model, *tokenizers, **options)

    @contextlib.contextmanager
    def translate_peer_failures(self):
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
            # The connection's errors come as either, by where JAX met them.
            if isinstance(error, ValueError) and not _CONNECTION.search(str(error)):
                raise
            raise TrainingError(
                f"training stopped on host {self.index} of {self.count}: another host has ended, "
                "or cannot be reached. Start all of them again with --resume. "
                f"({str(error).strip().splitlines()[0]:.200})"
            ) from None

    def _leave(self):
        """Ends the connection, the first host last: its end is the others' end."""
        import jax
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("the training has ended")
        if self.index:
            jax.distributed.shutdown()
        else:
            time.sleep(_GOODBYE_SECONDS)


SINGLE_HOST = Host()


class _OwnEngine:
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
    """Connects this process with the others of a training, before anything is computed.

    All devices of all hosts take part, each with its rows of a batch.

    Args:
        hosts: `host:port,host:port,…`, equal on all of them; they meet at the first one. `auto`:
            from the launcher (Slurm, Open MPI, Kubernetes, Cloud TPU).
        index: This one's place in `hosts`, from 0. None with `auto`.

    Raises:
        InputError: The backend is not JAX; an address or the index is not what it must be; the
            hosts did not meet.
    """
    if keras.backend.backend() != "jax":
        raise InputError(
            "Several hosts train on Keras' JAX backend: set KERAS_BACKEND=jax (TensorFlow's "
            "MultiWorkerMirroredStrategy does not go with `fit` in Keras 3). Received: "
            f"backend={keras.backend.backend()!r}."
        )
    import jax

    _meet(hosts, {} if hosts == "auto" else _addresses(hosts, index))
    # Every host makes its own rows; nothing is left to Keras to divide.
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    # Random weights, before a checkpoint is read into them, must be equal on all hosts.
    keras.utils.set_random_seed(1)
    return Host(jax.process_index(), jax.process_count(), jax.device_count())


def _meet(hosts, options):
    import jax

    # It would swallow SIGTERM, after which a training may end: it has its checkpoints.
    jax.config.update("jax_enable_preemption_service", False)
    # It would abort this process when another one ends, before a word of ours.
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(
            **options,
            heartbeat_timeout_seconds=_SILENCE_SECONDS,
            shutdown_timeout_seconds=_GOODBYE_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"--hosts {hosts}: the hosts did not meet: {str(error).strip().splitlines()[0]:.300}"
        ) from None


def _addresses(hosts, index):
    addresses = hosts.split(",")
    for address in addresses:
        if not _ADDRESS.fullmatch(address):
            raise InputError(
                "--hosts must be addresses host:port with commas between them, or auto. "
                f"Received: {address!r}."
            )
    if index is None or not 0 <= index < len(addresses):
        raise InputError(
            f"--host-index must be 0 to {len(addresses) - 1}, this host's place in --hosts. "
            f"Received: {index}."
        )
    return dict(coordinator_address=addresses[0], num_processes=len(addresses), process_id=index)
