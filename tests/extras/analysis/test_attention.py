"""Attention as arrays: against the layers' own weights, and by hand; alignments of words."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.extras.analysis import attention
from keras_transformer.extras.analysis.attention import (
    entropy,
    merge_words,
    pharaoh,
    word_alignment,
    words_of,
)
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    TokenEmbedding,
)

SOURCE = np.array([[3, 5, 7, 11, 2, 0, 0], [13, 2, 0, 0, 0, 0, 0]])
TARGET = np.array([[1, 17, 19, 23, 5], [1, 7, 0, 0, 0]])


def test_a_model_stays_as_it_is(model):
    before = ops.convert_to_numpy(model((SOURCE, TARGET)))
    attention(model, SOURCE, TARGET)
    assert all("call" not in vars(block.self_attention) for block in model.encoder.blocks)
    np.testing.assert_array_equal(before, ops.convert_to_numpy(model((SOURCE, TARGET))))


def test_rows_of_each_layer_and_head_sum_to_one(model):
    maps = attention(model, SOURCE, TARGET)
    assert maps.encoder.shape == (2, 2, 3, 7, 7)
    assert maps.decoder.shape == (2, 3, 3, 5, 5)
    assert maps.cross.shape == (2, 3, 3, 5, 7)
    assert maps.encoder.dtype == np.float32
    for weights in maps:
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
        assert weights[weights > 0].size > weights.shape[1] * weights.shape[2]


def test_weights_range_over_visible_keys_alone(model):
    maps = attention(model, SOURCE, TARGET)
    for row in range(2):
        padding = SOURCE[row] == 0
        assert maps.encoder[row][..., padding].max() == 0
        assert maps.cross[row][..., padding].max() == 0
        future = np.triu(np.ones((5, 5), bool), 1) | (TARGET[row] == 0)
        assert maps.decoder[row][..., future].max() == 0
        assert maps.decoder[row][..., ~future].min() > 0


@pytest.mark.parametrize("name", ["source_ids", "target_ids"])
@pytest.mark.parametrize("id", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(model, name, id):
    ids = {"source_ids": SOURCE, "target_ids": TARGET}
    ids[name] = np.where(ids[name] == 7, id, ids[name])
    with pytest.raises(ValueError, match=f"`{name}` must name ids of .*Received: {id}"):
        attention(model, **ids)


def test_float_ids_are_refused_also_by_a_model_of_ones_own(model):
    with pytest.raises(ValueError, match="`target_ids` must be ids, .* of dtype float64"):
        attention(model, SOURCE, TARGET + 0.5)
    ids = keras.Input((5,), dtype="int32")
    hidden = TokenEmbedding(9, 6)(ids)
    own = keras.Model(ids, MultiHeadAttention(2, 3)(hidden, hidden))
    with pytest.raises(ValueError, match="`source_ids` must be ids, .* of dtype float64"):
        attention(own, [[1.0, 2.0, 3.0, 4.9, 0.0]])


def test_the_weights_are_those_that_each_layer_returns(model):
    maps = attention(model, SOURCE[0, :5], TARGET[0])
    source, target = SOURCE[:1, :5], TARGET[:1]
    hidden = model.source_positions(model.source_embedding(source))
    for layer, block in enumerate(model.encoder.blocks):
        hidden, weights = block(hidden, return_attention_scores=True)
        np.testing.assert_allclose(maps.encoder[layer], weights[0], atol=1e-5)
    encoded, hidden = hidden, model.target_positions(model.target_embedding(target))
    for layer, block in enumerate(model.decoder.blocks):
        hidden, self_scores, cross = block(hidden, encoded, return_attention_scores=True)
        np.testing.assert_allclose(maps.decoder[layer], self_scores[0], atol=1e-5)
        np.testing.assert_allclose(maps.cross[layer], cross[0], atol=1e-5)


def test_a_model_of_ones_own_with_these_layers_is_read():
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(29, 12, mask_zero=True)(ids)
    hidden = EncoderBlock(intermediate_dim=7, num_heads=2)(hidden)
    hidden = DecoderBlock(intermediate_dim=7, num_heads=3)(hidden)
    hidden = MultiHeadAttention(num_heads=3, key_dim=5)(hidden, hidden, use_causal_mask=True)
    query = keras.layers.Dense(12)(hidden)
    hidden = MultiHeadAttention(num_heads=5, key_dim=5)(query, hidden)
    maps = attention(keras.Model(ids, hidden), SOURCE)
    assert maps.encoder.shape == (2, 1, 2, 7, 7)
    assert maps.decoder.shape == (2, 2, 3, 7, 7)
    assert maps.cross.shape == (2, 1, 5, 7, 7)
    assert maps.encoder[0][..., 5:].max() == 0
    assert np.triu(maps.decoder, 1).max() == 0
    assert attention(keras.Model(ids, ids), SOURCE).cross.shape == (0, 0, 0, 0)


def test_layers_that_make_no_array_are_named():
    ids = keras.Input((6,), dtype="int32")
    hidden = keras.layers.Embedding(29, 12)(ids)
    hidden = EncoderBlock(intermediate_dim=7, num_heads=2)(hidden)
    hidden = keras.layers.AveragePooling1D(2)(hidden)
    model = keras.Model(ids, EncoderBlock(intermediate_dim=7, num_heads=2)(hidden))
    with pytest.raises(ValueError, match=r"encoder attention .* Received: shapes .*\(2, 2, 3, 3\)"):
        attention(model, SOURCE[:, :6])


def test_entropy_counts_the_keys_that_a_query_looks_at():
    rows = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4, [0] * 4], "float32")
    np.testing.assert_allclose(entropy(rows), [0, 1, 2, 0], atol=1e-5)


def test_a_word_gets_the_sum_over_its_keys_and_the_mean_over_its_queries():
    tokens = ["<s>", "▁Hun", "de", "▁spielen", ".", "</s>"]
    assert words_of(tokens) == [0, 1, 1, 2, 2, 3]
    assert words_of(["Hun", "de", "</s>", "<s>", "x"]) == [0, 0, 1, 2, 3]
    weights = np.array([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
    merged = merge_words(weights, [0, 0, 1], [0, 1, 1])
    np.testing.assert_allclose(merged, [[0.3, 0.7], [0.0, 1.0]])


def test_words_are_linked_to_the_word_that_their_tokens_attend_to():
    source = ["▁two", "▁do", "gs", "▁play", ".", "</s>"]
    weights = np.zeros((5, 6), "float32")
    weights[0, 1], weights[0, 0] = 0.3, 0.7
    weights[1, 1], weights[1, 2] = 0.5, 0.5
    weights[2, 3], weights[2, 5] = 0.2, 0.8  # The end is no word, however much it gets.
    weights[3, 4] = weights[4, 5] = 1.0
    alignment = word_alignment(weights, source, ["▁Hun", "de", "▁spielen", ".", "</s>"])
    assert alignment.source_words == ["two", "dogs", "play."]
    assert alignment.target_words == ["Hunde", "spielen."]
    np.testing.assert_allclose(alignment.weights, [[0.35, 0.65, 0], [0, 0, 0.6]], atol=1e-6)
    assert alignment.links() == {(1, 0), (2, 1)}
    assert pharaoh(alignment.links()) == "1-0 2-1"
    # An empty translation has no links.
    alignment = word_alignment(np.ones((1, 2), "float32"), ["▁a", "</s>"], ["</s>"])
    assert alignment.weights.shape == (0, 1)
    assert alignment.links() == frozenset() and pharaoh(alignment.links()) == ""
