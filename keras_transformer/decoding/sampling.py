"""One hypothesis at a time: greedy search, and sampling with its filters and random numbers."""

import numpy as np
from keras import KerasTensor, ops

from keras_transformer.decoding.loop import DecodingState
from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.results import NEG_INF, Hypotheses, continuation_of, score_of
from keras_transformer.decoding.selection import first_argmax
from keras_transformer.ids import PAD_ID

# The bits of the largest int32: no float32's bits, read as an int32, are larger.
_EVERYTHING = 2**31 - 1
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


class Greedy:
    """Extends each sentence by its most probable token; the penalty changes only the score."""

    beams = 1

    def __init__(
        self,
        length_penalty: float | KerasTensor = 0.0,
        normalization: str = "gnmt",
        word_penalty: float | KerasTensor = 0.0,
    ):
        self.ranking = length_penalty, normalization, word_penalty

    def start(self, constraints, capacity: int) -> tuple:
        return ()

    def pick(self, allowed, position):  # --> [batch, beams]
        return first_argmax(allowed)

    def choose(self, state: DecodingState, logits, allowed, constraints):
        chosen = self.pick(allowed, state.position)  # --> [batch, beams]
        # Where nothing is allowed, the hypothesis stays as it is, without an end.
        going = state.running & (_value_at(allowed, chosen) > NEG_INF / 2)
        gained = _value_at(logits, chosen) - ops.logsumexp(logits, axis=-1)  # --> [batch, beams]
        chosen = ops.where(going, chosen, PAD_ID)
        gained = ops.where(going, gained, 0.0)
        position, limits = state.position + 1, ops.expand_dims(constraints.max_lengths, 1)
        state = state._replace(
            position=position,
            newest=chosen,
            ids=_write(state.ids, chosen, state.position),
            token_log_probabilities=_write(state.token_log_probabilities, gained, state.position),
            running=going & (chosen != constraints.end_id) & (position < limits),
        )
        return state, None

    def hypotheses(self, state: DecodingState, constraints) -> Hypotheses:
        ids, by_token = state.ids, state.token_log_probabilities
        following, lengths = continuation_of(ids, by_token, constraints.forced_lengths)
        scores = score_of(following, lengths, *self.ranking)
        return Hypotheses(ids, ops.sum(by_token, axis=2), scores, by_token, following, lengths)


class Sampling(Greedy):
    """Draws each token at random, `num_samples` times independently for each sentence.

    A sentence's samples depend on its own seed and nothing else: not on its batch-mates, their
    number, or the padding. All options but `num_samples` may be traced tensors; temperature, top-k
    and top-p may be `(batch,)`, a value for each sentence.

    Args:
        seeds: Int32 `(batch,)`.
        num_samples: Samples of each sentence.
        temperature: As in `DecodingOptions`, like `top_k` and `top_p`.
        *ranking: Arguments of `Greedy`.

    Reference: Holtzman et al. 2020 (arXiv:1904.09751), top-p.
    """

    def __init__(
        self,
        seeds: KerasTensor,
        num_samples: int = 1,
        temperature: float | KerasTensor = DecodingOptions.temperature,
        top_k: int | KerasTensor = DecodingOptions.top_k,
        top_p: float | KerasTensor = DecodingOptions.top_p,
        length_penalty: float | KerasTensor = 0.0,
        normalization: str = "gnmt",
        word_penalty: float | KerasTensor = 0.0,
    ):
        super().__init__(length_penalty, normalization, word_penalty)
        self.seeds, self.beams = seeds, num_samples
        filters = temperature, top_k, top_p
        # A value for each sentence broadcasts over its samples and the vocabulary.
        self.filters = [ops.reshape(x, (-1, 1, 1)) if np.ndim(x) == 1 else x for x in filters]

    def pick(self, allowed, position):
        return sample(allowed, self.seeds, position, *self.filters)


def _value_at(values, ids):
    return ops.take_along_axis(values, ops.expand_dims(ids, -1), axis=-1)[..., 0]


def _write(values, column, position):
    return ops.slice_update(values, (0, 0, position), ops.expand_dims(column, 2))


def sample(logits, seeds, position, temperature=1.0, top_k=0, top_p=1.0):
    """Draws a token for each row of `(batch, samples, vocabulary)`, int32 `(batch, samples)`.

    The largest sum of a filtered logit and Gumbel noise, which comes from `uniform`: the same seed,
    sample, position and logits give the same token in any batch. What is `NEG_INF` is never
    drawn unless nothing is allowed.
    """
    # --> [batch, samples, vocabulary]
    gaps = filter_logits(logits, temperature, top_k, top_p)
    noise = -ops.log(-ops.log(uniform(seeds, logits.shape[1], position, logits.shape[2])))
    return first_argmax(noise - gaps)


