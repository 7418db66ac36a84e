import numpy as np
import pytest

from keras_transformer.export import litert_file
from keras_transformer.export.litert_file import convert, custom_operations, join

pytestmark = pytest.mark.tensorflow

ROWS, WIDTH = 67, 31


@pytest.fixture(scope="module")
def needs_litert():
    return pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")


@pytest.fixture(scope="module")
def table():
    # Rows of very different size, each with a scale of its own.
    rng = np.random.default_rng(5)
    return (rng.normal(size=(ROWS, WIDTH)) * np.logspace(-2, 1, ROWS)[:, None]).astype("float32")


@pytest.fixture(scope="module")
def parts(table, needs_litert):
    """Two functions that look rows up in the table and multiply by it."""
    import tensorflow as tf

    def function(ids):
        rows = tf.gather(table, ids)
        return {"rows": rows, "logits": tf.matmul(rows, tf.constant(table), transpose_b=True)}

    spec = tf.TensorSpec((None,), tf.int32, name="ids")
    traced = tf.function(function, [spec], autograph=False).get_concrete_function()
    return [convert(name, traced) for name in ("one", "two")]


def run(content, name, **inputs):
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_content=content).get_signature_runner(name)(**inputs)


def constants(content):
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    return [bytes(each.data) for each in model.buffers if each.data is not None]


def test_signatures_share_their_arrays(parts, table):
    content = join(parts)
    assert constants(content).count(table.tobytes()) == 1
    assert len(content) < table.nbytes * 1.5
    ids = np.array([3, 60, 3], "int32")
    for name in ("one", "two"):
        found = run(content, name, ids=ids)
        np.testing.assert_array_equal(found["rows"], table[ids])
        np.testing.assert_allclose(found["logits"], table[ids] @ table.T, rtol=1e-4, atol=1e-4)


def test_int8_is_one_table_for_the_look_up_and_the_product(parts, table):
    content = join(parts, "int8")
    large = [each for each in constants(content) if len(each) >= ROWS * WIDTH]
    assert [len(each) for each in large] == [ROWS * WIDTH]
    scales = np.abs(table).max(axis=1) / 127
    ids = np.arange(ROWS, dtype="int32")
    found = run(content, "two", ids=ids)
    # Half a step of the row's scale, and no more: a scale of the whole table would be 1,000 times
    # too large for the smallest row.
    assert np.all(np.abs(found["rows"] - table) <= scales[:, None] * 0.501)
    exact = table @ table.T
    error = np.abs(found["logits"] - exact)
    assert np.max(error) < 0.02 * np.abs(exact).max()
    assert np.max(error) > 0


def test_float16_halves_the_file(parts, table):
    content = join(parts, "float16")
    assert [len(each) for each in constants(content) if len(each) >= ROWS * WIDTH] == [
        2 * ROWS * WIDTH
    ]
    ids = np.array([0, 66], "int32")
    found = run(content, "one", ids=ids)
    np.testing.assert_array_equal(found["rows"], table.astype("float16").astype("float32")[ids])
    np.testing.assert_allclose(found["logits"], table[ids] @ table.T, rtol=1e-2, atol=1e-2)


def test_small_arrays_stay_as_they_are(parts, table, monkeypatch):
    monkeypatch.setattr(litert_file, "_LEAST_VALUES", ROWS * WIDTH + 1)
    assert constants(join(parts, "int8")).count(table.tobytes()) == 1


def test_arrays_begin_where_litert_wants_them(parts, table):
    content = join(parts)
    assert content.index(table.tobytes()) % 16 == 0
    assert content[4:8] == litert_file.IDENTIFIER


def test_operations_that_litert_does_not_bring_are_named(parts):
    import tensorflow as tf

    function = tf.function(
        lambda text: {"number": tf.strings.to_hash_bucket_fast(text, 7)},
        [tf.TensorSpec((None,), tf.string, name="text")],
    )
    foreign = convert("hash", function.get_concrete_function(), custom_operations=True)
    assert custom_operations(join(parts)) == []
    assert custom_operations(join([*parts, foreign])) == ["StringToHashBucketFast"]


def test_a_function_with_variables_is_not_converted():
    import tensorflow as tf

    variable = tf.Variable([2.0])
    function = tf.function(
        lambda x: {"y": x * variable}, [tf.TensorSpec((1,), tf.float32, name="x")]
    )
    with pytest.raises(ValueError, match="hold what it needs as constants"):
        convert("f", function.get_concrete_function())
