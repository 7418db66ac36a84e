import keras
import numpy as np
import pytest
from reference import float64, softmax

from keras_transformer.layers import MaskedPooling

LENGTHS = (5, 2, 0)


def expected(way, rows, kernel):
    if not len(rows):
        return np.zeros(rows.shape[1])
    if way == "attention":
        return softmax(rows @ kernel) @ rows
    return rows.mean(axis=0) if way == "mean" else rows.max(axis=0)


@pytest.mark.parametrize("way", ["mean", "max", "attention"])
def test_it_pools_real_tokens_alone_as_the_oracle(way):
    keras.utils.set_random_seed(5)
    rng = np.random.default_rng(5)
    inputs = rng.normal(-1, 1, (3, 5, 7)).astype("float32")
    mask = np.arange(5) < np.array(LENGTHS)[:, None]
    layer = MaskedPooling(way)
    found = float64(layer(np.where(mask[..., None], inputs, 1e4), padding_mask=mask))
    kernel = float64(layer.score.kernel)[:, 0] if way == "attention" else None
    for row, length, pooled in zip(inputs, LENGTHS, found, strict=True):
        np.testing.assert_allclose(pooled, expected(way, row[:length], kernel), atol=1e-5)
    whole = float64(layer(inputs))
    np.testing.assert_allclose(whole[1], expected(way, inputs[1], kernel), atol=1e-5)
    assert MaskedPooling.from_config(layer.get_config()).way == way


def test_another_way_is_an_error():
    with pytest.raises(ValueError, match="`way` must be one of mean, max, attention. .*'sum'"):
        MaskedPooling("sum")
