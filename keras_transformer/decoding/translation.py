"""One translated sentence."""

import dataclasses


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
            source, where it was asked for.
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
    def joined(cls, parts):
        """Of a source that was split: texts with a space between, log-probabilities added."""
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
            parts=tuple(parts),
        )
