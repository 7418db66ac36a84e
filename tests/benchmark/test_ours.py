import keras
import numpy as np
import pytest

from keras_transformer.config import BOS_ID, EOS_ID

pytestmark = pytest.mark.tensorflow


def test_the_forced_search_takes_the_best_id_but_the_end_at_every_step(
    model, source_ids, nine_steps
):
    found = np.array(nine_steps[1])
    assert found.shape == (len(source_ids), 9)
    padded = keras.utils.pad_sequences(source_ids, padding="post")
    read = np.pad(found, ((0, 0), (1, 0)), constant_values=BOS_ID)[:, :-1]
    # The whole of what was found at once, without a cache.
    logits = keras.ops.convert_to_numpy(model((padded, read))).copy()
    assert (logits.argmax(axis=-1) == EOS_ID).all()
    logits[:, :, EOS_ID] = -np.inf
    np.testing.assert_array_equal(found, logits.argmax(axis=-1))


def test_a_forced_beam_has_exactly_the_steps_and_no_end(nine_steps):
    assert [len(ids) for ids in nine_steps[4]] == [9, 9, 9]
    assert all(EOS_ID not in ids for ids in nine_steps[4])
