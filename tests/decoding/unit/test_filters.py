"""The filters against a sort; the draws against a NumPy oracle, on each backend."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding import sampling
from keras_transformer.decoding.sampling import filter_logits, sample, uniform

NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}


def tensors(options):
    """All three options as scalar tensors, in the order of the arguments."""
    dtypes = {name: "int32" if name == "top_k" else "float32" for name in NEUTRAL}
    return [ops.convert_to_tensor(v, dtypes[name]) for name, v in (NEUTRAL | options).items()]


def allowed(gaps):
    return np.asarray(gaps) != np.float32(-NEG_INF)


def allowed_by_a_sort(logits, temperature, top_k, top_p):
    """Bool, one row; float64 from the differences on."""
    left = logits > np.float32(NEG_INF)
    differences = (logits - logits.max()) / np.float32(temperature)
    if top_k:
        least = np.sort(differences[left])[::-1][:top_k][-1]
        left &= differences >= least
    if top_p < 1:
        descending = np.sort(differences[left])[::-1]
        shares = np.cumsum(np.exp(descending.astype("float64")))
        crossing = np.argmax(shares >= top_p * shares[-1])
        left &= differences >= descending[crossing]
    return left


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_zero_and_minus_zero_are_equally_probable(zeros):
    filtered = filter_logits(np.array([*zeros, -1.0], "float32"), top_k=1)
    np.testing.assert_array_equal(allowed(filtered), [True, True, False])


@pytest.mark.tensorflow
@pytest.mark.parametrize("options", [{}, {"temperature": 1e28}, {"top_k": 3}, {"top_p": 0.9999}])
def test_what_is_not_allowed_neither_counts_nor_comes_back(options):
    logits = np.array([[NEG_INF, -2.0, NEG_INF, -1.0, -np.inf]], "float32")
    filtered = np.asarray(filter_logits(logits, **options))
    np.testing.assert_array_equal(allowed(filtered), [[False, True, False, True, False]])


@pytest.mark.tensorflow
@pytest.mark.parametrize("options", [{}, {"top_k": 2, "top_p": 0.5}])
def test_where_no_token_may_follow_nothing_is_allowed(options):
    logits = np.full((1, 1, 5), NEG_INF, "float32")
    assert not allowed(filter_logits(logits, **options)).any()
    assert 0 <= int(sample(logits, np.array([3], "int32"), 0, **options)[0, 0]) < 5


def test_random_rows_keep_what_a_sort_keeps(compiled):
    program = compiled(filter_logits)

    @settings(max_examples=30, derandomize=True)
    @given(
        seed=st.integers(0, 2**31),
        spread=st.sampled_from([1e-3, 1.0, 5.0, 100.0]),
        decimals=st.sampled_from([0, 1, 7]),
        temperature=st.sampled_from([0.3, 1.0, 1.7]),
        top_k=st.integers(0, 40),
        top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
    )
    def check(seed, spread, decimals, temperature, top_k, top_p):
        rng = np.random.default_rng(seed)
        # Few decimals: many equal ones.
        logits = rng.normal(size=(3, 5, 37)).round(decimals).astype("float32") * np.float32(spread)
        logits[rng.random(logits.shape) < 0.2] = NEG_INF
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        result = allowed(program(ops.convert_to_tensor(logits), *tensors(options)))
        for row, mask in zip(logits.reshape(-1, 37), result.reshape(-1, 37), strict=True):
            # float32 may round a sum or a ratio to the other side of its threshold: what is found
            # lies between the sets of a slightly stricter and of a slightly laxer filter.
            stricter = allowed_by_a_sort(row, temperature, top_k, top_p - 1e-5)
            laxer = allowed_by_a_sort(row, temperature, top_k, top_p + 1e-5)
            stricter |= row == row.max()
            assert (stricter <= mask).all() and (mask <= laxer).all()

    check()


@pytest.mark.parametrize("options", [{"top_k": 5, "top_p": 0.9}, {"temperature": 1.3, "top_k": 9}])
def test_the_draws_are_those_of_the_numpy_oracle(rng, options):
    # `uniform` gives the same bits on each backend: see test_random_numbers.py.
    logits = rng.normal(scale=2.0, size=(101, 3, 29)).astype("float32")
    seeds = rng.integers(-(2**31), 2**31, size=101).astype("int32")
    options = NEUTRAL | options
    noise = -np.log(-np.log(np.asarray(uniform(seeds, 3, 7, 29)).astype("float64")))
    allowed = np.apply_along_axis(allowed_by_a_sort, -1, logits, **options)
    expected = np.where(allowed, logits / options["temperature"] + noise, -np.inf).argmax(axis=-1)
    np.testing.assert_array_equal(sample(logits, seeds, 7, **options), expected)


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 1e28])
def test_a_token_that_is_not_allowed_is_never_drawn(monkeypatch, temperature):
    # The worst case: the least noise for what is allowed, the most for what is not.
    numbers = np.array([[[1 - 2.0**-24, 2.0**-24, 1 - 2.0**-24, 1 - 2.0**-24]]], "float32")
    monkeypatch.setattr(sampling, "uniform", lambda *_: ops.convert_to_tensor(numbers))
    logits = np.array([[[NEG_INF, -50.0, NEG_INF, -np.inf]]], "float32")
    seeds = np.zeros(1, "int32")
    assert int(sample(logits, seeds, 0, temperature=temperature)[0, 0]) == 1
