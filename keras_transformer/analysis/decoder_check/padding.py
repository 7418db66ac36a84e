"""Checks of padding, and of the labels of an example."""

import numpy as np

from keras_transformer.analysis.decoder_check import causes
from keras_transformer.analysis.decoder_check.calls import Difference
from keras_transformer.analysis.decoder_check.checker import at
from keras_transformer.analysis.decoder_check.dependence import DependenceChecker
from keras_transformer.analysis.decoder_check.inputs import Ids, padded, token_slice
from keras_transformer.errors import InputError


class PaddingChecker(DependenceChecker):
    """Compares sentences with and without padding, and labels with the ids of their inputs."""

    def _padding(self, name):
        check = f"padding of {name}"
        if name in self.inputs.fixed or self.inputs.has_fixed_batch or self.inputs.batch < 2:
            self.skipped(check, "the model takes only one length or batch size")
            return
        if self.inputs.lengths[name] < 4:
            self.skipped(check, "needs a length of at least 4")
            return
        ids, without_padding = self.padded_sentences(name, self.inputs.pad_id)
        difference = self._padding_difference(name, ids, without_padding)
        if difference is None:
            # A loss multiplies them by 0, and the gradients are NaN.
            difference = self._missing_numbers(ids)
        if difference is None:
            if self._is_seen(name, ids):
                self.passed(check)
            else:
                self.skipped(check, "a token changes less than rounding: check trained weights")
            return
        message = f"Padding of {name} changes outputs of tokens: {at(difference)}."
        if not np.isfinite(difference.largest):
            message = f"Padding of {name} makes outputs NaN, first at {difference.place}."
        cause = self._padding_cause(name, ids, difference)
        self.failed(check, message, cause, name, difference)

    def _is_seen(self, name, ids):
        """Returns True if a token at the padding changes outputs: then padding would change them.

        Attention of new models may be so weak that padding is not seen, with a mask or without.
        """
        if name == self.target and self.side == "right":
            return True  # Earlier outputs must not read it.
        length = ids[name].shape[1]
        place = self.inputs.lengths[name] - 4 if self.side == "right" else 3
        changed = self.changed(ids, name, np.s_[:, place])
        places = np.ones(self.expected.shape[:2], bool)
        if name == self.target:
            places = np.broadcast_to(np.arange(length) > place, places.shape)
        return self.calls.compare(self.call(changed), self.call(ids), places) is not None

    def _missing_numbers(self, ids):
        """Returns the first output that is NaN, also at padding."""
        missing = np.argwhere(np.isnan(self.call(ids)).any(-1))
        if not len(missing):
            return None
        row, position = map(int, missing[0])
        return Difference((row, position), np.inf, np.inf)

    def padded_sentences(self, name, pad_id, is_uniform=False):
        """Draws sentences of two lengths: a padded batch, and its rows without padding."""
        length, batch = self.inputs.lengths[name], self.inputs.batch
        # Few lengths: each other shape costs time.
        counts = [length - 2, *[length - (2 if is_uniform else 3)] * (batch - 1)]
        rows = [self.inputs.draw((count,)) for count in counts]
        # A sentence must not have the id that is taken for padding here.
        for row in rows:
            row[row == pad_id] = self.inputs.draw((), np.int32(pad_id))
        batch_ids = {**self.ids, name: padded(rows, length, pad_id, self.side)}
        without_padding = [
            (index, {other: ids[index] for other, ids in self.ids.items()} | {name: part})
            for index, part in (
                (slice(0, 1), np.stack(rows[:1])),
                (slice(1, batch), np.stack(rows[1:])),
            )
        ]
        return batch_ids, without_padding

    def _padding_difference(self, name, ids: Ids, without_padding) -> Difference | None:
        """Compares outputs of padded sentences with outputs of the same without padding."""
        outputs, differences = self.call(ids), []
        for rows, sentences in without_padding:
            expected, places = self.call(sentences), slice(0, None)
            if name == self.target:
                places = token_slice(expected.shape[1], outputs.shape[1], self.side)
            difference = self.calls.compare(outputs[rows, places], expected)
            if difference is not None:
                row, position = difference.place
                place = row + rows.start, position + places.start
                differences.append(difference._replace(place=place))
        if not differences:
            return None
        largest = max(differences, key=lambda difference: difference.largest)
        return largest._replace(place=differences[0].place)

    def _padding_cause(self, name, ids, difference):
        if not np.isfinite(difference.largest):
            return causes.NOT_FINITE
        if self.reads_other_sentences:
            return self.batch_cause()
        if name == self.target and self.side == "right" and np.triu(self.seen, 1).any():
            return f"Outputs read later tokens. {self['future tokens'].cause}"
        pad_id = self.inputs.pad_id
        if (other := self._other_pad_id(name)) is not None:
            return (
                f"The model takes id {other} as padding, and not {pad_id}. Give `pad_id={other}`, "
                "or change the mask."
            )
        uniform = self.padded_sentences(name, pad_id, is_uniform=True)
        if self._padding_difference(name, *uniform) is None:
            return causes.FOREIGN_MASK
        calls, is_token = self.recorded(ids), ids[name] != pad_id
        if (known := causes.padding_mask_cause(calls, is_token)) is not None:
            return known
        if self.side == "left" and causes.hides_padding(calls, is_token):
            return (
                "Positions count the padding on the left: the first token must have position 0. "
                'Use relative or rotary positions, or `padding_side="right"`.'
            )
        if self.side == "left":
            return "Positions count the padding on the left, or the attention has no padding mask."
        return (
            "The attention to these tokens has no padding mask: it is lost between layers, "
            "missing in the cross-attention, or inverted."
        )

    def _other_pad_id(self, name):
        """Returns the id that the model ignores instead of `pad_id`, if there is one."""
        for other in set(range(5)) - {self.inputs.pad_id}:
            if self._padding_difference(name, *self.padded_sentences(name, other)) is None:
                return other
        return None

    def _labels(self, labels):
        check, ids = "labels", self.inputs.example_ids.get(self.target)
        if labels is None:
            self.skipped(check, "give `inputs` and `labels`, an example of the training data")
            return
        if ids is None:
            raise InputError("`labels` need `inputs`, the example that they belong to.")
        labels = np.asarray(labels)
        if labels.shape != ids.shape or labels.dtype.kind not in "iu":
            received = f"{labels.dtype} of shape {labels.shape}"
            rule = f"`labels` must be integers of the shape {ids.shape}, as {self.target}."
            raise InputError(f"{rule} Received: {received}.")
        # How many positions after its own does an output read? 0, or -1 if the model shifts ids.
        middle = self._columns[len(self._columns) // 2]
        read = np.flatnonzero(self.seen[middle, : middle + 1])
        ahead = int(read[-1]) - middle if len(read) else 0
        shares = {shift: self._share(labels, ids, ahead + shift) for shift in range(-1, 4)}
        best = max(shares, key=lambda shift: shares[shift])
        if shares[best] == 0.0:
            message = f"The labels are not the ids of {self.target} at any shift."
            self.failed(check, message, "Labels of other sentences or another vocabulary.")
        elif best < 1:
            place = self._first_equal(labels, ids, ahead + best)
            message = f"The label at {place} is an id of {self.target} that its output has read."
            difference = Difference(place, 1.0, 1.0)
            self.failed(check, message, causes.UNSHIFTED_LABELS, self.target, difference)
        elif best > 1:
            message = f"Labels are {best} tokens after the last token that an output reads."
            self.failed(check, message, "The labels or the ids are shifted twice.", self.target)
        else:
            self.passed(check)

    def _share(self, labels, ids, shift):
        """Computes the share of tokens whose label is the id `shift` positions later."""
        equal, counted = self._equal(labels, ids, shift)
        return float((equal & counted).sum() / max(1, counted.sum()))

    def _equal(self, labels, ids, shift):
        later = np.full(ids.shape, self.inputs.pad_id)
        length = ids.shape[1]
        start, stop = max(0, -shift), min(length, length - shift)
        later[:, start:stop] = ids[:, start + shift : stop + shift]
        counted = (later != self.inputs.pad_id) & (labels != self.inputs.pad_id)
        return later == labels, counted

    def _first_equal(self, labels, ids, shift):
        equal, counted = self._equal(labels, ids, shift)
        row, position = np.argwhere(equal & counted)[0]
        return int(row), int(position)
