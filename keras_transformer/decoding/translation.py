"""One translated sentence."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translation and how probable the model holds it.

    Attributes:
        text: The translation.
        score: Log-probability over the length penalty; what hypotheses are ranked by.
        log_probability: Sum over all tokens, the end of the sentence included, in nats.
        alternatives: The hypotheses after the best, best first, where more were asked for.
    """

    text: str
    score: float
    log_probability: float = 0.0
    alternatives: tuple["Translation", ...] = ()
