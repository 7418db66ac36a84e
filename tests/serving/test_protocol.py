"""TensorFlow Serving's JSON: requests that are taken, refused, and forms of answers."""

import base64
import json
import math
import tracemalloc

import numpy as np
import pytest

from keras_transformer.export.signature import Signature, Tensor
from keras_transformer.serving.protocol import (
    Parser,
    Predict,
    Rejection,
    definition,
    format_predict,
)

TEXT, NUMBER = Tensor("string"), Tensor("float32")
SIGNATURES = {
    name: Signature(name, *sides)
    for name, sides in {
        "serving_default": ({"text": TEXT}, {"translation": TEXT, "score": NUMBER}),
        "sample": ({"text": TEXT, "seed": Tensor("int32")}, {"translation": TEXT}),
    }.items()
}


def parse(body):
    return Parser(SIGNATURES, max_sentences=50, max_text_characters=2000).parse(body)


def test_rows_and_columns_become_rows():
    row = parse(b'{"instances": ["ab", {"b64": "Y2Q="}]}')
    assert row == Predict("serving_default", [{"text": "ab"}, {"text": "cd"}], True)
    assert parse(b'{"instances": [{"text": "ab"}]}').rows == [{"text": "ab"}]
    assert parse(b'{"inputs": ["ab"]}') == Predict("serving_default", [{"text": "ab"}], False)
    named = parse(b'{"signature_name": "sample", "inputs": {"text": ["a"], "seed": [3]}}')
    assert named.rows == [{"text": "a", "seed": 3}]
    assert parse(b'{"signature_name": "", "inputs": ["a\\u0000b"]}').rows == [{"text": "a\0b"}]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "EOF"),
        (b'{"inputs": ["\xff"]}', "unicode"),
        (b'{"inputs": ["a\x00b"]}', "JSON Parse error"),
        (b"[" * 100_000, "recursion"),
        (b"[1]", "not object"),
        (b'{"inputs": ["a"], "instances": ["a"]}', "one of the keys"),
        (b'{"signature_name": "x", "inputs": ["a"]}', "serving_default"),
        (b'{"texts": ["a"]}', "one of the keys"),
        (b'{"inputs": {}}', "object of the inputs: text"),
        (b'{"inputs": {"txt": ["a"]}}', 'serving_default has no input "txt". did you mean `text`?'),
        (b'{"instances": ["a", {"txt": "a"}]}', 'no input "txt". did you mean `text`?'),
        (b'{"instances": [{"text": "a", "seed": 1}]}', '"seed". it is an input of: sample'),
        (b'{"signature_name": "sample", "instances": [{"text": "a"}]}', "0, seed: field required"),
        (b'{"inputs": ["a"], "markups": "html"}', 'no field "markups". did you mean `markup`?'),
        (b'{"inputs": ["a"], "signature": "sample"}', "did you mean `signature_name`?"),
        (b'{"inputs": ["a"], "n_best": 3}', 'no field "n_best". known: signature_name, instances,'),
        (b'{"instances": ["a"], "seed": 3}', 'no field "seed". it is an input of: sample.'),
        (b'{"inputs": ["a"], "%b": 3}' % (b"a_" * 400_000), 'no field "a_a_'),
        (b'{"instances": []}', "No values"),
        (b'{"instances": "a"}', "list"),
        (b'{"inputs": [5]}', "string"),
        (b'{"inputs": ["\\ud800"]}', "escape"),
        (b'{"inputs": [{"b64": "?"}]}', "base64"),
        (b'{"inputs": [{"b64": "/w=="}]}', "utf-8"),
        (b'{"signature_name": "sample", "inputs": {"text": ["a"], "seed": [true]}}', "integer"),
        (b'{"signature_name": "sample", "inputs": {"text": ["a"], "seed": [2147483648]}}', "less"),
        (b'{"signature_name": "sample", "inputs": {"text": ["a"], "seed": [1, 2]}}', "same"),
        (b'{"signature_name": "sample", "inputs": ["a"]}', "object of the inputs: text, seed"),
        (b'{"instances": ["a"], "markup": ["xml"]}', "markup: input should be 'none', 'place"),
        (b'{"instances": ["a"], "tag": 5}', "tag: input should be a valid string"),
        (b'{"instances": ["a"], "glossary": {"b": 5}}', "glossary, b: input should be a valid"),
    ],
)
def test_a_malformed_request_names_its_mistake_in_one_line(body, says):
    with pytest.raises(Rejection) as caught:
        parse(body)
    assert caught.value.status == 400 and "\n" not in str(caught.value)
    assert says.lower() in str(caught.value).lower()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"inputs": ["a"] * 51}, "at most 50 sentences. Received: 51.*`max_sentences`"),
        ({"inputs": ["ä" * 2001]}, "at most 2000 characters.*`max_text_characters`.*has 2001"),
        (
            {"inputs": [{"b64": base64.b64encode(b"a" * 2001).decode()}]},
            "at most 2000 characters.*has 2001",
        ),
        ({"inputs": ["<p>a", "<p>a" * 50], "markup": "html"}, "each block of HTML is one.* 51"),
        ({"inputs": ["<p>a" * 50, "<p>a"], "markup": "html"}, "each block of HTML is one.* 51"),
        ({"inputs": ["a"], "glossary": {str(n): "b" for n in range(1001)}}, "at most 1000 items"),
    ],
)
def test_a_request_beyond_a_limit_is_413(fields, says):
    with pytest.raises(Rejection, match=says) as caught:
        parse(json.dumps(fields).encode())
    assert caught.value.status == 413


