"""Exports refuse what they cannot do, in one line."""

import pytest

from keras_transformer.errors import InputError
from keras_transformer.export.engine import check_fixed_options, encoded, in_batches

BUILT_IN = {"max_length": None, "alignment": False}


def test_what_the_export_does_may_be_asked_for():
    check_fixed_options({"alignment": False, "max_length": None}, BUILT_IN)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"alignment": True}, "alignment=False does; a run folder has it"),
        ({"max_lenght": 3}, "no option `max_lenght`. Did you mean `max_length`?"),
        ({"zebra": 3}, r"no option `zebra`\.$"),
    ],
)
def test_anything_else_is_refused(options, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        check_fixed_options(options, BUILT_IN)


def test_half_a_surrogate_pair_is_no_text():
    assert encoded("texts", ["é"]) == [b"\xc3\xa9"]
    with pytest.raises(InputError, match="`sources` must be valid Unicode.*place 1"):
        encoded("sources", ["a", "a\ud800"])


def test_batches_hold_what_is_of_similar_length_and_results_keep_their_order():
    called = []

    def call(chosen):
        called.append(chosen)
        return [10 * place for place in chosen]

    assert in_batches([3, 11, 5, 7, 2], 2, call) == [0, 10, 20, 30, 40]
    assert called == [[1, 3], [2, 0], [4]]
    assert in_batches([], 2, call) == [] and len(called) == 3
