"""Arguments of `search`: what is taken in any type, and what is refused."""

import re

import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import SearchModel
from keras_transformer.decoding.search import search

SOURCE = np.array([[6, 5, 2], [4, 2, 0]], "int32")
VOCABULARY = 11


class Uniform(SearchModel):
    """All tokens are equally probable, of 11."""

    def start_decoding(self, source_ids, capacity, num_beams=1):
        return ()

    def step(self, ids, cache):
        return ops.zeros((*ops.shape(ids), VOCABULARY)), cache

    def reorder(self, cache, parents):
        return cache


BIAS = np.linspace(0, 1, VOCABULARY)
SAME = {  # in the type that a program reads, and in the types that people have
    "sources": ({}, {"source_ids": SOURCE.tolist()}),
    "sources of int64": ({}, {"source_ids": SOURCE.astype("int64")}),
    "prefixes": (
        {"prefixes": np.array([[7, 8], [9, 0]], "int32")},
        {"prefixes": np.array([[7, 8], [9, 0]], "int64")},
    ),
    "phrases": (
        {"phrases": np.array([[[7, 8]], [[9, 0]]], "int32"), "beam_size": 1},
        {"phrases": [[[7, 8]], [[9, 0]]], "beam_size": 1},
    ),
    "forced ids": ({"forced_ids": np.array([7, 8], "int32")}, {"forced_ids": [7, 8]}),
    "seeds": (
        {"sampling": True, "seeds": np.array([7, 8], "int32")},
        {"sampling": True, "seeds": np.array([7, 8], "int64")},
    ),
    "a bias": ({"logit_bias": BIAS.astype("float32")}, {"logit_bias": BIAS}),
    "filters": (
        {"sampling": True, "temperature": np.array([0.5, 2.0], "float32"), "top_k": 3},
        {"sampling": True, "temperature": np.array([0.5, 2.0]), "top_k": ops.array(3)},
    ),
    "lengths": ({"max_length": 5, "min_length": 3}, {"max_length": np.int64(5), "min_length": 3}),
    "nothing": ({}, {"prefixes": None, "candidates": None, "seeds": None}),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize(("arguments", "given"), SAME.values(), ids=SAME)
def test_numbers_of_any_type_give_the_same(arguments, given):
    expected = search(Uniform(), **{"source_ids": SOURCE, "beam_size": 1, **arguments})
    received = search(Uniform(), **{"source_ids": SOURCE, "beam_size": 1, **given})
    for array, expected_array in zip(received, expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)


SAMPLING, INTEGERS = {"sampling": True}, "must be integers of the shape"
REFUSED = [
    ({"source_ids": SOURCE[0]}, f"`source_ids` {INTEGERS} (batch, source). Received: int32 of sh"),
    ({"source_ids": SOURCE[None]}, "`source_ids` .* of shape (1, 2, 3)."),
    ({"source_ids": [[6, 5, 2], [4]]}, "`source_ids` .* Received: source_ids=[[6, 5, 2], [4]]."),
    ({"source_ids": SOURCE / 2}, "`source_ids` .* Received: float64 of shape (2, 3)."),
    ({"source_ids": ["a text"]}, "`source_ids` .* Received: source_ids=['a text']."),
    ({"prefixes": [7, 8]}, f"`prefixes` {INTEGERS} (batch=2, prefix). Received: int64 of shape"),
    ({"prefixes": [[7.0], [8.0]]}, "`prefixes` .* Received: float64 of shape (2, 1)."),
    ({"prefixes": [[7]] * 3}, "`prefixes` .* Received: int64 of shape (3, 1)."),
    ({"phrases": [[7], [8]]}, f"`phrases` {INTEGERS} (batch=2, phrases, length)."),
    ({"forced_ids": [7]}, f"`forced_ids` {INTEGERS} (batch=2). Received: int64 of shape (1,)."),
    ({"forced_ids": 7}, f"`forced_ids` {INTEGERS} (batch=2). Received: int64 of shape ()."),
    ({"seeds": [1, 2, 3], **SAMPLING}, f"`seeds` {INTEGERS} (batch=2). Received: int64 of shape"),
    ({"logit_bias": np.zeros((2, 11))}, "`logit_bias` must be numbers of the shape (vocabulary)."),
    ({"logit_bias": np.zeros(5)}, "`logit_bias` .* each of 11 logits. Received: 5 numbers."),
    ({"logit_bias": np.full(11, np.nan)}, "`logit_bias` must be .* Received: nan."),
    ({"temperature": np.float32(0), **SAMPLING}, "`temperature` must be .* Received: 0.0."),
    ({"temperature": np.array([1.0, 0.0]), **SAMPLING}, "`temperature` must be .* Received: 0.0."),
    ({"temperature": ops.array(0.0), **SAMPLING}, "`temperature` must be .* Received: 0.0."),
    (
        {"temperature": np.ones(3), **SAMPLING},
        "`temperature` must be numbers of the shape (batch=2",
    ),
    ({"temperature": np.array([0.5, 1.0])}, "`temperature` needs `sampling=True`"),
    ({"top_p": np.float64(7), **SAMPLING}, "`top_p` must be .* Received: 7.0."),
    ({"top_p": np.array([0.5, np.nan]), **SAMPLING}, "`top_p` must be .* Received: nan."),
    ({"top_k": np.array([2.5, 3]), **SAMPLING}, "`top_k` must be integers of the shape (batch=2)"),
    ({"length_penalty": np.array([1.0, 2.0])}, "`length_penalty` must be numbers of the shape ()."),
    ({"length_penalty": 1000}, "`length_penalty` must be .* at most 10. Received: 1000."),
    ({"min_length": 9, "max_length": 8}, "`min_length` must be at most `max_length`."),
    ({"max_length": 0}, "`max_length` must be a positive integer"),
    ({"max_length": 2.5}, "`max_length` must be a positive integer"),
    # A model without a configuration: any id may be in its vocabulary, but none is negative.
    ({"source_ids": -SOURCE}, "`source_ids` must name ids of the vocabulary, from 0. Received: -"),
    ({"forced_ids": np.array([3, -3])}, "`forced_ids` must .* from 0. Received: -3."),
    ({"first_capacity": 0}, "`first_capacity` must be a positive integer"),
    ({"prefixs": np.array([[7], [8]])}, "There is no option `prefixs`. Did you mean `prefixes`?"),
]


@pytest.mark.tensorflow
@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_an_argument_of_other_axes_or_out_of_range_is_an_error(arguments, message):
    pattern = ".*".join(map(re.escape, message.split(" .* ")))
    with pytest.raises(ValueError, match=pattern) as raised:
        search(Uniform(), **{"source_ids": SOURCE, **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["prefixes", "phrases", "forced_ids"])
@pytest.mark.parametrize("id", [17, -1])
def test_forced_ids_outside_the_vocabulary_are_an_error(varied, name, id):
    forced = np.full((2, *[1] * {"prefixes": 1, "phrases": 2, "forced_ids": 0}[name]), id)
    with pytest.raises(ValueError, match=f"`{name}` must .* from 0 to 16. Received: {id}."):
        search(varied("pre_norm"), SOURCE, **{name: forced})
