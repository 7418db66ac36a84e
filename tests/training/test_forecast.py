import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data import EncodedPairs, ParallelDataset
from keras_transformer.training.forecast import forecast, lines
from keras_transformer.training.recipe import TrainingSection

CONFIG = TransformerConfig(
    29, model_dim=12, num_heads=3, intermediate_dim=17, num_encoder_layers=2, num_decoder_layers=3
)


def by_hand(source, target):
    """Each matrix times the tokens that pass it, and the pairs that attention multiplies."""
    total = 0
    for weight in Transformer(CONFIG).weights:
        on_source = "/encoder/" in weight.path or any(
            f"cross_attention/{name}/" in weight.path for name in ("key", "value")
        )
        if weight.path.endswith(("kernel", "embeddings")):  # the embeddings make the logits
            total += int(np.prod(weight.shape)) * (source if on_source else target)
    pairs = 2 * source * source + 3 * (target * (target + 1) // 2 + source * target)
    return total + 2 * 12 * pairs  # scores, and sums of values


@pytest.mark.parametrize(("source", "target"), [(1, 1), (5, 7), (11, 3)])
def test_the_operations_are_those_of_the_matrices(source, target):
    assert CONFIG.multiply_adds(source, target) == by_hand(source, target)


def test_a_forecast_is_that_of_all_epochs_and_passes():
    rows = [[5] * 3, [6] * 3, [7] * 8]
    pairs = EncodedPairs.from_lists([[*row, 2] for row in rows], rows)
    dataset = ParallelDataset(pairs, shapes=[(2, 4), (1, 9)], copies=2)
    found = forecast(CONFIG, 1000, dataset, TrainingSection(epochs=5, r_drop=1.0))
    once = 2 * by_hand(4, 4) + by_hand(9, 9)
    expected = 3 * 2 * once * 2 * 5  # backwards twice as much, two operations, copies, epochs
    assert found["floating_point_operations"] == pytest.approx(expected, rel=0.01)
    assert [row["pairs"] for row in found["pairs_by_length"]] == [2, 1]
    least, most = found["minutes"]
    assert 0 <= least <= most and found["matrix_product_gflops"] > 0
    text = "\n".join(lines(found))
    assert "up to    4 tokens:         2 pairs" in text and "1,000 parameters" in text
    assert text.count("#") == 40 + 20
