"""What the live server's tests do not reach: ranges of numbers, forms of answers."""

import json
import math

import pytest

from keras_transformer.serving.protocol import format_predict, parse_predict
from keras_transformer.serving.rejection import Rejection
from keras_transformer.serving.signatures import Signature, Tensor


def signatures(dtype, *shape):
    inputs = {"x": Tensor("x:0", dtype, "DT", (None, *shape))}
    return {"serving_default": Signature(inputs, {})}


def parse(values, dtype, *shape):
    body = json.dumps({"inputs": values}).encode()
    return parse_predict(body, signatures(dtype, *shape), 100, 100).columns["x"]


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("int32", [0, -(2**31), 2**31 - 1], [2**31, 1.0, True, "1", None]),
        ("uint8", [0, 255], [-1, 256]),
        ("float32", [0, 1.5, -3e38, math.inf], [4e38, 10**40, True, "1", [1.0]]),
        ("bool", [True, False], [0, 1, "true"]),
    ],
)
def test_numbers_are_taken_only_where_nothing_is_lost(dtype, good, bad):
    assert parse(good, dtype) == good
    for value in bad:
        with pytest.raises(Rejection, match=f"element: 0 of the input x.*{dtype}") as caught:
            parse([value], dtype)
        assert caught.value.status == 400


def test_lists_are_as_deep_as_the_input():
    assert parse([[1, 2], [3]], "int64", None) == [[1, 2], [3]]
    for wrong in ([1], [[[1]]]):
        with pytest.raises(Rejection):
            parse(wrong, "int64", None)
    with pytest.raises(Rejection) as caught:
        parse([[1] * 101], "int64", None)
    assert caught.value.status == 413


def test_an_answer_has_tensorflow_servings_form():
    scores = {"score": [[0.5, -math.inf]], "text_bytes": [b"\xff"]}
    assert format_predict(scores, by_row=True, max_bytes=1000) == (
        b'{"predictions": [{"score": [0.5, -Infinity], "text_bytes": {"b64": "/w=="}}]}'
    )
    assert format_predict({"text": ["ä".encode()]}, by_row=False, max_bytes=1000) == '{"outputs": ["ä"]}'.encode()


def test_a_message_does_not_repeat_a_hostile_value():
    with pytest.raises(Rejection) as caught:
        parse([{"a" * 10_000: 1}], "string")
    assert len(caught.value.message) < 300
