"""Rules of a search one by one and in pairs, over vocabularies that are read in columns."""

import itertools

import numpy as np
import pytest
from decoding_oracles import HistoryModel, check_hypotheses
from keras import ops
from naive_search import EOS, Rules, naive_beam

from keras_transformer.decoding import Beam, Constraints, GNMTRanking, decode
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
SETS = [(name,) for name in RULES] + list(itertools.combinations(RULES, 2))
# 512 and 640 ids are 8 and 10 pieces of 64. 257 is prime: no columns.
CASES = [
    (*case, SETS[i])
    for i, case in zip(
        range(len(SETS)),
        itertools.cycle([(512, True), (640, False), (257, True), (512, False), (640, True)]),
    )
]


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


@pytest.mark.slow(after=5)
@pytest.mark.parametrize(("vocabulary", "early_stopping", "names"), CASES)
def test_a_wide_beam_under_one_rule_or_two_is_the_naive_beam(vocabulary, early_stopping, names):
    rng = np.random.default_rng(vocabulary)
    model = HistoryModel.random(rng, SENTENCES, vocabulary, histories=101)
    model.logits[..., FAVOURED] += (5.0, 6.0, 5.5, 5.0)  # It would write them again and again.
    model, rules = HistoryModel(model.logits), rules_of(names, vocabulary)
    beam = Beam(3, GNMTRanking(0.6), 3, early_stopping)
    constraints = constraints_of(rules, vocabulary)
    start = model.start(beam.beams)
    hypotheses = decode(model.step, start, beam, constraints, CAPACITY, model.reorder)
    expected = naive_beam(model, LIMITS, 3, 0.6, 3, rules, early_stopping)
    check_hypotheses(hypotheses, expected, model)


def test_only_the_first_changed_ids_may_be_changed(rng):
    told = 0
    for count in range(len(RULES) + 1):
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
