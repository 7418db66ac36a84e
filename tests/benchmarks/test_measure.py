"""What makes figures fair: turns, settings, ratios, and engines that do the work they name."""

import itertools
import types

import keras
import numpy as np
import pytest

from benchmarks import complexity, measure
from benchmarks.engines import ENGINES
from keras_transformer.base.ids import BOS_ID, EOS_ID


def test_engines_take_turns_and_each_round_begins_with_another(monkeypatch):
    pauses, clock = [], iter(range(100))
    monkeypatch.setattr(measure.time, "sleep", pauses.append)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock) ** 2)
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "abc"}
    seconds = measure.in_turns(calls, 2)
    assert order == ["a", "b", "c", "b", "c", "a"]
    assert len(pauses) == 6 and all(0.01 < pause < 1 for pause in pauses)
    # Each call reads the clock twice: 1² - 0², 3² - 2², 5² - 4², ...
    assert seconds == {"a": [1, 21], "b": [5, 13], "c": [9, 17]}


def test_the_fastest_setting_is_taken_and_the_warm_up_does_not_count(monkeypatch):
    monkeypatch.setattr(measure, "_PAUSE_SECONDS", 0)
    now, calls = [0.0], []
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def call(name, *seconds):
        calls.append(name)
        now[0] += seconds[min(calls.count(name), len(seconds)) - 1]
        return [f"by {name}"]

    # The first call compiles; of the others the least counts.
    seconds = {"a": (1, 5, 9), "b": (90, 8, 3), "c": (1, 4, 4)}
    makers = {name: lambda name=name: call(name, *seconds[name]) for name in seconds}
    trial = measure.at_its_best(makers)
    assert (trial.setting, trial.result, trial.call()) == ("b", ["by b"], ["by b"])
    assert trial.tried == {"a": 5, "b": 3, "c": 4}


def test_a_ratio_is_of_the_times_per_token(monkeypatch):
    seconds = {"a": [2.0, 4.0, 6.0], "b": [1.0, 1.0, 6.0]}
    monkeypatch.setattr(measure, "in_turns", lambda calls, rounds: seconds)
    trials = dict.fromkeys(seconds, measure.Trial("one", list, [], {}))
    figures = measure.side_by_side(trials, 3, {"a": 100, "b": 25})
    # Of the rounds b takes 1/2, 1/4 and 1/1 of the time for a quarter of the tokens.
    assert figures["b"]["ratio"] == 2 and figures["b"]["rate"] == 25
    assert figures["a"]["ratio"] == 1 and figures["a"]["rate"] == 25
    assert figures["b"]["seconds"] == seconds["b"]


# In a beam CTranslate2 has probabilities in which EOS, which may not be chosen, has no part.
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["ours", "ctranslate2"])
def test_a_forced_search_takes_the_best_id_but_the_end_with_every_setting(model, source_ids, name):
    pytest.importorskip(ENGINES[name].package, reason="comes with the extra [peers]")
    engine = ENGINES[name](model)
    settings = engine.settings(2, len(source_ids))
    assert len(settings) == (2 if name == "ours" else 3)
    for setting in settings:
        ids = np.array(engine.forced(source_ids, 1, 9, **setting)())
        read = np.pad(ids, ((0, 0), (1, 0)), constant_values=BOS_ID)[:, :-1]
        # All ids at once, without a cache.
        logits = keras.ops.convert_to_numpy(model((np.array(source_ids), read))).copy()
        assert (logits.argmax(axis=-1) == EOS_ID).all()
        logits[:, :, EOS_ID] = -np.inf
        np.testing.assert_array_equal(ids, logits.argmax(axis=-1))


def test_the_crossover_of_two_layers_is_where_their_lines_meet():
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
@pytest.mark.parametrize("kind", ["self-attention", "recurrent"])
def test_a_layer_is_measured_after_its_first_call(monkeypatch, kind):
    readings = itertools.accumulate([0, 100, 0, 1, 0, 3])  # the first call takes longest
    clock = types.SimpleNamespace(perf_counter=lambda: next(readings))
    monkeypatch.setattr(complexity, "time", clock)
    row = complexity.measured(kind, 16, 32, rounds=2)
    assert row["milliseconds"] == 2000
    # Four heads have a float32 for each pair of positions.
    least = {"self-attention": 4 * 4 * 32 * 32}.get(kind, 0)
    assert least <= row["mebibytes"] * 2**20 < 2**20
