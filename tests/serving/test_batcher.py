"""Batches: their sentences, their order, and who pays for whom."""

import asyncio
import functools
import itertools
import selectors
import types

import pytest

from keras_transformer.serving.batcher import Batcher, batch_size
from keras_transformer.serving.protocol import Rejection


class Model:
    """Upper-cases; notes its batches; each is held until it is released, or all are."""

    def __init__(self):
        self.batches, self._released = [], set()
        self.wanted = []  # functions of the batches
        self._held = True

    async def __call__(self, key, rows, is_wanted):
        texts, number = [row["text"] for row in rows], len(self.batches)
        self.batches.append(texts)
        self.wanted.append(is_wanted)
        while self._held and number not in self._released:
            await asyncio.sleep(0.001)
        if "bad" in texts:
            raise Rejection(400, "bad text")
        return [{"text": text.upper()} for text in texts]

    def go(self):
        self._held = False

    async def release(self, batch):
        self._released.add(batch)
        await asyncio.sleep(0.01)


@pytest.fixture
def model():
    return Model()


def make(model, at_once=1, batch_wait=0.0, max_batch_size=4):
    return Batcher(model, at_once, max_batch_size, batch_wait)


async def ask(batcher, *texts, key=("default",)):
    rows = await batcher.submit([(key, {"text": text}) for text in texts])
    return [row["text"] for row in rows]


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


def in_loop(test):
    """Runs a test in such a loop."""

    @functools.wraps(test)
    def run(*arguments, **values):
        with asyncio.Runner(loop_factory=Loop) as runner:
            return runner.run(asyncio.wait_for(test(*arguments, **values), 10))

    return run


@pytest.fixture(autouse=True)
def a_loops_time(monkeypatch):
    clock = types.SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr("keras_transformer.serving.batcher.time", clock)


