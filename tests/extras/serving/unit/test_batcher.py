"""Batches: their sentences, their order, who pays for whom; drawn requests at drawn times."""

import asyncio
import collections
import functools
import math
import selectors
import types

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.extras.serving.batcher import Batcher, batch_size
from keras_transformer.extras.serving.endpoints import Rejection

AT_ONCE, MAX, WAIT = 2, 17, 1.0


class Clock(selectors.DefaultSelector):
    """The time of a loop that never waits: where it would, its clock is put on instead."""

    now = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        self.now += 0 if ready else timeout or 0
        return ready


class Loop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.clock = Clock()
        super().__init__(self.clock)

    def time(self):
        return self.clock.now


def now():
    return asyncio.get_running_loop().time()


def in_loop(test):
    """Runs a test in such a loop."""

    @functools.wraps(test)
    def run(*arguments, **values):
        with asyncio.Runner(loop_factory=Loop) as runner:
            return runner.run(asyncio.wait_for(test(*arguments, **values), 6000))

    return run


@pytest.fixture(autouse=True, scope="module")
def a_loops_time():
    with pytest.MonkeyPatch.context() as patch:
        clock = types.SimpleNamespace(monotonic=now)
        patch.setattr("keras_transformer.extras.serving.batcher.time", clock)
        yield


class Model:
    """Writes upper case in some time, and refuses a batch with the word "bad".

    Attributes:
        waiting: Sentences of each key that no batch has had, the oldest first.
        arrived: When each came.
        ended: Sentences of requests that have ended.
        batches: When each batch ran, and its sentences; also halves of a refused one.
        event: When a sentence came, a batch began or a batch ended.
    """

    def __init__(self, status=None):
        self.status, self.batches, self.event = status, [], 0.0
        self.arrived, self.ended = {}, set()
        self.waiting, self.running = collections.defaultdict(list), collections.Counter()

    async def __call__(self, key, rows, is_wanted):
        texts = [row["text"] for row in rows]
        if texts[0] in self.waiting[key]:  # No half of a refused batch.
            if self.status is None:
                self._check(key, texts)
            for text in texts:
                self.waiting[key].remove(text)
        self.event = now()
        self.batches.append((now(), texts))
        self.running[key] += len(texts)
        await asyncio.sleep(0.3 + 0.01 * len(texts))
        self.running[key] -= len(texts)
        self.event = now()
        assert is_wanted() == (not self.ended.issuperset(texts))
        if self.status and any("bad" in text for text in texts):
            raise Rejection(self.status, "bad") if self.status != 500 else RuntimeError("broken")
        return [text.upper() for text in texts]

    def _check(self, key, texts):
        """A batch has the oldest sentence, the nearest in length, its share, and begins in time."""
        queue, running, arrived = self.waiting[key], self.running[key], self.arrived
        first = queue[0]
        assert first in texts
        assert arrived[first] == min(
            arrived[others[0]] for others in self.waiting.values() if others
        )
        share = math.ceil((len(queue) + running) / AT_ONCE)
        assert len(texts) == min(batch_size(share, MAX), len(queue))
        distances = sorted(abs(len(text) - len(first)) for text in queue)
        assert sorted(abs(len(text) - len(first)) for text in texts) == distances[: len(texts)]
        due = arrived[first] + WAIT
        if not running:  # Nobody else came for a fifth of the wait.
            due = min(due, arrived[queue[-1]] + WAIT / 5)
        if len(queue) >= MAX or (running and len(queue) >= share):
            due = self.event
        assert now() == pytest.approx(max(due, self.event))


async def send(batcher, model, texts, key="A"):
    for text in texts:
        model.arrived[text] = model.event = now()
        model.waiting[key].append(text)
    try:
        return await batcher.submit([(key, {"text": text}) for text in texts])
    except (Rejection, RuntimeError) as error:
        return error
    finally:
        model.ended |= {*texts}
        for text in {*texts} & {*model.waiting[key]}:
            model.waiting[key].remove(text)


# Pauses before requests: bursts, streams, and both.
RHYTHMS = st.sampled_from([(0.0, 0.13), (0.07,), (0.0, 0.011, 0.5, 1.7), (0.011, 0.13, 1.7)])
LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=1) | st.lists(
    st.integers(0, 40), min_size=1, max_size=13
)
REQUEST = st.tuples(st.integers(0, 3), st.sampled_from("AAAABC"), LENGTHS)


def texts_of(number, lengths, is_bad=False):
    """Texts that no other request has; the middle one may be bad."""
    middle = len(lengths) // 2 if is_bad else None
    return [
        f"{number} {place} {'bad' * (place == middle)}" + "x" * length
        for place, length in enumerate(lengths)
    ]


