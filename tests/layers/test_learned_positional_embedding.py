"""LearnedPositionalEmbedding: a table of positions and nothing else."""

import numpy as np
import pytest
import reference
from keras import ops
from reference import float64

from keras_transformer.layers import LearnedPositionalEmbedding

BATCH, LENGTH, WIDTH, MAX_LENGTH = 2, 5, 7, 11


def built():
    layer = LearnedPositionalEmbedding(MAX_LENGTH)
    layer.build((None, None, WIDTH))
    return layer, reference.weights_of(layer)["embeddings"]


def test_adds_one_row_of_the_table_to_each_position(rng):
    layer, table = built()
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    np.testing.assert_allclose(float64(layer(inputs)), inputs + table[:LENGTH], atol=1e-6)


def test_start_index_goes_on_where_the_first_piece_ended():
    layer, table = built()
    inputs = np.zeros((1, 4, WIDTH), "float32")
    for outputs in (layer(inputs, start_index=7), layer(inputs, 7)):
        np.testing.assert_allclose(float64(outputs)[0], table[7:], atol=1e-7)


def test_start_index_may_be_a_tensor_inside_a_compiled_program(compiled):
    layer, table = built()
    inputs = ops.zeros((1, 1, WIDTH))
    step = compiled(lambda start: layer(inputs, start_index=start))
    for position in (0, 3, 10):
        outputs = step(ops.convert_to_tensor(position, "int32"))
        np.testing.assert_allclose(float64(outputs)[0, 0], table[position], atol=1e-7)


def test_each_position_trains_its_own_row(pull_back):
    layer, table = built()
    inputs = ops.zeros((1, 3, WIDTH))

    def with_table(values):
        return layer.stateless_call([values], [], inputs, start_index=2)[0]

    _, pull = pull_back(with_table, table.astype("float32"))
    gradient = pull(np.ones((1, 3, WIDTH)))
    expected = np.zeros_like(table)
    expected[2:5] = 1.0
    np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize(("length", "start_index"), [(12, 0), (5, 7)])
def test_a_sequence_past_the_table_is_refused(length, start_index):
    layer, _ = built()
    with pytest.raises(ValueError) as caught:
        layer(np.zeros((1, length, WIDTH), "float32"), start_index=start_index)
    for fact in ("max_length=11", f"start_index={start_index}", f"length={length}"):
        assert fact in str(caught.value)


def test_a_sequence_that_ends_with_the_table_is_taken():
    layer, table = built()
    outputs = float64(layer(np.zeros((1, MAX_LENGTH, WIDTH), "float32")))
    np.testing.assert_allclose(outputs[0], table, atol=1e-7)


@pytest.mark.tensorflow
def test_past_the_table_a_length_that_only_the_program_knows_gives_no_number():
    import tensorflow as tf

    layer, table = built()
    signature = [tf.TensorSpec((1, None, WIDTH))]
    run = tf.function(layer, signature, jit_compile=True, autograph=False)
    outputs = np.asarray(run(np.zeros((1, MAX_LENGTH + 2, WIDTH), "float32")))[0]
    np.testing.assert_allclose(outputs[:MAX_LENGTH], table, atol=1e-7)
    assert np.isnan(outputs[MAX_LENGTH:]).all()


def test_initial_rows_have_the_size_of_a_token_vector():
    layer = LearnedPositionalEmbedding(211)
    layer.build((None, None, 101))
    table = reference.weights_of(layer)["embeddings"]
    assert abs(table.std() * 101**0.5 - 1) < 0.03
