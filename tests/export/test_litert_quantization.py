import numpy as np
import pytest
from litert_examples import ROWS, WIDTH, constants, run

from keras_transformer.export import litert_quantization
from keras_transformer.export.litert_file import convert, join

pytestmark = pytest.mark.tensorflow


def test_int8_is_one_table_for_the_look_up_and_the_product(litert_parts, litert_table):
    content = join(litert_parts, "int8")
    large = [each for each in constants(content) if len(each) >= ROWS * WIDTH]
    assert [len(each) for each in large] == [ROWS * WIDTH]
    scales = np.abs(litert_table).max(axis=1) / 127
    ids = np.arange(ROWS, dtype="int32")
    found = run(content, "two", ids=ids)
    # Half a step of the row's scale, and no more: a scale of the whole table would be 1,000 times
    # too large for the smallest row.
    assert np.all(np.abs(found["rows"] - litert_table) <= scales[:, None] * 0.501)
    exact = litert_table @ litert_table.T
    error = np.abs(found["logits"] - exact)
    assert np.max(error) < 0.02 * np.abs(exact).max()
    assert np.max(error) > 0


def test_float16_halves_the_file(litert_parts, litert_table):
    content = join(litert_parts, "float16")
    assert [len(each) for each in constants(content) if len(each) >= ROWS * WIDTH] == [
        2 * ROWS * WIDTH
    ]
    ids = np.array([0, 66], "int32")
    found = run(content, "one", ids=ids)
    np.testing.assert_array_equal(
        found["rows"], litert_table.astype("float16").astype("float32")[ids]
    )
    np.testing.assert_allclose(
        found["logits"], litert_table[ids] @ litert_table.T, rtol=1e-2, atol=1e-2
    )


def test_small_arrays_stay_as_they_are(litert_parts, litert_table, monkeypatch):
    monkeypatch.setattr(litert_quantization, "_LEAST_VALUES", ROWS * WIDTH + 1)
    assert constants(join(litert_parts, "int8")).count(litert_table.tobytes()) == 1


@pytest.fixture(scope="module")
def masked(litert_parts):
    """A function that adds a mask, and one that adds an array of other values."""
    import tensorflow as tf

    chance = np.random.default_rng(7)
    mask = np.where(chance.random((ROWS, WIDTH)) < 0.5, 0.0, -1e9).astype("float32")
    others = np.where(mask == 0, 1.0, mask).astype("float32")
    others[0, 0] = 0.0

    def function(x):
        return {"masked": x + mask, "other": x + others, "wide": x[:, :1] + np.zeros_like(mask)}

    spec = tf.TensorSpec((ROWS, WIDTH), tf.float32, name="x")
    traced = tf.function(function, [spec], autograph=False).get_concrete_function()
    return mask, others, *convert([("add", traced)])


@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_a_mask_is_int8_and_exact(masked, quantize):
    mask, others, part = masked
    content = join([part], quantize)
    arrays = constants(content)
    # Times a scale of 1e9.
    assert arrays.count((-(mask != 0).astype("int8")).tobytes()) == 1
    assert arrays.count(bytes(mask.size)) == 1
    # Three values are no mask.
    assert arrays.count(others.tobytes()) == 1
    assert mask.tobytes() not in arrays
    x = np.random.default_rng(3).normal(size=mask.shape).astype("float32")
    found = run(content, "add", x=x)
    np.testing.assert_array_equal(found["wide"], np.repeat(x[:, :1], WIDTH, 1))
    np.testing.assert_array_equal(found["masked"], x + mask)
    np.testing.assert_array_equal(found["other"], x + others)


def test_float32_stays_float32(masked):
    mask, _, part = masked
    assert constants(join([part])).count(mask.tobytes()) == 1
