"""Checkpoints within an epoch are made in time, and all hosts make them at the same steps."""

import types

import pytest

from keras_transformer.training import RunFolder, within_epoch
from keras_transformer.training.within_epoch import StepCheckpoints


@pytest.fixture
def saved_steps(monkeypatch, tmp_path):
    """`saved_steps(host, seconds)`: where an epoch with a checkpoint every minute has them.

    `seconds` are those that each step takes.
    """

    def saved_steps(host, seconds):
        clock, saved = types.SimpleNamespace(now=7.0), []
        folder = RunFolder(tmp_path)
        folder.checkpoints.mkdir(exist_ok=True)
        monkeypatch.setattr(within_epoch.time, "monotonic", lambda: clock.now)
        monkeypatch.setattr(within_epoch, "save_model", lambda model, file: saved.append(step))
        callback = StepCheckpoints(folder, 1.0, host=host)
        callback.set_model(types.SimpleNamespace(metrics_variables=[], variables=[]))
        callback.set_params({"steps": len(seconds)})
        callback.on_epoch_begin(0)
        for step, each in enumerate(seconds):
            clock.now += each
            host.step = step
            callback.on_train_batch_end(step)
        return saved

    return saved_steps


class FirstHost:
    """Keeps what it said, and at which step."""

    def __init__(self):
        self.said = {}

    def agree(self, number):
        self.said[self.step] = number
        return number


class OtherHost:
    """Hears the first one, which must have spoken at that step."""

    def __init__(self, said):
        self.said = dict(said)

    def agree(self, number):
        return self.said.pop(self.step)


def test_hosts_meet_at_few_steps_and_save_at_the_same_ones(saved_steps):
    # A step of 30 seconds compiles, then 0.05 seconds each; later they take twice as long.
    first, seconds = FirstHost(), [30.0] + [0.05] * 3000 + [0.1] * 3100
    saved = saved_steps(first, seconds)
    due, total = [], 0.0
    for step, each in enumerate(seconds):
        total += each
        if total >= 60 - 1e-6:
            due.append(step)
            total = 0.0
    assert len(saved) == len(due) == 8
    assert all(abs(one - other) <= 8 for one, other in zip(saved, due, strict=True))
    assert len(first.said) < len(seconds) / 20
    other = OtherHost(first.said)
    assert saved_steps(other, [0.07] * len(seconds)) == saved
    assert not other.said
