"""`DecodingOptions`: what is refused, and how it is said."""

import dataclasses
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.base.errors import InputError
from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.arguments import search_arguments
from keras_transformer.decoding.constraints import length_limits
from keras_transformer.decoding.ranking import RANKINGS

SOURCE = np.array([[5, 2, 0], [3, 4, 2]], "int32")
FIELDS = [field.name for field in dataclasses.fields(DecodingOptions)]


OUT_OF_RANGE = [{"beam_size": 2.0}, {"n_best": True}, {"top_k": -1}, {"min_length": -1}]
OUT_OF_RANGE += [{"max_length": 0}, {"no_repeat_ngram_size": 1.5}, {"length_penalty": math.nan}]
OUT_OF_RANGE += [{"length_penalty": math.inf}, {"length_penalty": "1"}, {"temperature": -1.0}]
OUT_OF_RANGE += [{"top_p": 0.0}, {"top_p": 1.1}, {"min_length_ratio": -1}]
OUT_OF_RANGE += [{"max_length_ratio": math.nan}, {"beam_size": 2, "n_best": 3}, {"seed": 1.5}]
OUT_OF_RANGE += [{"seed": 2**31}, {"length_penalty": 10.5}, {"word_penalty": 1e6}]
OUT_OF_RANGE += [{"max_length": 5, "min_length": 6}]


@pytest.mark.parametrize("options", OUT_OF_RANGE)
def test_a_value_out_of_range_is_an_error_that_names_it(options):
    name = list(options)[-1]
    value = options[name]
    with pytest.raises(InputError, match=f"`{name}`.*Received: .*{value!r}"):
        DecodingOptions(**options)


def test_the_ends_of_the_ranges_are_allowed():
    DecodingOptions(top_p=1.0, seed=-(2**31), sampling=True, max_length_ratio=math.inf)
    DecodingOptions(n_best=7, beam_size=1, sampling=True)  # seven samples
    DecodingOptions(min_length=6, max_length=6, length_penalty=10)


@pytest.mark.parametrize("length", [1, 4096])
@pytest.mark.parametrize("name", RANKINGS)
def test_scores_of_the_largest_numbers_are_finite_and_still_differ(name, length):
    numbers = {"length_penalty": 10.0, "word_penalty": 999_999.0 if name == "marian" else 0.0}
    options = DecodingOptions(length_normalization=name, **numbers)
    ranking = options.ranking_class.of(search_arguments(options, SOURCE, length))
    lengths, totals = np.array([length, length], "int32"), np.array([-1e6, -1.0], "float32")
    with np.errstate(over="raise", under="raise"):
        worse, better = np.asarray(ranking.score(totals, lengths))
    assert NEG_INF / 2 < worse < better < 0


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"temperature": 5.0}, {"top_p": 0.5}, {"seed": 3}, {"seed": (0, 1)}]
)
def test_an_option_of_sampling_without_sampling_is_an_error(options):
    ((name, value),) = options.items()
    message = f"`{name}` needs `sampling=True`.* Received: {name}={re.escape(repr(value))}"
    with pytest.raises(InputError, match=message):
        DecodingOptions(**options)
    DecodingOptions(**options, sampling=True)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"banned_ids": [17]}, "`banned_ids`.*0 to 16.*Received: 17"),
        ({"banned_ids": [-1]}, "`banned_ids`.*Received: -1"),
        ({"banned_ids": ["a"]}, "`banned_ids`.*integers.*Received: 'a'"),
        ({"logit_bias": {18: 1.0}}, "`logit_bias`.*Received: 18"),
        ({"logit_bias": {5: math.nan}}, "`logit_bias`.*numbers.*Received: nan"),
        ({"logit_bias": {5: 1e6}}, "`logit_bias`.*numbers below 1000000.*Received: 1000000.0"),
        ({"logit_bias": {5: "1"}}, "`logit_bias`.*numbers.*Received: '1'"),
    ],
)
def test_ids_must_be_in_the_vocabulary_and_biases_numbers(options, message):
    with pytest.raises(InputError, match=message):
        DecodingOptions(**options).check_ids(17)


