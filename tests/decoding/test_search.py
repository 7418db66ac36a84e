"""Decoding real Transformers: against the whole model run again, in batches, on both backends."""

import functools
import importlib.util
import math
import os
import subprocess
import sys

import decoding_oracles as oracles
import keras
import numpy as np
import pytest
from decoding_oracles import (
    MAX_LENGTH,
    VOCABULARY,
    FullPass,
    as_graph,
    as_lists,
    check_equal,
    check_varied,
    varied_sources,
)
from keras import ops
from naive_search import EOS, Rules, naive_beam, naive_greedy

from keras_transformer.base.errors import InputError
from keras_transformer.decoding import DecodingOptions, SearchModel
from keras_transformer.decoding.search import result_capacity, search
from keras_transformer.engine.scheduler import Job, Scheduler

OTHER_BACKEND = {"tensorflow": "jax", "jax": "tensorflow"}[keras.backend.backend()]


def limits_of(source):
    return [min(2 * int(np.sum(row != 0)) + 10, MAX_LENGTH) if row.any() else 0 for row in source]


@pytest.mark.slow
def test_searches_equal_the_whole_model_run_again_for_each_token(varied, compiled_search):
    """Steps of other variants equal a full pass: models/test_effects.py."""
    source = varied_sources()
    scorer, limits = FullPass(varied("untied"), source, MAX_LENGTH), limits_of(source)
    greedy = naive_greedy(scorer, limits)
    check_varied(greedy)
    hypotheses = compiled_search("untied")(source)
    check_equal(hypotheses._replace(scores=hypotheses.log_probabilities), greedy)
    expected = naive_beam(scorer, limits, 4, 1.0, 2)
    check_equal(compiled_search("untied", 4, 1.0, 2)(source), expected)
    assert len({len(ranked[0].ids) for ranked in expected}) >= 4
    # Hypotheses have gone on from one another: the best one is not the greedy one.
    assert sum(a[0].ids != b[0].ids for a, b in zip(expected, greedy, strict=True)) >= 3


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("beam_size", [3, pytest.param(1, marks=pytest.mark.tensorflow)])
def test_a_forced_token_is_read_but_is_in_no_hypothesis_score_or_ngram(varied, beam_size):
    source, length = varied_sources(), 19
    forced = (4 + np.arange(len(source)) % 13).astype("int32")
    full_pass = FullPass(varied("pre_norm"), source, length + 1)

    def scorer(rows, prefixes):
        pairs = zip(rows, prefixes, strict=True)
        return full_pass(rows, [(int(forced[row]), *ids) for row, ids in pairs])

    rules = Rules(ngram_size=1)
    limits = [min(limit, length) for limit in limits_of(source)]
    expected = naive_beam(scorer, limits, beam_size, 0.6, beam_size, rules)
    assert sum(forced[row] in ranked[0].ids for row, ranked in enumerate(expected)) > 2
    options = dict(max_length=length, no_repeat_ngram_size=1, allow_unknown=True)
    options |= {"first_capacity": 5, "wrap_body": as_graph}  # Caches grow twice.
    run = functools.partial(search, varied("pre_norm"), source, forced_ids=forced, **options)
    result = run(beam_size, 0.6, beam_size)
    check_equal(result, expected)
    for hypotheses in (result, run(sampling=True, n_best=2)):
        oracles.check_tokens(hypotheses, scorer)


