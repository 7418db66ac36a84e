import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data import EncodedPairs, ParallelDataset
from keras_transformer.training.forecast import count_operations, forecast
from keras_transformer.training.recipe import TrainingSection

SIZES = dict(model_dim=12, num_heads=3, num_encoder_layers=2, num_decoder_layers=3)
CONFIG = TransformerConfig(29, intermediate_dim=17, **SIZES)
OTHERS = [
    CONFIG,
    TransformerConfig(29, intermediate_dim=17, num_kv_heads=1, sliding_window=3, **SIZES),
    TransformerConfig(29, intermediate_dim=17, positions="relative", **SIZES),
    TransformerConfig(29, intermediate_dim=17, combine_positions="concatenate", **SIZES),
]


def by_hand(config, source, target):
    """Each matrix times the tokens that pass it, and the pairs that attention multiplies."""
    total = 0
    for weight in Transformer(config).weights:
        on_source = any(part in weight.path for part in ("/encoder/", "source_positions")) or any(
            f"cross_attention/{name}/" in weight.path for name in ("key", "value")
        )
        if weight.path.endswith(
            ("kernel", "embedding/embeddings")
        ):  # the embeddings make the logits
            total += int(np.prod(weight.shape)) * (source if on_source else target)
    far = (config.sliding_window or 100) - 1
    near = sum(abs(i - j) <= far for i in range(source) for j in range(source))
    past = sum(0 <= i - j <= far for i in range(target) for j in range(target))
    # Scores, and sums of values; distances have scores of their own.
    of_a_pair = 3 if config.positions == "relative" else 2
    return total + 12 * (of_a_pair * (2 * near + 3 * past) + 2 * 3 * source * target)


@pytest.mark.parametrize("config", OTHERS)
@pytest.mark.parametrize(("source", "target"), [(1, 1), (5, 7), (11, 3)])
def test_operations_are_counted_over_all_matrices(config, source, target):
    assert config.multiply_adds(source, target) == by_hand(config, source, target)


def test_a_forecast_is_that_of_all_epochs_and_passes():
    rows = [[5] * 3, [6] * 3, [7] * 8]
    pairs = EncodedPairs.from_lists([[*row, 2] for row in rows], rows)
    dataset = ParallelDataset(pairs, shapes=[(2, 4), (1, 9)], copies=2)
    training = TrainingSection(epochs=5, r_drop=1.0)
    once = 2 * by_hand(CONFIG, 4, 4) + by_hand(CONFIG, 9, 9)
    expected = 3 * 2 * once * 2 * 5  # backwards twice as much, two operations, copies, epochs
    assert count_operations(CONFIG, dataset, training) == pytest.approx(expected)
    model = Transformer(CONFIG)
    text = "\n".join(forecast(model, dataset, training))
    assert "up to    4 tokens:         2 pairs" in text
    assert f"{model.count_params():,} parameters, 5 epochs of " in text
    assert f"{expected:.2e} floating-point operations: " in text
    assert text.count("#") == 40 + 20
