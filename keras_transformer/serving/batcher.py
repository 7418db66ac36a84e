"""Dynamic batching: sentences of many requests become batches of similar lengths."""

import asyncio
import collections
import time
from collections.abc import Awaitable, Callable
from typing import Any

from keras_transformer.serving.protocol import Rejection, answer_too_long, least_bytes

# Requests come in bursts: after a pause of this share of the wait, all are there.
_PAUSE = 0.2
# Wait before a batch that no replica took is sent again.
_AGAIN_SECONDS = 0.2

Key = tuple
"""Signature, and the values that all sentences of a batch share."""


class Batcher:
    """Queues sentences of all requests and sends them on in batches.

    Sentences, not requests, are batched: a large request is spread over several batches and does
    not hold up small ones. A batch begins with the oldest sentence and goes on with those nearest
    to it in length, so that little is padded. Batches side by side are of one size: sentences that
    wait or run, divided by the slots.

    Args:
        call: `(key, columns)`: runs one batch and returns what `Replica.run` does.
        max_batch_size: Most sentences of a batch.
        wait_seconds: Longest time that a sentence waits although a slot is free: less if the batch
            has its share, or, with nothing running, if no sentence comes for a fifth of it.
        max_queue: Most sentences that wait.
        max_answer_bytes: Longest answer of a request; 413 for one that is certainly longer.
        on_batch: Called after each batch: `(signature, sentences, seconds)`.

    Attributes:
        slots: Batches that may run at once.
        waiting: Sentences that wait.
        unfinished: Accepted requests without an answer.
    """

    def __init__(
        self,
        call: Callable[[Key, dict[str, list]], Awaitable[dict[str, Any]]],
        max_batch_size: int,
        wait_seconds: float,
        max_queue: int,
        max_answer_bytes: int,
        on_batch: Callable[[str, int, float], None] = lambda *_: None,
    ):
        self.slots = 1
        self.waiting = self.unfinished = 0
        self._call = call
        self._max_batch_size = max_batch_size
        self._wait = wait_seconds
        self._max_queue = max_queue
        self._max_answer_bytes = max_answer_bytes
        self._on_batch = on_batch
        self._queues: dict[Key, list] = collections.defaultdict(list)
        # Sizes of the batches that run, by key.
        self._running: dict[Key, list] = collections.defaultdict(list)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task] = set()

    async def submit(self, rows: list[tuple[Key, dict[str, Any]]]) -> list[dict[str, Any]]:
        """Runs the sentences of one request; returns the outputs of each by name.

        Args:
            rows: Key and inputs of each sentence.

        Raises:
            Rejection: 429 at once if the queue is full, else the error of any sentence.
        """
        if self.waiting + len(rows) > self._max_queue:
            raise Rejection(
                429,
                f"The queue is full: {self.waiting} of {self._max_queue} sentences wait. "
                f"Received: {len(rows)} more",
                "queue",
            )
        if not rows:
            return []
        request = _Request(len(rows), self._max_answer_bytes)
        for place, (key, row) in enumerate(rows):
            self._queues[key].append(_Sentence(request, place, row))
        self.waiting += len(rows)
        self.unfinished += 1
        self.dispatch()
        try:
            return await request.done
        finally:
            self.unfinished -= 1
            # Sentences of a request whose client has gone, or that failed, are not worth a batch.
            for key in {key for key, _ in rows}:
                kept = [each for each in self._queues[key] if each.request is not request]
                self.waiting -= len(self._queues[key]) - len(kept)
                self._keep(key, kept)

    def _keep(self, key, queue):
        self._queues[key] = queue
        if not queue and not self._running.get(key):  # Clients choose what is in a key.
            self._queues.pop(key, None)
            self._running.pop(key, None)

    def dispatch(self) -> None:
        """Sends batches while a slot is free and a sentence has waited enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now, loop = time.monotonic(), asyncio.get_running_loop()
        while self._free() > 0:
            due = {key: self._due(key) for key, queue in self._queues.items() if queue}
            ripe = [key for key, time_due in due.items() if time_due <= now]
            if not ripe:
                if due:
                    self._timer = loop.call_later(min(due.values()) - now, self.dispatch)
                return
            key = min(ripe, key=lambda key: self._queues[key][0].arrived)
            batch = self._take(key)
            self._running[key].append(len(batch))
            task = loop.create_task(self._send(key, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _free(self):
        return self.slots - sum(map(len, self._running.values()))

    def _due(self, key):
        """Returns the time at which the oldest sentence of a key has waited enough."""
        queue = self._queues[key]
        if len(queue) >= self._max_batch_size:
            return queue[0].arrived
        longest = queue[0].arrived + self._wait
        if self._running.get(key):
            # The cores are busy: requests come with pauses, and a small batch would slow the
            # other one for little.
            return queue[0].arrived if len(queue) >= self._share(key) else longest
        return min(longest, queue[-1].arrived + self._wait * _PAUSE)

    def _share(self, key):
        """Returns the sentences of a batch if all batches of the key were of one size."""
        running = self._running.get(key, [])
        return -(-(len(self._queues[key]) + sum(running)) // max(self._free() + len(running), 1))

    def _take(self, key):
        first, *others = self._queues[key]
        # Two batches side by side are done sooner than one of both, and clients that wait for
        # their answers would stay in one batch for ever.
        count = batch_size(self._share(key), self._max_batch_size)
        others.sort(key=lambda each: abs(each.length - first.length))
        batch = [first, *others[: count - 1]]
        chosen = set(map(id, batch))
        self._queues[key] = [each for each in self._queues[key] if id(each) not in chosen]
        self.waiting -= len(batch)
        return batch

    async def _send(self, key, batch):
        size = len(batch)
        try:
            await self._run(key, batch)
        finally:
            self._running[key].remove(size)
            self._keep(key, self._queues.get(key, []))
            self.dispatch()

    async def _run(self, key, batch):
        columns = {name: [each.row[name] for each in batch] for name in batch[0].row}
        started = time.monotonic()
        try:
            while "again" in (result := await self._call(key, columns)):
                if all(each.request.done.done() for each in batch):
                    return
                await asyncio.sleep(_AGAIN_SECONDS)
            error = result.get("error")
        except Rejection as rejection:
            error = rejection
        except Exception as unexpected:
            for each in batch:
                each.request.fail(unexpected)
            raise
        if error is None:
            self._on_batch(key[0], len(batch), time.monotonic() - started)
            for each, outputs in zip(batch, result["rows"], strict=True):
                each.request.finish(each.place, outputs)
            return
        requests = dict.fromkeys(each.request for each in batch)
        if error.reason == "model" and len(requests) > 1:
            # One request's text is at fault: the others must not pay for it.
            for request in requests:
                await self._run(key, [each for each in batch if each.request is request])
            return
        for request in requests:
            request.fail(error)


def batch_size(waiting: int, most: int) -> int:
    """Returns how many of the sentences that wait go into one batch.

    A SavedModel pads a batch to a power of two of sentences, so that 17 cost as much as 32: unless
    three quarters of it are full, the next smaller power of two is taken.
    """
    if waiting >= most:
        return most
    power = 1 << (waiting.bit_length() - 1)
    return waiting if waiting * 2 >= 3 * power else power


class _Request:
    def __init__(self, count, max_bytes):
        self.done = asyncio.get_running_loop().create_future()
        self._outputs = [None] * count
        self._left = count
        self._bytes = 0
        self._max_bytes = max_bytes

    def finish(self, place, outputs):
        self._outputs[place] = outputs
        self._left -= 1
        self._bytes += least_bytes(len(row) for row in outputs.get("alignment", ()))
        if self._bytes > self._max_bytes:
            self.fail(answer_too_long(self._max_bytes))
        elif not self._left and not self.done.done():
            self.done.set_result(self._outputs)

    def fail(self, error):
        if not self.done.done():
            self.done.set_exception(error)


class _Sentence:
    __slots__ = ("request", "place", "row", "length", "arrived")

    def __init__(self, request, place, row):
        self.request = request
        self.place = place
        self.row = row
        self.length = sum(len(value) for value in row.values() if isinstance(value, str))
        self.arrived = time.monotonic()
