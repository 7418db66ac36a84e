"""The encoder over turns: against turns one by one, and what may be seen of another turn."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.layers import SinusoidalPositionalEncoding
from keras_transformer.models.stacks import turn_numbers

TURN = 4
# Three turns, and one; a separator begins the turn after it.
SOURCE_IDS = np.array(
    [[5, 6, 7, TURN, 8, 9, TURN, 10, 2, 0, 0], [11, 12, 2, 0, 0, 0, 0, 0, 0, 0, 0]]
)
SPANS = [[(0, 3), (3, 6), (6, 9)], [(0, 3)]]


def model_of(seed=3, policy="float32", **fields):
    keras.utils.set_random_seed(seed)
    sizes = dict(vocabulary_size=29, model_dim=14, num_heads=2, intermediate_dim=11, dropout=0.3)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1, turn_layers=2, turn_id=TURN)
    config = TransformerConfig(**{**sizes, **layers, "normalize_first": True, **fields})
    model = Transformer(config, dtype=policy)
    for weight in model.trainable_weights:  # Not what zeros and ones would hide.
        weight.assign(weight + 0.1 * keras.random.normal(weight.shape, seed=seed))
    return model


def encoded(model, ids):
    return ops.convert_to_numpy(ops.cast(model.encode(np.asarray(ids))[0], "float32"))


def test_turns_are_counted_back_from_the_last():
    expected = [[2, 2, 2, 1, 1, 1, 0, 0, 0, 0, 0], [0] * 11]
    assert ops.convert_to_numpy(turn_numbers(SOURCE_IDS, TURN)).tolist() == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"normalize_first": True},
        {"normalize_first": False},
        # A window and positions of tokens, not of turns.
        {"sliding_window": 2},
        {"positions": "rotary", "num_heads": 1},
    ],
)
def test_it_equals_the_turns_encoded_one_by_one_and_their_means_in_a_row(fields):
    model = model_of(**fields)
    states = encoded(model, SOURCE_IDS)
    model((SOURCE_IDS, SOURCE_IDS), training=True)  # The same path, with dropout.
    for row, spans in enumerate(SPANS):
        embedded = model.source_embedding(SOURCE_IDS[row : row + 1])
        if model.source_positions is not None:
            embedded = model.source_positions(embedded)
        alone = [np.asarray(model.encoder(embedded[:, start:end])) for start, end in spans]
        means = np.concatenate([turn.mean(axis=1, keepdims=True) for turn in alone], axis=1)
        count = len(spans)
        positions = np.asarray(SinusoidalPositionalEncoding()(np.zeros((1, count, 14), "float32")))
        over_turns = np.asarray(model.turns.encoder(means + positions[:, ::-1]))
        for number, (start, end) in enumerate(spans):
            expected = alone[number][0] + over_turns[0, number]
            np.testing.assert_allclose(states[row, start:end], expected, atol=1e-5)


def test_a_turn_sees_others_through_their_means_alone():
    model, other = model_of(), SOURCE_IDS.copy()
    other[0, 4:6] = 13, 14
    before, after = encoded(model, SOURCE_IDS), encoded(model, other)
    assert (np.abs(before - after)[0, :9].max(axis=1) > 1e-4).all()
    # The last normalization decides what the blocks over turns add: nothing.
    for weight in model.turns.encoder.final_norm.weights:
        weight.assign(np.zeros(weight.shape))
    before, after = encoded(model, SOURCE_IDS), encoded(model, other)
    np.testing.assert_array_equal(before[0, :3], after[0, :3])
    np.testing.assert_array_equal(before[0, 6:9], after[0, 6:9])
    assert np.abs(before - after)[0, 4:6].max() > 1e-2


@pytest.mark.parametrize(("policy", "tolerance"), [("float32", 1e-5), ("mixed_bfloat16", 5e-2)])
def test_padding_and_batch_mates_change_nothing_and_cached_steps_equal_one_pass(policy, tolerance):
    model, target_ids = model_of(policy=policy), np.array([[1, 13, 17, 19], [1, 23, 3, 5]])
    whole = ops.convert_to_numpy(ops.cast(model((SOURCE_IDS, target_ids)), "float32"))
    for row, length in enumerate((9, 3)):
        alone = model((SOURCE_IDS[row : row + 1, :length], target_ids[row : row + 1]))
        alone = ops.convert_to_numpy(ops.cast(alone, "float32"))
        np.testing.assert_allclose(whole[row], alone[0], atol=tolerance)
    cache = model.start_decoding(SOURCE_IDS, 4)
    for position in range(4):
        logits, cache = model.step(target_ids[:, position : position + 1], cache)
        logits = ops.convert_to_numpy(logits)[:, 0]
        np.testing.assert_allclose(logits, whole[:, position], atol=tolerance)