async def start(*coroutines):
    """Tasks that have come as far as they can by themselves."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    await asyncio.sleep(0.01)
    return tasks


async def together(model, batcher, *requests):
    """The answers to requests that wait at the same time, behind the batch of another one."""
    held = await start(ask(batcher, "x"))
    asked = await start(*requests)
    model.go()
    _, *answers = await asyncio.gather(*held, *asked, return_exceptions=True)
    return answers


@in_loop
async def test_sentences_of_several_requests_share_batches_and_come_back_to_their_own(model):
    batcher = make(model)
    (first,) = await start(ask(batcher, "a"))
    tasks = await start(ask(batcher, "b", "c", "d"), ask(batcher, "e"), ask(batcher))
    assert model.batches == [["a"]]  # Nothing to wait for.
    assert batcher.waiting == 4
    model.go()
    assert await asyncio.gather(first, *tasks) == [["A"], ["B", "C", "D"], ["E"], []]
    assert model.batches == [["a"], ["b", "c", "d", "e"]]
    assert batcher.waiting == 0


@in_loop
async def test_a_sentence_waits_for_others_but_not_for_long(model):
    model.go()
    batcher = make(model, batch_wait=0.1, max_batch_size=3)
    first = await start(ask(batcher, "a"))
    second = await start(ask(batcher, "b"))
    assert model.batches == []
    full = await start(ask(batcher, "c"))
    assert model.batches == [["a", "b", "c"]]  # Full: nothing more to wait for.
    await asyncio.gather(*first, *second, *full)
    alone = asyncio.get_running_loop().time()
    assert await ask(batcher, "d") == ["D"]
    # A fifth of the wait: nobody else came.
    assert asyncio.get_running_loop().time() - alone == pytest.approx(0.02)


@in_loop
async def test_a_stream_of_sentences_does_not_put_off_a_batch_for_ever(model):
    model.go()
    batcher = make(model, batch_wait=0.2, max_batch_size=1000)
    started = asyncio.get_running_loop().time()
    asked = []
    while not model.batches:
        asked += await start(ask(batcher, "a"))  # One more every 10 ms: no pause.
    assert asyncio.get_running_loop().time() - started == pytest.approx(0.2, abs=0.011)
    assert len(model.batches[0]) == 16  # Twenty would be padded to 32.
    await asyncio.gather(*asked)


@in_loop
async def test_beside_another_batch_the_next_one_waits_for_its_share_but_not_for_long(model):
    batcher = make(model, at_once=2, max_batch_size=8, batch_wait=0.5)
    asked = await start(ask(batcher, *"abcdefgh"))
    assert [len(batch) for batch in model.batches] == [4, 4]
    await model.release(0)
    for text in "ijk":
        asked += await start(ask(batcher, text))
        await asyncio.sleep(0.12)  # a pause after which it would go, were nothing on its way
        assert len(model.batches) == 2
    asked += await start(ask(batcher, "l"))
    assert model.batches[2:] == [[*"ijkl"]]
    # A sentence that no other joins waits no longer than it may.
    await model.release(1)
    asked += await start(ask(batcher, "m"))
    await asyncio.sleep(0.4)
    assert len(model.batches) == 3
    await asyncio.sleep(0.1)
    assert model.batches[3:] == [["m"]]
    model.go()
    await asyncio.gather(*asked)


@in_loop
async def test_who_gives_up_leaves_the_queue(model):
    batcher = make(model)
    held = await start(ask(batcher, "x"))
    (gone,) = await start(ask(batcher, "a", "b"))
    (stays,) = await start(ask(batcher, "c"))
    gone.cancel()
    await asyncio.sleep(0.001)
    assert batcher.waiting == 1
    model.go()
    await asyncio.gather(*held, stays)
    assert model.batches[1:] == [["c"]]


@in_loop
async def test_who_gives_up_while_its_batch_runs_harms_nobody(model):
    batcher = make(model)
    held = await start(ask(batcher, "x"))
    gone, stays = await start(ask(batcher, "a"), ask(batcher, "b"))
    await model.release(0)
    gone.cancel()
    await asyncio.sleep(0.001)
    model.go()
    assert await stays == ["B"] and model.batches == [["x"], ["a", "b"]]
    assert await asyncio.wait_for(ask(batcher, "c"), 5) == ["C"]
    await asyncio.gather(*held)


@in_loop
async def test_a_batch_is_wanted_until_all_its_requests_have_ended(model):
    batcher = make(model)
    await start(ask(batcher, "held"))
    two, one = await start(ask(batcher, "a", "b"), ask(batcher, "c"))
    await model.release(0)
    assert model.batches[1:] == [["a", "b", "c"]]
    _, is_wanted = model.wanted
    assert is_wanted()
    two.cancel()
    await asyncio.sleep(0.01)
    assert is_wanted()
    one.cancel()
    await asyncio.sleep(0.01)
    assert not is_wanted()


@in_loop
async def test_an_unforeseen_error_fails_its_requests_and_frees_the_slot():
    async def broken(key, rows, is_wanted):
        raise RuntimeError("surprise")

    async def short(key, rows, is_wanted):
        return [{"text": "A"}] * (len(rows) + 1)

    for run, message in ((broken, "surprise"), (short, "a batch of 1 has 2 results")):
        batcher = make(run)
        for _ in range(3):
            with pytest.raises(RuntimeError, match=message):
                await asyncio.wait_for(ask(batcher, "a"), 5)


@in_loop
async def test_a_large_request_waits_in_pieces_of_similar_lengths_and_no_other_waits_for_all(model):
    batcher = make(model, max_batch_size=4)
    texts = ["x" * (1 + 7 * number % 40) for number in range(40)]
    large = await start(ask(batcher, *texts))
    assert batcher.waiting == 4  # Of eight, four run.
    small = await start(ask(batcher, "small"))
    model.go()
    assert await asyncio.gather(*large, *small) == [[text.upper() for text in texts], ["SMALL"]]
    assert len(model.batches) == 11
    assert ["small" in batch for batch in model.batches].index(True) <= 2
    lengths = [len(text) for batch in model.batches for text in batch if text != "small"]
    assert lengths == sorted(lengths)
    assert batcher.waiting == 0


@in_loop
async def test_who_gives_up_a_large_request_leaves_nothing_in_the_queue(model):
    batcher = make(model, max_batch_size=4)
    (gone,) = await start(ask(batcher, *"abcdefghijklmnop"))
    gone.cancel()
    await asyncio.sleep(0.01)
    assert batcher.waiting == 0
    model.go()
    assert await ask(batcher, "z") == ["Z"] and len(model.batches) == 2
    (failed,) = await start(ask(batcher, *["bad"] * 20))
    with pytest.raises(Rejection):
        await failed
    await asyncio.sleep(0.01)
    assert batcher.waiting == 0


@in_loop
async def test_a_key_leaves_nothing_behind(model):
    model.go()
    batcher = make(model)
    for number in range(5):
        await ask(batcher, "a", key=("sample", number))
    await asyncio.sleep(0)
    assert not batcher._queues and not batcher._running  # Clients choose keys.


def naive_batches(arrivals, max_batch_size):
    """All batches of sentences that wait in this order: the oldest one, and the nearest to it."""
    waiting, batches = list(arrivals), []
    while waiting:
        key, oldest = waiting[0]
        later = [text for other, text in waiting[1:] if other == key]
        size = batch_size(1 + len(later), max_batch_size)
        nearest = sorted(later, key=lambda text: abs(len(text) - len(oldest)))
        batches.append([oldest, *nearest[: size - 1]])
        waiting = [(key, text) for key, text in waiting if text not in batches[-1]]
    return batches


ORDERS = sorted({"".join(order) for order in itertools.permutations("AAABCC")})


@pytest.mark.parametrize("max_batch_size", [1, 2, 4])
@in_loop
async def test_the_oldest_sentence_is_in_the_next_batch_whatever_the_order_of_arrivals(
    max_batch_size,
):
    for order in ["ACA", *ORDERS]:
        model = Model()
        batcher = make(model, max_batch_size=max_batch_size)
        held = await start(ask(batcher, "held", key=("held",)))
        arrivals = [(key, key * (1 + 3 * i % 7)) for i, key in enumerate(order)]
        asked = []
        for key, text in arrivals:  # each some time after the one before
            asked += await start(ask(batcher, text, key=("default", key)))
        model.go()
        await asyncio.gather(*held, *asked)
        assert model.batches[1:] == naive_batches(arrivals, max_batch_size), order
