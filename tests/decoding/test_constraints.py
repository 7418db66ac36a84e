"""What a search over many ids may leave unread: `test_options_together` has its results."""

import itertools

import numpy as np
import pytest
from keras import ops
from naive_search import EOS, Rules

from keras_transformer.decoding import Constraints
from keras_transformer.decoding.constraints import constrain

# JAX compiles each eager loop: the same rules run there in test_constrained_search.py.
pytestmark = pytest.mark.tensorflow

SENTENCES, CAPACITY = 3, 6
LIMITS = [CAPACITY, 1, CAPACITY - 1]
FAVOURED = (4, 70, 250, EOS)  # in columns of 64 also of a later piece than the first


def biased(*pairs):
    values = np.zeros(640)
    for id, value in pairs:
        values[id] = value
    return tuple(values)


RULES = {
    # After these two, rows of logits are read in columns.
    "minimum": {"min_lengths": (4,) * SENTENCES},
    "forbidden": {"forbidden": (0, 1, 3, 40)},
    "no token twice": {"ngram_size": 1},
    "no pair twice": {"ngram_size": 2},
    "bias": {"bias": biased((70, 1.5), (250, -0.5), (EOS, 0.5))},
    "bans": {"bias": biased((4, -np.inf), (200, 2.0))},
    "prefixes": {"prefixes": ((70, 4), (), (250, 250, 8))},
}


def rules_of(names, vocabulary):
    fields = {}
    for name in names:
        fields |= RULES[name]
    if "bias" in fields:
        fields["bias"] = fields["bias"][:vocabulary]
    return Rules(**fields)


def constraints_of(rules, vocabulary):
    arrays = rules.arrays(LIMITS, vocabulary, columns=3)
    limits, minimum, prefixes, bias = map(ops.convert_to_tensor, arrays)
    return Constraints(
        limits,
        minimum if rules.min_lengths else None,
        prefixes if rules.prefixes else None,
        ops.maximum(bias, -1e30) if rules.bias else None,
        rules.ngram_size,
        rules.forbidden,
    )


def test_only_the_first_changed_ids_may_be_changed(rng):
    told = 0
    for count in range(3):  # rules at once
        for names in itertools.combinations(RULES, count):
            constraints = constraints_of(rules_of(names, 512), 512)
            logits = rng.normal(size=(SENTENCES, 2, 512)).astype("float32")
            ids = np.array(FAVOURED[:3], "int32")[rng.integers(0, 3, (SENTENCES, 2, CAPACITY))]
            for position in (0, 3):
                allowed = np.asarray(constrain(logits, ids, position, constraints))
                changed = np.flatnonzero((allowed != logits).any(axis=(0, 1)))
                if constraints.changed_ids is not None:
                    told += 1
                    assert changed.max() < constraints.changed_ids, names
    assert told == 8  # without a rule, with a minimum, with forbidden ids, and with both


def test_places_behind_the_tokens_of_a_hypothesis_are_ignored():
    constraints = constraints_of(rules_of(["no pair twice"], 512), 512)
    ids = np.tile(np.array([4, 70, 4, 250, 70, 9], "int32"), (SENTENCES, 1, 1))
    logits = np.zeros((SENTENCES, 1, 512), "float32")
    without = constrain(logits, ids * (np.arange(CAPACITY) < 3), 3, constraints)
    np.testing.assert_array_equal(constrain(logits, ids, 3, constraints), without)