@settings(max_examples=60)
@given(rhythm=RHYTHMS, requests=st.lists(REQUEST, min_size=1, max_size=30))
@example(rhythm=(0.13,), requests=[(0, "A", [3])] * 12)  # a stream without a pause
@in_loop
async def test_batches_follow_the_rules_and_answers_come_back_to_their_own(rhythm, requests):
    model, time, sent = Model(), 0.0, []
    batcher = Batcher(model, AT_ONCE, MAX, WAIT)

    async def later(time, *request):
        await asyncio.sleep(time)
        return await send(batcher, model, *request)

    for number, (pause, key, lengths) in enumerate(requests):
        # No two events at the same time, whose order would be the loop's.
        time += rhythm[pause % len(rhythm)] + 1e-3 * (1 + number % 7) + 1e-5 * number
        sent.append((time, texts_of(number, lengths), key))
    answers = await asyncio.gather(*(later(*request) for request in sent))
    assert answers == [[text.upper() for text in texts] for _, texts, _ in sent]
    assert batcher.waiting == 0 and not batcher._queues and not batcher._running


# A request is bad, or its client gives up after some seconds.
FATES = st.sampled_from([None, None, None, "bad", "bad", 0.0, 0.1, 0.4, 0.9])


@pytest.mark.parametrize("status", [400, 413, 500])
@settings(max_examples=40)
@given(rhythm=RHYTHMS, requests=st.lists(st.tuples(REQUEST, FATES), min_size=2, max_size=20))
@example(rhythm=(0.0,), requests=[((0, "A", [1]), fate) for fate in ("bad", None, None, None)])
@in_loop
async def test_who_is_refused_or_gives_up_harms_no_other(rhythm, requests, status):
    model, tasks, sent = Model(status), [], []
    batcher = Batcher(model, AT_ONCE, MAX, WAIT)
    for number, ((pause, key, lengths), fate) in enumerate(requests):
        await asyncio.sleep(rhythm[pause % len(rhythm)])
        sent.append((texts_of(number, lengths, fate == "bad"), fate))
        tasks.append(asyncio.create_task(send(batcher, model, sent[-1][0], key)))
        if isinstance(fate, float):
            asyncio.get_running_loop().call_later(fate, tasks[-1].cancel)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    shared = [{*texts} for _, texts in model.batches if any("bad" in text for text in texts)]
    for (texts, fate), answer in zip(sent, answers, strict=True):
        if isinstance(answer, asyncio.CancelledError):
            assert isinstance(fate, float)
        elif isinstance(answer, Exception):
            # An error of the program is that of all whose sentences were in the batch.
            assert fate == "bad" or (status == 500 and any({*texts} & batch for batch in shared))
        else:
            assert answer == [text.upper() for text in texts] and fate != "bad"
    assert batcher.waiting == 0 and not batcher._queues
    # Each place for a batch is free again.
    assert await asyncio.wait_for(send(batcher, Model(), ["a"]), 60) == ["A"]
    await asyncio.sleep(60)
    assert not batcher._running  # Clients choose keys.


@in_loop
async def test_nobody_waits_for_sentences_whose_request_has_ended():
    model = Model(400)
    batcher = Batcher(model, 1, MAX, 0.0)
    held = asyncio.create_task(send(batcher, model, ["x"]))
    await asyncio.sleep(0.01)
    gone = asyncio.create_task(send(batcher, model, [f"gone {place}" for place in range(99)]))
    stays = asyncio.create_task(send(batcher, model, ["stays"]))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.sleep(0.01)
    assert batcher.waiting == 1
    assert [await held, await stays] == [["X"], ["STAYS"]]
    # Nor for the others of a sentence that is refused.
    refused = await send(batcher, model, ["bad", *(f"good {place}" for place in range(50))])
    assert isinstance(refused, Rejection)
    assert [texts for _, texts in model.batches[:2]] == [["x"], ["stays"]]
    assert batcher.waiting == 0


@in_loop
async def test_a_large_request_waits_in_pieces_of_similar_lengths_and_no_other_waits_for_all():
    model, texts = Model(400), [f"{number:02}" + "x" * (7 * number % 40) for number in range(40)]
    batcher = Batcher(model, 1, 4, 0.0)
    large = asyncio.create_task(send(batcher, model, texts))
    await asyncio.sleep(0.01)
    assert batcher.waiting == 4  # Of eight, four run.
    small = asyncio.create_task(send(batcher, model, ["small"]))
    assert await asyncio.gather(large, small) == [[text.upper() for text in texts], ["SMALL"]]
    assert len(model.batches) == 11
    assert ["small" in batch for _, batch in model.batches].index(True) <= 2
    lengths = [len(text) for _, batch in model.batches for text in batch if text != "small"]
    assert lengths == sorted(lengths)


@in_loop
async def test_a_batch_with_too_many_results_fails_its_requests_and_frees_its_place():
    async def run(key, rows, is_wanted):
        return ["A"] * (len(rows) + 1)

    batcher = Batcher(run, 1, MAX, 0.0)
    for _ in range(3):
        error = await asyncio.wait_for(send(batcher, Model(), ["a"]), 5)
        assert str(error) == "a batch of 1 has 2 results"


@given(st.integers(1, 300), st.integers(1, 100))
def test_a_batch_is_a_power_of_two_or_at_least_three_quarters_of_the_next(waiting, max_size):
    below, above = (2 ** f(math.log2(waiting)) for f in (math.floor, math.ceil))
    expected = waiting if waiting / above >= 0.75 else below
    assert batch_size(waiting, max_size) == (max_size if waiting >= max_size else expected)
