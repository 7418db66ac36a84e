"""Checks of what outputs depend on: later tokens, earlier tokens and other sentences."""

import keras
import numpy as np

from keras_transformer.analysis.decoder_check import causes
from keras_transformer.analysis.decoder_check.calls import Difference
from keras_transformer.analysis.decoder_check.checker import Checker, at, largest_difference, scale

_MAX_PLACES = 16  # Positions of a long input whose tokens are changed.


class DependenceChecker(Checker):
    """Changes tokens and sentences, and compares outputs of the same shapes."""

    def _repeated_calls(self):
        again = self.calls(self.ids)
        changed = self.calls.changed_variables()
        self.changes_weights = bool(changed)
        self.calls.restore()
        seeds = [variable for variable in changed if "seed" in variable.path]
        weights = [variable for variable in changed if "seed" not in variable.path]
        difference = self.calls.compare(again, self.expected, same_shapes=True)
        if difference is not None:
            # Outputs are the same again after the state is restored, unless they are random.
            cause = causes.STATE if weights and not seeds else causes.RANDOM
            message = f"A second call with the same ids differs: {at(difference)}."
            self.failed("repeated calls", message, cause, self.target, difference)
            self.skipped("other checks", "need outputs that are the same in each call")
            return False
        if not np.isfinite(self.expected).all():
            row, position = map(int, np.argwhere(~np.isfinite(self.expected).all(-1))[0])
            missing = Difference((row, position), np.inf, np.inf)
            message = f"Outputs are NaN or infinite, first at ({row}, {position})."
            if np.isnan(self.expected).any():
                self.failed("repeated calls", message, causes.NOT_FINITE, None, missing)
                self.skipped("other checks", "need outputs that are numbers")
                return False
        self.passed("repeated calls", largest_difference(self.calls, again, self.expected))
        if weights:
            names = ", ".join(f"`{variable.path}`" for variable in weights[:2])
            message = f"A call at inference changes {len(weights)} variables, such as {names}."
            is_average = any("moving" in variable.path for variable in weights)
            cause = causes.BATCH_STATISTICS if is_average else causes.STATE
            self.failed("unchanged weights", message, cause)
        else:
            self.passed("unchanged weights")
        return True

    def _measure_other_sentences(self):
        """Changes one sentence after the other, and compares the outputs of all others."""
        rows = np.arange(self.inputs.batch)
        self._mates: list[tuple[int, np.ndarray]] = []
        for row in rows:
            changed = self.ids
            for name in self.ids:
                changed = self.changed(changed, name, np.s_[row : row + 1])
            outputs = self.call(changed)
            others = (rows != row)[:, None] & np.ones(outputs.shape[:2], bool)
            self._mates.append((int(row), self.calls.distance(outputs, self.expected, others)))
        limit = self.calls.tolerance(self.expected, same_shapes=True)
        self.reads_other_sentences = any((distance > limit).any() for _, distance in self._mates)

    def _future_tokens(self):
        name, length = self.target, self.ids[self.target].shape[1]
        if length < 2:
            self.skipped("future tokens", "needs two positions")
            return
        self._columns = _columns(length)
        together = not (self.reads_other_sentences or self.inputs.has_fixed_batch)
        distance = self._influence_together() if together else self._influence_one_by_one()
        self.seen = distance > self.calls.tolerance(self.expected, same_shapes=True)
        leaks = np.triu(self.seen, 1)
        largest = float(np.triu(distance, 1).max())
        if not leaks.any():
            self.passed("future tokens", largest)
            return
        position, column = map(int, np.argwhere(leaks)[0])
        difference = Difference((0, position), largest, largest / scale(self.expected))
        message = f"Another id at {name}[0, {column}] changes earlier outputs: {at(difference)}."
        self.failed("future tokens", message, self._future_cause(), name, difference)

    def _influence_one_by_one(self):
        """Computes how much a token of the first sentence changes each output."""
        length = self.expected.shape[1]
        distance = np.zeros((length, length))  # --> [output, token]
        for column in self._columns:
            changed = self.changed(self.ids, self.target, np.s_[:1, column])
            distance[:, column] = self.calls.distance(self.call(changed), self.expected)[0]
        return distance

    def _influence_together(self):
        """Computes the same in two calls: row `i` of a batch has another token at column `i`."""
        length, rows = self.expected.shape[1], len(self._columns)
        ids = {name: np.repeat(array[:1], rows, axis=0) for name, array in self.ids.items()}
        changed = self.changed(ids, self.target, (np.arange(rows), self._columns))
        distance = np.zeros((length, length))  # --> [output, token]
        outputs = self.call(changed), self.call(ids)
        distance[:, self._columns] = self.calls.distance(*outputs).T
        return distance

    def _future_cause(self):
        if self.reads_other_sentences:
            return self.batch_cause()
        return causes.future_cause(self.seen, self.recorded(self.ids))

    def _future_tokens_in_training(self):
        check, name, length = "future tokens in training", self.target, self.expected.shape[1]
        if length < 2 or not isinstance(self.calls.model, keras.layers.Layer):
            self.skipped(check, "needs a Keras model")
            return
        expected = self.call(self.ids, training=True)
        if self.calls.compare(self.call(self.ids, training=True), expected, same_shapes=True):
            self.skipped(check, "random numbers of the model have no seed that can be restored")
            return
        for start in sorted({1, length // 2, length - 1}):
            changed = self.changed(self.ids, name, np.s_[:1, start:])
            before = np.zeros(expected.shape[:2], bool)
            before[0, :start] = True
            outputs = self.call(changed, training=True)
            difference = self.calls.compare(outputs, expected, before, same_shapes=True)
            if difference is not None:
                message = (
                    f"Other ids from {name}[0, {start}] change earlier outputs with training=True: "
                    f"{at(difference)}."
                )
                self.failed(check, message, self._cause_in_training(), name, difference)
                return
        self.passed(check)

    def _cause_in_training(self):
        if np.triu(self.seen, 1).any():
            return self["future tokens"].cause
        layers = self.calls.layers
        norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
        if norms:
            return f"`{norms[0].name}`: {causes.BATCH_STATISTICS}"
        recorded = self.recorded(self.ids, training=True)
        return causes.causal_mask_cause(recorded, self.expected.shape[1]) or causes.TRAINING_MASK

    def _earlier_tokens(self):
        check = "reads its inputs"
        if len(self.seen) > 1 and not np.tril(self.seen, -1).any():
            message = f"No output depends on an earlier token of {self.target}."
            cause = self._cause_of_unread()
            self.failed(check, message, cause, self.target)
            return
        for name in self.inputs.sources:
            changed = self.changed(self.ids, name, np.s_[:])
            if self.calls.compare(self.call(changed), self.expected, same_shapes=True) is None:
                message = f"No output depends on {name}."
                calls = self.recorded(self.ids)
                is_token = np.ones(self.ids[name].shape, bool)
                cause = causes.padding_mask_cause(calls, is_token) or causes.ZERO_WEIGHTS
                self.failed(check, message, cause, name)
                return
        self.passed(check)

    def _cause_of_unread(self):
        calls = self.recorded(self.ids)
        masked = causes.causal_mask_cause(calls, self.expected.shape[1])
        if masked is not None and masked.startswith(causes.INVERTED):
            return masked
        if np.triu(self.seen, 1).any():
            return causes.future_cause(self.seen, calls)
        return causes.ZERO_WEIGHTS

    def _other_sentences(self):
        check = "other sentences"
        if self.inputs.batch < 2:
            self.skipped(check, "needs two sentences in a batch")
            return
        limit = self.calls.tolerance(self.expected, same_shapes=True)
        for row, distance in self._mates:
            if (distance > limit).any():
                place = tuple(map(int, np.argwhere(distance > limit)[0]))
                largest = float(distance.max())
                difference = Difference(place, largest, largest / scale(self.expected))
                message = f"Sentence {row} changes outputs of another one: {at(difference)}."
                self.failed(check, message, self.batch_cause(), self.target, difference)
                return
        if self.inputs.has_fixed_batch:
            self.passed(check, max(float(distance.max()) for _, distance in self._mates))
            return
        first = self.call({name: ids[:1] for name, ids in self.ids.items()})
        difference = self.calls.compare(first, self.expected[:1])
        if difference is not None:
            message = f"A sentence differs if it is the only one: {at(difference)}."
            self.failed(check, message, causes.WRONG_RESHAPE, self.target, difference)
            return
        self.passed(check, largest_difference(self.calls, first, self.expected[:1]))

    def batch_cause(self):
        """Batch statistics change every output of every other sentence, a reshape only some."""
        layers = self.calls.layers
        norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
        if self.changes_weights and norms:
            return f"`{norms[0].path}`: {causes.BATCH_STATISTICS}"
        limit = self.calls.tolerance(self.expected, same_shapes=True)
        changed = [np.delete(distance, row, 0) > limit for row, distance in self._mates]
        if all(places.all() for places in changed) and not self._is_order_of_rows():
            return causes.BATCH_STATISTICS
        return causes.WRONG_RESHAPE

    def _is_order_of_rows(self):
        """Returns True if other sentences matter by their order: statistics have no order."""
        order = np.array([0, *range(self.inputs.batch - 1, 0, -1)])
        outputs = self.call({name: ids[order] for name, ids in self.ids.items()})
        return self.calls.compare(outputs[:1], self.expected[:1]) is not None


def _columns(length):
    """Lists positions whose tokens are changed, not all of a long input."""
    if length <= _MAX_PLACES:
        return list(range(length))
    return sorted({*range(4), *np.linspace(4, length - 1, _MAX_PLACES - 4).astype(int).tolist()})
