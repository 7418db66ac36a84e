"""Files in chunks of lines, and their translations: kept as they come, put together in order."""

import gzip
import json
import os
import pathlib
import re
import shutil
from typing import NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.files import replaced_file, write_whole

_JOB = "bulk.json"
_PARTS = ".parts"


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
    lines: list


def read_chunks(path, shard, size):
    """Reads a file chunk by chunk, in constant memory.

    Args:
        path: UTF-8 text, plain or `.gz`.
        shard: Place of the file among the inputs.
        size: Lines in a chunk.

    Yields:
        `Chunk`.

    Raises:
        InputError: The file cannot be read or is not UTF-8.
    """
    lines, first = [], 1
    number = 0
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            for at, line in enumerate(file, 1):
                lines.append(_decoded(line, path, at))
                if len(lines) == size:
                    yield Chunk(shard, number, first, lines)
                    lines, first, number = [], at + 1, number + 1
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if lines:
        yield Chunk(shard, number, first, lines)


def _decoded(line, path, at):
    if at == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {at}: expected UTF-8 text. Received: {error.reason}."
        ) from None


class Output:
    """A folder with a translated file for each input, and what is needed to go on.

    A chunk's translation is a file under `.parts` until all of its file are there; only then
    does the translated file appear, under its final name and whole.

    Args:
        folder: Path of the folder. One of the same job is gone on with.
        inputs: Paths of the files.
        job: A dict fit for JSON: what makes two runs the same job.

    Raises:
        InputError: The folder holds something else, two inputs have the same name, one has a
            name that the folder needs itself, or an option is not fit for JSON.
    """

    def __init__(self, folder, inputs, job):
        self._folder = pathlib.Path(folder)
        self._names = [os.path.basename(path).removesuffix(".gz") for path in inputs]
        twice = {name for name in self._names if self._names.count(name) > 1}
        if twice:
            raise InputError(f"The inputs must have different names. Received: {min(twice)} twice.")
        # Names with a point: `.parts`, files that are being written, and ".gz" without its ending.
        for name in self._names:
            if name == _JOB or not name or name.startswith("."):
                raise InputError(
                    f"An input's name, without .gz, must not be {_JOB} nor begin with a point, "
                    f"as the output folder's own files do. Received: {name!r}."
                )
        job = _as_json({**job, "inputs": [_identity(path) for path in inputs]})
        path = self._folder / _JOB
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if path.exists():
                _check_same(path, job)
            elif any(self._folder.iterdir()):
                raise InputError(f"{folder}: expected an empty folder, or one of the same job.")
            else:
                write_whole(path, json.dumps(job, indent=2) + "\n")
        except OSError as error:
            raise InputError(f"{folder}: cannot be written: {error.strerror}.") from None

    def is_done(self, shard):
        """Whether a file is translated."""
        return (self._folder / self._names[shard]).exists()

    def has(self, chunk):
        """Whether a chunk is translated, a line for each of its lines."""
        try:
            part = self._part(chunk.shard, chunk.number).read_bytes()
        except FileNotFoundError:
            return False
        # A loss of power may leave a file short, empty or full of zeros; then it is made again.
        return part.endswith(b"\n") and part.count(b"\n") == len(chunk.lines)

    def write(self, chunk, texts):
        """Keeps the translation of a chunk."""
        if len(texts) != len(chunk.lines):
            raise ValueError(f"{len(texts)} translations of {len(chunk.lines)} lines")
        path = self._part(chunk.shard, chunk.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(" ".join(text.splitlines()) + "\n" for text in texts))

    def finish(self, shard, chunks):
        """Makes the translated file of the `chunks` chunks that are there."""
        final = self._folder / self._names[shard]
        with replaced_file(final) as partial, open(partial, "wb") as whole:
            for number in range(chunks):
                with open(self._part(shard, number), "rb") as part:
                    shutil.copyfileobj(part, whole)
            whole.flush()
        shutil.rmtree(self._folder / _PARTS / str(shard), ignore_errors=True)

    def clean(self):
        """Takes away what is not needed when every file is translated."""
        shutil.rmtree(self._folder / _PARTS, ignore_errors=True)

    def _part(self, shard, number):
        return self._folder / _PARTS / str(shard) / f"{number}.txt"


def _identity(path):
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if not os.path.isfile(path):
        raise InputError(f"{path}: expected a text file.")
    return {"path": os.path.abspath(path), "bytes": status.st_size, "changed": status.st_mtime_ns}


def _as_json(job):
    """The job as it is read again: a tuple becomes a list, a key a string."""
    try:
        return json.loads(json.dumps(job))
    except TypeError as error:
        raise InputError(f"The options must be fit for JSON. Received: {error}.") from None


def _check_same(path, job):
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{path}: cannot be read: expected JSON.") from None
    for key, value in job.items():
        if not isinstance(before, dict) or before.get(key) != value:
            raise InputError(
                f"{path.parent}: holds the output of another job: its {re.sub('_', ' ', key)} "
                "differs. Give another output folder."
            )
