"""What a search returns, and how its scores are normalized."""

from typing import NamedTuple

from keras import ops

# Below any log-probability that a search can reach, and finite: `-inf - -inf` would be NaN.
IMPOSSIBLE = -1e30


class Hypotheses(NamedTuple):
    """The best hypotheses of each sentence, best first.

    Attributes:
        ids: Int32 `(batch, n_best, max_length)`: no beginning-of-sentence id; the
            end-of-sentence id (where the hypothesis ended in time), then padding.
        log_probabilities: Float32 `(batch, n_best)`, the sum over all tokens, in nats.
        scores: Float32 `(batch, n_best)`, the sum over the length penalty.
    """

    ids: object
    log_probabilities: object
    scores: object


def length_penalty(length, alpha):
    """`((5 + length) / 6)^alpha`: what a log-probability is divided by.

    Args:
        length: Tokens of the hypothesis, the end of the sentence included.
        alpha: 0 for none; larger values favour longer hypotheses.

    Returns:
        Float32, the shape of `length`; 1 for a single token.

    Reference: Wu et al. 2016, equation 14 (arXiv:1609.08144).
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, alpha)


def forbid(logits, ids):
    """Takes some ids out of the choice; the other logits stay as they are.

    Args:
        logits: Float `(…, vocabulary)`.
        ids: A tuple of integers.
    """
    if not ids:
        return logits
    vocabulary = ops.arange(logits.shape[-1], dtype="int32")
    forbidden = vocabulary == ids[0]
    for each in ids[1:]:
        forbidden = ops.logical_or(forbidden, vocabulary == each)
    return ops.where(forbidden, IMPOSSIBLE, logits)
