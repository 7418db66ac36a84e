import keras
import numpy as np
import pytest
from reference import float64, softmax

from keras_transformer.layers import MaskedPooling

LENGTHS = (5, 2, 0)


def expected(mode, rows, kernel):
    if not len(rows):
        return np.zeros(rows.shape[1])
    if mode == "attention":
        return softmax(rows @ kernel) @ rows
    return rows.mean(axis=0) if mode == "mean" else rows.max(axis=0)


@pytest.mark.parametrize("mode", ["mean", "max", "attention"])
def test_it_pools_real_tokens_alone_as_the_oracle(mode):
    keras.utils.set_random_seed(5)
    rng = np.random.default_rng(5)
    inputs = rng.normal(-1, 1, (3, 5, 7)).astype("float32")
    mask = np.arange(5) < np.array(LENGTHS)[:, None]
    layer = MaskedPooling(mode)
    outputs = float64(layer(np.where(mask[..., None], inputs, 1e4), padding_mask=mask))
    kernel = float64(layer.score.kernel)[:, 0] if mode == "attention" else None
    for row, length, pooled in zip(inputs, LENGTHS, outputs, strict=True):
        np.testing.assert_allclose(pooled, expected(mode, row[:length], kernel), atol=1e-5)
    whole = float64(layer(inputs))
    np.testing.assert_allclose(whole[1], expected(mode, inputs[1], kernel), atol=1e-5)


@pytest.mark.filterwarnings("error:.*mask:UserWarning")
@pytest.mark.parametrize("mode", ["mean", "max", "attention"])
def test_the_mask_of_an_embedding_hides_padding_and_ends_with_the_length(mode):
    ids, padding = keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="bool")
    embedding, layer = keras.layers.Embedding(29, 7, mask_zero=True), MaskedPooling(mode)
    attached, both = layer(embedding(ids)), layer(embedding(ids), padding_mask=padding)
    assert getattr(attached, "_keras_mask", None) is getattr(both, "_keras_mask", None) is None
    model = keras.Model([ids, padding], [attached, both])
    rows, last = np.array([[3, 5, 7, 0, 0], [11, 13, 0, 0, 0]]), np.array([0, 0, 1, 1, 1], bool)
    pooled, restricted = map(float64, model([rows, np.tile(last, (2, 1))]))
    vectors = float64(embedding(rows))
    kernel = float64(layer.score.kernel)[:, 0] if mode == "attention" else None
    for row, length in enumerate((3, 2)):
        real = vectors[row, :length]
        np.testing.assert_allclose(pooled[row], expected(mode, real, kernel), atol=1e-6)
        np.testing.assert_allclose(restricted[row], expected(mode, real[2:], kernel), atol=1e-6)
