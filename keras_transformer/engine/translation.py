"""Translations, the results of every engine."""

import dataclasses
import heapq
from collections.abc import Sequence

import numpy as np

CONTINUATION = ("continuation_log_probability", "continuation_length")
"""The fields of a `Translation` that say what follows a forced beginning."""


@dataclasses.dataclass(frozen=True, repr=False)
class Translation:
    """A translation with the probabilities that the model gives it.

    Attributes:
        text: The translation.
        score: Ranking score: log-probability / length penalty. Forced tokens (a target prefix, a
            language model's prompt) are excluded.
        log_probability: The model's own, summed over all tokens including EOS, in nats.
        continuation_log_probability: Of the tokens that follow a forced beginning, in nats; None
            where nothing was forced.
        continuation_length: Number of the tokens that follow a forced beginning, likewise.
        alternatives: The hypotheses after the best, best first; of samples, the other ones.
        tokens: The tokens of the translation, including EOS.
        ids: Their ids.
        token_log_probabilities: A number for each token, in nats.
        source_tokens: The tokens of the source, including EOS.
        alignment: Float32 array `(tokens, source tokens)`, what each token attended to in the
            source, where it was asked for; None where the source was split: each of the `parts` has
            its own.
        parts: The translations of the parts of a source that was split.
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
        others = f", alternatives: {len(self.alternatives)}" if self.alternatives else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{others})"

    @classmethod
    def joined(cls, parts: Sequence["Translation"], sampling: bool = False) -> "Translation":
        """Joins the parts of a source that was split: texts with a space between, scores added.

        The alternatives of a search are joined to the best of all combinations by the sum of their
        scores, those of samples first with first, second with second. No parts give the empty
        translation.
        """
        if len(parts) < 2:
            return parts[0] if parts else cls("", 0.0)
        hypotheses_of_parts = [(part, *part.alternatives) for part in parts]
        if sampling:
            ranked = list(zip(*hypotheses_of_parts, strict=False))
        else:
            limit, ranked = max(map(len, hypotheses_of_parts)), [()]
            for hypotheses in hypotheses_of_parts:
                longer = [(*chosen, one) for chosen in ranked for one in hypotheses]
                ranked = heapq.nlargest(limit, longer, lambda chosen: sum(x.score for x in chosen))
        best, *alternatives = (cls._chained(chosen) for chosen in ranked)
        return dataclasses.replace(best, alternatives=tuple(alternatives))

    @property
    def _continuation(self):
        if self.continuation_length is None:
            return self.log_probability, len(self.ids)
        return self.continuation_log_probability, self.continuation_length

    @classmethod
    def _chained(cls, parts):  # one hypothesis from one of each part
        def chained(name):
            return sum((getattr(part, name) for part in parts), ())

        following = {}
        if any(part.continuation_length is not None for part in parts):
            ends = [part._continuation for part in parts]
            following = dict(zip(CONTINUATION, map(sum, zip(*ends, strict=True)), strict=True))
        return cls(
            " ".join(part.text for part in parts if part.text),
            sum(part.score for part in parts),
            sum(part.log_probability for part in parts),
            tokens=chained("tokens"),
            ids=chained("ids"),
            token_log_probabilities=chained("token_log_probabilities"),
            source_tokens=chained("source_tokens"),
            parts=tuple(parts),
            **following,
        )


def translation_of(text: str, score: float, by_token, ids, source, tokenizers) -> Translation:
    """Makes one hypothesis from lists of numbers; `tokenizers` of the source and the target."""
    return Translation(
        text,
        score,
        float(np.sum(np.array(by_token, "float32"))),
        tokens=tuple(tokenizers[1].pieces_of(ids)),
        ids=tuple(ids),
        token_log_probabilities=tuple(by_token),
        source_tokens=tuple(tokenizers[0].pieces_of(source)),
    )


def pair_lines(text: str, translation: Translation, is_back: bool) -> list[str]:
    """Returns source, target and score of each hypothesis, with tabs between.

    Args:
        text: Text that was translated.
        translation: Its translation.
        is_back: Whether the text is the target, and its translation the source.
    """
    lines = []
    for hypothesis in (translation, *translation.alternatives):
        pair = [" ".join(side.split()) for side in (text, hypothesis.text)]
        lines.append("\t".join([*(pair[::-1] if is_back else pair), f"{hypothesis.score:.4f}"]))
    return lines
