"""Text to label: what all classifiers share, whatever they come in."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer import inputs
from keras_transformer.config import check_choice
from keras_transformer.engine import Engine
from keras_transformer.errors import InputError
from keras_transformer.translation import Translation

# Options of other engines at values that mean nothing here.
_NEUTRAL = {"beam_size": 1, "alignment": False, "sampling": False, "target_prefixes": None}


class LabelEngine(Engine):
    """Gives texts labels; a subclass has `labels`, a list of strings, and `probabilities`."""

    noun = "a classifier"
    capabilities = frozenset({"translate", "label"})
    labels: list[str]
    long_inputs: tuple[str, ...] = ("refuse", "truncate")  # the first is the default

    @abc.abstractmethod
    def probabilities(
        self, texts: Sequence[str], batch_size: int = 32, long_input: str = "refuse"
    ) -> np.ndarray:
        """Returns the probability of each label, float32 `(texts, labels)`, 0 for a blank text.

        Args:
            texts: Strings.
            batch_size: Most texts in one call of the compiled model.
            long_input: One of `long_inputs`: what happens to a text of too many tokens.
        """

    def translate(
        self,
        texts: Sequence[str],
        n_best: int = 1,
        batch_size: int = 32,
        long_input: str | None = None,
        **options: Any,
    ) -> list[Translation]:
        """The most probable label of each text, as a `Translation` whose score is its probability.

        Args:
            texts: Strings. A blank one has the label "".
            n_best: Labels of each text; those after the best one are its `alternatives`.
            batch_size: As for `probabilities`, like `long_input`.
            **options: Options of a search, which is not made: an error at any telling value.

        Raises:
            InputError: An option is out of range or means nothing here, or a text is too long.
        """
        for name, value in options.items():
            if name not in _NEUTRAL or value != _NEUTRAL[name]:
                raise InputError(
                    f"A classifier has no `{name}`: it takes `n_best`, `batch_size` and "
                    f"`long_input`. Received: {name}={value!r}."
                )
        inputs.check_texts("texts", texts)
        for name, value in (("batch_size", batch_size), ("n_best", n_best)):
            inputs.check_positive(name, value)
        if n_best > len(self.labels):
            rule = f"`n_best` must be at most {len(self.labels)}, the number of labels."
            raise InputError(f"{rule} Received: n_best={n_best}.")
        long_input = self.long_inputs[0] if long_input is None else long_input
        check_choice("long_input", long_input, self.long_inputs)
        found = self.probabilities(texts, batch_size, long_input) if texts else ()
        return [label_translation(row, self.labels, n_best) for row in found]


def label_translation(row: np.ndarray, labels: Sequence[str], n_best: int = 1) -> Translation:
    """Returns the most probable labels of a text from its row of probabilities."""
    if not row.any():
        return Translation("", 0.0)
    best, *others = (
        Translation(
            labels[place],
            float(row[place]),
            logarithm := float(np.log(max(row[place], 1e-38))),
            tokens=(labels[place],),
            ids=(int(place),),
            token_log_probabilities=(logarithm,),
        )
        for place in np.argsort(-row, kind="stable")[:n_best]
    )
    return dataclasses.replace(best, alternatives=tuple(others))
