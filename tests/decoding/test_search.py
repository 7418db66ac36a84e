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
    MAX_LENGTH,
    VOCABULARY,
    FullPass,
    as_lists,
    check_equal,
    check_varied,
    varied_sources,
)
from naive_search import EOS, log_probability, naive_beam, naive_greedy, penalty

from keras_transformer.decoding import DecodingOptions, search
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.search import Search
from keras_transformer.decoding.settings import Settings, settings_of

VARIANTS = tuple(oracles.VARIED)
OTHER_BACKEND = {"tensorflow": "jax", "jax": "tensorflow"}[keras.backend.backend()]


def limits_of(source):
    return [min(2 * int(np.sum(row != 0)) + 10, MAX_LENGTH) if row.any() else 0 for row in source]


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_search_equals_the_whole_model_run_anew_for_each_token(
    varied, compiled_search, variant
):
    source = varied_sources()
    scorer = FullPass(varied(variant), source, MAX_LENGTH)
    expected = naive_greedy(scorer, limits_of(source))
    check_varied(expected)
    found = compiled_search(variant)(source)
    check_equal(found._replace(scores=found.log_probabilities), expected)


@pytest.mark.parametrize(
    "variant, beam_size, alpha, n_best",
    [
        ("post_norm", 2, 0.0, 1),
        ("pre_norm", 3, 0.6, None),
        ("untied", 4, 1.0, 2),
    ],
)
def test_beam_search_equals_the_whole_model_run_anew_for_each_token(
    varied, compiled_search, variant, beam_size, alpha, n_best
):
    source = varied_sources()
    scorer = FullPass(varied(variant), source, MAX_LENGTH)
    expected = naive_beam(scorer, limits_of(source), beam_size, alpha, n_best or beam_size)
    check_equal(compiled_search(variant, beam_size, alpha, n_best)(source), expected)
    assert len({len(each[0].ids) for each in expected}) >= 4
    # Hypotheses have gone on from one another: the best one is not the greedy one.
    greedy = naive_greedy(scorer, limits_of(source))
    assert sum(a[0].ids != b[0].ids for a, b in zip(expected, greedy, strict=True)) >= 3


@pytest.mark.parametrize("beam_size", [1, 3])
def test_scores_are_those_of_the_whole_model(varied, compiled_search, beam_size):
    source = varied_sources()
    scorer, limits = FullPass(varied("pre_norm"), source, MAX_LENGTH), limits_of(source)
    found = as_lists(compiled_search("pre_norm", beam_size)(source))
    for row, hypotheses in enumerate(found):
        for ids, total, score in hypotheses:
            assert ids.index(EOS) == len(ids) - 1 if EOS in ids else len(ids) == limits[row]
            expected = log_probability(scorer, row, ids)
            assert total == pytest.approx(expected, abs=1e-4)
            assert score == pytest.approx(expected / penalty(len(ids), 0.6), abs=1e-4)