@pytest.mark.tensorflow
@pytest.mark.parametrize("id", [17, -1, 10**6])
def test_source_ids_outside_the_vocabulary_are_refused(varied, id):
    source = varied_sources()
    source[3, 1] = id
    with pytest.raises(InputError, match=f"`source_ids` must .* from 0 to 16. Received: {id}."):
        search(varied("pre_norm"), source, max_length=MAX_LENGTH)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(
    importlib.util.find_spec(OTHER_BACKEND) is None, reason=f"needs {OTHER_BACKEND}"
)
def test_tensorflow_and_jax_give_the_same(varied, compiled_search, tmp_path):
    source = varied_sources()
    varied("pre_norm").save(tmp_path / "model.keras")
    np.save(tmp_path / "source.npy", source)
    program = """
import sys
import keras
import numpy as np
import keras_transformer
from keras_transformer.decoding.search import search
from keras_transformer.engine.programs import Compiled

folder, max_length = sys.argv[1], int(sys.argv[2])
model = keras.saving.load_model(f"{folder}/model.keras", compile=False)
source = np.load(f"{folder}/source.npy")
for beams in (1, 3):
    def run(ids, beams=beams):
        return search(model, ids, beams, n_best=beams, max_length=max_length, allow_unknown=True)
    result = Compiled(model, run)(source)
    np.savez(f"{folder}/{keras.backend.backend()}_{beams}.npz", *map(np.asarray, result))
options = dict(sampling=True, n_best=3, temperature=0.9)
seeds = np.arange(len(source), dtype="int32")
result = search(model, source, max_length=max_length, seeds=seeds, **options)
np.savez(f"{folder}/{keras.backend.backend()}_samples.npz", *map(np.asarray, result))
"""
    root = os.path.dirname(os.path.dirname(sys.modules["keras_transformer"].__file__))
    environment = {**os.environ, "KERAS_BACKEND": OTHER_BACKEND, "PYTHONPATH": root}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # Compiling is nearly all of its time.
    command = [sys.executable, "-c", program, str(tmp_path), str(MAX_LENGTH)]
    subprocess.run(command, env=environment, check=True, timeout=300)
    options = dict(sampling=True, n_best=3, temperature=0.9)
    seeds = np.arange(len(source), dtype="int32")
    samples = search(varied("pre_norm"), source, max_length=MAX_LENGTH, seeds=seeds, **options)
    assert len({h.ids for drawn in as_lists(samples) for h in drawn}) > 30
    results = {beams: compiled_search("pre_norm", beams)(source) for beams in (1, 3)}
    for name, result in {**results, "samples": samples}.items():
        with np.load(tmp_path / f"{OTHER_BACKEND}_{name}.npz") as theirs:
            expected = as_lists([theirs[field] for field in theirs.files])
        check_equal(result, expected, 1e-5)


class Countdown(SearchModel):
    """A wrapper with the methods that a search needs: it counts from a number down to 3."""

    starts = 0

    def start_decoding(self, source_ids, capacity, num_beams=1):
        self.starts += 1
        return ops.repeat(source_ids[:, :1], num_beams, axis=1) + 1

    def step(self, ids, number):
        following = ops.where(number > 4, number - 1, EOS)
        logits = 5.0 * ops.one_hot(following, VOCABULARY) + ops.one_hot(EOS, VOCABULARY)
        return logits, ops.maximum(number - 1, EOS)

    def reorder(self, number, parents):
        return ops.take_along_axis(number, parents, axis=1)


@pytest.mark.parametrize(
    "options", [dict(beam_size=1), dict(beam_size=3, length_penalty=0.0, early_stopping=False)]
)
def test_a_model_of_ten_lines_is_searched_at_once_and_in_batches(options):
    source = np.array([[6, 2], [4, 2], [9, 2]], "int32")
    expected = [list(range(first, 3, -1)) + [EOS] for first in source[:, 0]]
    result = search(Countdown(), source, **options)
    assert [list(ranked[0].ids) for ranked in as_lists(result)] == expected
    # More than the first loop has capacity for: a cache without `extended` is not to grow.
    jobs = [Job(row.tolist()) for row in source]
    results = Scheduler(Countdown(), (16, 40)).search(jobs, DecodingOptions(**options), 3)
    for hypotheses, ids in zip(results, expected, strict=True):
        assert hypotheses.ids[0].tolist() == ids + [0] * (40 - len(ids))


class Changed(Countdown):
    """Changes the logits of `Countdown`, or lacks its `reorder`."""

    def __init__(self, change):
        self.change = change

    def step(self, ids, number):
        logits, number = super().step(ids, number)
        return self.change(logits), number


class WithoutReorder(SearchModel):
    start_decoding, step, starts = Countdown.start_decoding, Countdown.step, 0


class OfAnotherClass:
    start_decoding, step, reorder = Countdown.start_decoding, Countdown.step, Countdown.reorder


@pytest.mark.tensorflow
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_model_is_started_once_for_a_search(beam_size):
    model = Countdown()
    search(model, np.array([[6, 2], [4, 2]], "int32"), beam_size)
    assert model.starts == 1


@pytest.mark.parametrize(
    ("beam_size", "dtype"), [(1, "bfloat16"), (3, "float16"), (1, "int32"), (3, "bfloat16")]
)
def test_logits_of_any_type_are_searched_in_float32(beam_size, dtype):
    """The logits of `Countdown` are 0, 1, 5 and 6, exact in all types."""
    source = np.array([[6, 2], [4, 2], [9, 2]], "int32")
    expected = search(Countdown(), source, beam_size)
    result = search(Changed(lambda logits: ops.cast(logits, dtype)), source, beam_size)
    for array, expected_array in zip(result, expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)


