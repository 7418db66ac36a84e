"""The recurrent model; its formula and its cached steps: `test_effects`."""

import keras
import numpy as np
import pytest
from decoding_oracles import FullPass, check_equal
from keras import ops
from naive_search import exhaustive_search

from keras_transformer.decoding.search import score_targets, search
from keras_transformer.models import model_of
from keras_transformer.models.config import RecurrentConfig

SOURCE = np.array([[5, 6, 7, 2], [8, 9, 2, 0]], "int32")
TARGET = np.array([[1, 5, 6, 7], [1, 8, 9, 4]], "int32")
STATES = {
    "several": dict(cell="lstm", attention="luong", attention_score="dot", input_feeding=True),
    "one": dict(cell="gru", attention="none"),
}


def model(vocabulary_size=12, **fields):
    keras.utils.set_random_seed(3)
    return model_of(RecurrentConfig(vocabulary_size, 16, dropout=0.0, **fields))


def array(value):
    return ops.convert_to_numpy(value)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("fields", STATES.values(), ids=STATES)
def test_beam_search_finds_the_best_of_all_translations(fields):
    """Against every sequence of at most three tokens, scored by teacher forcing."""
    small, source = model(vocabulary_size=6, **fields), np.array([[4, 5, 2]], "int32")
    result = search(small, source, 40, length_penalty=0.0, max_length=3, allow_unknown=True)
    check_equal(result, exhaustive_search(FullPass(small, source, 4), [3], 0.0, 1))


def test_attention_is_over_real_tokens_and_sums_to_one():
    attending = model(attention="bahdanau")
    _, (attention,) = attending.call_with_attention(SOURCE, TARGET)
    attention = array(attention)
    assert attention.shape == (2, 1, 4, 4)
    np.testing.assert_allclose(attention.sum(axis=3), 1, atol=1e-6)
    assert np.all(attention[1, :, :, 3] == 0)
    by_token, aligned = score_targets(attending, SOURCE, TARGET)
    assert by_token.shape == (2, 4) and aligned.shape == (2, 4, 4)
    assert model(attention="none").call_with_attention(SOURCE, TARGET)[1] == ()


@pytest.mark.slow
def test_it_learns_compiled():
    m = model(attention="luong", input_feeding=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    m.compile(keras.optimizers.Adam(0.02), loss, jit_compile=True)
    expected = np.roll(TARGET, -1, axis=1)
    history = m.fit((SOURCE, TARGET), expected, epochs=30, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
