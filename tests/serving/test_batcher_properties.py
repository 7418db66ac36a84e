"""Requests at drawn times, with a clock that stands still while something runs."""

import asyncio
import collections
import math
import selectors
import types

import numpy as np
import pytest

from keras_transformer.serving import batcher
from keras_transformer.serving.batcher import Batcher, batch_size
from keras_transformer.serving.protocol import Rejection

_AT_ONCE, _MAX, _WAIT = 2, 8, 1.0


@pytest.fixture
def timed(monkeypatch):
    """Runs coroutines with a clock that goes on only while all of them wait."""
    clock = types.SimpleNamespace(now=0.0)

    class Selector(selectors.SelectSelector):
        def select(self, timeout=None):
            clock.now += timeout or 0
            return super().select(0)

    def run(coroutine):
        loop = asyncio.SelectorEventLoop(Selector())
        loop.time = lambda: clock.now
        try:
            return loop.run_until_complete(asyncio.wait_for(coroutine, 600))
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    monkeypatch.setattr(batcher, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    run.clock = clock
    return run


class _Model:
    """Records batches; checks each when it starts; fails where a sentence is bad."""

    def __init__(self, clock, status=None):
        self.clock, self.status = clock, status
        self.arrived, self.batches = {}, []
        self.waiting = collections.defaultdict(list)
        self.running = collections.Counter()
        self.is_retry = set()

    async def __call__(self, key, rows, is_wanted=None):
        texts = [row["text"] for row in rows]
        self.batches.append((self.clock.now, key, texts))
        if texts[0] not in self.is_retry:
            if self.status is None:  # A sentence whose request failed leaves its batch.
                self._check(key, texts)
            for text in texts:
                self.waiting[key].remove(text)
        self.is_retry |= {*texts}
        self.running[key] += len(texts)
        await asyncio.sleep(0.3 + 0.01 * len(texts))
        self.running[key] -= len(texts)
        if any("bad" in text for text in texts) and self.status:
            raise Rejection(self.status, "bad") if self.status != 500 else RuntimeError("broken")
        return [{"outputs": text.upper()} for text in texts]

    def _check(self, key, texts):
        now, arrived = self.clock.now, self.arrived
        queues = {
            name: sorted(queue, key=arrived.get) for name, queue in self.waiting.items() if queue
        }
        first = queues[key][0]
        assert arrived[first] == min(arrived[queue[0]] for queue in queues.values())
        assert first in texts
        queue, running = queues[key], self.running[key]
        share = math.ceil((len(queue) + running) / _AT_ONCE)
        assert len(texts) == min(batch_size(share, _MAX), len(queue))
        distances = sorted(abs(len(text) - len(first)) for text in queue)
        assert sorted(abs(len(text) - len(first)) for text in texts) == distances[: len(texts)]
        is_full = len(queue) >= _MAX or (running and len(queue) >= share)
        is_due = now >= arrived[first] + _WAIT - 1e-6
        is_over = not running and now >= arrived[queue[-1]] + _WAIT / 5 - 1e-6
        assert is_full or is_due or is_over, (now, queue)


def _requests(rng, count, share_of_bad=0.0):
    """Requests at drawn times: bursts and pauses."""
    time = 0.0
    for request in range(count):
        time += float(rng.choice([0.011, 0.07, 0.13, 0.5, 1.7]) * rng.uniform(0.9, 1.1))
        rows = []
        for number in range(int(rng.choice([1, 1, 2, 3, 11]))):
            bad = "bad" if rng.random() < share_of_bad else ""
            rows.append(
                (
                    "ABC"[int(rng.choice(3, p=[0.6, 0.3, 0.1]))],
                    f"{request} {number} {bad}" + "x" * int(rng.integers(0, 40)),
                )
            )
        yield time, rows


async def _served(model, requests):
    queue = Batcher(model, _AT_ONCE, _MAX, _WAIT)

    async def send(time, rows):
        await asyncio.sleep(time)
        for key, text in rows:
            model.arrived[text] = model.clock.now
            model.waiting[key].append(text)
        try:
            return await queue.submit([(key, {"text": text}) for key, text in rows])
        except (Rejection, RuntimeError) as error:
            for key, text in rows:
                if text in model.waiting[key]:
                    model.waiting[key].remove(text)
            return error, model.clock.now

    answers = await asyncio.gather(*(send(*request) for request in requests))
    assert queue.waiting == 0
    return answers


@pytest.mark.parametrize("seed", range(10))
def test_batches_of_drawn_requests_follow_the_rules(timed, seed):
    requests = list(_requests(np.random.default_rng(seed), 60))
    model = _Model(timed.clock)
    answers = timed(_served(model, requests))
    assert answers == [[{"outputs": text.upper()} for _, text in rows] for _, rows in requests]
    assert len(model.batches) > 15


@pytest.mark.parametrize("status", [400, 413, 500])
@pytest.mark.parametrize("seed", range(3))
def test_a_rejected_sentence_fails_its_request_and_no_other(timed, status, seed):
    requests = list(_requests(np.random.default_rng(seed), 60, 0.04))
    model = _Model(timed.clock, status)
    answers, is_failed = timed(_served(model, requests)), []
    for (_, rows), answer in zip(requests, answers, strict=True):
        texts = [text for _, text in rows]
        is_failed.append(isinstance(answer, tuple))
        if is_failed[-1]:  # Its sentences that still wait do not run.
            assert not any(
                {*texts} & {*batch} for time, _, batch in model.batches if time > answer[1]
            )
        else:
            assert answer == [{"outputs": text.upper()} for text in texts]
        is_bad = any("bad" in text for text in texts)
        assert is_failed[-1] == is_bad or (status == 500 and is_failed[-1])
    assert any(is_failed)


def test_a_batch_is_a_power_of_two_or_at_least_three_quarters_of_the_next():
    for max_size in (1, 5, 32, 64, 100):
        for waiting in range(1, 200):
            powers = [2**i for i in range(10)]
            below, above = (
                max(p for p in powers if p <= waiting),
                min(p for p in powers if p >= waiting),
            )
            expected = waiting if waiting / above >= 0.75 else below
            assert batch_size(waiting, max_size) == (max_size if waiting >= max_size else expected)
