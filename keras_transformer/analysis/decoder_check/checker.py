"""Results of checks as they run, and the sentences that they share."""

from typing import Any

import numpy as np

from keras_transformer.analysis.decoder_check.calls import (
    Difference,
    LayerCall,
    ModelCalls,
    recorded_calls,
)
from keras_transformer.analysis.decoder_check.inputs import Ids
from keras_transformer.analysis.decoder_check.report import DecoderCheck


class Checker:
    """Collects results; later causes use what earlier checks found.

    Args:
        calls: `ModelCalls` of the model to check.
        side: Side of a sentence where padding is.

    Attributes:
        checks: Results so far.
        ids: Sentences without padding.
        expected: Outputs for `ids`.
        seen: Bool `(position, position)`: does the output of the row depend on the token of the
            column?
        reads_other_sentences: True if outputs depend on other sentences of the batch.
        changes_weights: True if a call at inference changes variables.
    """

    def __init__(self, calls: ModelCalls, side: str):
        self.checks: list[DecoderCheck] = []
        self.calls, self.inputs, self.side = calls, calls.inputs, side
        self.target = calls.inputs.target
        self.ids = self.inputs.sentences()
        self.expected = calls(self.ids)
        self.reads_other_sentences = self.changes_weights = False
        self.seen = np.zeros((0, 0), bool)

    def __getitem__(self, name: str) -> DecoderCheck:
        return {check.name: check for check in self.checks}[name]

    def passed(self, name: str, difference: float | None = None) -> None:
        self.checks.append(DecoderCheck(name, "passed", difference=difference))

    def skipped(self, name: str, reason: str) -> None:
        self.checks.append(DecoderCheck(name, "skipped", reason))

    def failed(
        self,
        name: str,
        message: str,
        cause: str = "",
        input_name: str | None = None,
        difference: Difference | None = None,
    ) -> None:
        place, size = (difference.place, difference.largest) if difference else (None, None)
        check = DecoderCheck(name, "failed", message, cause, input_name, place, size)
        self.checks.append(check)

    def call(self, ids: Ids, training: bool = False) -> np.ndarray:
        """Calls the model, and undoes what the call changed, such as moving averages."""
        outputs = self.calls(ids, training)
        if self.changes_weights or training:
            self.calls.restore()
        return outputs

    def recorded(self, ids: Ids, training: bool = False) -> list[LayerCall]:
        """Calls the model, and returns what its layers received."""
        with recorded_calls(self.calls.layers) as calls:
            self.calls(ids, training)
        self.calls.restore()
        return calls

    def changed(self, ids: Ids, name: str, places: Any) -> Ids:
        """Returns ids with another token in each place of an index `(row, position)`."""
        changed = ids[name].copy()
        changed[places] = self.inputs.draw(changed[places].shape, changed[places])
        return {**ids, name: changed}


def scale(outputs: np.ndarray) -> float:
    """Returns the largest absolute output, or 1 if all are 0."""
    return float(np.abs(outputs[np.isfinite(outputs)]).max(initial=0.0)) or 1.0


def largest_difference(calls: ModelCalls, outputs: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference of two outputs."""
    return float(calls.distance(outputs, expected).max())


def at(difference: Difference) -> str:
    """Describes where outputs differ and by how much."""
    row, position = difference.place
    if not np.isfinite(difference.largest):
        return f"NaN, first at ({row}, {position})"
    share = f"{difference.share:.0%}" if difference.share >= 0.01 else f"{difference.share:.1g}"
    of = f"{share} of the largest output"
    return f"first at ({row}, {position}), by up to {difference.largest:.2g}, {of}"
