"""The engine of a LiteRT file: which interpreter computes which texts."""

import collections
import pathlib
import shutil
import threading
from unittest import mock

import numpy as np
import pytest

from keras_transformer.base import memory
from keras_transformer.base.errors import InputError
from keras_transformer.export.litert import engine as module
from keras_transformer.export.litert.engine import LiteRTEngine, SharedInterpreter

pytestmark = pytest.mark.tensorflow

# Threads, texts, interpreters: with four texts or more each thread has one of its own.
CALLS = [(1, 32, 1), (2, 3, 1), (2, 32, 2), (3, 32, 3), (4, 8, 2), (4, 15, 3), (4, 32, 4)]


@pytest.fixture
def calls(monkeypatch):
    """Number of calls of each interpreter; none is called while it computes."""
    counts, computing, lock = collections.Counter(), set(), threading.Lock()
    run = SharedInterpreter.run

    def counted(interpreter, *arguments, **inputs):
        with lock:
            assert interpreter not in computing
            computing.add(interpreter)
            counts[interpreter] += 1
        try:
            return run(interpreter, *arguments, **inputs)
        finally:
            computing.remove(interpreter)

    monkeypatch.setattr(SharedInterpreter, "run", counted)
    return counts


def test_a_large_file_has_one_interpreter_because_each_has_a_copy_of_the_weights(
    litert_report, texts, calls, monkeypatch
):
    path = litert_report.folder / "model.tflite"
    for size, interpreters in ((1, 2), (0, 1)):
        monkeypatch.setattr(memory, "LARGE_MODEL_BYTES", 2 * (path.stat().st_size + size))
        calls.clear()
        LiteRTEngine(path).translate(texts[:9], threads=2)
        assert len(calls) == interpreters
        assert sum(calls.values()) == 2  # a batch per thread, or two of at most eight sentences


def test_interpreters_have_the_threads_of_their_calls_and_are_kept(
    litert_report, texts, monkeypatch, tmp_path
):
    folder = shutil.copytree(litert_report.folder, tmp_path / "export")
    loaded, load = [], module._load_interpreter

    def recorded(content, path, threads):
        loaded.append(threads)
        return load(content, path, threads)

    monkeypatch.setattr(module, "_load_interpreter", recorded)
    engine = LiteRTEngine(folder, threads=2)
    (folder / "model.tflite").write_bytes(b"Later interpreters read the same file, not this one.")
    for threads in (1, 2, 3, None, 1):
        engine.translate(texts[:1], threads=threads)
    assert loaded == [2, 1, 3]
    engine.translate(texts[:8], threads=4)  # two batches at once
    assert loaded == [2, 1, 3, 2]


def test_pairs_of_any_lengths_are_aligned_as_by_the_trained_model(litert_report, engine):
    exported, rng = LiteRTEngine(litert_report.folder), np.random.default_rng(3)
    lengths = [(13, 1), (2, 17), (13, 17), (1, 1), (5, 3), (3, 5), (7, 7)] * 2
    vocabularies = 53, 47
    pairs = [
        [
            [*rng.integers(4, count, size - 1), 2]
            for count, size in zip(vocabularies, pair, strict=True)
        ]
        for pair in lengths
    ]
    expected = engine.align(pairs, engine.request(alignment=True))
    received = exported.align(pairs, exported.request(alignment=True, threads=3))
    for (source, target), one, other in zip(lengths, expected, received, strict=True):
        assert other.shape == (target, source)
        np.testing.assert_allclose(other, one, atol=1e-5)


@pytest.mark.slow
def test_each_batch_at_once_has_an_interpreter_of_its_own(litert_report, texts, calls):
    engine = LiteRTEngine(litert_report.folder)
    texts = [text for text in texts if len(text) < 13]
    alone = [engine.translate([text], threads=1)[0].text for text in texts[:32]]
    assert len(set(alone)) > 4
    for threads, count, interpreters in CALLS * 2:
        calls.clear()
        received = engine.translate(texts[:count], threads=threads)
        assert [translation.text for translation in received] == alone[:count]
        assert len(calls) == interpreters, (threads, count)
        assert sum(calls.values()) >= max(interpreters, count / engine.batch_size)


def test_a_part_that_litert_cannot_compute_is_one_line(monkeypatch):
    """It checks a file while it is loaded, but a search only when it runs."""

    def runner(**inputs):
        raise RuntimeError("Invalid tensor index 1198.\nNode number 1 (WHILE) failed to prepare.")

    broken = mock.Mock(**{"get_signature_runner.return_value": runner})
    monkeypatch.setattr(module, "_load_interpreter", lambda *_: broken)
    interpreter = SharedInterpreter(b"", pathlib.Path("a/model.tflite"), 1)
    with pytest.raises(InputError) as caught:
        interpreter.run("greedy_13", source_ids=np.zeros((1, 13)))
    reason = "LiteRT cannot compute it. Received: Invalid tensor index 1198."
    assert str(caught.value) == f"a/model.tflite: {reason}"
