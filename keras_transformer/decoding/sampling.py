"""Greedy search, and sampling with its filters and random numbers."""

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding.loop import DecodingState
from keras_transformer.decoding.ranking import GNMTRanking, Ranking
from keras_transformer.decoding.results import Hypotheses, continuation_of
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.decoding.selection import first_argmax

# The largest int32: the bits of a float32, read as an int32, are not larger.
_EVERYTHING = 2**31 - 1
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


class Greedy:
    """Extends each sentence by its most probable token; the ranking changes only the score.

    Args:
        ranking: `Ranking`; by default the score is the log-probability.
    """

    beams = 1

    def __init__(self, ranking: Ranking | None = None):
        self.ranking = ranking or GNMTRanking(0.0)

    def start(self, constraints, capacity: int) -> tuple:
        return ()

    def pick(self, allowed, position):  # --> [batch, beams]
        return first_argmax(allowed)

    def choose(self, state: DecodingState, logits, allowed, constraints):
        tokens = self.pick(allowed, state.position)  # --> [batch, beams]
        # If no token is allowed, the hypothesis stays unchanged, without an end.
        continues = state.running & (_value_at(allowed, tokens) > NEG_INF / 2)
        log_probabilities = _value_at(logits, tokens) - ops.logsumexp(
            logits, axis=-1
        )  # --> [batch, beams]
        tokens = ops.where(continues, tokens, PAD_ID)
        # NaN in the logits makes the score NaN.
        is_counted = continues | (state.running & ops.isnan(log_probabilities))
        log_probabilities = ops.where(is_counted, log_probabilities, 0.0)
        position, limits = state.position + 1, ops.expand_dims(constraints.max_lengths, 1)
        state = state._replace(
            position=position,
            newest=tokens,
            ids=_write(state.ids, tokens, state.position),
            token_log_probabilities=_write(
                state.token_log_probabilities, log_probabilities, state.position
            ),
            running=continues & (tokens != constraints.end_id) & (position < limits),
        )
        return state, None

    def hypotheses(self, state: DecodingState, constraints) -> Hypotheses:
        ids, by_token = state.ids, state.token_log_probabilities
        following, lengths = continuation_of(ids, by_token, constraints.forced_lengths)
        scores = self.ranking.score(following, lengths)
        return Hypotheses(ids, ops.sum(by_token, axis=2), scores, by_token, following, lengths)


class Sampling(Greedy):
    """Samples each token, `num_samples` times independently for each sentence.

    A sentence's samples depend only on its own seed, not on other sentences in the batch, their
    number, or the padding. All options except `num_samples` may be traced tensors; temperature,
    top-k and top-p may be `(batch,)`, a value for each sentence.

    Args:
        seeds: Int32 `(batch,)`.
        num_samples: Number of samples per sentence.
        temperature: As in `DecodingOptions`, like `top_k` and `top_p`.
        ranking: As in `Greedy`.
        ids: Int32 `(vocabulary,)`, ids of the tokens, which random numbers belong to; by default
            their indices.

    Reference: Holtzman et al. 2020 (arXiv:1904.09751), top-p.
    """

    def __init__(
        self,
        seeds: KerasTensor,
        num_samples: int = 1,
        temperature: float | KerasTensor = DecodingOptions.temperature,
        top_k: int | KerasTensor = DecodingOptions.top_k,
        top_p: float | KerasTensor = DecodingOptions.top_p,
        ranking: Ranking | None = None,
        ids: KerasTensor | None = None,
    ):
        super().__init__(ranking)
        self.seeds, self.beams, self._ids = seeds, num_samples, ids
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        # A value for each sentence broadcasts over its samples and the vocabulary.
        self.filters = {
            name: ops.reshape(value, (-1, 1, 1)) if np.ndim(value) == 1 else value
            for name, value in filters.items()
        }

    def pick(self, allowed, position):
        return sample(allowed, self.seeds, position, self._ids, **self.filters)


def _value_at(values, ids):
    return ops.take_along_axis(values, ops.expand_dims(ids, -1), axis=-1)[..., 0]


def _write(values, column, position):
    return ops.slice_update(values, (0, 0, position), ops.expand_dims(column, 2))


def sample(logits, seeds, position, ids=None, **filters):
    """Samples a token for each row of `(batch, samples, vocabulary)`, int32 `(batch, samples)`.

    It is the token with the largest sum of a logit after `filter_logits` and Gumbel noise. The
    noise comes from `uniform`, so that equal seeds, samples, positions and logits give equal
    tokens in any batch.
    Tokens with `NEG_INF` are never sampled, unless no token is allowed.
    """
    # --> [batch, samples, vocabulary]
    gaps = filter_logits(logits, **filters)
    ids = logits.shape[2] if ids is None else ids
    noise = -ops.log(-ops.log(uniform(seeds, logits.shape[1], position, ids)))
    return first_argmax(noise - gaps)


