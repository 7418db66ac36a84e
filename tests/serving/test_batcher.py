"""Which sentences go together, in which order, and who pays for whom."""

import asyncio
import selectors
import types

import pytest

from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.protocol import Rejection


class Model:
    """Upper-cases; notes its batches; holds them until `go` is set."""

    def __init__(self, held=False):
        self.batches = []
        self.most_at_once = self._at_once = 0
        self.go = asyncio.Event()
        if not held:
            self.go.set()

    async def __call__(self, key, columns):
        self.batches.append(columns["text"])
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await self.go.wait()
        finally:
            self._at_once -= 1
        if "die" in columns["text"]:
            return {"error": Rejection(503, "died", "replica")}
        if "bad" in columns["text"]:
            return {"error": Rejection(400, "bad text", "model")}
        return {"rows": [{"text": text.upper()} for text in columns["text"]]}


def make(model, slots=1, batch_wait=0.0, on_batch=lambda *_: None, **options):
    options = {"max_batch_size": 4, "max_queue": 100, "max_answer_bytes": 10**6, **options}
    batcher = Batcher(model, wait_seconds=batch_wait, on_batch=on_batch, **options)
    batcher.slots = slots
    return batcher


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


def run(coroutine):
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(asyncio.wait_for(coroutine, 10))


@pytest.fixture(autouse=True)
def a_loops_time(monkeypatch):
    clock = types.SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr("keras_transformer.serving.batcher.time", clock)


