import sys

import numpy as np
import pytest
from decoding_oracles import pad_to_few_shapes

from keras_transformer.engine.inputs import length_buckets
from keras_transformer.export.saved_model import batches

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow


def test_blank_in_the_graph_is_blank_in_python():
    """Every character that there is, but the halves of surrogate pairs."""
    characters = [chr(i) for i in range(1, sys.maxunicode + 1) if not 0xD800 <= i < 0xE000]
    blank = batches.is_blank(tf.constant(characters)).numpy()
    different = [
        hex(ord(character))
        for character, is_blank in zip(characters, blank, strict=True)
        if is_blank != (character.strip() == "")
    ]
    assert different == []


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 17, 32])
@pytest.mark.parametrize("longest", [1, 16, 17, 29])
def test_the_graph_pads_to_the_shapes_of_the_live_engine(rows, longest):
    ids = [[7] * (1 + (longest - 1) * (row == 0)) for row in range(rows)]
    ragged = tf.ragged.constant(ids, dtype=tf.int32)
    for limit in (23, 64):
        if longest > limit:
            continue
        chosen = tf.range(rows, dtype=tf.int64)
        padded = batches.pad_ids(ragged, chosen, batches.chunk_rows(32), length_buckets(limit))
        np.testing.assert_array_equal(padded.numpy(), pad_to_few_shapes(ids, limit))


def last_turns(ids, limit, turn):
    """Turns are taken away from the front, one by one, until what is left fits or is the last."""
    while len(ids) > limit and turn in ids[:-1]:
        ids = ids[ids.index(turn) + 1 :]
    return ids


def test_conversations_lose_their_oldest_turns_in_the_graph():
    chance, turn, limit = np.random.default_rng(3), 4, 5
    ids = [chance.integers(4, 8, size=size).tolist() for size in chance.integers(0, 14, size=200)]
    shorter = tf.function(lambda ids: batches.last_turns(ids, limit, turn), autograph=False)
    found = shorter(tf.ragged.constant(ids, dtype=tf.int32)).to_list()
    assert found == [last_turns(each, limit, turn) for each in ids]
    assert any(len(each) > limit for each in found) and any(turn in each for each in found)
    nothing = tf.ragged.constant([[], []], dtype=tf.int32, ragged_rank=1)
    assert shorter(nothing).to_list() == [[], []]


def test_chosen_rows_are_padded_alone():
    ids = tf.ragged.constant([[5], [7, 7, 7], [], [3, 2]], dtype=tf.int32)
    padded = batches.pad_ids(ids, tf.constant([3, 0, 2], tf.int64), [2, 4], [2, 5])
    np.testing.assert_array_equal(padded, [[3, 2], [5, 0], [0, 0], [0, 0]])
    values = batches.pad_rows(tf.constant([5.0, 7.0, 11.0]), tf.constant([2, 0, 1]), [2, 4])
    np.testing.assert_array_equal(values, [11, 5, 7, 0])


def test_the_longest_of_the_wanted_come_first_in_the_order_of_the_batch():
    wanted = tf.constant([True, True, False, True, True])
    places = batches.longest_first(wanted, tf.constant([3, 5, 11, 7, 5], tf.int64))
    assert places.numpy().tolist() == [3, 1, 4, 0]


@pytest.mark.parametrize("count", [0, 1, 32, 33, 71])
def test_chunks_put_each_result_at_its_place_and_leave_the_others(count):
    sizes = []

    def double(chosen):
        tf.py_function(lambda each: sizes.append(len(each)), [chosen], [])
        return {"double": 2.0 * tf.cast(chosen, tf.float32), "text": tf.strings.as_string(chosen)}

    @tf.function(autograph=False)
    def run(places):
        results = {"double": tf.fill([73], -1.0), "text": tf.fill([73], "nothing")}
        return batches.in_chunks(places, double, results, 32)

    places = np.random.default_rng(5).permutation(73)[:count]
    found = run(tf.constant(places, tf.int64))
    expected = np.full(73, -1.0)
    expected[places] = 2.0 * places
    np.testing.assert_array_equal(found["double"], expected)
    texts = [text.decode() for text in found["text"].numpy()]
    assert texts == [str(i) if i in places else "nothing" for i in range(73)]
    # Chunks run side by side, in any order.
    assert sorted(sizes) == [count % 32] * (count % 32 > 0) + [32] * (count // 32)


def test_an_axis_is_cut_or_padded_to_a_width():
    values = tf.reshape(tf.range(1, 7), [1, 2, 3])
    np.testing.assert_array_equal(batches.widen(values, 2, axis=2), [[[1, 2], [4, 5]]])
    wide = batches.widen(values, 3, axis=1)
    np.testing.assert_array_equal(wide, [[[1, 2, 3], [4, 5, 6], [0, 0, 0]]])
