"""Which tokens may be sampled, and the sampling."""

from keras import ops

from keras_transformer.decoding.hypotheses import IMPOSSIBLE
from keras_transformer.decoding.random_numbers import uniform
from keras_transformer.selection import first_argmax

# The bits of the largest int32: no float32's bits, read as an int32, are larger.
_EVERYTHING = 2**31 - 1


def sample(logits, seeds, position, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Draws a token for each row, with the probabilities of the filtered logits.

    The largest sum of logit and Gumbel noise is such a draw. The noise comes from `uniform`: the
    same seed, sample, position and logits give the same token in any batch.

    Args:
        logits: Float32 `(batch, samples, vocabulary)`; what is not allowed is `IMPOSSIBLE`, and
            is never drawn unless nothing is allowed.
        seeds: Int32 or uint32 `(batch,)`: a seed for each sentence.
        position: Int32 scalar: the step of the decoding.
        temperature: As for `gaps_of`, like `top_k`, `top_p` and `min_p`.

    Returns:
        Int32 `(batch, samples)`.
    """
    gaps = gaps_of(logits, temperature, top_k, top_p, min_p)
    noise = -ops.log(-ops.log(uniform(seeds, logits.shape[1], position, logits.shape[2])))
    return first_argmax(noise - gaps)


def gaps_of(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """How far each token's log-probability lies below the largest, after the filters.

    Divides by the temperature, then takes the less probable tokens out of the choice. Each filter
    sees what the one before it left, in the order of the arguments. The most probable token always
    stays, and equally probable ones stay or go together. The options may be tensors, scalar or of
    a shape that broadcasts to that of `logits`: other values then need no new compilation, and
    neutral ones cost next to nothing.

    Args:
        logits: Float32 `(…, vocabulary)`; what is not allowed is `IMPOSSIBLE`.
        temperature: Above 0; below 1 the probable tokens become more so, above 1 less so.
        top_k: Keeps the `top_k` most probable tokens, and those as probable as the last of them;
            0 for all.
        top_p: Keeps the smallest set of the most probable tokens that holds this share of the
            probability which top-k left, the token that crosses it included; 1 for all. Up to
            float32's rounding of the sum.
        min_p: Keeps what is at least `min_p` times as probable as the most probable token; 0 for
            all.

    Returns:
        Float32, the shape of `logits`; `-IMPOSSIBLE` where a token is not allowed or was taken out.

    Reference: Holtzman et al. 2020 for top-p (arXiv:1904.09751), Nguyen et al. 2024 for min-p
    (arXiv:2407.01082).
    """
    gaps = (ops.max(logits, axis=-1, keepdims=True) - logits) / temperature
    gaps = _keep(logits > IMPOSSIBLE, gaps)
    if not _is_constant(top_k, 0):
        gaps = _keep_nearest(gaps, 1.0, ops.cast(top_k, "float32"), top_k <= 0)
    if not _is_constant(top_p, 1):
        probabilities = ops.exp(-gaps)  # Relative to the largest; 0 for what was taken out.
        wanted = top_p * ops.sum(probabilities, axis=-1, keepdims=True)
        gaps = _keep_nearest(gaps, probabilities, wanted, top_p >= 1)
    if not _is_constant(min_p, 0):
        gaps = _keep(gaps <= -ops.log(ops.cast(min_p, "float32")), gaps)
    return gaps


def _keep(allowed, gaps):
    return ops.where(allowed, gaps, -IMPOSSIBLE)


def _keep_nearest(gaps, weights, wanted, keep_all):
    """Keeps the smallest gaps whose weights add up to `wanted`; all where that is never reached.

    A bisection for the largest gap to be kept: at most 31 sums over a row. XLA's sort on a CPU
    takes twenty times as long for rows of 8,000.
    """
    # Read as an int32, the bits of float32 numbers that are not negative keep their order. -0.0,
    # the gap of 0.0 below -0.0, becomes the least int32: kept by each threshold, as 0.0 is.
    bits = ops.view(gaps, "int32")
    high = ops.full_like(bits[..., :1], _EVERYTHING)
    low = ops.where(keep_all, high, 0)

    def undecided(low, high):
        return ops.any(low < high)

    def halve(low, high):
        middle = low + (high - low) // 2
        reached = ops.sum(ops.where(bits <= middle, weights, 0.0), axis=-1, keepdims=True)
        # What is decided stays, where more is wanted than there is too: one more than
        # `_EVERYTHING` would be the least int32.
        enough = (reached >= wanted) | (low == high)
        return ops.where(enough, low, middle + 1), ops.where(enough, middle, high)

    low, _ = ops.while_loop(undecided, halve, (low, high))
    return _keep(bits <= low, gaps)


def _is_constant(option, neutral):
    return isinstance(option, int | float) and option == neutral
