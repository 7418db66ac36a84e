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
KINDS = [
    dict(cell="gru", attention="none"),
    dict(cell="lstm", attention="none", num_encoder_layers=2, num_decoder_layers=2),
    dict(cell="gru", attention="bahdanau", num_decoder_layers=2),
    dict(cell="lstm", attention="bahdanau", input_feeding=True, num_encoder_layers=2),
    dict(cell="gru", attention="luong", tie_embeddings="none"),
    dict(cell="lstm", attention="luong", attention_score="dot", input_feeding=True),
]


def model(vocabulary_size=12, **fields):
    keras.utils.set_random_seed(3)
    return model_of(RecurrentConfig(vocabulary_size, 16, dropout=0.0, **fields))


def array(value):
    return ops.convert_to_numpy(value)


HALF = [(KINDS[3], "mixed_bfloat16"), (KINDS[4], "mixed_float16")]


@pytest.fixture(params=[*((kind, "float32") for kind in KINDS), *HALF], ids=str)
def network(request):
    fields, policy = request.param
    keras.config.set_dtype_policy(policy)
    return model(**fields)


def check_close(network, received, expected):
    tolerance = {"float32": 1e-5, "bfloat16": 5e-2, "float16": 5e-3}[network.compute_dtype]
    received, expected = (np.asarray(side, "float32") for side in (received, expected))
    np.testing.assert_allclose(received, expected, atol=tolerance * np.abs(expected).max())


def test_a_decoding_step_equals_the_full_pass(network):
    full = array(network((SOURCE, TARGET)))
    cache, steps = network.start_decoding(SOURCE, 8), []
    for index in range(TARGET.shape[1]):
        logits, cache = network.step(TARGET[:, index : index + 1], cache)
        steps.append(array(logits)[:, 0])
    check_close(network, np.stack(steps, axis=1), full)


def test_padding_and_batch_mates_never_change_a_result(network):
    alone = array(network((SOURCE[1:, :3], TARGET[1:])))
    padded = np.pad(SOURCE, ((0, 0), (0, 3)))
    check_close(network, array(network((padded, TARGET)))[1:], alone)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("fields", [KINDS[0], KINDS[-1]])
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


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_decoder_starts_from_the_last_output_of_each_direction(cell, layers):
    sizes = {"num_encoder_layers": layers, "num_decoder_layers": 3 - layers}
    m = model(cell=cell, attention="luong", **sizes)
    cache = m.start_decoding(SOURCE, 4)
    value = array(cache.memory.value)  # --> [sentence, token, forward and backward]
    ends = [
        np.concatenate([row[length - 1, :8], row[0, 8:]])
        for row, length in zip(value, (4, 3), strict=True)
    ]
    kernel, bias = map(array, m.start.weights)
    states = np.concatenate([array(state)[:, 0] for state in cache.states], axis=1)
    np.testing.assert_allclose(states, np.tanh(np.stack(ends) @ kernel + bias), atol=1e-5)


@pytest.mark.slow
def test_it_learns_compiled():
    m = model(attention="luong", input_feeding=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    m.compile(keras.optimizers.Adam(0.02), loss, jit_compile=True)
    expected = np.roll(TARGET, -1, axis=1)
    history = m.fit((SOURCE, TARGET), expected, epochs=30, verbose=0).history["loss"]
    assert history[-1] < 0.5 * history[0]