def test_a_name_that_no_option_has_is_an_error_that_suggests_one():
    with pytest.raises(InputError, match="no option `beams`"):
        DecodingOptions(beams=2)
    with pytest.raises(InputError, match="no option `topk`. Did you mean `top_k`?"):
        DecodingOptions(topk=2)


def test_a_word_penalty_needs_marians_rule():
    with pytest.raises(InputError, match="`word_penalty` needs `length_normalization: marian`"):
        DecodingOptions(word_penalty=0.3)


def test_numpy_numbers_are_numbers():
    numbers = {"beam_size": np.int64(3), "length_penalty": np.float32(0.5), "seed": [np.uint8(1)]}
    ids = {"banned_ids": np.array([5, 7]), "logit_bias": {np.int32(3): np.float32(2)}}
    options = DecodingOptions(**numbers, **ids, sampling=True)
    options.check_ids(11)
    assert (options.beam_size, options.banned_ids, options.seed) == (3, (5, 7), (1,))
    assert type(options.beam_size) is int and options.logit_bias == ((3, 2.0),)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.integers(),
    st.floats(),
    st.floats(0, 2),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(-2, 12), st.floats(), st.text(max_size=1)), max_size=3),
    st.dictionaries(st.one_of(st.integers(-2, 12), st.text(max_size=1)), st.floats(), max_size=2),
)


@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
@settings(max_examples=200, derandomize=True)
def test_any_value_is_refused_by_name_or_fits_the_program(values):
    try:
        options = DecodingOptions(**values)
        options.check_ids(11)
        options.check_min_length(17)
    except InputError:
        return
    # Finite in float32, whole in int32: nothing overflows there.
    with np.errstate(all="raise"):
        source_ids = np.ones((2, 3), "int32")
        made = search_arguments(dataclasses.replace(options, seed=0), source_ids, 17)
    assert all(np.isfinite(array).all() for array in made if array is not None)
    assert options.n_best <= options.beams
    assert all(bias < np.inf for _, bias in options.logit_bias)


def test_a_limit_is_a_multiple_of_the_source_and_more_up_to_the_largest():
    lengths = np.array([2, 0, 5, 1], "int32")
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 31), [14, 0, 20, 12])
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 13), [13, 0, 13, 12])
    np.testing.assert_array_equal(length_limits(lengths, 1.5, [0, 0, 3, 1], 31), [3, 0, 10, 2])
    without_ratio = search_arguments(DecodingOptions(max_length_ratio=math.inf), SOURCE, 40)
    ratio, margin = without_ratio.max_length_ratio, without_ratio.max_length_margin
    np.testing.assert_array_equal(length_limits(lengths[:1], ratio, margin, 10**6), [10**6])


def test_the_options_own_length_comes_before_the_engines():
    assert search_arguments(DecodingOptions(max_length=5), SOURCE, 40).max_length == 5
    assert search_arguments(DecodingOptions(), SOURCE, 40).max_length == 40


def test_samples_have_the_seed_of_the_options_unless_seeds_are_given():
    options = DecodingOptions(sampling=True, seed=11)
    np.testing.assert_array_equal(search_arguments(options, SOURCE, 9).seeds, [11, 11])
    np.testing.assert_array_equal(search_arguments(options, SOURCE, 9, [3, 4]).seeds, [3, 4])
    assert search_arguments(DecodingOptions(), SOURCE, 9).seeds is None


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4, 7, 8, 15, 16, 31, 32, 99])
def test_the_beam_of_phrases_has_a_place_for_each_number_of_their_tokens(num_tokens):
    least = next((size for size in (4, 8, 16, 32) if size > num_tokens), 32) if num_tokens else 0
    for beam_size in (1, 2, 4, 5, 12, 64):
        options = DecodingOptions(beam_size=beam_size, min_length=3)
        expected = DecodingOptions(beam_size=max(beam_size, least), min_length=3)
        assert options.with_phrases(num_tokens) == expected
    sampling = DecodingOptions(sampling=True, n_best=2)
    assert sampling.with_phrases(num_tokens) == sampling  # which the search refuses
