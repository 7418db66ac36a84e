"""Dynamic batching: sentences of many requests become batches of similar lengths."""

import asyncio
import collections
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from keras_transformer.extras.serving.endpoints import Rejection

# Requests come in bursts: after a pause of this share of the wait, a burst is over.
_PAUSE = 0.2


class Batcher:
    """Queues sentences of all requests and runs them in batches, several at once.

    Sentences, not requests, are batched: several batches share a large request. A few of its
    sentences wait at a time, so that it does not delay small requests. A batch contains the oldest
    sentence and the sentences nearest to it in length, for little padding. Parallel batches have
    the same size: the number of sentences that wait or run, divided by the number of parallel
    batches.

    Args:
        run: Function of `(key, rows, is_wanted)` that runs one batch and returns the outputs of
            each row. The function `is_wanted`, which any thread may call, returns False when all
            requests of the batch have ended without it.
        at_once: Number of batches that run in parallel.
        max_batch_size: Maximum number of sentences per batch.
        wait_seconds: Longest time that a sentence waits for others although a batch could run. The
            wait ends sooner if the batch has its share of the sentences; or, while nothing runs, if
            no sentence has come for a fifth of it.

    Attributes:
        waiting: Number of sentences that wait.
    """

    def __init__(
        self,
        run: Callable[[tuple, list[dict[str, Any]], Callable[[], bool]], Awaitable[list[Any]]],
        at_once: int,
        max_batch_size: int,
        wait_seconds: float,
    ):
        self._run = run
        self._at_once = at_once
        self._max_batch_size = max_batch_size
        self._wait = wait_seconds
        self._queues: dict[tuple, list[_Sentence]] = {}
        self._running: collections.Counter[tuple] = collections.Counter()  # sentences, by key
        self._arrived = asyncio.Event()
        self._taking = asyncio.Lock()
        self._workers: list[asyncio.Task] = []

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    async def submit(self, rows: list[tuple[tuple, dict[str, Any]]]) -> list[Any]:
        """Runs the sentences of a request; returns the result of each sentence.

        Args:
            rows: Key and inputs of each sentence; only sentences with equal keys share a batch.

        Raises:
            Rejection: A sentence was rejected.
        """
        if not self._workers:
            self._workers = [asyncio.create_task(self._work()) for _ in range(self._at_once)]
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in rows]
        # Two full batches per worker: one runs, and another waits for its end.
        places, order = 2 * self._at_once * self._max_batch_size, list(range(len(rows)))
        if len(rows) > places:  # Neighbors are of similar lengths, for little padding.
            order.sort(key=lambda index: _length(rows[index][1]))
        following = iter(order)

        def queue(count):
            now = time.monotonic()
            for index in itertools.islice(following, count):
                (key, row), future = rows[index], futures[index]
                if not future.done():
                    sentence = _Sentence(future, row, _length(row), now)
                    self._queues.setdefault(key, []).append(sentence)
            self._arrived.set()

        queue(places)
        for future in futures:
            future.add_done_callback(lambda _: queue(1))
        try:
            return await asyncio.gather(*futures)
        finally:
            # If the client has disconnected, or a sentence failed, skip the request's sentences.
            for future in futures:
                future.cancel()
            for key in {key for key, _ in rows}:
                self._keep(key, self._queues.get(key, ()))

    def reject_all(self, rejection: Rejection) -> None:
        """Rejects all sentences that wait."""
        for queue in self._queues.values():
            for sentence in queue:
                if not sentence.future.done():
                    sentence.future.set_exception(rejection)
        self._queues.clear()

    def _keep(self, key, sentences):
        self._queues[key] = [sentence for sentence in sentences if not sentence.future.done()]
        if not self._queues[key]:
            del self._queues[key]

    async def _work(self):
        while True:
            async with self._taking:
                key, batch = await self._next_batch()
                self._running[key] += len(batch)
            try:
                await self._finish(key, batch)
            finally:
                self._running[key] -= len(batch)
                # Removes keys with the count 0, because clients can make any number of keys.
                self._running += collections.Counter()
                self._arrived.set()

    async def _next_batch(self):
        """Waits for sentences, and for more to join them; returns a key and its batch."""
        while True:
            self._arrived.clear()
            key = min(
                self._queues,
                key=lambda waiting_key: self._queues[waiting_key][0].arrived,
                default=None,
            )
            seconds = None if key is None else self._seconds_left(self._queues[key], key)
            if seconds is not None and seconds <= 0:
                return key, self._take(key)
            try:
                await asyncio.wait_for(self._arrived.wait(), seconds)
            except TimeoutError:
                pass

    def _seconds_left(self, queue, key):
        """Returns how many seconds the oldest sentence of a key still waits for others."""
        running = self._running[key]
        if len(queue) >= self._max_batch_size or (running and len(queue) >= self._share(key)):
            return 0
        due = queue[0].arrived + self._wait
        # While a batch runs, requests come with pauses, and a small batch would slow it down.
        if not running:
            due = min(due, queue[-1].arrived + self._wait * _PAUSE)
        return due - time.monotonic()

    def _share(self, key):
        """Returns the number of sentences per batch if all batches of the key had the same size."""
        return -(-(len(self._queues[key]) + self._running[key]) // self._at_once)

    def _take(self, key):
        first, *later = self._queues[key]
        # Two parallel batches take less time than one batch of all sentences. Otherwise clients
        # that wait for their answers would always share the same batch.
        count = batch_size(self._share(key), self._max_batch_size)
        nearest = sorted(later, key=lambda sentence: abs(sentence.length - first.length))
        batch = [first, *nearest[: count - 1]]
        taken_ids = set(map(id, batch))
        self._keep(key, [sentence for sentence in later if id(sentence) not in taken_ids])
        return batch

    async def _finish(self, key, batch):
        batch = [sentence for sentence in batch if not sentence.future.done()]
        if not batch:
            return

        def is_wanted():
            return not all(sentence.future.done() for sentence in batch)

        try:
            rows = [sentence.row for sentence in batch]
            results: list[Any] = await self._run(key, rows, is_wanted)
            if len(results) != len(batch):  # Otherwise this worker would end, and others wait.
                raise RuntimeError(f"a batch of {len(batch)} has {len(results)} results")
        except Exception as error:
            is_refused = isinstance(error, Rejection) and error.status in (400, 413)
            if is_refused and len(batch) > 1:
                # One text causes the error, and the others must not fail with it.
                await self._finish(key, batch[: len(batch) // 2])
                await self._finish(key, batch[len(batch) // 2 :])
                return
            results = [error] * len(batch)
        for sentence, outputs in zip(batch, results, strict=True):
            if isinstance(outputs, Exception) and not sentence.future.done():
                sentence.future.set_exception(outputs)
            elif not sentence.future.done():
                sentence.future.set_result(outputs)


def batch_size(waiting: int, max_size: int) -> int:
    """Returns how many of the waiting sentences go into the next batch.

    A SavedModel pads a batch to a power of two of sentences, so that 17 cost as much as 32. If the
    batch would be less than three quarters full, it gets the next smaller power of two.
    """
    if waiting >= max_size:
        return max_size
    power = 1 << (waiting.bit_length() - 1)
    return waiting if waiting * 2 >= 3 * power else power


class _Sentence(NamedTuple):
    future: asyncio.Future
    row: dict[str, Any]
    length: int
    arrived: float


def _length(row):
    return sum(len(value) for value in row.values() if isinstance(value, str))
