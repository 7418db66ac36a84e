"""What a search returns, and how its scores are normalized."""

from typing import NamedTuple

from keras import ops

# Below any log-probability that a search can reach, and finite: `-inf - -inf` would be NaN.
IMPOSSIBLE = -1e30


class Hypotheses(NamedTuple):
    """The hypotheses of each sentence: a beam's best first, samples in the order of drawing.

    Attributes:
        ids: Int32 `(batch, n_best, max_length)`: no beginning-of-sentence id; the
            end-of-sentence id (where the hypothesis ended in time), then padding.
        log_probabilities: Float32 `(batch, n_best)`, the model's own, summed over all tokens, in
            nats: neither constraints nor a temperature change them.
        scores: Float32 `(batch, n_best)`, what the strategy ranks by: the log-probability over
            the length penalty, with what else the strategy adds.
        token_log_probabilities: Float32 `(batch, n_best, max_length)`, 0 after the end.
    """

    ids: object
    log_probabilities: object
    scores: object
    token_log_probabilities: object


def length_penalty(length, exponent):
    """`((5 + length) / 6)^exponent`: what a log-probability is divided by.

    Args:
        length: Tokens of the hypothesis, the end of the sentence included.
        exponent: 0 for none; larger values favour longer hypotheses.

    Returns:
        Float32, the shape of `length`; 1 for a single token.

    Reference: Wu et al. 2016, equation 14 (arXiv:1609.08144).
    """
    return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, exponent)


def coverage_penalty(coverage, source_mask):
    """`Σ log(min(coverage, 1))` over the source: 0 where all was attended to, else below.

    Args:
        coverage: Float32 `(…, source)`, attention to each source token summed over the target.
        source_mask: Bool, broadcastable to `coverage`, True = a real token.

    Returns:
        Float32 `(…)`.

    Reference: Wu et al. 2016, equation 14 (arXiv:1609.08144).
    """
    # What was never attended to would give -inf, whatever the weight.
    terms = ops.log(ops.clip(coverage, 1e-6, 1.0))
    return ops.sum(ops.where(source_mask, terms, 0.0), axis=-1)


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
