"""Engines of exports refuse what they cannot do, in one line."""

import pytest

from keras_transformer.engine.engine import check_fixed_options, encoded
from keras_transformer.errors import InputError

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
    with pytest.raises(InputError, match="Text 2: `sources` must be valid Unicode"):
        encoded("sources", ["a", "a\ud800"])
