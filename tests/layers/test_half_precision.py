"""Weights of half precision: the numbers of float32, in half the memory."""

import keras
import numpy as np
import pytest
from keras import ops
from reference import float64

from keras_transformer.base.large_variables import assign_each
from keras_transformer.layers import TokenEmbedding, half_precision
from keras_transformer.layers.half_precision import HalfPrecisionWeights, logits_of_rows, matmul
from keras_transformer.layers.projection import Dense, Projection

WIDTH, OUTPUTS, ROWS = 4, 6, 3
LAYERS = {
    "dense": lambda **options: Dense(OUTPUTS, "relu", **options),
    "projection": lambda **options: Projection(
        "btd,dhk->bthk", (None, 2, 3), bias_axes="hk", **options
    ),
}


def test_the_policy_computes_in_float32_with_weights_in_16_bits():
    policy = HalfPrecisionWeights()
    assert (policy.compute_dtype, policy.variable_dtype) == ("float32", "float16")
    assert HalfPrecisionWeights("bfloat16").variable_dtype == "bfloat16"
    assert policy == HalfPrecisionWeights("float16") != HalfPrecisionWeights("bfloat16")
    assert len({policy, HalfPrecisionWeights("float16"), HalfPrecisionWeights("bfloat16")}) == 2
    others = (HalfPrecisionWeights("bfloat16"), keras.dtype_policies.DTypePolicy("float32"))
    assert all(policy != other and other != policy for other in others)
    assert repr(policy) == '<HalfPrecisionWeights "float16">'
    with pytest.raises(ValueError, match="must be one of float16, bfloat16. Received: float32"):
        HalfPrecisionWeights("float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_in_float32_with_its_own_weights(name, dtype, rng):
    inputs = rng.normal(size=(2, ROWS, WIDTH)).astype("float32")
    half, full = LAYERS[name](dtype=HalfPrecisionWeights(dtype)), LAYERS[name]()
    for layer in (half, full):
        layer.build(inputs.shape)
    half.set_weights([rng.normal(size=weight.shape) for weight in half.weights])
    assert {weight.dtype for weight in half.weights} == {dtype}
    full.set_weights([float64(weight) for weight in half.weights])
    # By itself, and in a model, whose call would cast the weights.
    for call in (half, keras.Sequential([half]), half.call):
        outputs = call(inputs)
        assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
        np.testing.assert_allclose(float64(outputs), float64(full(inputs)), rtol=1e-5, atol=1e-6)


def test_a_model_that_is_trained_takes_the_numbers_of_half_precision(rng):
    half, full = LAYERS["dense"](dtype=HalfPrecisionWeights()), LAYERS["dense"]()
    for layer in (half, full):
        layer.build((None, WIDTH))
    half.set_weights([rng.normal(size=weight.shape) for weight in half.weights])
    assign_each(full.weights, half.weights)
    for ours, theirs in zip(full.weights, half.weights, strict=True):
        assert ours.dtype == "float32"
        np.testing.assert_array_equal(float64(ours), float64(theirs))


@pytest.mark.parametrize("output_bias", [True, False])
@pytest.mark.parametrize("rows_of_a_block", [1, 4, 5, 6, 7, 100])
def test_an_embedding_looks_up_and_projects_in_float32(
    output_bias, rows_of_a_block, monkeypatch, rng
):
    monkeypatch.setattr(half_precision, "_BLOCK_NUMBERS", rows_of_a_block * WIDTH)
    half = TokenEmbedding(OUTPUTS, WIDTH, output_bias, dtype=HalfPrecisionWeights())
    full = TokenEmbedding(OUTPUTS, WIDTH, output_bias)
    for layer in (half, full):
        layer.build()
    half.set_weights([rng.normal(size=weight.shape) for weight in half.weights])
    full.set_weights([float64(weight) for weight in half.weights])
    ids = np.array([[1, 5, 0], [2, 2, 4]])
    np.testing.assert_array_equal(float64(half(ids)), float64(full(ids)))
    for shape in ((2, ROWS, WIDTH), (5, WIDTH), (WIDTH,), (0, WIDTH)):
        hidden = rng.normal(size=shape).astype("float32")
        logits = half.project(hidden)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"
        expected = hidden @ float64(full.embeddings).T
        expected = expected + (float64(full.output_bias) if output_bias else 0.0)
        np.testing.assert_allclose(float64(logits), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_number_changes_no_other(bad, is_compiled, compiled, rng):
    matrix = rng.normal(size=(WIDTH, OUTPUTS)).astype("float16")
    rows = rng.normal(size=(ROWS, WIDTH)).astype("float32")
    function = compiled(matmul) if is_compiled else matmul
    expected = float64(function(ops.convert_to_tensor(rows), ops.convert_to_tensor(matrix)))
    np.testing.assert_allclose(expected, rows @ matrix.astype("float64"), rtol=1e-5, atol=1e-5)
    rows[0] = bad
    outputs = float64(function(ops.convert_to_tensor(rows), ops.convert_to_tensor(matrix)))
    assert not np.isfinite(outputs[0]).any()
    np.testing.assert_array_equal(outputs[1:], expected[1:])


@pytest.mark.parametrize("of_matrix", ["float16", "float32"])
def test_other_dtypes_are_multiplied_as_keras_does(of_matrix, rng):
    matrix = ops.cast(rng.normal(size=(WIDTH, OUTPUTS)), of_matrix)
    for dtype in ("float16", "bfloat16", "float32"):
        rows = ops.cast(rng.normal(size=(ROWS, WIDTH)), dtype)
        outputs, expected = matmul(rows, matrix), ops.matmul(rows, matrix)
        assert outputs.dtype == expected.dtype
        np.testing.assert_allclose(float64(outputs), float64(expected), rtol=1e-6, atol=1e-6)


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each call of `cast_late`."""
    calls, cast_late = [], half_precision.cast_late

    def record(matrix, inputs):
        calls.append((matrix, inputs))
        return cast_late(matrix, inputs)

    monkeypatch.setattr(half_precision, "cast_late", record)
    return calls


def test_a_block_of_a_table_is_cast_after_the_product_before_it(calls, monkeypatch, rng):
    monkeypatch.setattr(half_precision, "_BLOCK_NUMBERS", 2 * WIDTH)
    table = ops.convert_to_tensor(rng.normal(size=(5, WIDTH)).astype("float16"))
    rows = ops.convert_to_tensor(rng.normal(size=(ROWS, WIDTH)).astype("float32"))
    products = float64(logits_of_rows(table, rows))
    blocks, (first, *others) = zip(*calls, strict=True)
    assert [block.shape[0] for block in blocks] == [2, 2, 1] and first is rows
    for start, inputs in zip((0, 2), others, strict=True):
        np.testing.assert_array_equal(float64(inputs), products[start : start + 2])


@pytest.mark.parametrize("name", LAYERS)
def test_no_weight_is_cast_before_its_product(name, calls, rng):
    inputs = rng.normal(size=(2, ROWS, WIDTH)).astype("float32")
    layer = LAYERS[name](dtype=HalfPrecisionWeights())
    layer.build(inputs.shape)
    model = keras.Sequential([layer])  # Its call casts other weights.
    calls.clear()
    model(inputs)
    assert calls
    assert {keras.backend.standardize_dtype(matrix.dtype) for matrix, _ in calls} == {"float16"}
