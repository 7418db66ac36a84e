"""Compares decoding step by step, as `decoding.search` does, with one full pass."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.analysis.decoder_check.calls import Difference, ModelCalls
from keras_transformer.analysis.decoder_check.inputs import Ids

LOST_TOKENS = (
    "The cache loses earlier tokens: it is written at the wrong index, or the mask of the steps "
    "hides them."
)
RESTARTED = "Positions restart in cached steps: each step has the position of the first token."
EMPTY_PLACES = (
    "The cache is read at another index than it is written: empty or old places are attended to."
)
POSITIONS = "Positions in cached steps differ from the full pass: restarted or shifted."
FIRST_STEP = (
    "The first step differs already: its position does not start at 0, the cache is written at the "
    "wrong index, or empty places are attended to."
)
LATER_STEPS = (
    "Later steps differ: positions are counted otherwise, or empty places of the cache are "
    "attended to."
)
SOURCE_MASK = "The cache lacks the padding mask of the source: cached steps attend to padding."
TILED = "Rows of the cache belong to other sentences: `tile` where beams need `repeat`."
REORDER = "`reorder` leaves a tensor of the cache as it is, or moves its rows to other hypotheses."

_MAX_STEPS = 6


class CachedSteps:
    """Runs a `SearchModel` step by step on known tokens.

    Args:
        model: `SearchModel` whose steps are checked.
        calls: `ModelCalls` of the model whose full pass is expected.
    """

    def __init__(self, model: Any, calls: ModelCalls):
        self._model, self._calls = model, calls
        self._inputs = calls.inputs

    def shortened(self, ids: Ids) -> Ids:
        """Returns the ids with few target tokens: a step takes as long as a full pass."""
        target = self._inputs.target
        if target in self._inputs.fixed:
            return ids
        return {**ids, target: ids[target][:, :_MAX_STEPS]}

    def logits(self, ids: Ids, beams: int = 1, parents: np.ndarray | None = None) -> np.ndarray:
        """Computes logits of all steps, float64 `(batch, beams, length, vocabulary)`.

        Args:
            ids: Inputs; the target is `(batch * beams, length)`.
            beams: Number of hypotheses per sentence.
            parents: Int `(batch, beams)`, the hypotheses to continue after half of the steps.
        """
        model, target = self._model, ids[self._inputs.target]
        length = target.shape[1]
        target = target.reshape(-1, beams, length)
        sources = [ids[name] for name in self._inputs.sources]
        # A decoder without a source gets the number of texts.
        source = sources[0] if sources else target[:, 0, :1]
        half = length // 2
        is_extendable = getattr(model, "is_extendable", False)
        capacity = half if is_extendable and half else length
        cache = model.start_decoding(ops.convert_to_tensor(source), capacity, beams)
        step = self._step()
        outputs = []
        for position in range(length):
            if position == half and capacity < length:
                cache = model.extended(cache, length)
            if position == half and parents is not None:
                cache = model.reorder(cache, ops.convert_to_tensor(parents.astype("int32")))
            logits, cache = step(ops.convert_to_tensor(target[:, :, position]), cache)
            outputs.append(np.array(ops.convert_to_numpy(ops.cast(logits, "float32"))))
        return np.stack(outputs, axis=2).astype("float64")

    def _step(self):
        if not hasattr(self._model, "step_function"):
            return self._model.step
        return self._model.step_function(self._model.step_weights())

    def compare(self, ids: Ids, logits: np.ndarray) -> Difference | None:
        """Compares the logits of steps with the full pass."""
        return self._calls.compare(centered(logits), centered(self._calls(ids)))

    def cause(self, ids: Ids, difference: Difference) -> str:
        """Returns the likely cause of a difference for sentences without padding."""
        target = self._inputs.target
        for position in (0, 1):
            changed = {**ids, target: ids[target].copy()}
            column = ids[target][:, position]
            changed[target][:, position] = self._inputs.draw(column.shape, column)
            is_read, is_read_in_steps = (
                self._changes(compute, ids, changed)
                for compute in (self._calls, lambda ids: self.logits(ids)[:, 0])
            )
            if (is_read & ~is_read_in_steps)[:, position + 1 :].any():
                return LOST_TOKENS
        return self._cause_of_positions(ids, difference)

    def _changes(self, compute, ids, changed):
        expected = compute(ids)
        distance = self._calls.distance(compute(changed), expected)
        return distance > self._calls.tolerance(expected, same_shapes=True)

    def _cause_of_positions(self, ids, difference):
        # Without positions, steps that read the same token again and again are equal.
        target = self._inputs.target
        same = {**ids, target: np.repeat(ids[target][:, :1], ids[target].shape[1], axis=1)}
        full_varies, steps_vary = (
            self._calls.compare(outputs, np.repeat(outputs[:, :1], outputs.shape[1], axis=1))
            is not None
            for outputs in (self._calls(same), self.logits(same)[:, 0])
        )
        if full_varies and not steps_vary:
            return RESTARTED
        if steps_vary and not full_varies:
            return EMPTY_PLACES
        if not steps_vary:
            return POSITIONS
        return FIRST_STEP if difference.place[1] == 0 else LATER_STEPS

    def compare_beams(self, ids: Ids) -> tuple[Difference, str] | None:
        """Compares the steps of two hypotheses per sentence, which are reordered on their way.

        Returns:
            The difference and its likely cause; None if there is no difference.
        """
        target, batch, beams = self._inputs.target, self._inputs.batch, 2
        length = ids[target].shape[1]
        hypotheses = self._inputs.draw((batch, beams, length))
        sentences = {**ids, target: hypotheses.reshape(-1, length)}
        parents = np.array([[1, 0], [1, 1], [0, 0]])[np.arange(batch) % 3]
        kept = np.take_along_axis(hypotheses, parents[:, :, None], axis=1)
        half = length // 2
        moved = np.concatenate([kept[..., :half], hypotheses[..., half:]], axis=2)
        is_late = np.arange(length)[None] >= half
        difference = self._of_beams(sentences, moved, parents, is_late)
        if difference is None:
            return None
        every = np.ones((1, length), bool)
        alike = self._of_beams(sentences, hypotheses, None, every) is None
        return difference, REORDER if alike else TILED

    def _of_beams(self, sentences, hypotheses, parents, where):
        target, beams = self._inputs.target, hypotheses.shape[1]
        steps = centered(self.logits(sentences, beams, parents))
        for beam in range(beams):
            expected = centered(self._calls({**sentences, target: hypotheses[:, beam]}))
            difference = self._calls.compare(steps[:, beam], expected, where)
            if difference is not None:
                return difference
        return None


def centered(logits: np.ndarray) -> np.ndarray:
    """Subtracts the median over the vocabulary: a search ignores a constant."""
    return logits - np.median(logits, axis=-1, keepdims=True)
