"""`constrain` against a filter in plain Python that reads each hypothesis from its start."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_transformer.decoding.constraints import Constraints, constrain, length_limits
from keras_transformer.decoding.results import NEG_INF

PAD, BOS, EOS = 0, 1, 2
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


def choices(constraints, history, vocabulary=7, capacity=11):
    """Ids that one hypothesis may continue with; all logits are 0."""
    ids = np.full((1, 1, capacity), PAD, "int32")
    ids[0, 0, : len(history)] = history
    logits = np.zeros((1, 1, vocabulary), "float32")
    result = np.asarray(constrain(logits, ids, len(history), constraints))[0, 0]
    return [token for token, value in enumerate(result) if value > NEG_INF / 2]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "size, history, banned",
    [
        (1, [3, 5, 3], {3, 5}),
        (2, [3, 4, 3], {4}),
        (2, [3, 4, 3, 5, 3], {4, 5}),
        (3, [3, 4, 5, 3, 4], {5}),
        (3, [3, 4], set()),
        (4, [3, 3, 3, 3], {3}),
    ],
)
def test_a_token_that_would_repeat_an_ngram_is_banned(size, history, banned):
    received = choices(Constraints([11], no_repeat_ngram_size=size), history)
    assert received == [token for token in range(2, 7) if token not in banned]


def test_the_end_is_possible_from_the_token_that_makes_the_minimum():
    constraints = Constraints([11], min_lengths=np.array([3], "int32"))
    ends = [EOS in choices(constraints, history) for history in ([], [3], [3, 4], [3, 4, 5])]
    assert ends == [False, False, True, True]


@pytest.mark.tensorflow
def test_a_forced_token_overrides_every_other_constraint():
    logit_bias = np.zeros(7, "float32")
    logit_bias[[4, 5]] = NEG_INF
    constraints = Constraints(
        [11],
        min_lengths=np.array([11], "int32"),
        prefixes=np.array([[4, 4, BOS, EOS, 5, 0, 0]], "int32"),
        logit_bias=logit_bias,
        no_repeat_ngram_size=1,
    )
    prefix = [4, 4, BOS, EOS, 5]
    assert [choices(constraints, prefix[:i]) for i in range(5)] == [[4], [4], [BOS], [EOS], [5]]
    assert choices(constraints, prefix) == [3, 6]
    assert choices(constraints, [*prefix, 3]) == [6]


def test_a_forced_token_keeps_its_logit_whatever_it_is():
    constraints = Constraints(
        [11, 11], prefixes=np.array([[4], [5]], "int32"), logit_bias=np.ones(7, "float32")
    )
    logits = np.full((2, 1, 7), 3.0, "float32")
    logits[0, 0, 4] = -np.inf
    result = constrain(logits, np.zeros((2, 1, 11), "int32"), 0, constraints)
    expected = np.full((2, 1, 7), NEG_INF, "float32")
    expected[0, 0, 4], expected[1, 0, 5] = -np.inf, 3.0
    np.testing.assert_array_equal(result, expected)


def test_compiled_in_a_loop_no_hypothesis_repeats_an_ngram(compiled):
    # The position is the loop's own counter, the hypotheses what the loop has written.
    constraints = Constraints(
        None, np.array([CAPACITY, 3], "int32"), np.array([[4, 5, 4], [6, 0, 0]], "int32"), None, 2
    )

    def run(logits):
        def advance(position, ids):
            allowed = constrain(logits, ids, position, constraints)
            chosen = ops.cast(ops.argmax(allowed, axis=-1), "int32")
            return position + 1, ops.slice_update(ids, (0, 0, position), chosen[:, :, None])

        ids = ops.zeros((2, 3, CAPACITY), "int32")
        return ops.while_loop(
            lambda position, ids: position < CAPACITY, advance, (ops.zeros((), "int32"), ids)
        )[1]

    logits = random_inputs(13)[0][:2]
    result = np.asarray(compiled(run)(logits))
    expected = np.zeros_like(result)
    for position in range(CAPACITY):
        allowed = plain_constrain(logits, expected, position, constraints)
        expected[:, :, position] = allowed.argmax(axis=-1)
    np.testing.assert_array_equal(result, expected)
    for hypothesis in result[0]:
        pairs = list(zip(hypothesis[:-1], hypothesis[1:], strict=True))
        assert len(set(pairs)) == len(pairs)
        assert hypothesis[:3].tolist() == [4, 5, 4]


def test_a_limit_is_a_multiple_of_the_source_and_more_up_to_the_largest():
    lengths = np.array([2, 0, 5, 1], "int32")
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 31), [14, 0, 20, 12])
    np.testing.assert_array_equal(length_limits(lengths, 2.0, 10, 13), [13, 0, 13, 12])
    np.testing.assert_array_equal(length_limits(lengths, 1.5, [0, 0, 3, 1], 31), [3, 0, 10, 2])
