"""Threefry against its published answers, and where each of `uniform`'s numbers comes from.

Run on both backends, so that the same bits on both follow.
"""

import numpy as np
from keras import ops

from keras_transformer.decoding import sampling
from keras_transformer.decoding.sampling import threefry_2x32, uniform

# From the Random123 library (kat_vectors, threefry2x32 with 20 rounds): key, counter, result.
PUBLISHED = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


def int32(number):
    return ops.convert_to_tensor(number, "int32")


def uniform_array(*arguments):
    return np.asarray(uniform(*arguments))


def test_the_published_answers_come_out_compiled(compiled):
    keys, counters, expected = (np.array(part, "uint32").T for part in zip(*PUBLISHED, strict=True))
    words = compiled(threefry_2x32)(tuple(keys), tuple(counters))
    np.testing.assert_array_equal(words, expected)


def test_each_number_is_the_first_word_of_its_seed_sample_position_and_index():
    seeds, position = [0, -1, 7, -(2**31), 2**31 - 1], 11
    numbers = uniform_array(np.array(seeds, "int32"), 3, position, 13)
    assert numbers.shape == (5, 3, 13) and numbers.dtype == "float32"
    for key_of_number in np.ndindex(5, 3, 13):
        sentence, sample, index = key_of_number
        key = np.array([seeds[sentence] % 2**32, sample], "uint32")
        word, _ = threefry_2x32(key, np.array([position, index], "uint32"))
        assert numbers[key_of_number] == (int(word) // 2**9 + 0.5) / 2**23


def test_neither_zero_nor_one_can_occur(monkeypatch):
    extremes = np.array([0, 2**32 - 1, 2**31], "uint32")
    monkeypatch.setattr(sampling, "threefry_2x32", lambda *_: 2 * [ops.convert_to_tensor(extremes)])
    numbers = uniform_array(np.zeros(1, "int32"), 1, 0, 3).ravel()
    np.testing.assert_array_equal(numbers, [2.0**-24, 1 - 2.0**-24, 0.5 + 2.0**-24])


def test_compiled_with_a_traced_position_the_numbers_are_the_same(compiled):
    seeds = np.array([-5, 0, 2**31 - 1], "int32")
    program = compiled(lambda seeds, position: uniform(seeds, 2, position, 13))
    for position in (0, 1, 255):
        expected = uniform_array(seeds, 2, position, 13)
        np.testing.assert_array_equal(program(int32(seeds), int32(position)), expected)
