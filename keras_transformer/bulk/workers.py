"""Ray actors that translate chunks; one that fails is replaced, and its chunk done again."""

import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from keras_transformer.errors import InputError

_MOST_FAILURES = 3
_NOTICE_SECONDS = 30
# Long enough for a cluster that starts machines when they are asked for.
_START_SECONDS = 600
# What Ray raises when a worker, its machine or its memory is lost; what the model raises is a bug.
_FAILURES = (
    "RayActorError WorkerCrashedError OutOfMemoryError NodeDiedError ObjectLostError".split()
)


class Chunk(NamedTuple):
    """Lines of a file that are translated together.

    Attributes:
        shard: Place of the file among the inputs.
        number: Which chunk of the file, counted from 0.
        first_line: Number of its first line, counted from 1.
        lines: Its lines without their ends.
    """

    shard: int
    number: int
    first_line: int
    lines: list[str]


class Worker:
    """Holds a model, in a process of its own; the options are those of `Translator.translate`."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]):
        # The model is loaded later, so that a worker counts as started once it has its CPUs.
        self._model, self._threads, self._options = model, threads, options
        self._translator = None

    def translate(
        self, lines: list[str], first_line: int, path: str
    ) -> tuple[list[str], list[str]] | InputError:
        """Returns translations and warnings, or the `InputError` that lines or model cause."""
        from keras_transformer.translator import Translator

        where = ""
        try:
            if self._translator is None:
                self._translator = Translator.load(self._model, self._threads)
            where = f"{_place(lines, first_line, path)}: "
            with warnings.catch_warnings(record=True) as caught:
                # A warning for other lines is not a repetition.
                warnings.simplefilter("always", UserWarning)
                results = self._translator.translate(lines, **self._options)
        except InputError as error:
            return InputError(f"{where}{error}")
        # For the command to print: Ray keeps what a worker prints in a log.
        messages = [f"{where}{' '.join(str(each.message).split())}" for each in caught]
        return [result.text for result in results], messages


class Workers:
    """`count` workers that are kept busy; each takes `threads` CPUs of the cluster.

    The other arguments are those of `Worker`.
    """

    def __init__(self, count: int, model: str, threads: int, options: dict[str, Any]):
        import ray

        self._ray = ray
        self._errors = tuple(getattr(ray.exceptions, name) for name in _FAILURES)
        self._actor = ray.remote(Worker).options(num_cpus=threads, max_restarts=0)
        self._arguments = (model, threads, options)
        self._threads = threads
        self._idle, self._running, self._starting = [], {}, {}
        self._failed_starts = 0
        self._noticed = False
        for _ in range(count):
            self._start()

    def run(self, chunks: Iterable[Chunk], paths: list[str]) -> Iterator[tuple[Chunk, list[str]]]:
        """Translates chunks as workers become free.

        A worker that waits for CPUs holds up no chunk: those that have started do the work. At most
        one chunk more is taken than there are of these. The paths of the files are for messages.

        Yields:
            Chunks with their translations, in the order in which they are done.

        Raises:
            InputError: A line cannot be translated, its chunk has failed three times, or no worker
                can be started.
        """
        chunks = iter(chunks)
        tasks = []  # (chunk, failures); what is to be done again comes first
        while True:
            if not tasks:
                tasks = [(chunk, 0) for chunk in [next(chunks, None)] if chunk is not None]
            if tasks and self._idle:
                chunk, failures = tasks.pop()
                worker = self._idle.pop()
                path = paths[chunk.shard]
                reference = worker.translate.remote(chunk.lines, chunk.first_line, path)
                self._running[reference] = (worker, chunk, failures)
                continue
            if not tasks and not self._running:
                return
            done = self._wait()
            if done in self._starting:
                self._welcome(done)
                continue
            worker, chunk, failures = self._running.pop(done)
            try:
                result = self._ray.get(done)
            except self._errors as error:
                # It may live on where only its answer was lost, and would keep its CPUs.
                self._ray.kill(worker)
                self._check_failures(error, chunk, failures + 1, paths[chunk.shard])
                self._start()
                tasks.append((chunk, failures + 1))
                continue
            self._idle.append(worker)
            if isinstance(result, InputError):
                raise result
            texts, messages = result
            for message in messages:
                say(message)
            yield chunk, texts

    def stop(self):
        """Ends the workers, and Ray where it was started here."""
        running = [each[0] for each in self._running.values()]
        for worker in [*self._idle, *running, *self._starting.values()]:
            self._ray.kill(worker)
        self._ray.shutdown()

    def _start(self):
        worker = self._actor.remote(*self._arguments)
        self._starting[worker.__ray_ready__.remote()] = worker
        self._since = time.monotonic()

    def _welcome(self, started):
        """Takes a worker that has started, or replaces one that failed to."""
        worker = self._starting.pop(started)
        try:
            self._ray.get(started)
        except self._errors as error:
            self._failed_starts += 1
            if self._failed_starts == _MOST_FAILURES:
                raise InputError(f"Workers cannot be started. Last: {_cause(error)}") from None
            self._start()
        else:
            self._failed_starts = 0
            self._idle.append(worker)

    def _wait(self):
        """The reference of what ends first: a chunk's translation, or a worker's start.

        Raises:
            InputError: No worker runs, and none has started in ten minutes.
        """
        while True:
            limit = _NOTICE_SECONDS if self._starting else None
            references = [*self._running, *self._starting]
            done, _ = self._ray.wait(references, num_returns=1, timeout=limit)
            if done:
                return done[0]
            waited = time.monotonic() - self._since
            if not self._running and waited >= _START_SECONDS:
                raise InputError(f"No worker has started in {waited:.0f} seconds: {self._cpus()}.")
            if not self._noticed and waited >= _NOTICE_SECONDS:
                self._noticed = True
                say(f"{len(self._starting)} workers have not started yet: {self._cpus()}")

    def _cpus(self):
        total = self._ray.cluster_resources().get("CPU", 0)
        free = self._ray.available_resources().get("CPU", 0)
        return (
            f"each takes {self._threads} of a machine's CPUs (`threads`); "
            f"the cluster has {total:g}, {free:g} of them free"
        )

    def _check_failures(self, error, chunk, failures, path):
        where = _place(chunk.lines, chunk.first_line, path)
        if failures == _MOST_FAILURES:
            raise InputError(f"{where}: {failures} workers failed on them. Last: {_cause(error)}")
        say(f"a worker failed ({type(error).__name__}); {where}: again")


def _place(lines, first_line, path):
    return f"{path}, lines {first_line}-{first_line + len(lines) - 1}"


def _cause(error):
    # Of a traceback the last line has what was raised, of what Ray says itself the first the cause.
    lines = str(getattr(error, "cause", None) or error).strip().splitlines() or [repr(error)]
    return " ".join(dict.fromkeys([lines[0].strip(), lines[-1].strip()]))[:400]


def say(message: str):
    """Writes one line to stderr."""
    print(f"keras-transformer: {message}", file=sys.stderr, flush=True)
