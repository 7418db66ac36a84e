import numpy as np
import pytest
from litert_examples import constants, run

from keras_transformer.export.litert_file import convert, custom_operations, join

pytestmark = pytest.mark.tensorflow


def test_signatures_share_their_arrays(litert_parts, litert_table):
    content = join(litert_parts)
    assert constants(content).count(litert_table.tobytes()) == 1
    assert len(content) < litert_table.nbytes * 1.5
    ids = np.array([3, 60, 3], "int32")
    for name in ("one", "two"):
        found = run(content, name, ids=ids)
        np.testing.assert_array_equal(found["rows"], litert_table[ids])
        np.testing.assert_allclose(
            found["logits"], litert_table[ids] @ litert_table.T, rtol=1e-4, atol=1e-4
        )


def test_operations_that_litert_does_not_bring_are_named(litert_parts):
    import tensorflow as tf

    function = tf.function(
        lambda text: {"number": tf.strings.to_hash_bucket_fast(text, 7)},
        [tf.TensorSpec((None,), tf.string, name="text")],
    )
    foreign = convert([("hash", function.get_concrete_function())], custom_operations=True)
    assert custom_operations(join(litert_parts)) == []
    assert custom_operations(join([*litert_parts, *foreign])) == ["StringToHashBucketFast"]


def test_a_function_with_variables_is_not_converted():
    import tensorflow as tf

    variable = tf.Variable([2.0])
    function = tf.function(
        lambda x: {"y": x * variable}, [tf.TensorSpec((1,), tf.float32, name="x")]
    )
    with pytest.raises(ValueError, match="hold what it needs as constants"):
        convert([("f", function.get_concrete_function())])


def test_the_converter_which_leaks_runs_in_another_process(monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(tf.lite, "TFLiteConverter", None)
    function = tf.function(lambda x: {"y": 2.0 * x}, [tf.TensorSpec((3,), tf.float32, name="x")])
    parts = convert([(name, function.get_concrete_function()) for name in ("f", "g")])
    x = np.array([1.0, 2.0, 3.0], "float32")
    for name in ("f", "g"):
        np.testing.assert_array_equal(run(join(parts), name, x=x)["y"], 2 * x)
