"""Random numbers that depend on a seed and a place alone, the same on every backend."""

from keras import ops

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def threefry_2x32(key, counter):
    """Threefry-2x32 with 20 rounds: a bijection of the counter for each key.

    Integers alone, so that every backend and every program gives the same bits.

    Args:
        key: Two uint32 tensors.
        counter: Two uint32 tensors. All four broadcast against each other.

    Returns:
        Two uint32 tensors of random bits.

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
            right = ops.bitwise_xor(_rotate_left(right, bits), left)
        left = left + key[injection % 3]
        right = right + key[(injection + 1) % 3]
        right = right + ops.convert_to_tensor(injection, "uint32")
    return left, right


def uniform(seeds, num_samples, position, count):
    """Uniform numbers for each sample of each sentence at one position.

    Number i of sample s is the first word of Threefry-2x32 with the key (seed, s) and the counter
    (position, i); its 23 top bits n become (n + 1/2) / 2^23. So it depends on neither the rest of
    the batch nor `num_samples` nor `count`.

    Args:
        seeds: Int32 or uint32 `(batch,)`; a negative one stands for itself modulo 2^32.
        num_samples: Samples of each sentence.
        position: Int32 scalar; it may be a traced one.
        count: Numbers of each sample: the size of the vocabulary.

    Returns:
        Float32 `(batch, num_samples, count)`, at least 2^-24 and at most 1 - 2^-24.
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


def _count_up(count):
    # TensorFlow's XLA has no `range` of uint32.
    return ops.cast(ops.arange(count, dtype="int32"), "uint32")


def _rotate_left(words, bits):
    return ops.bitwise_or(
        ops.bitwise_left_shift(words, bits), ops.bitwise_right_shift(words, 32 - bits)
    )
