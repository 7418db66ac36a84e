"""State of a training within an epoch, in the JSON file next to a checkpoint."""

import json
import pathlib
import re
from typing import Any, NamedTuple

from keras_transformer.files import write_whole
from keras_transformer.reading import readable


class MidEpochState(NamedTuple):
    """The step from which training continues, and state that Keras does not save with a model.

    Attributes:
        epoch: Number of complete epochs before the step.
        step: Number of earlier batches of the next epoch; 0 at the start of an epoch.
        seconds: Seconds that these batches took.
        metrics: Values of the metrics' variables: sums and counts so far.
        seeds: States of the random generators.
    """

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    metrics: list[Any] = []
    seeds: list[Any] = []

    @classmethod
    def load(cls, checkpoint: pathlib.Path) -> "MidEpochState":
        """Reads the state of `step-….keras` from the JSON file next to it.

        Raises:
            InputError: The file is missing or damaged.
        """
        file = checkpoint.with_suffix(".json")
        with readable(file, "the state of a checkpoint"):
            state = cls(**json.loads(file.read_bytes()))
            if [state.epoch, state.step] != epoch_and_step(checkpoint):
                raise ValueError(f"it is of epoch {state.epoch}, step {state.step}")
            return state

    def save(self, checkpoint: pathlib.Path) -> None:
        """Writes the state to the JSON file next to `step-….keras`."""
        write_whole(checkpoint.with_suffix(".json"), json.dumps(self._asdict()))


def epoch_and_step(checkpoint: pathlib.Path) -> list[int]:
    """Returns the numbers in a checkpoint's name to sort by: as text, 10000 is below 9999."""
    return [int(number) for number in re.findall(r"\d+", checkpoint.stem)]