async def start(*coroutines):
    """Tasks that have come as far as they can by themselves."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    await asyncio.sleep(0.01)
    return tasks


def test_sentences_of_several_requests_share_batches_and_come_back_to_their_own():
    async def scenario():
        model = Model(held=True)
        batcher = make(model)
        first, *others = await start(
            ask(batcher, "a"), ask(batcher, "b", "c", "d"), ask(batcher, "e"), ask(batcher)
        )
        assert model.batches == [["a"]]  # Nothing to wait for.
        assert (batcher.waiting, batcher.unfinished) == (4, 3)
        model.go.set()
        assert await asyncio.gather(first, *others) == [["A"], ["B", "C", "D"], ["E"], []]
        assert model.batches == [["a"], ["b", "c", "d", "e"]]
        assert (batcher.waiting, batcher.unfinished) == (0, 0)

    run(scenario())


def test_a_batch_has_the_oldest_sentence_and_those_nearest_to_it_in_length():
    async def scenario():
        model = Model(held=True)
        batcher = make(model, max_batch_size=2)
        held = await start(ask(batcher, "x"))
        texts = ["a" * 7, "b" * 31, "c" * 29, "d" * 8]
        asked = await start(*(ask(batcher, text) for text in texts))
        model.go.set()
        await asyncio.gather(*held, *asked)
        assert model.batches[1:] == [["a" * 7, "d" * 8], ["b" * 31, "c" * 29]]

    run(scenario())


@pytest.mark.parametrize(("waiting", "sizes"), [(5, [4, 1]), (6, [6]), (9, [8, 1]), (3, [3])])
def test_a_batch_that_would_be_padded_to_much_more_is_left_smaller(waiting, sizes):
    async def scenario():
        model = Model(held=True)
        batcher = make(model, max_batch_size=8)
        held = await start(ask(batcher, "x"))
        asked = await start(ask(batcher, *("a" * waiting)))
        model.go.set()
        await asyncio.gather(*held, *asked)
        assert [len(batch) for batch in model.batches[1:]] == sizes

    run(scenario())


def test_a_sentence_waits_for_others_but_not_for_long():
    async def scenario():
        model = Model()
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

    run(scenario())


def test_a_stream_of_sentences_does_not_put_off_a_batch_for_ever():
    async def scenario():
        model = Model()
        batcher = make(model, batch_wait=0.2, max_batch_size=1000)
        started = asyncio.get_running_loop().time()
        asked = []
        while not model.batches:
            asked += await start(ask(batcher, "a"))  # One more every 10 ms: no pause.
        assert asyncio.get_running_loop().time() - started == pytest.approx(0.2, abs=0.011)
        assert len(model.batches[0]) == 16  # Twenty would be padded to 32.
        await asyncio.gather(*asked)

    run(scenario())


def test_no_more_batches_are_on_their_way_than_there_are_slots():
    async def scenario():
        model = Model(held=True)
        batcher = make(model, slots=2, max_batch_size=1)
        asked = await start(*(ask(batcher, f"a{i}") for i in range(7)))
        model.go.set()
        answers = await asyncio.gather(*asked)
        assert answers == [[f"A{i}"] for i in range(7)]
        assert model.most_at_once == 2

    run(scenario())


def test_what_waits_is_shared_among_the_free_slots():
    async def scenario():
        model = Model(held=True)
        batcher = make(model, slots=2, max_batch_size=8)
        asked = await start(ask(batcher, *("a" * 8)))
        assert [len(batch) for batch in model.batches] == [4, 4]
        model.go.set()
        await asyncio.gather(*asked)

    run(scenario())


class OneByOne(Model):
    """Each batch is held until it is released."""

    def __init__(self):
        super().__init__()
        self._releases = []

    async def __call__(self, key, columns):
        self._releases.append(asyncio.Event())
        at = len(self._releases) - 1
        answer = await super().__call__(key, columns)
        await self._releases[at].wait()
        return answer

    async def release(self, batch):
        self._releases[batch].set()
        await asyncio.sleep(0.01)


def test_beside_another_batch_the_next_one_waits_for_its_share():
    async def scenario():
        model = OneByOne()
        batcher = make(model, slots=2, max_batch_size=8, batch_wait=0.5)
        asked = await start(ask(batcher, *"abcdefgh"))
        assert [len(batch) for batch in model.batches] == [4, 4]
        await model.release(0)
        for text in "ijk":
            asked += await start(ask(batcher, text))
            await asyncio.sleep(0.12)  # a pause after which it would go, were nothing on its way
            assert len(model.batches) == 2
        asked += await start(ask(batcher, "l"))
        assert model.batches[2:] == [[*"ijkl"]]
        for batch in (1, 2):
            await model.release(batch)
        await asyncio.gather(*asked)

    run(scenario())


def test_beside_another_batch_a_sentence_waits_no_longer_than_it_may():
    async def scenario():
        model = OneByOne()
        batcher = make(model, slots=2, max_batch_size=8, batch_wait=0.1)
        asked = await start(ask(batcher, *"abcdefgh"))
        await model.release(0)
        asked += await start(ask(batcher, "i"))
        await asyncio.sleep(0.05)
        assert len(model.batches) == 2
        await asyncio.sleep(0.05)
        assert model.batches[2:] == [["i"]]
        for batch in (1, 2):
            await model.release(batch)
        await asyncio.gather(*asked)

    run(scenario())


def test_after_a_small_batch_the_next_ones_are_of_one_size():
    async def scenario():
        model = OneByOne()
        batcher = make(model, slots=2, max_batch_size=8)
        asked = await start(ask(batcher, "a"), ask(batcher, "b"), ask(batcher, *"cdefghi"))
        assert model.batches == [["a"], ["b"]]
        await model.release(0)
        await model.release(1)
        assert [len(batch) for batch in model.batches[2:]] == [4, 3]
        for batch in (2, 3):
            await model.release(batch)
        await asyncio.gather(*asked)

    run(scenario())


def test_keys_do_not_mix_and_take_turns():
    async def scenario():
        model = Model(held=True)
        batcher = make(model)
        held = await start(ask(batcher, "x"))
        asked = await start(
            ask(batcher, "a", "b"), ask(batcher, "c", key=("default", 0.5)), ask(batcher, "d")
        )
        model.go.set()
        await asyncio.gather(*held, *asked)
        assert model.batches[1:] == [["a", "b", "d"], ["c"]]

    run(scenario())


def test_a_full_queue_rejects_at_once_and_keeps_what_it_has():
    async def scenario():
        model = Model(held=True)
        batcher = make(model, max_queue=3)
        held = await start(ask(batcher, "x"))
        asked = await start(ask(batcher, "a", "b"))
        with pytest.raises(Rejection, match="2 of 3 sentences wait. Received: 2 more") as caught:
            await ask(batcher, "c", "d")
        assert (caught.value.status, caught.value.reason) == (429, "queue")
        model.go.set()
        assert await asyncio.gather(*held, *asked) == [["X"], ["A", "B"]]

    run(scenario())


def test_who_gives_up_leaves_the_queue():
    async def scenario():
        model = Model(held=True)
        batcher = make(model)
        held = await start(ask(batcher, "x"))
        (gone,) = await start(ask(batcher, "a", "b"))
        (stays,) = await start(ask(batcher, "c"))
        gone.cancel()
        await asyncio.sleep(0)
        assert batcher.waiting == 1
        model.go.set()
        await asyncio.gather(*held, stays)
        assert model.batches[1:] == [["c"]]

    run(scenario())


def test_a_text_that_fails_fails_its_own_request_alone():
    async def scenario():
        model = Model(held=True)
        batcher = make(model)
        held = await start(ask(batcher, "x"))
        asked = await start(ask(batcher, "a"), ask(batcher, "bad"), ask(batcher, "b", "c"))
        model.go.set()
        answers = await asyncio.gather(*held, *asked, return_exceptions=True)
        assert answers[0] == ["X"] and answers[1] == ["A"] and answers[3] == ["B", "C"]
        assert isinstance(answers[2], Rejection) and answers[2].status == 400

    run(scenario())


def test_a_dead_replica_fails_what_it_held_once_and_nothing_else():
    async def scenario():
        model = Model(held=True)
        batcher = make(model, max_batch_size=2)
        held = await start(ask(batcher, "x"))
        asked = await start(ask(batcher, "die"), ask(batcher, "abc"), ask(batcher, "later"))
        model.go.set()
        answers = await asyncio.gather(*held, *asked, return_exceptions=True)
        assert [getattr(each, "status", each) for each in answers] == [["X"], 503, 503, ["LATER"]]
        assert model.batches == [["x"], ["die", "abc"], ["later"]]  # Not sent a second time.

    run(scenario())


def test_an_unforeseen_error_fails_its_requests_and_frees_the_slot():
    async def scenario():
        async def broken(key, columns):
            raise RuntimeError("surprise")

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        batcher = make(broken)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="surprise"):
                await ask(batcher, "a")

    run(scenario())


def test_a_batch_that_no_replica_took_is_sent_again():
    async def scenario():
        model, refusals = Model(), [{"again": True}, {"again": True}]

        async def call(key, columns):
            return refusals.pop() if refusals else await model(key, columns)

        assert await ask(make(call), "a") == ["A"]
        assert model.batches == [["a"]]

    run(scenario())


def test_without_a_replica_sentences_wait_until_there_is_one():
    async def scenario():
        batcher = make(Model(), slots=0)
        asked = await start(ask(batcher, "a"))
        assert batcher.waiting == 1
        batcher.slots = 1
        batcher.dispatch()
        assert await asyncio.gather(*asked) == [["A"]]

    run(scenario())


def test_a_request_whose_alignments_are_far_too_large_ends_before_they_are_all_there():
    async def scenario():
        batches = []

        async def large(key, columns):
            batches.append(len(columns["text"]))
            return {"rows": [{"alignment": [[0.0] * 100] * 10}] * len(columns["text"])}

        batcher = make(large, max_answer_bytes=15_000)
        with pytest.raises(Rejection, match="At most 15000 bytes an answer") as caught:
            await ask(batcher, *"abcdefgh")
        assert caught.value.status == 413
        assert batches == [4] and batcher.waiting == 0

    run(scenario())


def test_a_key_leaves_nothing_behind():
    async def scenario():
        batcher = make(Model())
        for number in range(5):
            await ask(batcher, "a", key=("sample", number))
        await asyncio.sleep(0)
        assert not batcher._queues and not batcher._running  # Clients choose keys.

    run(scenario())


def test_each_batch_is_reported_once():
    async def scenario():
        told = []
        batcher = make(Model(), on_batch=lambda *values: told.append(values))
        await ask(batcher, "a", "b", "c")
        ((signature, sentences, seconds),) = told
        assert (signature, sentences) == ("default", 3) and seconds >= 0

    run(scenario())
