"""The versions that are served: one answers, a new one is loaded beside it, then takes over."""

import asyncio
import time

from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.columns import join
from keras_transformer.serving.log import say
from keras_transformer.serving.rejection import Rejection
from keras_transformer.serving.versions import find_versions, folder_digest

# What kept a version from being loaded may pass: it is tried again, each time after twice as long.
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 30.0, 600.0


class ServedModel:
    """Follows a folder of versions.

    Args:
        path: A SavedModel's folder, or a folder of numbered ones.
        options: `ServerOptions`.
        cluster: Loads versions and runs batches: `Cluster`.
        on_batch: As in `Batcher`.

    Attributes:
        name: The model's name.
        number: The version that answers, None before there is one.
    """

    def __init__(self, path, name, options, cluster, on_batch=None):
        self.name = name
        self.number = None
        self.signatures = {}
        self._path = path
        self._options = options
        self._cluster = cluster
        self._on_batch = on_batch
        self._batcher = None
        self._served = None
        self._stamp = None
        self._seen = None
        self._states = {}
        # By number: the stamp of a version that could not be loaded, when it is tried again, and
        # how many seconds that was put off.
        self._refused = {}
        self._retiring = set()

    async def load(self):
        """Loads the highest version; raises `InputError` if none can be loaded."""
        error = None
        for version in find_versions(self._path):
            error = await self._try(version)
            if error is None:
                return
        raise error

    async def follow(self):
        """Looks at the folder again and again, and loads what is new. Runs until cancelled."""
        while True:
            await asyncio.sleep(self._options.poll_seconds)
            versions = await asyncio.to_thread(find_versions, self._path)
            # A folder that is still being copied changes between two looks.
            settled, self._seen = versions == self._seen, versions
            if settled:
                await self._update(versions)

    async def predict(self, signature, columns, count):
        """Runs the sentences of one request; a dict of lists. See `Batcher.submit`."""
        batcher, found = self._batcher, self.signatures[signature]
        try:
            async with asyncio.timeout(self._options.request_timeout):
                parts = await batcher.submit(signature, columns, count)
                return join(parts, found, self._options.max_answer_bytes)
        except TimeoutError:
            raise Rejection(
                504, f"No answer within {self._options.request_timeout} seconds", "timeout"
            ) from None

    @property
    def application(self):
        """Name of the application that answers."""
        return self._served.application

    @property
    def waiting(self):
        """Sentences that wait."""
        return self._batcher.waiting if self._batcher else 0

    def states(self, number=None):
        """The status of the versions, or of one: as TensorFlow Serving tells it.

        Raises:
            Rejection: 404 for a version that is not known.
        """
        numbers = sorted(self._states, reverse=True) if number is None else [number]
        if number is not None and number not in self._states:
            raise Rejection(404, f"Could not find version {number} of model {self.name}")
        return {"model_version_status": [self._state(each) for each in numbers]}

    def check_version(self, number):
        """Raises `Rejection`, 404, unless `number` is None or the version that answers."""
        if number is not None and number != self.number:
            raise Rejection(404, f"Servable not found for request: Specific({self.name}, {number})")

    def _state(self, number):
        state, message = self._states[number]
        code = "INVALID_ARGUMENT" if message else "OK"
        status = {"error_code": code, "error_message": message}
        return {"version": str(number), "state": state, "status": status}

    async def _update(self, versions):
        present = {version.number for version in versions}
        for number in set(self._states) - present - {self.number}:
            del self._states[number]
        for version in versions:
            answers = version.number == self.number
            if answers and await self._is_unchanged(version):
                return
            stamp, retry_time, _ = self._refused.get(version.number, (None, 0.0, 0.0))
            waits = stamp == version.stamp and time.monotonic() < retry_time
            if (not waits and await self._try(version) is None) or answers:
                return

    async def _is_unchanged(self, version):
        """Whether the version that answers still has the files that its replicas have loaded."""
        if version.stamp == self._stamp:
            return True
        try:
            digest = await asyncio.to_thread(folder_digest, version.folder)
        except OSError:
            return False
        if digest != self._served.digest:
            return False
        self._stamp = version.stamp  # Copied anew, or touched.
        return True

    async def _try(self, version):
        """Loads a version and lets it answer; returns the error that kept it from it."""
        say(f"version {version.number} is being loaded from {version.folder}")
        if version.number != self.number:
            self._states[version.number] = ("LOADING", "")
        try:
            loaded = await self._cluster.load(version)
        except Exception as error:
            message = " ".join(str(error).split())
            state = "AVAILABLE" if version.number == self.number else "END"
            self._states[version.number] = (state, message)
            self._put_off(version)
            goes_on = "" if self.number is None else f"; version {self.number} goes on"
            say(f"version {version.number} is refused{goes_on}: {message}")
            return error
        old, old_batcher = self._served, self._batcher
        options = self._options
        self._batcher = Batcher(
            loaded.run,
            options.replicas * options.threads,
            options.max_batch_size,
            options.batch_wait_ms / 1000,
            options.max_queue,
            self._on_batch,
            [name for name, each in loaded.signatures.items() if not each.mixes],
            options.max_answer_bytes,
        )
        self._served, self._stamp, self.number = loaded, version.stamp, version.number
        self.signatures = loaded.signatures
        self._states[version.number] = ("AVAILABLE", "")
        self._refused.pop(version.number, None)
        say(f"version {version.number} answers, loaded in {loaded.seconds:.1f} s")
        if old is not None:
            task = asyncio.get_running_loop().create_task(self._retire(old, old_batcher))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        return None

    def _put_off(self, version):
        stamp, _, seconds = self._refused.get(version.number, (None, 0.0, 0.0))
        same = stamp == version.stamp
        seconds = min(2 * seconds, _LONGEST_RETRY_SECONDS) if same else _RETRY_SECONDS
        self._refused[version.number] = version.stamp, time.monotonic() + seconds, seconds

    async def _retire(self, loaded, batcher):
        """Unloads a version when everything that it had accepted is answered."""
        replaced = loaded.number == self.number  # By other files of the same version.
        if not replaced:
            self._states[loaded.number] = ("UNLOADING", "")
        while batcher.unfinished:
            await asyncio.sleep(0.05)
        await self._cluster.unload(loaded)
        if not replaced:
            self._states[loaded.number] = ("END", "")
