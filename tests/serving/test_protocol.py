"""What the live server's tests do not reach: ranges of numbers, forms of answers."""

import json
import math

import numpy as np
import pytest

from keras_transformer.serving.protocol import format_predict, parse_predict
from keras_transformer.serving.reporting import Rejection
from keras_transformer.serving.signatures import Signature, Tensor


def signatures(dtype, *shape):
    inputs = {"x": Tensor(dtype, (None, *shape))}
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
    assert (
        format_predict({"text": ["ä".encode()]}, by_row=False, max_bytes=1000)
        == '{"outputs": ["ä"]}'.encode()
    )


def test_an_array_is_written_as_a_list_of_its_rows():
    for array in (np.arange(30).reshape(5, 3, 2) / 8, np.zeros((2, 0, 3)), np.zeros((1, 2, 0))):
        for outputs in ({"x": array}, {"x": array, "y": list("a" * len(array))}):
            lists = {key: np.asarray(value).tolist() for key, value in outputs.items()}
            columns = json.loads(format_predict(outputs, by_row=False, max_bytes=1000))["outputs"]
            assert columns == (lists if "y" in outputs else lists["x"])
            rows = json.loads(format_predict(outputs, by_row=True, max_bytes=1000))["predictions"]
            assert rows == (
                [{"x": x, "y": "a"} for x in lists["x"]] if "y" in outputs else lists["x"]
            )


def test_an_answer_may_have_so_many_bytes_and_no_more():
    outputs = {"text": ["ä" * 10]}
    assert len(format_predict(outputs, by_row=False, max_bytes=37)) == 37
    with pytest.raises(Rejection, match="At most 36 bytes an answer") as caught:
        format_predict(outputs, by_row=False, max_bytes=36)
    assert (caught.value.status, caught.value.reason) == (413, "answer")


@pytest.mark.parametrize("coded", ["Ä===", "YWI=é", "\ud800", "?", "YWI"])
def test_base64_that_is_none_is_told_so(coded):
    with pytest.raises(Rejection, match="element: 0 of the input x.*base64 decode") as caught:
        parse([{"b64": coded}], "string")
    assert caught.value.status == 400


def test_an_empty_signature_name_is_the_default():
    body = b'{"signature_name": "", "inputs": [5]}'
    assert parse_predict(body, signatures("int32"), 100, 100).signature == "serving_default"


def test_a_message_does_not_repeat_a_hostile_value():
    with pytest.raises(Rejection) as caught:
        parse([{"a" * 10_000: 1}], "string")
    assert len(caught.value.message) < 300
