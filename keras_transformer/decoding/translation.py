"""One translated sentence."""

import dataclasses
import heapq

import numpy as np


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translation and how probable the model holds it.

    Attributes:
        text: The translation.
        score: Log-probability over the length penalty, and what else hypotheses are ranked by.
        log_probability: The model's own, summed over all tokens, the end of the sentence
            included, in nats.
        alternatives: The hypotheses after the best, best first; of samples, the other ones.
        tokens: The pieces of the translation, the end included.
        ids: Their ids.
        token_log_probabilities: A number for each of them, in nats.
        source_tokens: The pieces of the source, the end included.
        alignment: Float32 array `(tokens, source tokens)`, what each token attended to in the
            source, where it was asked for; 0 between different parts of a source that was split.
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
    alignment: object = dataclasses.field(default=None, compare=False)
    parts: tuple["Translation", ...] = ()

    @classmethod
    def joined(cls, parts, sampling=False):
        """Of a source that was split: texts with a space between, log-probabilities added.

        Args:
            parts: The parts' translations, all with as many alternatives as were asked for, or as
                many as exist.
            sampling: Whether these are samples: the alternatives are then joined first with
                first, second with second. Those of a search are joined to the best of all
                combinations by the sum of their scores.
        """
        each = [(part, *part.alternatives) for part in parts]
        if sampling:
            ranked = list(zip(*each, strict=False))
        else:
            most, ranked = max(map(len, each)), [()]
            for hypotheses in each:
                longer = [(*chosen, one) for chosen in ranked for one in hypotheses]
                ranked = heapq.nlargest(most, longer, lambda chosen: sum(x.score for x in chosen))
        best, *others = (cls._chained(chosen) for chosen in ranked)
        return dataclasses.replace(best, parts=tuple(parts), alternatives=tuple(others))

    @classmethod
    def _chained(cls, parts):
        """One hypothesis from one of each part."""
        alignment = None
        if all(part.alignment is not None for part in parts):
            sizes = np.array([part.alignment.shape for part in parts])
            alignment = np.zeros(sizes.sum(axis=0), "float32")
            for part, (row, column) in zip(parts, sizes.cumsum(axis=0) - sizes, strict=True):
                rows, columns = part.alignment.shape
                alignment[row : row + rows, column : column + columns] = part.alignment
        return cls(
            " ".join(part.text for part in parts if part.text),
            sum(part.score for part in parts),
            sum(part.log_probability for part in parts),
            tokens=tuple(token for part in parts for token in part.tokens),
            ids=tuple(each for part in parts for each in part.ids),
            token_log_probabilities=tuple(
                each for part in parts for each in part.token_log_probabilities
            ),
            source_tokens=tuple(token for part in parts for token in part.source_tokens),
            alignment=alignment,
        )
