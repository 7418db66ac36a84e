"""Dynamic batching: sentences of many requests become batches of one shape."""

import asyncio
import collections
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.reporting import Rejection, answer_too_long, say_unexpected
from keras_transformer.serving.signatures import PADDED, array_bytes

# Requests come in bursts: after a pause of this share of the wait, all are there.
_PAUSE = 0.2


class Batcher:
    """Queues sentences, whoever asked for them, and sends them on in batches.

    Sentences, not requests, are what is batched: a large request is spread over several batches
    and does not hold up the small ones. A batch begins with the sentence that has waited longest
    and goes on with those nearest to it in length, so that little is padded. Batches side by side
    are of one size: what waits and what is on its way, divided by the slots.

    Args:
        call: `(signature, columns)`: runs one batch and returns what `Replica.run` does.
        options: As many batches are on their way as the replicas work on. Everything else waits
            here, where no replica's death can reach it. `batch_wait_ms` is the longest that a
            sentence waits although a replica is free: less if the batch has its share, or, with
            nothing on its way, if nobody comes for a fifth of it.
        on_batch: Called after each batch: `(signature, sentences, seconds, tokens)`.
        unmixed: Signatures whose batches have sentences of one request only.

    Attributes:
        waiting: Sentences that wait.
        unfinished: Requests that were accepted and have no answer yet.
    """

    def __init__(
        self,
        call: Callable[[str, dict[str, list]], Awaitable[dict[str, Any]]],
        options: ServerOptions,
        on_batch: Callable[..., None] = lambda *_: None,
        unmixed: Iterable[str] = (),
    ):
        self.waiting = self.unfinished = 0
        self._call = call
        self._options = options
        self._free = options.replicas * options.threads
        self._on_batch = on_batch
        self._unmixed = frozenset(unmixed)
        self._queues = collections.defaultdict(list)
        # Of each signature, the sizes of the batches that are on their way.
        self._running = collections.defaultdict(list)
        self._timer = None
        self._tasks = set()

    async def submit(self, signature: str, columns: dict[str, list], count: int) -> list[dict]:
        """Has `count` sentences of one request run; gives the outputs of each by name.

        Raises:
            Rejection: 429 at once if the queue is full, and what went wrong with any sentence.
        """
        if self.waiting + count > self._options.max_queue:
            raise Rejection(
                429,
                f"The queue is full: {self.waiting} of {self._options.max_queue} sentences wait. "
                f"Received: {count} more",
                "queue",
            )
        if not count:
            return []
        request = _Request(columns, count, self._options.max_answer_bytes)
        self._queues[signature] += [_Sentence(request, place) for place in range(count)]
        self.waiting += count
        self.unfinished += 1
        self._dispatch()
        try:
            return await request.done
        finally:
            self.unfinished -= 1
            # The client has gone or the time is up: what is left of it is not worth a batch.
            kept = [each for each in self._queues[signature] if each.request is not request]
            self.waiting -= len(self._queues[signature]) - len(kept)
            self._queues[signature] = kept

    def _dispatch(self):
        """Sends batches while there is a free slot and something that has waited enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now, loop = time.monotonic(), asyncio.get_running_loop()
        while self._free:
            due = {name: self._due(name) for name, queue in self._queues.items() if queue}
            ripe = [name for name, time_due in due.items() if time_due <= now]
            if not ripe:
                if due:
                    self._timer = loop.call_later(min(due.values()) - now, self._dispatch)
                return
            signature = min(ripe, key=lambda name: self._queues[name][0].arrived)
            batch = self._take(signature)
            self._free -= 1
            self._running[signature].append(len(batch))
            task = loop.create_task(self._send(signature, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _due(self, signature):
        """When the oldest sentence of a signature has waited enough."""
        queue = self._queues[signature]
        if len(queue) >= self._options.max_batch_size:
            return queue[0].arrived
        wait = self._options.batch_wait_ms / 1000
        longest = queue[0].arrived + wait
        if self._running[signature]:
            # The cores are busy: requests come with pauses, and a small batch would slow the
            # other one for little.
            return queue[0].arrived if len(queue) >= self._share(signature) else longest
        return min(longest, queue[-1].arrived + wait * _PAUSE)

    def _share(self, signature):
        """Sentences in each batch if all that are there were in batches of one size."""
        running = self._running[signature]
        sentences = len(self._queues[signature]) + sum(running)
        return -(-sentences // (self._free + len(running)))

    def _take(self, signature):
        queue = self._queues[signature]
        first, others = queue[0], queue[1:]
        if signature in self._unmixed:
            others = [each for each in others if each.request is first.request]
        # Two batches side by side are done sooner than one of both, and clients that wait for
        # their answers would stay in one batch for ever.
        count = _batch_size(self._share(signature), self._options.max_batch_size)
        others.sort(key=lambda each: abs(each.length - first.length))
        batch = [first, *others[: count - 1]]
        chosen = set(map(id, batch))
        self._queues[signature] = [each for each in queue if id(each) not in chosen]
        self.waiting -= len(batch)
        return batch

    async def _send(self, signature, batch):
        size = len(batch)
        try:
            await self._run(signature, batch)
        finally:
            self._running[signature].remove(size)
            self._free += 1
            self._dispatch()

    async def _run(self, signature, batch):
        columns = {
            key: [each.request.columns[key][each.place] for each in batch]
            for key in batch[0].request.columns
        }
        started = time.monotonic()
        try:
            result = await self._call(signature, columns)
            error = result.get("error")
            if "traceback" in result:
                say_unexpected(error, result["traceback"])
        except Rejection as rejection:
            result, error = {}, rejection
        except Exception as unexpected:  # Whatever it is, whoever waits must hear of it.
            say_unexpected(unexpected)
            result, error = {}, Rejection(500, "Internal error", "internal")
        if error is None:
            self._on_batch(signature, len(batch), time.monotonic() - started, result["tokens"])
            for row, each in enumerate(batch):
                outputs = {key: values[row] for key, values in result["outputs"].items()}
                each.request.finish(each.place, outputs)
            return
        requests = dict.fromkeys(each.request for each in batch)
        if error.reason == "model" and len(requests) > 1:
            # One request's values are at fault: the others must not pay for it.
            for request in requests:
                await self._run(signature, [each for each in batch if each.request is request])
            return
        for request in requests:
            request.fail(error)


def _batch_size(waiting, most):
    """How many of those that wait go into one batch.

    The artifact pads a batch to a power of two of sentences, so that 17 cost as much as 32: unless
    three quarters of it are full, the next smaller power of two is taken.
    """
    if waiting >= most:
        return most
    power = 1 << (waiting.bit_length() - 1)
    return waiting if waiting * 2 >= 3 * power else power


class _Request:
    def __init__(self, columns, count, max_answer_bytes):
        self.columns = columns
        self.done = asyncio.get_running_loop().create_future()
        self._outputs = [None] * count
        self._left = count
        self._bytes = 0
        self._max_answer_bytes = max_answer_bytes

    def finish(self, place, outputs):
        self._outputs[place] = outputs
        self._left -= 1
        self._bytes += array_bytes(outputs)
        if self._bytes > PADDED * self._max_answer_bytes:
            self.fail(answer_too_long(self._max_answer_bytes))
        elif not self._left and not self.done.done():
            self.done.set_result(self._outputs)

    def fail(self, error):
        if not self.done.done():
            self.done.set_exception(error)


class _Sentence:
    __slots__ = ("request", "place", "length", "arrived")

    def __init__(self, request, place):
        self.request = request
        self.place = place
        values = [column[place] for column in request.columns.values()]
        self.length = sum(len(value) for value in values if isinstance(value, bytes | list))
        self.arrived = time.monotonic()
