"""Rankings: scores of hypotheses by log-probability and length, and their places in a beam.

This is the only module that computes a length penalty. It imports Keras late, because options and
CTranslate2's engine need no Keras.
"""

from collections.abc import Mapping
from typing import Any

LENGTH_MARGIN = 10
"""Tokens added to the limit of `max_length_ratio`."""


def length_penalty(length: Any, exponent: Any) -> Any:
    """Computes the length penalty `((5 + length) / 6)^exponent` of a number of tokens with EOS.

    Larger exponents favour longer hypotheses. Takes a number or an array of floats.
    Reference: Wu et al. 2016, equation 14 (arXiv:1609.08144).
    """
    return ((5.0 + length) / 6.0) ** exponent


class Ranking:
    """Base class: the score is the log-probability, divided by a penalty of the length.

    Log-probabilities and lengths are Python's numbers, arrays or tensors. The arguments of a
    ranking may be traced scalars, so that one compiled function serves all their values.

    Args:
        exponent: `length_penalty` of `DecodingOptions`.

    Attributes:
        meaning: Formula of the score, for `--help`.
        options: Names of the fields of `DecodingOptions` that are its arguments, in their order.
        length_margin: Number of tokens added to the limit of `max_length_ratio`.
        ends_at_limit: Whether hypotheses that reach the limit of their length without an end are
            ranked together with finished hypotheses, instead of after them.
    """

    meaning: str
    options: tuple[str, ...] = ("length_penalty",)
    length_margin = LENGTH_MARGIN
    ends_at_limit = False

    def __init__(self, exponent: Any = 0.0):
        self.exponent = exponent

    @classmethod
    def of(cls, options: Any) -> "Ranking":
        """Makes the ranking with the numbers of `DecodingOptions` or of `SearchArguments`."""
        return cls(*(getattr(options, name) for name in cls.options))

    def penalty(self, length: Any) -> Any:
        """Computes the penalty of lengths, floats of at least 1."""
        raise NotImplementedError

    def score(self, log_probability: Any, length: Any) -> Any:
        """Computes scores, in the shape that log-probabilities and lengths broadcast to.

        Args:
            log_probability: Python number, or float32.
            length: Number of tokens, including EOS: Python number, or integers. A hypothesis
                without tokens counts as one token; its log-probability is 0.
        """
        return log_probability / self.penalty(_at_least_one(length))

    def best_possible(self, log_probability: Any, shortest: Any, longest: Any) -> Any:
        """Computes the highest score that an unfinished hypothesis can still get, for tensors.

        Log-probabilities only fall, and lengths stay between `shortest` and `longest`. A score
        below 0 is best at the longest length, a score above 0 at the shortest.
        """
        penalties = (self.penalty(_at_least_one(length)) for length in (shortest, longest))
        return _largest(*(log_probability / penalty for penalty in penalties))

    def num_places(self, beam_size: int, num_finished: Any) -> Any:
        """Returns the number of the best extensions of a sentence that may end or continue.

        Twice the beam size, because at most one extension of each hypothesis ends. So at least
        `beam_size` extensions continue, and a finished hypothesis takes no place in the beam.
        """
        return 2 * beam_size


class GNMTRanking(Ranking):
    """Divides the log-probability by GNMT's length penalty."""

    meaning = "log-probability / GNMT's length penalty"

    def penalty(self, length):
        return length_penalty(length, self.exponent)


class LengthRanking(Ranking):
    """Divides the log-probability by a power of the length."""

    meaning = "log-probability / length^length_penalty, as in Hugging Face's search"

    def penalty(self, length):
        return length**self.exponent


class MarianRanking(LengthRanking):
    """Marian's ranking: each token has a price, and the beam shrinks with each finished hypothesis.

    A sentence stops when all places of the beam have ended.

    Args:
        exponent: `length_penalty` of `DecodingOptions`.
        word_penalty: As in `DecodingOptions`.
    """

    meaning = (
        "(log-probability - word_penalty * length) / length^length_penalty, in a beam that shrinks "
        "with each hypothesis that ends"
    )
    options = ("length_penalty", "word_penalty")
    length_margin = 0
    ends_at_limit = True

    def __init__(self, exponent: Any = 0.0, word_penalty: Any = 0.0):
        super().__init__(exponent)
        self.word_penalty = word_penalty

    def score(self, log_probability, length):
        length = _at_least_one(length)
        return super().score(log_probability - self.word_penalty * length, length)

    def best_possible(self, log_probability, shortest, longest):
        # The price of all words is also a monotonous function of their number.
        prices = [self.score(0.0, length) for length in (shortest, longest)]
        return super().best_possible(log_probability, shortest, longest) + _largest(*prices)

    def num_places(self, beam_size, num_finished):
        return beam_size - num_finished


RANKINGS: Mapping[str, type[Ranking]] = {
    "gnmt": GNMTRanking,
    "length": LengthRanking,
    "marian": MarianRanking,
}
"""Rankings by their names in `length_normalization` of `DecodingOptions`."""


def _at_least_one(length):
    if isinstance(length, int | float):
        return max(length, 1)
    from keras import ops

    return ops.maximum(ops.cast(length, "float32"), 1.0)


def _largest(first, second):
    from keras import ops

    return ops.maximum(first, second)
