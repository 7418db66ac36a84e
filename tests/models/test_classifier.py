import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.pooling import POOLINGS
from keras_transformer.models import model_of
from keras_transformer.models.config import ClassifierConfig

TEXT = [5, 9, 7, 11, 2]


def classifier(dtype="float32", **fields):
    keras.utils.set_random_seed(3)
    sizes = dict(model_dim=14, num_heads=2, intermediate_dim=11, num_encoder_layers=2)
    config = ClassifierConfig(13, target_vocabulary_size=3, **{**sizes, **fields})
    return model_of(config, dtype=keras.dtype_policies.DTypePolicy(dtype))


def logits(model, *rows, length=5):
    ids = np.zeros((len(rows), length), "int32")
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return ops.convert_to_numpy(ops.cast(model((ids,)), "float32"))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("mixed_bfloat16", 2e-2)])
def test_neither_padding_nor_batch_mates_change_a_label(pooling, dtype, error):
    model = classifier(dtype, pooling=pooling)
    alone = logits(model, TEXT)
    assert alone.shape == (1, 1, 3)
    in_batch = logits(model, [4] * 16 + [2], TEXT, [8, 2], length=17)
    np.testing.assert_allclose(in_batch[1], alone[0], rtol=error, atol=error)
    other = logits(model, [*TEXT[:2], 8, *TEXT[3:]])  # which the model does see
    assert np.abs(other - alone).max() > 2 * error


def test_whole_words_are_dropped_in_training_alone():
    model = classifier(word_dropout=0.5, dropout=0.0)
    np.testing.assert_array_equal(logits(model, TEXT), logits(model, TEXT))
    embedded = ops.convert_to_numpy(model.word_dropout(ops.ones((40, 9, 14)), training=True))
    remaining = embedded[..., 0] > 0
    assert 0.4 < remaining.mean() < 0.6
    np.testing.assert_allclose(embedded, 2.0 * remaining[..., None] * np.ones(14), rtol=1e-6)
