"""Dynamic batching: sentences of many requests become batches of one shape."""

import asyncio
import collections
import time

from keras_transformer.serving.log import say_unexpected
from keras_transformer.serving.protocol import PADDED, answer_too_long, array_bytes
from keras_transformer.serving.rejection import Rejection

# Requests come in bursts: after a pause of this share of the wait, all are there.
_PAUSE = 0.2


class Batcher:
    """Queues sentences, whoever asked for them, and sends them on in batches.

    Sentences, not requests, are what is batched: a large request is spread over several batches
    and does not hold up the small ones. A batch begins with the sentence that has waited longest
    and goes on with those nearest to it in length, so that little is padded. Batches side by side
    are of one size: what waits and what is on its way, divided by the slots.

    Args:
        call: Coroutine function `(signature, columns)` that runs one batch and returns what
            `Replica.run` does.
        slots: Batches that are on their way at a time: what the replicas work on. Everything
            else waits here, where no replica's death can reach it.
        max_batch_size: Most sentences in a batch.
        batch_wait: Most seconds that a sentence waits for others although a slot is free; less
            if the batch has its share, or, with nothing on its way, if nobody comes for a fifth
            of it.
        max_queue: Most sentences that wait.
        on_batch: Called after each batch: `(signature, sentences, seconds, tokens)`.
        unmixed: Names of signatures whose batches have sentences of one request only.
        max_answer_bytes: Longest answer. A request whose outputs are far larger is given up.
    """

    def __init__(
        self,
        call,
        slots,
        max_batch_size,
        batch_wait,
        max_queue,
        on_batch=None,
        unmixed=(),
        max_answer_bytes=float("inf"),
    ):
        self._call = call
        self._free = slots
        self._max_batch_size = max_batch_size
        self._batch_wait = batch_wait
        self._max_queue = max_queue
        self._on_batch = on_batch or (lambda *_: None)
        self._unmixed = frozenset(unmixed)
        self._max_answer_bytes = max_answer_bytes
        self._queues = collections.defaultdict(list)
        # Of each signature, the sizes of the batches that are on their way.
        self._running = collections.defaultdict(list)
        self._waiting = 0
        self._unfinished = 0
        self._timer = None
        self._tasks = set()

    @property
    def waiting(self):
        """Sentences that wait."""
        return self._waiting

    @property
    def unfinished(self):
        """Requests that were accepted and have no answer yet."""
        return self._unfinished

    async def submit(self, signature, columns, count):
        """Has the sentences of one request run.

        Args:
            signature: Name of the signature.
            columns: Dict of lists, `count` values each.
            count: Sentences.

        Returns:
            A list with a dict for each sentence, from the name of an output to its value.

        Raises:
            Rejection: 429 at once if the queue is full, and what went wrong with any sentence.
        """
        if self._waiting + count > self._max_queue:
            raise Rejection(
                429,
                f"The queue is full: {self._waiting} of {self._max_queue} sentences wait. "
                f"Received: {count} more",
                "queue",
            )
        if not count:
            return []
        request = _Request(columns, count, self._max_answer_bytes)
        self._queues[signature] += [_Sentence(request, place) for place in range(count)]
        self._waiting += count
        self._unfinished += 1
        self._dispatch()
        try:
            return await request.done
        finally:
            self._unfinished -= 1
            # The client has gone or the time is up: what is left of it is not worth a batch.
            self._drop(signature, request)

    def _drop(self, signature, request):
        queue = self._queues[signature]
        kept = [each for each in queue if each.request is not request]
        self._waiting -= len(queue) - len(kept)
        self._queues[signature] = kept

    def _dispatch(self):
        """Sends batches while there is a free slot and something that has waited enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.monotonic()
        while self._free:
            ready, soonest = self._ripe(now)
            if ready is None:
                if soonest is not None:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(max(soonest - now, 0), self._dispatch)
                return
            batch = self._take(ready)
            self._free -= 1
            self._running[ready].append(len(batch))
            task = asyncio.get_running_loop().create_task(self._send(ready, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _ripe(self, now):
        """The signature whose turn it is, or None and the time when one will be."""
        due = {name: self._due(name) for name, queue in self._queues.items() if queue}
        ripe = [name for name, time_due in due.items() if time_due <= now]
        if ripe:
            return min(ripe, key=lambda name: self._queues[name][0].arrived), None
        return None, min(due.values(), default=None)

    def _due(self, signature):
        """When the oldest sentence of a signature has waited enough."""
        queue = self._queues[signature]
        if len(queue) >= self._max_batch_size:
            return queue[0].arrived
        longest = queue[0].arrived + self._batch_wait
        if self._running[signature]:
            # The cores are busy: requests come with pauses, and a small batch would slow the
            # other one for little.
            return queue[0].arrived if len(queue) >= self._share(signature) else longest
        return min(longest, queue[-1].arrived + self._batch_wait * _PAUSE)

    def _share(self, signature):
        """Sentences in each batch if all that are there were in batches of one size."""
        running = self._running[signature]
        sentences = len(self._queues[signature]) + sum(running)
        return -(-sentences // (self._free + len(running)))

    def _take(self, signature):
        queue = self._queues[signature]
        first, candidates = queue[0], queue
        if signature in self._unmixed:
            candidates = [each for each in queue if each.request is first.request]
        # Two batches side by side are done sooner than one of both, and clients that wait for
        # their answers would stay in one batch for ever.
        count = min(len(candidates), _batch_size(self._share(signature), self._max_batch_size))
        batch, rest = candidates[:count], queue[count:]
        if count < len(queue):
            nearest = sorted(candidates[1:], key=lambda each: abs(each.length - first.length))
            batch = [first, *nearest[: count - 1]]
            chosen = set(map(id, batch))
            rest = [each for each in queue if id(each) not in chosen]
        self._queues[signature] = rest
        self._waiting -= len(batch)
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
        requests = {id(each.request): each.request for each in batch}
        if error.reason != "model" or len(requests) == 1:
            for request in requests.values():
                request.fail(error)
            return
        # One request's values are at fault: the others must not pay for it.
        for request in requests.values():
            await self._run(signature, [each for each in batch if each.request is request])


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
        self._max_answer_bytes = max_answer_bytes
        self._bytes = 0
        self.done = asyncio.get_running_loop().create_future()
        self._outputs = [None] * count
        self._left = count

    def finish(self, place, outputs):
        if self.done.done():
            return
        self._outputs[place] = outputs
        self._left -= 1
        self._bytes += array_bytes(outputs)
        if self._bytes > PADDED * self._max_answer_bytes:
            self._outputs.clear()
            self.fail(answer_too_long(self._max_answer_bytes))
        if not self._left and not self.done.done():
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
