"""Translations, the results of every engine."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from keras_transformer.base.reading import csv_row
from keras_transformer.text.sentences import space_after

CONTINUATION = ("continuation_log_probability", "continuation_length")
"""The fields of a `Translation` about the tokens that follow a target prefix."""


@dataclasses.dataclass(frozen=True, repr=False)
class Translation:
    """A translation with the probabilities that the model gives it.

    Attributes:
        text: The translation.
        score: Ranking score: log-probability / length penalty. Forced tokens (a target prefix, a
            language model's prompt) are excluded.
        log_probability: The model's log-probability, summed over all tokens including EOS, in nats.
        continuation_log_probability: Log-probability of the tokens that follow a target prefix, in
            nats; None without a prefix.
        continuation_length: Number of tokens that follow a target prefix; None without a prefix.
        alternatives: The hypotheses after the best, best first; or the other samples.
        tokens: The tokens of the translation, including EOS.
        ids: Their ids.
        token_log_probabilities: Log-probability of each token, in nats.
        source_tokens: The tokens of the source, including EOS.
        alignment: Float32 array `(tokens, source tokens)`: attention of each token to the source.
            None without the option `alignment`, and for a source that was split: its `parts` have
            alignments.
        parts: The translations of the parts of a source that was split, or of the blocks of HTML.
    """

    text: str
    score: float
    log_probability: float = 0.0
    alternatives: tuple["Translation", ...] = ()
    tokens: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    token_log_probabilities: tuple[float, ...] = ()
    source_tokens: tuple[str, ...] = ()
    alignment: np.ndarray | None = dataclasses.field(default=None, compare=False)
    parts: tuple["Translation", ...] = ()
    continuation_log_probability: float | None = None
    continuation_length: int | None = None

    def __repr__(self):
        """Returns text and score: arrays and alternatives would fill the screen."""
        count = f", alternatives: {len(self.alternatives)}" if self.alternatives else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{count})"

    @classmethod
    def joined(cls, parts: Sequence["Translation"], separator: str = " ") -> "Translation":
        """Joins the parts of a source that was split: texts with a separator, scores added.

        One space is what the translations' script has: none between Chinese sentences; see
        `text.sentences.space_after`.

        The first hypothesis of each part is joined with the first of the others, then the second
        ones. Where a part has fewer, such as one that the model has not read, its last one stands
        for the missing ones. No parts give the empty translation.
        """
        if len(parts) < 2:
            return parts[0] if parts else cls("", 0.0)
        rows = [(part, *part.alternatives) for part in parts]
        best, *alternatives = (
            cls._chained([row[min(place, len(row) - 1)] for row in rows], separator)
            for place in range(max(map(len, rows)))
        )
        return dataclasses.replace(best, alternatives=tuple(alternatives))

    @staticmethod
    def _joined_texts(texts, separator):
        *others, last = texts or [""]
        if separator == " ":
            return "".join([*(text + space_after(" ", text) for text in others), last])
        return separator.join(texts)

    @property
    def _continuation(self):
        if self.continuation_length is None:
            return self.log_probability, len(self.ids)
        return self.continuation_log_probability, self.continuation_length

    @classmethod
    def _chained(cls, parts, separator):
        """Joins one hypothesis per part to one hypothesis."""

        def chained(name):
            return tuple(itertools.chain.from_iterable(getattr(part, name) for part in parts))

        following = {}
        if any(part.continuation_length is not None for part in parts):
            ends = [part._continuation for part in parts]
            following = dict(zip(CONTINUATION, map(sum, zip(*ends, strict=True)), strict=True))
        return cls(
            cls._joined_texts([part.text for part in parts if part.text], separator),
            sum(part.score for part in parts),
            sum(part.log_probability for part in parts),
            tokens=chained("tokens"),
            ids=chained("ids"),
            token_log_probabilities=chained("token_log_probabilities"),
            source_tokens=chained("source_tokens"),
            parts=tuple(parts),
            **following,
        )


def pair_lines(text: str, translation: Translation, is_back: bool) -> list[str]:
    """Returns one row of a CSV file per hypothesis: source, target and score.

    Args:
        text: Text that was translated.
        translation: Its translation.
        is_back: Whether the text is the target, and its translation the source.
    """
    lines = []
    for hypothesis in (translation, *translation.alternatives):
        pair = [" ".join(side.split()) for side in (text, hypothesis.text)]
        if is_back:
            pair.reverse()
        lines.append(csv_row([*pair, f"{hypothesis.score:.4f}"]))
    return lines
