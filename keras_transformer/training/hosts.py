"""Training on several hosts at once, each with its rows of every batch, through `keras.distribution`.

On Keras' JAX backend alone: TensorFlow's `MultiWorkerMirroredStrategy` does not go with `fit` in
Keras 3. All hosts do the same on the same global batches; the first one's run folder is the run, the
others have one of their own that is removed in the end.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any

import keras

from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import InputError, TrainingError
from keras_transformer.models import Transformer

_ADDRESS = re.compile(r"[^\s,:]+:\d{1,5}")
# A host that is silent for so long has ended, and the others end.
_SILENCE_SECONDS = 30
_GOODBYE_SECONDS = 5


@dataclasses.dataclass(frozen=True)
class Host:
    """One of the hosts of a training, by default the only one.

    Args:
        index: From 0; the first one writes the run folder.
        count: Of all hosts.
    """

    index: int = 0
    count: int = 1

    def folder(self, output: str | os.PathLike, resume: bool) -> pathlib.Path:
        """Where this host writes: `output`, or a copy of its own of what is there to resume."""
        path = pathlib.Path(output)
        if self.index:
            path = pathlib.Path(tempfile.mkdtemp(prefix="keras_transformer_host")) / "run"
            if resume and pathlib.Path(output).is_dir():
                shutil.copytree(output, path)
        if self.count > 1:
            from jax.experimental import multihost_utils

            # The first host tidies the folder up before it goes on.
            multihost_utils.sync_global_devices("the run folder has been read")
        return path

    def engine(self, model: Transformer, *arguments: Any) -> ModelEngine:
        """A `ModelEngine` of a model in training, for this host alone."""
        return (ModelEngine if self.count == 1 else _OwnEngine)(model, *arguments)

    @contextlib.contextmanager
    def errors_of_others(self):
        """Says that another host has ended, where that is why a step cannot be made.

        Raises:
            TrainingError: Instead of what JAX raises.
        """
        if self.count == 1:
            yield
            return
        import jax

        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            raise TrainingError(
                f"training stopped on host {self.index} of {self.count}: another host has ended, "
                "or cannot be reached. Start all of them again with --resume. "
                f"({str(error).strip().splitlines()[0]:.200})"
            ) from None


class _OwnEngine(ModelEngine):
    """Searches with a copy of the model, whose weights are on this host's devices alone."""

    def __init__(self, model, *arguments):
        self._trained = model
        with _on_this_host():
            super().__init__(Transformer(model.config, dtype=model.dtype_policy), *arguments)

    def translate(self, *arguments, **options):
        with _on_this_host():
            self.model.set_weights(self._trained.get_weights())
            return super().translate(*arguments, **options)


@contextlib.contextmanager
def _on_this_host():
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(distribution)


def join_hosts(hosts: str, index: int | None = None) -> Host:
    """Connects this process with the others of a training; before anything is computed.

    Args:
        hosts: `host:port,host:port,…`, the same on all of them; the first one is where all meet.
            `auto`: as the launcher's environment says (Slurm, Open MPI, Kubernetes, Cloud TPU).
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
    options = {} if hosts == "auto" else _addresses(hosts, index)
    import jax

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
    # Every host makes its own rows; nothing is left to Keras to divide.
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    return Host(jax.process_index(), jax.process_count())


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
    return dict(
        coordinator_address=addresses[0], num_processes=len(addresses), process_id=index
    )