@pytest.mark.parametrize("variant", ["post_norm", "pre_norm"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_batch_mates_and_padding_change_nothing(varied, quick_search, variant, beam_size):
    source = varied_sources()
    run = quick_search(varied(variant), beam_size)
    together = as_lists(run(source))
    check_equal(as_lists(run(np.pad(source, ((0, 2), (0, 12)))))[:-2], together, 1e-5)
    check_equal(as_lists(run(source[::-1]))[::-1], together, 1e-5)
    for row in (1, 6):
        alone = source[row : row + 1, : row + 1]
        assert alone.all()
        check_equal(run(alone), together[row : row + 1], 1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_in_bfloat16_batch_mates_change_nothing_and_scores_are_float32(quick_search, beam_size):
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = oracles.varied_transformer("pre_norm")
    assert model.compute_dtype == "bfloat16"
    run, source = quick_search(model, beam_size), varied_sources()
    hypotheses = run(source)
    assert {str(np.asarray(each).dtype) for each in hypotheses[1:]} == {"float32"}
    together = as_lists(hypotheses)
    assert len({len(each[0].ids) for each in together}) >= 4
    others = varied_sources(seed=1)[::-1].copy()
    others[3:8] = source[3:8]
    # The same shapes round alike, so the scores are equal too.
    check_equal(as_lists(run(others))[3:8], together[3:8], 1e-6)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_prefixes_are_forced_in_one_graph(varied, compiled_search, beam_size):
    model, source = varied("pre_norm"), varied_sources()
    prefixes = np.zeros((len(source), 3), "int32")
    prefixes[::2, :2] = (5, 11)
    options = DecodingOptions(beam_size=beam_size)

    def run(ids, prefixes):
        settings = settings_of(options, MAX_LENGTH)._replace(prefixes=prefixes)
        return search(model, ids, beam_size, max_length=MAX_LENGTH, settings=settings)

    found = as_lists(Compiled(model, run)(source, prefixes))
    free = as_lists(compiled_search("pre_norm", beam_size)(source))
    for row, (hypotheses, freely) in enumerate(zip(found, free, strict=True)):
        if row % 2 == 0:
            assert hypotheses[0][0][:2] == (5, 11) != freely[0][0][:2]
        else:
            assert hypotheses[0][0][:2] == freely[0][0][:2]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_rows_of_padding_give_nothing(compiled_search, beam_size):
    source = varied_sources()
    source[[0, 7]] = 0
    hypotheses = compiled_search("pre_norm", beam_size)(source)
    assert not np.asarray(hypotheses.ids)[[0, 7]].any()
    assert np.isfinite(np.asarray(hypotheses.scores)).all()
    for row, found in enumerate(as_lists(hypotheses)):
        assert found[0] == ((), 0.0, 0.0) if row in (0, 7) else found[0].ids


@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_batch_of_padding_alone_gives_nothing(varied, beam_size):
    ids = np.asarray(search(varied("post_norm"), np.zeros((3, 5), "int32"), beam_size).ids)
    assert ids.shape[:2] == (3, 1) and not ids.any()


@pytest.mark.parametrize("beam_size", [1, 3])
def test_padding_and_the_beginning_are_never_chosen(compiled_search, beam_size):
    for found in as_lists(compiled_search("pre_norm", beam_size)(varied_sources(seed=3))):
        for ids, *_ in found:
            assert ids and not {0, 1} & set(ids) and max(ids) < VOCABULARY


@pytest.mark.parametrize("beam_size", [1, 3])
def test_eagerly_it_gives_the_same_as_compiled(varied, compiled_search, beam_size):
    source = varied_sources()
    eager = search(varied("pre_norm"), source, beam_size, n_best=beam_size, max_length=MAX_LENGTH)
    check_equal(compiled_search("pre_norm", beam_size)(source), as_lists(eager), 1e-5)


@pytest.mark.parametrize(("sentences", "first_room"), [(3, 6), (8, 3), (13, 40)])
@pytest.mark.parametrize(
    "options",
    [
        dict(beam_size=1),
        dict(beam_size=3, n_best=3, coverage_penalty=0.3),
        dict(beam_size=1, sampling=True, top_k=5),
    ],
    ids=["greedy", "beam", "sampling"],
)
def test_a_search_in_parts_finds_what_one_loop_finds(
    varied, compiled, monkeypatch, options, first_room, sentences
):
    model, source, parts = varied("post_norm"), varied_sources(sentences), []
    finish = Search.finish

    def noted(self, state, settings, room, rows):
        parts.append((state.ids.shape[2], room, rows))
        return finish(self, state, settings, room, rows)

    monkeypatch.setattr(Search, "finish", noted)
    module = sys.modules[Search.__module__]
    monkeypatch.setattr(module, "_first_room", lambda source, room: min(first_room, room))

    def run(in_parts):
        def found(ids):
            return tuple(search(model, ids, max_length=23, in_parts=in_parts, **options))

        return [np.asarray(each) for each in compiled(found)(source)]

    one, two = run(False), run(True)
    assert parts == [(min(first_room, 23), 23, max(sentences // 4, 1))]
    lengths = (one[0][:, 0] != 0).sum(axis=1)
    if sentences > 3:
        assert lengths.min() <= 6 < lengths.max()
    np.testing.assert_array_equal(two[0], one[0])
    for before, after in zip(one[1:], two[1:], strict=True):
        np.testing.assert_allclose(after, before, atol=1e-5)


@pytest.mark.tensorflow  # whose loops, outside of a graph, can be looked into
def test_what_is_left_of_a_batch_goes_on_in_quarters(varied, monkeypatch):
    parts, proceed = [], Search.proceed

    def noted(self, state, *more):
        going_on, found = proceed(self, state, *more)
        assert int(state.position) == 3 and not np.any(going_on.running)
        parts.append(np.any(state.running, axis=1).tolist())
        return going_on, found

    monkeypatch.setattr(Search, "proceed", noted)
    monkeypatch.setattr(sys.modules[Search.__module__], "_first_room", lambda *_: 3)
    options = dict(beam_size=1, max_length=23)
    found = search(varied("post_norm"), varied_sources(8), in_parts=True, **options)
    lengths = (np.asarray(found.ids)[:, 0] != 0).sum(axis=1)
    assert (lengths > 3).sum() == 5
    assert parts == [[True, True], [True, True], [True, False]]


@pytest.mark.tensorflow  # as above
def test_the_first_loop_ends_when_a_quarter_of_the_batch_is_left(varied, monkeypatch):
    positions, finish = [], Search.finish

    def noted(self, state, *more):
        running = np.any(state.running, axis=1)
        positions.append((int(state.position), int(running.sum())))
        return finish(self, state, *more)

    monkeypatch.setattr(Search, "finish", noted)
    monkeypatch.setattr(sys.modules[Search.__module__], "_first_room", lambda _, room: room)
    options = dict(beam_size=1, max_length=23)
    found = search(varied("post_norm"), varied_sources(8), in_parts=True, **options)
    lengths = sorted((np.asarray(found.ids)[:, 0] != 0).sum(axis=1))
    assert lengths[-3] < lengths[-2]
    assert positions == [(lengths[-3], 2)]


def test_each_part_has_the_settings_of_its_sentences(varied, compiled, monkeypatch):
    monkeypatch.setattr(sys.modules[Search.__module__], "_first_room", lambda *_: 3)
    model, source = varied("post_norm"), varied_sources(8)
    options = dict(beam_size=1, sampling=True, min_length=6)
    plain = settings_of(DecodingOptions(**options), 23)
    numbers = [np.float32(each) for each in plain.numbers]
    numbers[3] = np.linspace(0.5, 2.0, 8, dtype="float32")  # temperatures
    integers = (np.arange(2, 10, dtype="int32"), *plain.integers[1:])  # top-k
    prefixes = np.zeros((8, 5), "int32")
    prefixes[np.arange(0, 8, 2), 0] = prefixes[5, :5] = 4
    seeds = np.arange(8, dtype="int32") * 1009

    def run(in_parts):
        settings = Settings(tuple(numbers), integers, seeds, prefixes)

        def found(ids):
            more = dict(max_length=23, in_parts=in_parts, settings=settings)
            return search(model, ids, **more, **options).ids

        return np.asarray(compiled(found)(source))

    one, two = run(False), run(True)
    assert len({tuple(row) for row in one[:, 0, 3:].tolist()}) >= 6
    np.testing.assert_array_equal(two, one)


def test_a_search_in_parts_ends_where_the_limits_are_beyond_its_room(varied, compiled):
    model, source = varied("post_norm"), varied_sources(8)
    endless = DecodingOptions(beam_size=1, max_length_ratio=9.0)
    settings = settings_of(endless, 256)

    def found(ids):
        return search(model, ids, beam_size=1, in_parts=True, settings=settings).ids

    # The room is that of twice the padded source and 10.
    ids = np.asarray(compiled(found)(source))
    assert ids.shape == (8, 1, 32) and (ids[6] != 0).all()


@pytest.mark.parametrize("max_length, room", [(64, 32), (31, 31), (1, 1)])
def test_the_result_has_room_for_the_longest_limit(varied, max_length, room):
    # 2 · 5 + 10 rounded up to a multiple of 16, and no more than is asked for.
    model, source = varied("post_norm"), varied_sources(3, 5)
    assert search(model, source, beam_size=1, max_length=max_length).ids.shape == (3, 1, room)


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
from keras_transformer.decoding import search
from keras_transformer.decoding.compiled import Compiled
from keras_transformer.decoding.options import DecodingOptions
from keras_transformer.decoding.settings import settings_of

folder, max_length = sys.argv[1], int(sys.argv[2])
model = keras.saving.load_model(f"{folder}/model.keras", compile=False)
source = np.load(f"{folder}/source.npy")
for beams in (1, 3):
    def run(ids, beams=beams):
        return search(model, ids, beams, n_best=beams, max_length=max_length)
    found = Compiled(model, run)(source)
    np.savez(f"{folder}/{keras.backend.backend()}_{beams}.npz", *map(np.asarray, found))
options = dict(sampling=True, n_best=3, temperature=0.9)
settings = settings_of(DecodingOptions(**options), max_length, len(source))
settings = settings._replace(seeds=np.arange(len(source), dtype="int32"))
found = search(model, source, max_length=max_length, settings=settings, **options)
np.savez(f"{folder}/{keras.backend.backend()}_samples.npz", *map(np.asarray, found))
"""
    root = os.path.dirname(os.path.dirname(sys.modules["keras_transformer"].__file__))
    environment = {
        **os.environ,
        "KERAS_BACKEND": OTHER_BACKEND,
        "PYTHONPATH": root,
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # Compiling is nearly all of its time.
    }
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(MAX_LENGTH)],
        env=environment,
        check=True,
        timeout=300,
    )
    options = dict(sampling=True, n_best=3, temperature=0.9)
    settings = settings_of(DecodingOptions(**options), MAX_LENGTH, len(source))
    settings = settings._replace(seeds=np.arange(len(source), dtype="int32"))
    samples = search(
        varied("pre_norm"), source, max_length=MAX_LENGTH, settings=settings, **options
    )
    assert len({each.ids for found in as_lists(samples) for each in found}) > 30
    for name, found in [
        ("1", compiled_search("pre_norm", 1)(source)),
        ("3", compiled_search("pre_norm", 3)(source)),
        ("samples", samples),
    ]:
        with np.load(tmp_path / f"{OTHER_BACKEND}_{name}.npz") as theirs:
            expected = as_lists([theirs[field] for field in theirs.files])
        check_equal(found, expected, 1e-5)
