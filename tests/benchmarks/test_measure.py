import pytest

from benchmarks import measure
from benchmarks.measure import at_its_best, in_turns, use_threads
from keras_transformer.errors import InputError


def test_engines_take_turns_and_each_round_begins_with_another(monkeypatch):
    pauses, clock = [], iter(range(100))
    monkeypatch.setattr(measure.time, "sleep", pauses.append)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock) ** 2)
    order = []
    seconds = in_turns({name: lambda name=name: order.append(name) for name in "abc"}, 2)
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
    trial = at_its_best(makers)
    assert (trial.setting, trial.result, trial.call()) == ("b", ["by b"], ["by b"])
    assert trial.tried == {"a": 5, "b": 3, "c": 4}


def test_a_ratio_is_of_the_times_per_token(monkeypatch):
    seconds = {"a": [2.0, 4.0], "b": [1.0, 1.0]}
    monkeypatch.setattr(measure, "in_turns", lambda calls, rounds: seconds)
    trials = dict.fromkeys(seconds, measure.Trial("one", list, [], {}))
    figures = measure.side_by_side(trials, 2, {"a": 100, "b": 25})
    # a takes 20 and 40 ms per token, b takes 40.
    assert figures["b"]["ratio"] == 1.5 and figures["b"]["rate"] == 25
    assert figures["a"]["ratio"] == 1 and figures["a"]["rate"] == 33.33


@pytest.mark.tensorflow
def test_threads_that_come_too_late_are_a_users_mistake():
    import tensorflow as tf

    tf.constant(1) + 1  # TensorFlow has started with the two threads of conftest.py.
    use_threads(2)
    with pytest.raises(InputError, match="threads=5, TensorFlow runs with 2"):
        use_threads(5)
