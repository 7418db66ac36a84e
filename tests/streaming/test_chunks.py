import warnings

import pytest

from keras_transformer.errors import InputError
from keras_transformer.streaming.chunks import chunk_size, each_line


def no_log(message):
    raise AssertionError(message)


@pytest.mark.parametrize(
    ("batch_size", "expected"), [(32, 1024), (1, 1024), (100, 1000), (1000, 1000), (2000, 2000)]
)
def test_a_chunk_is_whole_batches(batch_size, expected):
    assert chunk_size(batch_size) == expected


@pytest.mark.parametrize("bad", range(1, 8))
def test_the_line_at_fault_is_found_and_those_before_it_are_worked_on_once(bad):
    worked = []

    def function(items):
        if bad in items:
            place = items.index(bad) + 1
            raise InputError(f"Too long. Received: 99 tokens, text {place}: 'x'")
        worked.extend(items)
        return [-item for item in items]

    received = []
    with pytest.raises(InputError) as caught:
        for found in each_line(function, list(range(1, 8)), lambda item: 10 + item, "f", no_log):
            received.append(found)
    expected = list(range(1, bad))
    assert received == [(item, -item) for item in expected]
    assert worked == expected
    assert str(caught.value) == f"f, line {10 + bad}: Too long. Received: 99 tokens: 'x'"


def test_warnings_are_told_with_their_lines_each_time():
    def function(items):
        warnings.warn("two\nlines", stacklevel=2)
        return items

    told = []
    for items in ([3, 4], [5]):
        list(each_line(function, items, lambda item: item, "stdin", told.append))
    assert told == ["stdin, lines 3 to 4: two lines", "stdin, line 5: two lines"]
