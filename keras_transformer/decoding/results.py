"""Results of a search: hypotheses as arrays, the penalties in their scores, translations."""

import dataclasses
import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from keras import KerasTensor, ops

# Below any log-probability that a search can reach, and finite: `-inf - -inf` would be NaN.
IMPOSSIBLE = -1e30


class Hypotheses(NamedTuple):
    """The hypotheses of each sentence: best first, of samples in the order of drawing.

    Attributes:
        ids: Int32 `(batch, n_best, max_length)`: no BOS; EOS where there is one, then padding.
        log_probabilities: Float32 `(batch, n_best)`, the model's own, summed over all tokens, in
            nats: neither constraints nor a temperature change them.
        scores: Float32 `(batch, n_best)`, what the strategy ranks by: the log-probability over
            the length penalty, with what else the strategy adds.
        token_log_probabilities: Float32 `(batch, n_best, max_length)`, 0 after the end.
    """

    ids: np.ndarray | KerasTensor
    log_probabilities: np.ndarray | KerasTensor
    scores: np.ndarray | KerasTensor
    token_log_probabilities: np.ndarray | KerasTensor


def length_penalty(length: int | np.ndarray | KerasTensor, exponent: float) -> KerasTensor:
    """`((5 + length) / 6)^exponent`: what the log-probability of that many tokens is divided by.

    Tokens include EOS; larger exponents favour longer hypotheses. Float32, the shape of `length`.
    Reference: Wu et al. 2016, equation 14 (arXiv:1609.08144).
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, exponent)


def coverage_penalty(coverage: np.ndarray | KerasTensor, source_mask: np.ndarray | KerasTensor):
    """`Σ log(min(coverage, 1))` over the source: 0 where all was attended to, else below.

    From float32 `(…, source)`, the attention to each source token summed over the target, and a
    bool mask that broadcasts to it, True = a real token, to float32 `(…)`.
    Reference: Wu et al. 2016, equation 14 (arXiv:1609.08144).
    """
    # What was never attended to would give -inf, whatever the weight.
    terms = ops.log(ops.clip(coverage, 1e-6, 1.0))
    return ops.sum(ops.where(source_mask, terms, 0.0), axis=-1)


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translation and how probable the model holds it.

    Attributes:
        text: The translation.
        score: Log-probability over the length penalty, and what else hypotheses are ranked by.
        log_probability: The model's own, summed over all tokens including EOS, in nats.
        alternatives: The hypotheses after the best, best first; of samples, the other ones.
        tokens: The tokens of the translation, including EOS.
        ids: Their ids.
        token_log_probabilities: A number for each of them, in nats.
        source_tokens: The tokens of the source, including EOS.
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
    alignment: np.ndarray | None = dataclasses.field(default=None, compare=False)
    parts: tuple["Translation", ...] = ()

    @classmethod
    def joined(cls, parts: Sequence["Translation"], sampling: bool = False) -> "Translation":
        """Of the parts of a source that was split: texts with a space between, scores added.

        The alternatives of a search are joined to the best of all combinations by the sum of their
        scores, those of samples first with first, second with second. Of no parts it is the empty
        translation, of one that one.
        """
        if len(parts) < 2:
            return parts[0] if parts else cls("", 0.0)
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
    def _chained(cls, parts):  # one hypothesis from one of each part
        alignment = None
        if all(part.alignment is not None for part in parts):
            sizes = np.array([part.alignment.shape for part in parts])
            alignment = np.zeros(sizes.sum(axis=0), "float32")
            for part, (row, column) in zip(parts, sizes.cumsum(axis=0) - sizes, strict=True):
                rows, columns = part.alignment.shape
                alignment[row : row + rows, column : column + columns] = part.alignment

        def chained(name):
            return sum((getattr(part, name) for part in parts), ())

        return cls(
            " ".join(part.text for part in parts if part.text),
            sum(part.score for part in parts),
            sum(part.log_probability for part in parts),
            tokens=chained("tokens"),
            ids=chained("ids"),
            token_log_probabilities=chained("token_log_probabilities"),
            source_tokens=chained("source_tokens"),
            alignment=alignment,
        )


def translation_of(text: str, score: float, by_token, ids, source, tokenizers) -> Translation:
    """One hypothesis, from lists of numbers; `tokenizers` of the source and of the target."""
    return Translation(
        text,
        score,
        float(np.sum(np.array(by_token, "float32"))),
        tokens=tuple(tokenizers[1].pieces_of(ids)),
        ids=tuple(ids),
        token_log_probabilities=tuple(by_token),
        source_tokens=tuple(tokenizers[0].pieces_of(source)),
    )


def best_translation(hypotheses: Hypotheses, source: Sequence[int], tokenizers) -> Translation:
    """The best of one sentence's `Hypotheses`, arrays without the batch's axis, with the others."""
    _, _, scores, by_token = hypotheses
    # Without the padding behind.
    ids = [row[: np.max(np.flatnonzero(row), initial=-1) + 1].tolist() for row in hypotheses.ids]
    texts = tokenizers[1].detokenize(ids)
    best, *others = (
        translation_of(text, float(score), each[: len(row)].tolist(), row, source, tokenizers)
        for text, score, each, row in zip(texts, scores, by_token, ids, strict=True)
    )
    # Where fewer hypotheses exist than were asked for, the last places are empty.
    others = [each for each in others if each.score > IMPOSSIBLE / 2]
    return dataclasses.replace(best, alternatives=tuple(others))
