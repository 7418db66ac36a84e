"""Files in, files out, over a Ray cluster: chunks are kept as they come, put together in order."""

import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

from keras_transformer.bulk.workers import Chunk, Workers, say
from keras_transformer.errors import InputError
from keras_transformer.files import digest_of, iterate_lines, replaced_file, write_whole
from keras_transformer.inputs import check_positive

_JOB = "bulk.json"
_PARTS = ".parts"
_LOCK = ".lock"
# Files left by a command that was killed before it had written its job.
_OF_A_BEGINNING = {_LOCK, ".bulk.partial.json"}
_REPORT_SECONDS = 10
# What a run folder also holds: it grows or changes without another answer of the model.
_NOT_THE_MODEL = {"checkpoints", "tensorboard", "history.csv", "metrics.json", "samples.txt"}


def translate_corpus(
    model: str | os.PathLike,
    inputs: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    workers: int = 1,
    threads: int = 2,
    chunk_lines: int = 1000,
    ray_address: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Translates text files over a Ray cluster.

    Run again after a crash, it goes on: what was translated is not translated again.

    Args:
        model: Path of a run folder or an export, there on every machine of the cluster.
        inputs: Paths of the files, UTF-8, plain or `.gz`, read on this machine.
        output: Folder to make; each translated file has the name of its input, without `.gz`.
        workers: Processes that translate.
        threads: Threads, and CPUs of the cluster, that a worker takes.
        chunk_lines: Lines that a worker translates at a time.
        ray_address: Address of the cluster; None starts Ray on this machine.
        **options: As `Translator.translate` takes them.

    Returns:
        A dict fit for JSON: files, lines that were translated now, seconds.

    Raises:
        InputError: A file, the model or an option is not what it must be, or no worker can be
            started. What was translated until then stays, and a second run goes on from there.
    """
    for name, value in (("workers", workers), ("threads", threads), ("chunk_lines", chunk_lines)):
        check_positive(name, value)
    model = os.path.abspath(model)
    if not os.path.exists(model):
        raise InputError(f"{model}: no such run or export folder.")
    inputs = [os.fspath(path) for path in inputs]
    job = {"model": _fingerprint(model), "options": options, "chunk_lines": chunk_lines}
    started, lines = time.monotonic(), 0
    with Output(output, inputs, job) as target:
        waiting = [shard for shard in range(len(inputs)) if not target.is_done(shard)]
        if waiting:
            from keras_transformer.serving.cluster import start_ray

            start_ray(ray_address, None if ray_address else workers * threads)
            pool = Workers(workers, model, threads, options)
            try:
                lines = _translate(pool, target, inputs, waiting, chunk_lines)
            finally:
                pool.stop()
        target.clean()
    return {
        "output": os.fspath(output),
        "files": len(inputs),
        "lines_translated": lines,
        "seconds": round(time.monotonic() - started, 1),
    }


def _translate(pool, target, inputs, waiting, chunk_lines):
    seen = {}  # Chunks of the files that were read to their end.
    pending = dict.fromkeys(waiting, 0)  # Chunks that are being translated, by file.
    lines = 0

    def chunks():
        for shard in waiting:
            count = 0
            for chunk in read_chunks(inputs[shard], shard, chunk_lines):
                count += 1
                if not target.has(chunk):
                    pending[shard] += 1
                    yield chunk
            seen[shard] = count
            finish(shard)

    def finish(shard):
        if shard in seen and not pending[shard] and not target.is_done(shard):
            target.finish(shard, seen[shard])

    started = reported = time.monotonic()
    for chunk, texts in pool.run(chunks(), inputs):
        target.write(chunk, texts)
        pending[chunk.shard] -= 1
        finish(chunk.shard)
        lines += len(texts)
        now = time.monotonic()
        if now - reported > _REPORT_SECONDS:
            reported = now
            say(f"{lines} lines, {lines / (now - started):.0f} a second")
    return lines


def _fingerprint(model):
    """A digest of all files of a model that decide its answers: not of logs and checkpoints."""
    # A file `*.tflite` needs those beside it: the tokenizer, the manifest.
    root = os.path.dirname(model) if os.path.isfile(model) else model
    return digest_of(root, _files(root))


def _files(root):
    def counts(name):
        return name not in _NOT_THE_MODEL and name[0] != "."

    for folder, names, files in os.walk(root, followlinks=True):
        names[:] = filter(counts, names)
        paths = [os.path.join(folder, name) for name in filter(counts, files)]
        yield from filter(os.path.isfile, paths)


def read_chunks(path: str, shard: int, size: int) -> Iterator[Chunk]:
    """Reads a file of UTF-8, plain or `.gz`, in chunks of `size` lines, in constant memory.

    Raises:
        InputError: As `iterate_lines`; but a file may be empty.
    """
    lines = iterate_lines(path, may_be_empty=True)
    chunks = iter(lambda: list(itertools.islice(lines, size)), [])
    for number, chunk in enumerate(chunks):
        yield Chunk(shard, number, number * size + 1, chunk)


class Output:
    """A folder with a translated file for each input, and what is needed to go on.

    A chunk's translation is a file under `.parts` until all of its file are there; only then
    does the translated file appear, under its final name and whole.

    A context manager: until its end, or that of the process, the folder is locked.

    Args:
        folder: Path of the folder. One of the same job is gone on with.
        inputs: Paths of the files.
        job: Fit for JSON: what makes two runs the same job.

    Raises:
        InputError: The folder holds something else or is locked, two inputs have the same name,
            one has a name that the folder needs itself, or an option is not fit for JSON.
    """

    def __init__(self, folder: str | os.PathLike, inputs: list[str], job: dict[str, Any]):
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
        job = {**job, "inputs": [_identity(path) for path in inputs]}
        try:  # As it is read again: a tuple becomes a list, a key a string.
            job = json.loads(json.dumps(job))
        except TypeError as error:
            raise InputError(f"The options must be fit for JSON. Received: {error}.") from None
        path = self._folder / _JOB
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            names = {each.name for each in self._folder.iterdir()}
            if _JOB not in names and names - _OF_A_BEGINNING:
                raise InputError(f"{folder}: expected an empty folder, or one of the same job.")
            with contextlib.ExitStack() as stack:
                lock = stack.enter_context(_locked(self._folder / _LOCK))
                if path.exists():
                    _check_same(path, job)
                else:
                    write_whole(path, json.dumps(job, indent=2) + "\n")
                stack.pop_all()
            self._lock = lock
        except OSError as error:
            raise InputError(f"{folder}: cannot be written: {error.strerror}.") from None

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *error):
        self._lock.close()

    def is_done(self, shard: int) -> bool:
        """Whether a file is translated."""
        return (self._folder / self._names[shard]).exists()

    def has(self, chunk: Chunk) -> bool:
        """Whether a chunk is translated, a line for each of its lines."""
        try:
            part = self._part(chunk.shard, chunk.number).read_bytes()
        except FileNotFoundError:
            return False
        # A loss of power may leave a file short, empty or full of zeros; then it is made again.
        return part.endswith(b"\n") and part.count(b"\n") == len(chunk.lines)

    def write(self, chunk: Chunk, texts: list[str]):
        """Keeps the translation of a chunk."""
        if len(texts) != len(chunk.lines):
            raise ValueError(f"{len(texts)} translations of {len(chunk.lines)} lines")
        path = self._part(chunk.shard, chunk.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(" ".join(text.splitlines()) + "\n" for text in texts))

    def finish(self, shard: int, chunks: int):
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


def _locked(path):
    """An open file that no other process can lock until it is closed."""
    file = open(path, "wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"{path.parent}: another command translates into this folder.") from None
    return file


def _identity(path):
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if not os.path.isfile(path):
        raise InputError(f"{path}: expected a text file.")
    return {"path": os.path.abspath(path), "bytes": status.st_size, "changed": status.st_mtime_ns}


def _check_same(path, job):
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{path}: cannot be read: expected JSON.") from None
    for key, value in job.items():
        if not isinstance(before, dict) or before.get(key) != value:
            raise InputError(
                f"{path.parent}: holds the output of another job: its {key.replace('_', ' ')} "
                "differs. Give another output folder."
            )
