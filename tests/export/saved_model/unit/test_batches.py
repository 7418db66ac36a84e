import numpy as np
import pytest
from decoding_oracles import pad_to_few_shapes

from keras_transformer.engine.inputs import length_buckets
from keras_transformer.export.saved_model import batches

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("rows", [1, 3, 32])
def test_the_graph_pads_to_the_shapes_of_the_live_engine(rows):
    for longest, limit in ((1, 23), (16, 23), (17, 23), (17, 64), (29, 64)):
        ids = [[7] * (1 + (longest - 1) * (row == 0)) for row in range(rows)]
        ragged, chosen = tf.ragged.constant(ids, dtype=tf.int32), tf.range(rows, dtype=tf.int64)
        padded = batches.pad_ids(ragged, chosen, batches.chunk_rows(32), length_buckets(limit))
        np.testing.assert_array_equal(padded.numpy(), pad_to_few_shapes(ids, limit))


def test_what_fits_into_no_shape_is_padded_to_its_own_size():
    ids = tf.ragged.constant([[7] * 18, [7], [7]], dtype=tf.int32)
    chosen = tf.range(3, dtype=tf.int64)
    assert batches.pad_ids(ids, chosen, [1, 2], [16, 17]).shape == (3, 18)
    assert batches.pad_rows(tf.range(3), chosen, [1]).numpy().tolist() == [0, 1, 2]


def last_turns(ids, limit, turn):
    """Turns are taken away from the front, one by one, until what is left fits or is the last."""
    while len(ids) > limit and turn in ids[:-1]:
        ids = ids[ids.index(turn) + 1 :]
    return ids


def test_conversations_lose_their_oldest_turns_in_the_graph():
    chance, turn, limit = np.random.default_rng(3), 4, 5
    ids = [chance.integers(4, 8, size=size).tolist() for size in chance.integers(0, 14, size=200)]
    shorter = tf.function(lambda ids: batches.last_turns(ids, limit, turn), autograph=False)
    rows = shorter(tf.ragged.constant(ids, dtype=tf.int32)).to_list()
    assert rows == [last_turns(row, limit, turn) for row in ids]
    assert any(len(row) > limit for row in rows) and any(turn in row for row in rows)
    nothing = tf.ragged.constant([[], []], dtype=tf.int32, ragged_rank=1)
    assert shorter(nothing).to_list() == [[], []]


def test_the_longest_of_the_selected_come_first_in_the_order_of_the_batch():
    selected = tf.constant([True, True, False, True, True])
    indices = batches.longest_first(selected, tf.constant([3, 5, 11, 7, 5], tf.int64))
    assert indices.numpy().tolist() == [3, 1, 4, 0]


@pytest.mark.parametrize("count", [0, 32, 71])
def test_chunks_put_each_result_at_its_place_and_leave_the_others(count):
    sizes = []

    def double(chosen):
        tf.py_function(lambda chunk: sizes.append(len(chunk)), [chosen], [])
        return {"double": 2.0 * tf.cast(chosen, tf.float32), "text": tf.strings.as_string(chosen)}

    @tf.function(autograph=False)
    def run(indices):
        results = {"double": tf.fill([73], -1.0), "text": tf.fill([73], "nothing")}
        return batches.in_chunks(indices, double, results, 32)

    indices = np.random.default_rng(5).permutation(73)[:count]
    result = run(tf.constant(indices, tf.int64))
    expected = np.full(73, -1.0)
    expected[indices] = 2.0 * indices
    np.testing.assert_array_equal(result["double"], expected)
    texts = [text.decode() for text in result["text"].numpy()]
    assert texts == [str(i) if i in indices else "nothing" for i in range(73)]
    # Chunks run side by side, in any order.
    assert sorted(sizes) == [count % 32] * (count % 32 > 0) + [32] * (count // 32)