def test_an_answer_has_tensorflow_servings_form():
    rows = [{"translation": "ä", "score": 0.1}, {"translation": "b", "score": -math.inf}]
    default = SIGNATURES["serving_default"]
    assert json.loads(format_predict(rows[:1], default, True, 1000)) == {"predictions": rows[:1]}
    columns = format_predict(rows, default, False, 1000).decode()
    assert columns == '{"outputs": {"translation": ["ä", "b"], "score": [0.1, -Infinity]}}'
    # A single output stands without its name.
    for by_row, name in ((False, "outputs"), (True, "predictions")):
        answer = format_predict(rows, SIGNATURES["sample"], by_row, 99).decode()
        assert answer == f'{{"{name}": ["ä", "b"]}}'
    with pytest.raises(Rejection, match="An answer must have at most 9 bytes") as caught:
        format_predict(rows, default, True, 9)
    assert caught.value.status == 413


def test_sentences_of_different_lengths_are_padded_to_the_longest_of_their_request():
    tokens, matrix = Tensor("string", (None,)), Tensor("float32", (None, None))
    signature = Signature("align", {}, {"tokens": tokens, "alignment": matrix})
    rows = [{"tokens": ["a", "b"], "alignment": [[1.0, 0.5, 0.0]]}]
    rows += [{"tokens": ["c"], "alignment": [[2.0], [3.0]]}]
    assert json.loads(format_predict(rows, signature, False, 1000))["outputs"] == {
        "tokens": [["a", "b"], ["c", ""]],
        "alignment": [[[1, 0.5, 0], [0, 0, 0]], [[2, 0, 0], [3, 0, 0]]],
    }


@pytest.mark.parametrize("by_row", [True, False])
def test_an_answer_whose_padding_is_too_long_is_refused_before_it_is_padded(by_row):
    outputs = {"tokens": Tensor("string", (None,)), "alignment": Tensor("float32", (None, None))}
    # Each is small, but both are padded to 3,000 × 2,000 numbers: 12 million of them.
    wide, tall = [[0.0] * 2000], [[0.0]] * 3000
    rows = [{"tokens": ["a"], "alignment": alignment} for alignment in (wide, tall)]
    tracemalloc.start()
    try:
        with pytest.raises(Rejection, match="An answer must have at most 1000000 bytes") as caught:
            format_predict(rows, Signature("align", {}, outputs), by_row, 10**6)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()
    assert caught.value.status == 413


def test_an_answer_of_exactly_the_limit_is_given_and_its_numbers_are_the_shortest_decimals():
    signature = Signature("align", {}, {"alignment": Tensor("float32", (None, None))})
    rows = [{"alignment": np.float32([[0.1, 0.25]])}, {"alignment": np.float32([[1], [0.7]])}]
    # Not 0.10000000149011612.
    answer = b'{"outputs": [[[0.1, 0.25], [0.0, 0.0]], [[1.0, 0.0], [0.7, 0.0]]]}'
    assert format_predict(rows, signature, False, len(answer)) == answer
    with pytest.raises(Rejection, match="An answer must have"):
        format_predict(rows, signature, False, len(answer) - 1)


@pytest.mark.parametrize(
    ("dtype", "value", "written"),
    [("string", "", '""'), ("float32", 0.0, "0.0"), ("int32", 0, "0")],
)
def test_an_answer_of_the_shortest_values_may_fill_the_limit(dtype, value, written):
    signature = Signature("align", {}, {"values": Tensor(dtype, (None,))})
    answer = f'{{"outputs": [[{", ".join([written] * 100)}]]}}'.encode()
    assert format_predict([{"values": [value] * 100}], signature, False, len(answer)) == answer


def test_the_metadata_of_a_signature_has_tensorflow_servings_form():
    told = definition(Signature("beam", {"text": TEXT}, {"score": Tensor("float32", (5,))}))
    assert told["inputs"]["text"]["dtype"] == "DT_STRING"
    sizes = [dim["size"] for dim in told["outputs"]["score"]["tensor_shape"]["dim"]]
    assert told["outputs"]["score"]["dtype"] == "DT_FLOAT" and sizes == ["-1", "5"]
    assert told["method_name"] == "tensorflow/serving/predict"


def test_fields_of_the_request_hold_for_all_of_its_sentences():
    fields = {"markup": "html", "tag": "2fr", "glossary": {"b": "c"}}
    options = parse(json.dumps({"instances": ["a"], **fields}).encode()).options
    assert options == (("markup", "html"), ("tag", "2fr"), ("glossary", (("b", "c"),)))
    none = b'{"instances": ["a"], "markup": "none", "glossary": {}}'
    assert parse(none).options == parse(b'{"instances": ["a"]}').options == ()
    score = Signature("score", {"t": TEXT}, {})
    defaults = {"serving_default": {"markup": "placeholders"}}
    parser = Parser({**SIGNATURES, "score": score}, 1, 9, defaults)
    assert parser.parse(b'{"inputs": ["a"]}').options == (("markup", "placeholders"),)
    body = b'{"signature_name": "score", "inputs": ["a"]}'
    assert parser.parse(none).options == parser.parse(body).options == ()
