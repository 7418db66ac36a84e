"""Decoding real Transformers: against the whole model run anew, in batches, on both backends."""

import importlib.util
import os
import subprocess
import sys

import decoding_oracles as oracles
import keras
import numpy as np
import pytest
from decoding_oracles import (
    EOS,
    MAX_LENGTH,
    VOCABULARY,
    FullPass,
    as_lists,
    check_equal,
    check_varied,
    log_probability,
    naive_beam,
    naive_greedy,
    penalty,
    varied_sources,
)

from keras_transformer.decoding import search
from keras_transformer.decoding.compiled import compile_for_ids

VARIANTS = tuple(oracles.VARIED)
OTHER_BACKEND = {"tensorflow": "jax", "jax": "tensorflow"}[keras.backend.backend()]


def compiled_search(model, beam_size=1, alpha=0.6, n_best=1):
    """`search` as it is used: one XLA program a shape."""

    def run(source_ids):
        return search(model, source_ids, beam_size, alpha, n_best, max_length=MAX_LENGTH)

    return compile_for_ids(model, run)


def limits_of(source):
    return [min(2 * int(np.sum(row != 0)) + 10, MAX_LENGTH) if row.any() else 0 for row in source]


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_search_equals_the_whole_model_run_anew_for_each_token(varied, variant):
    model, source = varied(variant), varied_sources()
    expected = naive_greedy(FullPass(model, source, MAX_LENGTH), limits_of(source))
    check_varied(expected)
    check_equal(compiled_search(model)(source), expected)


@pytest.mark.parametrize(
    "variant, beam_size, alpha, n_best",
    [
        ("post_norm", 2, 0.6, 2),
        ("pre_norm", 3, 0.0, 1),
        ("pre_norm", 4, 1.0, 4),
        ("untied", 4, 2, 1),
    ],
)
def test_beam_search_equals_the_whole_model_run_anew_for_each_token(
    varied, variant, beam_size, alpha, n_best
):
    model, source = varied(variant), varied_sources()
    scorer = FullPass(model, source, MAX_LENGTH)
    expected = naive_beam(scorer, limits_of(source), beam_size, alpha, n_best)
    found = as_lists(compiled_search(model, beam_size, alpha, n_best)(source))
    check_equal(found, expected)
    assert len({len(each[0].ids) for each in expected}) > 5
    # The beams must have been reordered: the best hypothesis is not the greedy one.
    greedy = as_lists(compiled_search(model)(source))
    assert sum(a[0].ids != b[0].ids for a, b in zip(found, greedy, strict=True)) >= 3


@pytest.mark.parametrize("beam_size", [1, 3])
def test_scores_are_those_of_the_whole_model(varied, beam_size):
    model, source, alpha = varied("untied"), varied_sources(), 0.6
    scorer, limits = FullPass(model, source, MAX_LENGTH), limits_of(source)
    found = as_lists(compiled_search(model, beam_size, alpha, beam_size)(source))
    for row, hypotheses in enumerate(found):
        for ids, total, score in hypotheses:
            assert ids.index(EOS) == len(ids) - 1 if EOS in ids else len(ids) == limits[row]
            expected = log_probability(scorer, row, ids)
            assert total == pytest.approx(expected, abs=1e-4)
            divisor = 1.0 if beam_size == 1 else penalty(len(ids), alpha)
            assert score == pytest.approx(expected / divisor, abs=1e-4)