def filter_logits(logits, temperature=1.0, top_k=0, top_p=1.0):
    """Filters logits; returns the distance of each log-probability below the largest.

    Divides by the temperature, then takes the less probable tokens out of the choice: top-k keeps
    the k most probable ones; top-p the smallest set that holds this share of what top-k kept, up
    to float32's rounding of the sum. The most probable token always stays, and equally probable
    ones stay or go together. The options may be tensors that broadcast to `logits`: other values
    then need no new compilation, and neutral ones cost next to nothing. Float32
    `(…, vocabulary)`, `-NEG_INF` for what was `NEG_INF` in `logits` or is taken out.
    """
    gaps = (ops.max(logits, axis=-1, keepdims=True) - logits) / temperature
    gaps = ops.where(logits > NEG_INF, gaps, -NEG_INF)
    # A Python number that keeps all is no operation at all.
    if not isinstance(top_k, int) or top_k != 0:
        gaps = _keep_nearest(gaps, 1.0, ops.cast(top_k, "float32"), top_k <= 0)
    if not isinstance(top_p, int | float) or top_p != 1:
        probabilities = ops.exp(-gaps)  # Relative to the largest; 0 for what was taken out.
        wanted = top_p * ops.sum(probabilities, axis=-1, keepdims=True)
        gaps = _keep_nearest(gaps, probabilities, wanted, top_p >= 1)
    return gaps


def _keep_nearest(gaps, weights, wanted, keep_all):
    """Keeps the smallest gaps whose weights add up to `wanted`; all where that is never reached.

    A bisection for the largest gap to be kept: at most 31 sums over a row. XLA's sort on a CPU
    takes twenty times as long for rows of 8,000.
    """
    # Read as an int32, the bits of float32 numbers that are not negative keep their order. -0.0,
    # the gap of 0.0 below -0.0, becomes the least int32: kept by each threshold, as 0.0 is.
    bits = ops.view(gaps, "int32")
    high = ops.full_like(bits[..., :1], _EVERYTHING)  # --> [..., 1]
    low = ops.where(keep_all, high, 0)

    def undecided(low, high):
        return ops.any(low < high)

    def halve(low, high):
        middle = low + (high - low) // 2
        reached = ops.sum(ops.where(bits <= middle, weights, 0.0), axis=-1, keepdims=True)
        # A decided row stays, also where more is wanted than there is: one more than
        # `_EVERYTHING` would be the least int32.
        enough = (reached >= wanted) | (low == high)
        return ops.where(enough, low, middle + 1), ops.where(enough, middle, high)

    low, _ = ops.while_loop(undecided, halve, (low, high))
    return ops.where(bits <= low, gaps, -NEG_INF)


def uniform(seeds, num_samples: int, position, count: int):
    """Uniform numbers for each sample of each sentence at one position.

    Number i of sample s is the first word of Threefry-2x32 with the key (seed, s) and the counter
    (position, i); its 23 top bits n become (n + 1/2) / 2^23. So it depends on neither the rest of
    the batch nor `num_samples` nor `count`. Seeds are int32 or uint32 `(batch,)`; a negative one
    stands for itself modulo 2^32. Float32 `(batch, num_samples, count)`, 2^-24 to 1 - 2^-24.
    """
    seeds = ops.reshape(ops.cast(seeds, "uint32"), (-1, 1, 1))
    samples = ops.reshape(_count_up(num_samples), (1, -1, 1))
    indices = ops.reshape(_count_up(count), (1, 1, -1))
    # The second word would halve the rounds, but joining the two halves of a row takes XLA as
    # long on a CPU as computing one word for all of it.
    bits, _ = threefry_2x32((seeds, samples), (ops.cast(position, "uint32"), indices))
    # 23 bits, not 24: with the half added, float32 would round the largest of 24 bits up to 1.
    # By way of int32, which a CPU converts to float32 many at a time.
    bits = ops.cast(ops.bitwise_right_shift(bits, 9), "int32")
    return (ops.cast(bits, "float32") + 0.5) * 2.0**-23


def threefry_2x32(key, counter):
    """Threefry-2x32 with 20 rounds: for each key (two uint32 tensors) a bijection of the counter.

    Only integers, so that every backend and every program gives the same bits.
    Reference: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
    """
    key = [ops.convert_to_tensor(word, "uint32") for word in key]
    parity = ops.convert_to_tensor(_PARITY, "uint32")
    key.append(ops.bitwise_xor(ops.bitwise_xor(key[0], key[1]), parity))
    left, right = (ops.convert_to_tensor(word, "uint32") for word in counter)
    left, right = left + key[0], right + key[1]
    for injection in range(1, 6):
        for bits in _ROTATIONS[(injection - 1) % 2]:
            left = left + right
            low = ops.bitwise_right_shift(right, 32 - bits)
            rotated = ops.bitwise_or(ops.bitwise_left_shift(right, bits), low)
            right = ops.bitwise_xor(rotated, left)
        left = left + key[injection % 3]
        right = right + key[(injection + 1) % 3]
        right = right + ops.convert_to_tensor(injection, "uint32")
    return left, right


def _count_up(count):
    # TensorFlow's XLA has no `range` of uint32.
    return ops.cast(ops.arange(count, dtype="int32"), "uint32")
