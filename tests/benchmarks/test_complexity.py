import json

import keras
import numpy as np
import pytest

from benchmarks import complexity
from keras_transformer.models.config import TransformerConfig


def test_the_crossover_is_where_the_two_lines_meet():
    """Of times n² and 100 · n: at 100."""
    rows = [
        {"layer": kind, "width": 8, "length": n, "milliseconds": time}
        for n in (16, 64, 256, 1024)
        for kind, time in (("self-attention", n * n), ("recurrent", 100 * n))
    ]
    assert complexity.crossover(rows, 8) == 100
    always = [row for row in rows if row["length"] > 100]
    never = [row for row in rows if row["length"] < 100]
    assert (complexity.crossover(always, 8), complexity.crossover(never, 8)) == (256, None)


def test_a_training_costs_six_operations_a_weight_and_token_and_the_attention(capsys):
    complexity.main(["--costs"])
    found = json.loads(capsys.readouterr().out)
    for preset, row in found.items():
        config = TransformerConfig.from_preset(preset, 37_000)
        width, inner = config.model_dim, config.intermediate_dim
        # Weights that each token meets: six blocks a side, of the target's also the logits.
        encoder = 6 * (4 * width**2 + 2 * width * inner)
        decoder = 6 * (8 * width**2 + 2 * width * inner) + 37_000 * width
        least = 6 * 25_000 * row["steps"] * (encoder + decoder)
        assert least < row["operations"] < 1.05 * least
        # The paper's estimate holds that the hardware reached its sustained rate.
        assert 0.2 < row["operations"] / row["published"] < 2


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="XLA tells its memory on JAX alone")
@pytest.mark.parametrize("kind", ["self-attention", "restricted", "recurrent", "convolutional"])
def test_a_layer_is_measured(kind):
    row = complexity.measured(kind, 16, 32, rounds=2)
    assert row["milliseconds"] > 0 and np.isfinite(row["mebibytes"])
