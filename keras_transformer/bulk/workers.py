"""Ray actors that translate chunks; one that dies is replaced, and its chunk done again."""

import sys

from keras_transformer.errors import InputError

_MOST_DEATHS = 3


class Worker:
    """Holds a model, in a process of its own.

    Args:
        model: Path of a run folder or an export, there on every machine.
        threads: Threads that it uses.
        options: Dict of options of `Translator.translate`.
    """

    def __init__(self, model, threads, options):
        import tensorflow as tf

        from keras_transformer.translator import Translator

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        self._translator = Translator.load(model)
        self._options = options

    def translate(self, lines, first_line, path):
        """The translations of lines, or the `InputError` that one of them causes."""
        try:
            results = self._translator.translate(lines, **self._options)
        except InputError as error:
            return InputError(f"{path}, lines {first_line}-{first_line + len(lines) - 1}: {error}")
        return [result.text for result in results]


class Workers:
    """Workers that are kept busy.

    Args:
        count: How many.
        model: As in `Worker`.
        threads: Likewise.
        options: Likewise.
    """

    def __init__(self, count, model, threads, options):
        import ray

        self._ray = ray
        self._actor = ray.remote(Worker).options(num_cpus=threads, max_restarts=0)
        self._arguments = (model, threads, options)
        self._idle = [self._start() for _ in range(count)]
        self._count = count
        self._running = {}

    def run(self, chunks, paths):
        """Translates chunks as workers become free.

        Args:
            chunks: Iterable of `Chunk`; no more are taken from it than are being translated.
            paths: Paths of the files, for messages.

        Yields:
            `(chunk, translations)`, in the order in which they are done.

        Raises:
            InputError: A line cannot be translated, or its chunk has ended three workers.
        """
        chunks = iter(chunks)
        again = []
        while True:
            while self._idle and (task := again.pop() if again else self._next(chunks)):
                chunk, deaths = task
                worker = self._idle.pop()
                path = paths[chunk.shard]
                reference = worker.translate.remote(chunk.lines, chunk.first_line, path)
                self._running[reference] = (worker, chunk, deaths)
            if not self._running:
                return
            done, _ = self._ray.wait(list(self._running), num_returns=1)
            worker, chunk, deaths = self._running.pop(done[0])
            try:
                result = self._ray.get(done[0])
            except self._ray.exceptions.RayActorError as error:
                again.append((chunk, self._bury(error, chunk, deaths, paths)))
                continue
            self._idle.append(worker)
            if isinstance(result, InputError):
                raise result
            yield chunk, result

    def stop(self):
        """Ends the workers."""
        for worker in [*self._idle, *(each[0] for each in self._running.values())]:
            self._ray.kill(worker)

    def _start(self):
        return self._actor.remote(*self._arguments)

    @staticmethod
    def _next(chunks):
        chunk = next(chunks, None)
        return None if chunk is None else (chunk, 0)

    def _bury(self, error, chunk, deaths, paths):
        """Replaces a dead worker; gives how many its chunk has cost."""
        lines = f"{chunk.first_line}-{chunk.first_line + len(chunk.lines) - 1}"
        where = f"{paths[chunk.shard]}, lines {lines}"
        cause = getattr(error, "cause", None) or error
        told = [line for line in str(error).splitlines() if "InputError: " in line]
        if told:  # The model cannot be loaded: no other worker could.
            raise InputError(told[-1].partition("InputError: ")[2])
        if deaths + 1 == _MOST_DEATHS:
            raise InputError(f"{where}: {_MOST_DEATHS} workers died of them. Last: {cause}"[:500])
        print(f"keras-transformer: a worker died; {where}: again", file=sys.stderr, flush=True)
        self._idle.append(self._start())
        return deaths + 1
