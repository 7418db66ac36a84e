"""What runs in each replica: the artifact and its threads. Ray Serve starts and restarts it."""

import asyncio
import concurrent.futures
import os
import time
import traceback

from keras_transformer.errors import InputError
from keras_transformer.serving.protocol import PADDED, answer_too_long, array_bytes
from keras_transformer.serving.rejection import Rejection
from keras_transformer.serving.versions import folder_digest


class Replica:
    """Holds an artifact, in a process of its own.

    Args:
        folder: Path of the SavedModel.
        options: `ServerOptions`.
        digest: What `folder_digest` gave when this version was first loaded; None takes any.

    Raises:
        InputError: The folder holds something else by now: two replicas of a version would
            answer differently.
    """

    def __init__(self, folder, options, digest=None):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from keras_transformer.serving.artifact import Artifact

        started = time.monotonic()
        self._artifact = Artifact(folder, threads=options.threads)
        # Not before: files that change while they are loaded are found, too.
        if digest is not None and folder_digest(folder) != digest:
            raise InputError(f"{folder}: the files have changed since this version was loaded.")
        self._pool = concurrent.futures.ThreadPoolExecutor(options.threads)
        self._longest = 2 * options.request_timeout
        self._max_answer_bytes = options.max_answer_bytes
        self._running = {}
        warmed = self._artifact.warm_up(
            options.max_batch_size,
            options.warm_up_tokens,
            options.threads,
            options.warm_up_signatures.split(","),
        )
        self._state = {"seconds": time.monotonic() - started, "warmed": warmed}

    async def describe(self):
        """The signatures, and what loading took."""
        return {**self._state, "signatures": self._artifact.signatures, "pid": os.getpid()}

    async def run(self, signature, columns):
        """Runs a signature on one batch.

        Args:
            signature: Its name.
            columns: As `Artifact.run` takes them.

        Returns:
            A dict: `outputs` as `Artifact.run` gives them, or `error` with a status and a
            message, and with a `traceback` if nobody foresaw it; `seconds`; `tokens`, those of the
            sources and those of the translations.
        """
        ticket = object()
        self._running[ticket] = time.monotonic()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._run, signature, columns)
        finally:
            del self._running[ticket]

    def check_health(self):
        """Raises if a batch has hung, upon which Ray Serve starts another replica."""
        begun = min(self._running.values(), default=None)
        if begun is not None and time.monotonic() - begun > self._longest:
            raise RuntimeError(f"a batch has run for more than {self._longest} seconds")

    def _run(self, signature, columns):
        import tensorflow as tf

        started = time.monotonic()
        try:
            outputs = self._artifact.run(signature, columns)
        # Told apart here: TensorFlow's exceptions cannot all be sent to another process.
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            return {"error": Rejection(400, _cause(error), "model")}
        except Exception as error:
            told = {"error": Rejection(500, _cause(error), "model")}
            return {**told, "traceback": traceback.format_exc()}
        if array_bytes(outputs) > PADDED * self._max_answer_bytes:
            # As a fault of the model: requests that share the batch are run again, each alone.
            rejection = answer_too_long(self._max_answer_bytes)
            return {"error": Rejection(rejection.status, rejection.message, "model")}
        seconds = time.monotonic() - started
        return {"outputs": outputs, "seconds": seconds, "tokens": self._tokens(columns, outputs)}

    def _tokens(self, columns, outputs):
        sources = columns.get("text") or columns.get("source") or []
        targets = outputs.get("translation", [])
        best = [each if isinstance(each, bytes) else each[0] for each in targets]
        return self._artifact.tokens.sources(sources), self._artifact.tokens.targets(best)


def _cause(error):
    """One line: TensorFlow writes the place in the graph before and after it."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    lines = [line for line in lines if line and not line.startswith("[[")]
    return lines[-1][:300] if lines else type(error).__name__
