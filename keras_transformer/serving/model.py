"""The versions that are served: one answers, a new one is loaded beside it, then takes over."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.files import digest_of
from keras_transformer.serving.batcher import Batcher
from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.reporting import Rejection, say
from keras_transformer.serving.signatures import join

if TYPE_CHECKING:
    from keras_transformer.serving.cluster import Cluster

_GRAPH = "saved_model.pb"
# What kept a version from being loaded may pass: it is tried again, each time after twice as long.
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 30.0, 600.0


class Version(NamedTuple):
    """A version that is there: number, absolute path, and what changes with any of its files."""

    number: int
    folder: str
    stamp: tuple


def find_versions(path: str | os.PathLike) -> list[Version]:
    """The versions of a model, the highest first.

    Args:
        path: A SavedModel's folder, or a folder of such folders whose names are numbers, as
            TensorFlow Serving wants it. Folders with other names, or without a graph, are passed
            over.
    """
    path = Path(os.path.abspath(path))
    if (path / _GRAPH).is_file():
        return [_version(int(path.name) if _is_number(path.name) else 1, path)]
    try:
        folders = [entry for entry in path.iterdir() if _is_number(entry.name)]
    except OSError:
        return []
    found = [_version(int(entry.name), entry) for entry in folders if (entry / _GRAPH).is_file()]
    return sorted(found, key=lambda version: version.number, reverse=True)


def _is_number(name):
    # `isdecimal` alone would take digits of every script.
    return name.isascii() and name.isdecimal()


def _version(number, folder):
    stamp = []
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.stat(os.path.join(directory, name))
            except OSError:
                continue
            stamp.append((os.path.join(directory, name), status.st_size, status.st_mtime_ns))
    return Version(number, str(folder), tuple(sorted(stamp)))


def folder_digest(folder: str | os.PathLike) -> str:
    """SHA-256 over the names and contents of all files of a folder, as text.

    Raises:
        OSError: A file went while it was read.
    """
    return digest_of(folder, (path for path in Path(folder).rglob("*") if path.is_file()))


def model_name(path: str | os.PathLike) -> str:
    """The name of a model by default: that of the folder which holds its versions."""
    path = Path(os.path.abspath(path))
    inside = (path / _GRAPH).is_file() and _is_number(path.name)
    name = (path.parent if inside else path).name
    return "".join("_" if sign in "/:?#%" else sign for sign in name) or "model"


def check_model(path: str | os.PathLike):
    """Raises `InputError` if there is nothing to serve at `path`."""
    if not os.path.isdir(path):
        raise InputError(f"{path}: expected a folder with a SavedModel. Received: no such folder.")
    if not find_versions(path):
        raise InputError(
            f"{path}: expected a SavedModel (saved_model.pb) or numbered folders with one each "
            f"({path}/1). Received: neither."
        )


class ServedModel:
    """Follows a folder of versions.

    Attributes:
        name: The model's name.
        number: The version that answers, None before there is one.
        signatures: Those of that version, by name.
        replicas: How many replicas of it run, as of a second ago.
    """

    def __init__(
        self,
        path: str,
        name: str,
        options: ServerOptions,
        cluster: "Cluster",
        on_batch: Callable[..., None] = lambda *_: None,
    ):
        self.name = name
        self.number = None
        self.signatures = {}
        self.replicas = 0
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
        # What was there when the server was started may be gone.
        error: Exception | None = InputError(f"{self._path}: there is no version any more.")
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

    async def count_replicas(self):
        """Counts the replicas that run again and again. Runs until cancelled."""
        while True:
            self.replicas = await self._cluster.running(self._served.application)
            await asyncio.sleep(1)

    async def predict(self, signature: str, columns: dict[str, list], count: int) -> dict[str, Any]:
        """Runs the sentences of one request: the outputs by name. See `Batcher.submit`."""
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
    def waiting(self) -> int:
        """Sentences that wait."""
        return self._batcher.waiting if self._batcher else 0

    def states(self, number: int | None = None) -> dict[str, Any]:
        """The status of all versions, or of one, in TensorFlow Serving's form.

        Raises:
            Rejection: 404 for a version that is not known.
        """
        if number is not None and number not in self._states:
            raise Rejection(404, f"Could not find version {number} of model {self.name}")
        found = []
        for each in sorted(self._states, reverse=True) if number is None else [number]:
            state, message = self._states[each]
            code = "INVALID_ARGUMENT" if message else "OK"
            status = {"error_code": code, "error_message": message}
            found.append({"version": str(each), "state": state, "status": status})
        return {"model_version_status": found}

    def check_version(self, number: int | None):
        """Raises `Rejection`, 404, unless `number` is None or the version that answers."""
        if number is not None and number != self.number:
            raise Rejection(404, f"Servable not found for request: Specific({self.name}, {number})")

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
        unmixed = [name for name, each in loaded.signatures.items() if not each.mixes]
        self._batcher = Batcher(loaded.run, self._options, self._on_batch, unmixed)
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