@pytest.mark.parametrize("variant", ["post_norm", "untied"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_batch_mates_and_padding_change_nothing(varied, variant, beam_size):
    source = varied_sources()
    run = compiled_search(varied(variant), beam_size, n_best=beam_size)
    together = as_lists(run(source))
    check_equal(as_lists(run(np.pad(source, ((0, 2), (0, 12)))))[:-2], together, 1e-5)
    check_equal(as_lists(run(source[::-1]))[::-1], together, 1e-5)
    for row in (1, 4, 6):
        alone = source[row : row + 1, : row + 1]
        assert alone.all()
        check_equal(run(alone), together[row : row + 1], 1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_in_bfloat16_batch_mates_change_nothing_and_scores_are_float32(beam_size):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = oracles.varied_transformer("pre_norm")
    run = compiled_search(model, beam_size, n_best=beam_size)
    source = varied_sources()
    hypotheses = run(source)
    for scores in hypotheses[1:]:
        assert np.asarray(scores).dtype == "float32"
    together = as_lists(hypotheses)
    assert len({len(each[0].ids) for each in together}) > 5
    others = varied_sources(seed=1)[::-1].copy()
    others[3:8] = source[3:8]
    # The same shapes round alike, so the scores are equal too.
    check_equal(as_lists(run(others))[3:8], together[3:8], 1e-6)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_rows_of_padding_give_nothing(varied, beam_size):
    source = varied_sources()
    source[[0, 7]] = 0
    run = compiled_search(varied("untied"), beam_size, n_best=beam_size)
    hypotheses = run(source)
    assert not np.asarray(hypotheses.ids)[[0, 7]].any()
    for row in (0, 7):
        assert as_lists(hypotheses)[row][0] == ((), 0.0, 0.0)
    assert np.isfinite(np.asarray(hypotheses.scores)).all()
    assert all(each[0].ids for row, each in enumerate(as_lists(hypotheses)) if row not in (0, 7))


def test_a_batch_of_padding_alone_gives_nothing(varied):
    for beam_size in (1, 2):
        ids = np.asarray(search(varied("untied"), np.zeros((3, 5), "int32"), beam_size).ids)
        assert ids.shape[:2] == (3, 1) and not ids.any()


def test_special_ids_but_the_end_are_never_chosen(varied):
    for variant in VARIANTS:
        hypotheses = compiled_search(varied(variant), 4, n_best=4)(varied_sources())
        for found in as_lists(hypotheses):
            for ids, *_ in found:
                assert not {0, 1} & set(ids) and max(ids) < VOCABULARY


@pytest.mark.parametrize("beam_size", [1, 2])
def test_eagerly_it_gives_the_same_as_compiled(varied, beam_size):
    model, source = varied("pre_norm"), varied_sources(sentences=5)
    eager = search(model, source, beam_size, n_best=beam_size, max_length=MAX_LENGTH)
    check_equal(compiled_search(model, beam_size, n_best=beam_size)(source), as_lists(eager), 1e-5)


def test_room_for_the_longest_is_all_that_the_result_has(varied):
    model = varied("post_norm")
    # 2 · 5 + 10 rounded up to a multiple of 16, and no more than is asked for.
    for max_length, room in ((64, 32), (31, 31), (1, 1)):
        ids = search(model, varied_sources(3, 5), max_length=max_length, beam_size=1).ids
        assert ids.shape == (3, 1, room)


@pytest.mark.skipif(
    importlib.util.find_spec(OTHER_BACKEND) is None, reason=f"needs {OTHER_BACKEND}"
)
def test_tensorflow_and_jax_give_the_same(varied, tmp_path):
    model, source = varied("untied"), varied_sources()
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "source.npy", source)
    program = """
import sys
import keras
import numpy as np
import keras_transformer
from keras_transformer.decoding import search
from keras_transformer.decoding.compiled import compile_for_ids

folder, max_length = sys.argv[1], int(sys.argv[2])
model = keras.saving.load_model(f"{folder}/model.keras", compile=False)
for beams in (1, 3):
    def run(ids, beams=beams):
        return search(model, ids, beams, n_best=beams, max_length=max_length)
    found = compile_for_ids(model, run)(np.load(f"{folder}/source.npy"))
    np.savez(f"{folder}/{keras.backend.backend()}_{beams}.npz", *map(np.asarray, found))
"""
    root = os.path.dirname(os.path.dirname(sys.modules["keras_transformer"].__file__))
    environment = {**os.environ, "KERAS_BACKEND": OTHER_BACKEND, "PYTHONPATH": root}
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(MAX_LENGTH)],
        env=environment,
        check=True,
        timeout=300,
    )
    for beams in (1, 3):
        with np.load(tmp_path / f"{OTHER_BACKEND}_{beams}.npz") as theirs:
            expected = as_lists([theirs[name] for name in theirs.files])
        check_equal(compiled_search(model, beams, n_best=beams)(source), expected, 1e-5)
