"""Tokens of a vocabulary that are not learned."""

import pytest

from keras_transformer.text.symbols import Placeholders


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("size", [1, 4, 11])
def test_placeholders_are_recognized_by_their_symbols(size, numbers):
    placeholders = Placeholders(size, numbers)
    symbols = placeholders.symbols
    assert symbols[-1] == f"<ph_{size}>" and len(symbols) == size + numbers
    assert Placeholders.of_symbols(["<2de>", *symbols[::-1], "<sep>"]) == placeholders


def test_without_placeholders_there_are_no_symbols():
    assert Placeholders().symbols == Placeholders(0, True).symbols == []
    assert Placeholders.of_symbols(["<2de>", "<sep>"]) == Placeholders()
