import numpy as np
import pytest

from benchmarks import complexity


def test_the_crossover_is_where_the_two_lines_meet():
    """Of times n² and 100 · n: at 100."""
    times = [("self-attention", n, n * n) for n in (16, 64, 256, 1024)]
    times += [("recurrent", n, 100 * n) for n in (16, 64, 256, 1024)]
    names = "layer", "length", "milliseconds"
    rows = [{"width": 8, **dict(zip(names, row, strict=True))} for row in times]
    assert complexity.crossover(rows, 8) == 100
    always = [row for row in rows if row["length"] > 100]
    never = [row for row in rows if row["length"] < 100]
    assert (complexity.crossover(always, 8), complexity.crossover(never, 8)) == (256, None)


@pytest.mark.jax  # only JAX tells of its memory
@pytest.mark.parametrize("kind", ["self-attention", "restricted", "recurrent", "convolutional"])
def test_a_layer_is_measured(kind):
    row = complexity.measured(kind, 16, 32, rounds=2)
    assert row["milliseconds"] > 0 and np.isfinite(row["mebibytes"])
