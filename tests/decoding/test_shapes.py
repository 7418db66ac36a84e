"""Few shapes: how sentences are padded."""

import numpy as np
import pytest

from keras_transformer.decoding.shapes import (
    bucket,
    length_buckets,
    pad,
    pad_to_few_shapes,
    row_count,
)


def test_ten_lengths_reach_to_512():
    assert length_buckets(512) == [16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert len(length_buckets(4096)) == 16


@pytest.mark.parametrize("longest", [2, 13, 16, 17, 100, 129, 1023])
def test_the_longest_length_is_the_last_bucket_and_nothing_is_larger(longest):
    buckets = length_buckets(longest)
    assert buckets[-1] == longest and buckets == sorted(set(buckets))


@pytest.mark.parametrize("longest", [16, 300, 512])
def test_padding_is_at_most_half_as_much_again_from_32_tokens_on(longest):
    buckets = length_buckets(longest)
    for length in range(1, longest + 1):
        padded = bucket(length, buckets)
        assert length <= padded
        assert padded <= max(16, 1.5 * length) or length < 32


def test_rows_are_padded_to_a_power_of_two():
    assert [row_count(n) for n in (1, 2, 3, 4, 5, 31, 32, 33)] == [1, 2, 4, 4, 8, 32, 32, 64]


def test_padded_rows_hold_their_ids_and_padding_alone():
    ids = [[5, 7, 11], [3], [13, 17]]
    np.testing.assert_array_equal(
        pad(ids, 4, 5), [[5, 7, 11, 0, 0], [3, 0, 0, 0, 0], [13, 17, 0, 0, 0], [0] * 5]
    )
    assert pad(ids, 4, 5).dtype == "int32"


@pytest.mark.parametrize(
    "rows, longest, shape",
    [(1, 1, (1, 16)), (2, 16, (2, 16)), (3, 17, (4, 32)), (5, 33, (8, 48)), (7, 65, (8, 96))],
)
def test_a_batch_gets_one_of_the_few_shapes(rows, longest, shape):
    assert pad_to_few_shapes([[7]] * (rows - 1) + [[3] * longest]).shape == shape


def test_no_batch_is_wider_than_the_longest_source():
    assert pad_to_few_shapes([[3] * 12], 13).shape == (1, 13)
