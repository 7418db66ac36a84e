"""Few combinations of many independent arguments."""

import itertools

import pytest

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def pairwise(**values):
    """Parametrizes a test so that any two values of two arguments meet, in few combinations.

    Each combination makes a layer and compiles its operations again; what depends on one argument
    or on two is found by these as by all of them.
    """
    rows = list(itertools.product(*(range(len(choices)) for choices in values.values())))
    pairs = {row: set(itertools.combinations(enumerate(row), 2)) for row in rows}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        best = max(rows, key=lambda row: len(pairs[row] & missing))
        missing -= pairs[best]
        chosen.append([choices[i] for choices, i in zip(values.values(), best, strict=True)])
    return pytest.mark.parametrize(list(values), chosen)