def filter_logits(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Filters logits; returns the distance of each log-probability below the largest.

    It divides by the temperature, then removes less probable tokens. Top-k keeps the k most
    probable tokens. Top-p keeps the smallest set with this share of top-k's probability, up to
    float32's rounding of the sum. The most probable token always stays, and equally probable tokens
    stay or go together. The options may be tensors that broadcast to `logits`: then other values
    need no new compilation, and neutral values cost little time.

    Returns float32 `(…, vocabulary)`, with `-NEG_INF` for removed tokens, and for tokens with
    `NEG_INF` in `logits`.
    """
    gaps = (ops.max(logits, axis=-1, keepdims=True) - logits) / temperature
    gaps = ops.where(logits > NEG_INF, gaps, -NEG_INF)
    # A Python number that keeps all tokens needs no operation.
    if not isinstance(top_k, int) or top_k != 0:
        gaps = _keep_nearest(gaps, 1.0, ops.cast(top_k, "float32"), top_k <= 0)
    if not isinstance(top_p, int | float) or top_p != 1:
        probabilities = ops.exp(-gaps)  # relative to the largest; 0 for removed tokens
        target_weight = top_p * ops.sum(probabilities, axis=-1, keepdims=True)
        gaps = _keep_nearest(gaps, probabilities, target_weight, top_p >= 1)
    return gaps


def _keep_nearest(gaps, weights, target_weight, keep_all):
    """Keeps the smallest gaps whose weights add up to `target_weight`; all if they never do.

    It finds the largest gap to keep by bisection, with at most 31 sums over a row. XLA's sort on a
    CPU takes twenty times as long for rows of 8,000.
    """
    # Read as int32, the bits of non-negative float32 numbers keep their order. -0.0, the gap of 0.0
    # below -0.0, becomes the least int32: every threshold keeps it, as it keeps 0.0.
    bits = ops.view(gaps, "int32")
    high = ops.full_like(bits[..., :1], _EVERYTHING)  # --> [..., 1]
    low = ops.where(keep_all, high, 0)

    def undecided(low, high):
        return ops.any(low < high)

    def halve(low, high):
        middle = low + (high - low) // 2
        reached = ops.sum(ops.where(bits <= middle, weights, 0.0), axis=-1, keepdims=True)
        # A decided row stays, even if its weights do not reach the target: one more than
        # `_EVERYTHING` would be the least int32.
        enough = (reached >= target_weight) | (low == high)
        return ops.where(enough, low, middle + 1), ops.where(enough, middle, high)

    low, _ = ops.while_loop(undecided, halve, (low, high))
    return ops.where(bits <= low, gaps, -NEG_INF)


def uniform(seeds, num_samples: int, position, ids):
    """Computes uniform random numbers for each sample of each sentence at one position.

    Number i of sample s comes from Threefry-2x32 with the key (seed, s) and the counter
    (position, i). `ids` are the values of i, int32 `(count,)`, or their number. The 23 top bits n
    of its first word become (n + 1/2) / 2^23. So a number depends neither on other sentences in the
    batch nor on `num_samples` or other ids. Seeds are int32 or uint32 `(batch,)`; a negative seed
    counts modulo 2^32. Returns float32 `(batch, num_samples, count)`, from 2^-24 to 1 - 2^-24.
    """
    seeds = ops.reshape(ops.cast(seeds, "uint32"), (-1, 1, 1))
    samples = ops.reshape(_count_up(num_samples), (1, -1, 1))
    ids = _count_up(ids) if isinstance(ids, int) else ops.cast(ids, "uint32")
    indices = ops.reshape(ids, (1, 1, -1))
    # Using the second word would halve the rounds, but on a CPU, XLA needs as much time to join the
    # two halves of a row.
    bits, _ = threefry_2x32((seeds, samples), (ops.cast(position, "uint32"), indices))
    # 23 bits, because with the half added, float32 would round the largest number of 24 bits to 1.
    # By way of int32, because a CPU converts vectors of int32 to float32.
    bits = ops.cast(ops.bitwise_right_shift(bits, 9), "int32")
    return (ops.cast(bits, "float32") + 0.5) * 2.0**-23


def threefry_2x32(key, counter):
    """Computes Threefry-2x32 with 20 rounds: for each key, two uint32 tensors, a bijection.

    It uses only integers, so that every backend and every compiled function returns the same bits.
    Reference: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    key = [ops.convert_to_tensor(word, "uint32") for word in key]
    parity = ops.convert_to_tensor(_PARITY, "uint32")
    key.append(ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), parity))
    left_word, right_word = (ops.convert_to_tensor(word, "uint32") for word in counter)
    left_word, right_word = left_word + key[0], right_word + key[1]
    for injection in range(1, 6):
        for bits in _ROTATIONS[(injection - 1) % 2]:
            left_word = left_word + right_word
            low = ops.bitwise_right_shift(right_word, 32 - bits)
            rotated = ops.bitwise_or(ops.bitwise_left_shift(right_word, bits), low)
            right_word = ops.bitwise_xor(rotated, left_word)
        left_word = left_word + key[injection % 3]
        right_word = right_word + key[(injection + 1) % 3]
        right_word = right_word + ops.convert_to_tensor(injection, "uint32")
    return left_word, right_word


def _count_up(count):
    # TensorFlow's XLA has no `range` of uint32.
    return ops.cast(ops.arange(count, dtype="int32"), "uint32")