@pytest.mark.tensorflow
@pytest.mark.parametrize("beam_size", [1, 3])
def test_id_3_is_a_word_like_others_unless_the_model_says_that_it_is_unknown(beam_size):
    model = Changed(lambda logits: logits + 9.0 * ops.one_hot(3, VOCABULARY))
    source = np.array([[6, 2], [4, 2]], "int32")
    options = dict(beam_size=beam_size, max_length=4)
    ids = np.asarray(search(model, source, **options).ids)
    assert (ids == 3).any(axis=2).all()
    model.has_unknown_id = True
    assert not (np.asarray(search(model, source, **options).ids) == 3).any()
    allowed = search(model, source, allow_unknown=True, **options).ids
    np.testing.assert_array_equal(allowed, ids)


BROKEN = {
    "two axes": (lambda logits: logits[:, 0], r"\(batch=3, beams=\d, vocabulary\).*\(3, 17\)"),
    "rows": (lambda logits: ops.reshape(logits, (1, -1, 17)), r"Received: \(1, \d, 17\)"),
    "NaN": (
        # Not a constant, of which XLA would make -inf.
        lambda logits: ops.where(logits < 9, float("nan"), logits),
        "finite logits. Received: NaN for sentence 0",
    ),
    "NaN of one": (
        lambda logits: ops.where(ops.reshape([0, 1, 0], (3, 1, 1)) > 0, float("nan"), logits),
        "finite logits. Received: NaN for sentence 1",
    ),
    "infinity": (lambda logits: logits / 0.0, "finite logits. Received: NaN for sentence 0"),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[(name, dict(beam_size=3)) for name in BROKEN],
        *[("NaN of one", options) for options in (dict(beam_size=1), dict(sampling=True))],
    ],
)
def test_logits_that_no_search_can_read_are_an_error(name, options):
    change, message = BROKEN[name]
    with pytest.raises(ValueError, match=message):
        search(Changed(change), np.array([[6, 2], [4, 2], [9, 2]], "int32"), **options)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (WithoutReorder(), NotImplementedError, "beam search.*method `reorder`.*: WithoutReorder"),
        (OfAnotherClass(), ValueError, "`SearchModel`.*: OfAnotherClass without position_limit, "),
    ],
)
def test_a_model_that_lacks_a_method_is_an_error(model, error, message):
    with pytest.raises(error, match=message):
        search(model, np.array([[6, 2]], "int32"), beam_size=3)


def test_ids_of_a_bias_need_a_model_whose_vocabulary_is_known():
    with pytest.raises(InputError, match="`banned_ids`.*need a model of this package.*Countdown"):
        search(Countdown(), np.array([[6, 2]], "int32"), banned_ids=[5])


PHRASES = np.arange(4, 10, dtype="int32").reshape(1, 2, 3)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("forced", "num_forced"),
    [
        ({"prefixes": PHRASES.reshape(1, 6)}, 6),
        ({"phrases": PHRASES}, 6),
        ({"prefixes": PHRASES.reshape(1, 6)[:, ::-1], "phrases": PHRASES}, 12),
    ],
)
def test_forced_tokens_take_no_place_from_the_limit(forced, num_forced):
    model = Changed(lambda logits: logits - 20.0 * ops.one_hot(EOS, VOCABULARY))
    ids = search(model, np.array([[6, 2]], "int32"), 2, max_length_ratio=1.0, **forced).ids
    assert np.count_nonzero(ids, axis=2).tolist() == [[2 + 10 + num_forced]]


@pytest.mark.tensorflow
def test_a_ratio_of_lengths_may_be_beyond_all_integers():
    source = np.array([[6, 2]], "int32")
    ratios = dict(max_length_ratio=1e30, min_length_ratio=1e30)
    ids = np.asarray(search(Countdown(), source, max_length=7, **ratios).ids)
    assert ids.all() and EOS not in ids[:, :, :-1]
    # 1.4 is less in float32, and the product is 455 again.
    assert result_capacity(325, 1.4, 512) >= 465


@pytest.mark.slow(after=1)
@pytest.mark.tensorflow
@pytest.mark.parametrize(("rows", "capacity", "loops"), [(1, 64, 1), (1, 65, 2), (2, 64, 2)])
def test_a_single_sentence_of_up_to_64_tokens_is_one_loop(varied, rows, capacity, loops):
    import tensorflow as tf

    model, options = varied("post_norm"), {"max_length": capacity, "max_length_ratio": math.inf}
    run = tf.function(lambda ids: search(model, ids, **options), autograph=False)
    graph = run.get_concrete_function(tf.TensorSpec((rows, 5), tf.int32)).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    assert sum(node.op in ("While", "StatelessWhile") for node in nodes) == loops
