"""`constrain` against a filter in plain Python that reads each hypothesis from its start."""

import keras
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer.decoding.constraints import Constraints, constrain, length_limits
from keras_transformer.decoding.results import NEG_INF

PAD, EOS = 0, 2
BATCH, BEAMS, VOCABULARY, CAPACITY = 5, 3, 7, 11
KINDS = ("min_lengths", "prefixes", "logit_bias", "no_repeat_ngram_size", "end_id")

seeds = st.integers(0, 2**32 - 1)
positions = st.integers(0, CAPACITY)


def random_inputs(seed):
    """Logits, and hypotheses that hold any id in any place, also after `position`."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(BATCH, BEAMS, VOCABULARY)).astype("float32")
    # Few words, so that n-grams of several tokens repeat.
    words = rng.choice(VOCABULARY, size=rng.integers(2, VOCABULARY + 1), replace=False)
    return logits, rng.choice(words, size=(BATCH, BEAMS, CAPACITY)).astype("int32")


def random_constraint(kind, seed):
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    if kind == "min_lengths":
        return rng.integers(0, CAPACITY + 3, size=BATCH).astype("int32")
    if kind == "prefixes":
        prefixes = rng.integers(1, VOCABULARY, size=(BATCH, 5)).astype("int32")
        return np.where(np.arange(5) < rng.integers(0, 6, size=(BATCH, 1)), prefixes, PAD)
    if kind == "logit_bias":
        values = rng.normal(size=VOCABULARY)
        banned = rng.choice([NEG_INF, -np.inf, 0.6 * NEG_INF], size=VOCABULARY)
        return np.where(rng.random(VOCABULARY) < 0.3, banned, values).astype("float32")
    if kind == "no_repeat_ngram_size":
        return int(rng.integers(1, 6))
    return int(rng.choice([-1, EOS, 5]))


def constraints_of(kinds, seed):
    lengths = np.full(BATCH, CAPACITY, "int32")
    return Constraints(lengths, **{kind: random_constraint(kind, seed) for kind in kinds})


def reason(token, history, row, constraints):
    """Why `token` may not follow `history`, or None."""
    length, size = len(history), constraints.no_repeat_ngram_size
    bias, lengths = constraints.logit_bias, constraints.min_lengths
    if token in constraints.forbidden_ids:
        return "forbidden"
    if bias is not None and bias[token] < NEG_INF / 2:
        return "banned"
    if lengths is not None and token == constraints.end_id and length + 1 < lengths[row]:
        return "too short"
    if size and token != PAD:
        longer = [*history, token]
        ngrams = [longer[i : i + size] for i in range(len(longer) - size + 1)]
        if ngrams and ngrams[-1] in ngrams[:-1]:
            return "repeated"
    return None


def plain_constrain(logits, ids, position, constraints):
    """The oracle: one hypothesis and one token at a time."""
    result = np.full_like(logits, NEG_INF)
    for row, beam in np.ndindex(logits.shape[:2]):
        history = ids[row, beam, :position].tolist()
        prefix = [] if constraints.prefixes is None else constraints.prefixes[row].tolist()
        forced = prefix[position] if position < len(prefix) else PAD
        for token, logit in enumerate(logits[row, beam]):
            if forced != PAD:
                if token == forced:
                    result[row, beam, token] = logit
            elif reason(token, history, row, constraints) is None:
                bias = 0 if constraints.logit_bias is None else constraints.logit_bias[token]
                result[row, beam, token] = logit + bias
    return result


def check(logits, ids, position, constraints):
    result = constrain(
        ops.convert_to_tensor(logits),
        ops.convert_to_tensor(ids),
        ops.convert_to_tensor(position, "int32"),
        constraints,
    )
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    np.testing.assert_array_equal(result, plain_constrain(logits, ids, position, constraints))


@settings(max_examples=50, deadline=None)
@given(
    seed=seeds,
    position=positions,
    kinds=st.sets(st.sampled_from(KINDS), min_size=1),
    forbidden=st.sampled_from([(), (0, 1), (1, 4, 5)]),
)
def test_any_constraints_equal_the_plain_filter(seed, position, kinds, forbidden):
    constraints = constraints_of(kinds, seed)._replace(forbidden_ids=forbidden)
    check(*random_inputs(seed), position, constraints)


def test_the_oracle_meets_every_reason_often():
    # Otherwise the comparisons above could hold for a filter that filters nothing.
    met = {"forbidden": 0, "banned": 0, "too short": 0, "repeated": 0, None: 0}
    for seed in range(53):
        _, ids = random_inputs(seed)
        constraints = constraints_of(KINDS, seed)._replace(end_id=EOS)
        for token in range(VOCABULARY):
            met[reason(token, ids[3, 2, :7].tolist(), 3, constraints)] += 1
    assert min(met.values()) >= 7, met


def test_a_limit_is_a_multiple_of_the_source_and_more_up_to_the_largest():
    lengths = np.array([2, 0, 5, 1], "int32")
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 31), [14, 0, 20, 12])
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 13), [13, 0, 13, 12])
    np.testing.assert_array_equal(length_limits(lengths, 1.5, [0, 0, 3, 1], 31), [3, 0, 10, 2])
