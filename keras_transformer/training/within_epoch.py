"""Checkpoints between the steps of an epoch, and how an epoch goes on from one of them."""

import json
import pathlib
import time
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.files import write_whole
from keras_transformer.training.hosts import ALONE, Host
from keras_transformer.training.run_folder import RunFolder, save_model

_KEEP = 2  # the last one, and the one before in case that is damaged
_MOST_STEPS = 100  # between two looks at the clock


class Place(NamedTuple):
    """Where in an epoch a checkpoint was made, and what Keras does not save with a model."""

    epoch: int  # epochs that are whole
    step: int  # batches of the next one that have passed
    seconds: float  # that these took
    metrics: list  # the sums and counts of loss, accuracy and perplexity so far
    seeds: list  # the states of the generators

    @classmethod
    def load(cls, checkpoint: pathlib.Path) -> "Place":
        """The place of `step-….keras`, from the file beside it.

        Raises:
            InputError: It is missing or damaged.
        """
        file = checkpoint.with_suffix(".json")
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise InputError(f"{file}: cannot be read.") from None


class StepCheckpoints(keras.callbacks.Callback):
    """Saves the whole state every few minutes within an epoch.

    Args:
        minutes: Between two checkpoints, or None for none.
        place: Where the one epoch of this `fit` goes on, whose data begins with that step.
        host: This one. All save at the steps of the first one's clock: the state is everyone's.
    """

    def __init__(
        self,
        folder: RunFolder,
        minutes: float | None,
        place: Place | None = None,
        host: Host = ALONE,
    ):
        super().__init__()
        self.folder, self.minutes, self.place, self.host = folder, minutes, place, host

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._before, self._began = epoch, 0, time.monotonic()
        self._saved, self._sums = self._began, None
        self._saved_at, self._look_at = 0, 0
        if self.place is not None:
            self._before, self._began = self.place.step, self._began - self.place.seconds
            self._sums = self.place.metrics
            for variable, value in zip(seed_states(self.model), self.place.seeds, strict=True):
                variable.assign(np.array(value, keras.backend.standardize_dtype(variable.dtype)))

    def on_train_batch_end(self, batch, logs=None):
        if self._sums is not None:
            # Keras makes the metrics' variables in the first step. All are sums from 0, so what
            # was before is added after it.
            self._synced()
            for variable, value in zip(self.model.metrics_variables, self._sums, strict=True):
                variable.assign_add(value)
            self._sums = None
        now = time.monotonic()
        # After the last step comes the epoch's own checkpoint; Keras knows no epoch without a step.
        is_last = batch + 1 == self.params["steps"]
        if self.minutes is None or is_last or batch < self._look_at:
            return
        # Not at every step: each host would have to wait for the first one.
        steps = self.host.agree(self._steps_to_look(now, batch + 1 - self._saved_at))
        if steps:
            self._look_at = batch + steps
            return
        self._synced()
        step = self._before + batch + 1
        place = Place(
            self._epoch,
            step,
            now - self._began,
            [np.asarray(variable).tolist() for variable in self.model.metrics_variables],
            [np.asarray(variable).tolist() for variable in seed_states(self.model)],
        )
        file = self.folder.step_file(self._epoch, step)
        write_whole(file.with_suffix(".json"), json.dumps(place._asdict()))
        save_model(self.model, file)
        self.folder.remove_step_files(keep=self.folder.step_files()[-_KEEP:])
        self._saved, self._saved_at = time.monotonic(), batch + 1

    def _steps_to_look(self, now, steps):
        """Half of the steps that are left until a checkpoint, by the time that `steps` took."""
        seconds = now - self._saved
        left = 60 * self.minutes - seconds
        if left <= 0:
            return 0
        return min(max(1, int(left * steps / max(seconds, 1e-9) / 2)), _MOST_STEPS)

    def _synced(self):
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()


def seed_states(model: keras.Model) -> list[keras.Variable]:
    """The states of a model's random generators."""
    return [v for v in model.variables if v.path.endswith("seed_generator_state")]
