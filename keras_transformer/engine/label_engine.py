"""Base class of classifiers' engines."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import check_choice, check_positive
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.engine.engine import Engine
from keras_transformer.engine.request import OptionRules, Request
from keras_transformer.engine.translation import Translation


class LabelEngine(Engine, abc.ABC):
    """Base class of classifiers' engines, which give texts labels; a subclass has `labels`.

    `translate` returns the most probable label of a text, with its probability as score. A blank
    text has the label "".
    """

    noun = "a classifier"
    capabilities = frozenset({"translate", "label"})
    option_rules = OptionRules(
        translate=("n_best", "batch_size", "long_input"), fixed={"beam_size": 1}
    )
    batch_size = 32
    labels: list[str]
    long_inputs: tuple[str, ...] = ("refuse", "truncate")

    @abc.abstractmethod
    def probabilities(
        self, texts: Sequence[str], batch_size: int = 32, long_input: str = "refuse"
    ) -> np.ndarray:
        """Returns the probability of each label, float32 `(texts, labels)`, 0 for a blank text.

        Args:
            texts: Strings.
            batch_size: Maximum number of texts in one call of the compiled model.
            long_input: Treatment of a text of too many tokens, one of `long_inputs`.
        """

    def request(
        self,
        n_best: int | None = None,
        batch_size: int | None = None,
        long_input: str | None = None,
        **options: Any,
    ) -> Request:
        """Checks the options of `translate`, and returns them with their defaults.

        Args:
            n_best: Number of labels per text; the labels after the best are its `alternatives`.
            batch_size: As for `probabilities`, like `long_input`.
            **options: Search options, which have no effect: only at their fixed values.

        Raises:
            InputError: An option is out of range or has no meaning here.
        """
        self.check_fixed(options)
        n_best = 1 if n_best is None else n_best
        batch_size = self.batch_size if batch_size is None else batch_size
        check_positive(batch_size=batch_size, n_best=n_best)
        if n_best > len(self.labels):
            rule = f"`n_best` must be at most {len(self.labels)}, the number of labels."
            raise InputError(f"{rule} Received: n_best={n_best}.")
        long_input = self.long_inputs[0] if long_input is None else long_input
        check_choice("long_input", long_input, self.long_inputs)
        search_options = DecodingOptions(beam_size=n_best, n_best=n_best)
        return Request(search_options, batch_size, long_input=long_input)

    def search(self, jobs, request):
        texts = [job.source.decode("utf-8") for job in jobs]
        rows = self.probabilities(texts, request.batch_size, request.long_input)
        best = (label_translation(row, self.labels, request.options.n_best) for row in rows)
        return [[translation, *translation.alternatives] for translation in best]


def label_translation(row: np.ndarray, labels: Sequence[str], n_best: int = 1) -> Translation:
    """Returns the most probable labels of a text from its row of probabilities."""
    if not row.any():
        return Translation("", 0.0)
    best, *alternatives = (
        Translation(
            labels[index],
            float(row[index]),
            logarithm := float(np.log(max(row[index], 1e-38))),
            tokens=(labels[index],),
            ids=(int(index),),
            token_log_probabilities=(logarithm,),
        )
        for index in np.argsort(-row, kind="stable")[:n_best]
    )
    return dataclasses.replace(best, alternatives=tuple(alternatives))
