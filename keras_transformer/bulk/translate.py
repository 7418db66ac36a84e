"""Files in, files out, by Ray Data: chunks are kept as they come, put together in order."""

import contextlib
import fcntl
import itertools
import json
import logging
import os
import pathlib
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from keras_transformer.config import check_positive
from keras_transformer.errors import InputError
from keras_transformer.files import digest_of, iterate_lines, one_line, replaced_file, write_whole

_JOB = "bulk.json"
_PARTS = ".parts"
_LOCK = ".lock"
# Files left by a command that was killed before it had written its job.
_LEFT_BY_A_START = {_LOCK, ".bulk.partial.json"}
_REPORT_SECONDS = 10
# Files of a run folder that grow or change without another answer of the model.
_NOT_THE_MODEL = {"checkpoints", "tensorboard", "history.csv", "metrics.json", "samples.txt"}
_STORE_BYTES = 256 * 2**20
# A block has one chunk, which is kept as soon as it is translated.
_BLOCK_BYTES = 1
_MOST_FAILURES = 3


def translate_corpus(
    model: str | os.PathLike,
    inputs: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    workers: int | None = None,
    threads: int = 1,
    chunk_lines: int = 500,
    ray_address: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Translates text files with Ray Data: an engine in each of a pool of actors.

    Run again after a crash, it goes on: parts that are there are not read nor translated again.

    Args:
        model: Path of a run folder or an export, there on every machine of the cluster.
        inputs: Paths of the files, UTF-8, plain or `.gz`, read on this machine.
        output: Folder to make; each translated file has the name of its input, without `.gz`.
        workers: Processes that translate, one for each `threads` of this machine's cores by
            default.
        threads: Threads, and CPUs of the cluster, that a worker takes.
        chunk_lines: Lines that a worker translates at a time.
        ray_address: Address of the cluster; None starts Ray on this machine.
        **options: Options of `Translator.translate`.

    Returns:
        A dict fit for JSON: files, lines that were translated now, seconds.

    Raises:
        InputError: A file, the model or an option is invalid, or workers fail on a part again and
            again. Translated parts stay, and a second run goes on from there.
    """
    workers = max((os.cpu_count() or 1) // threads, 1) if workers is None else workers
    check_positive(workers=workers, threads=threads, chunk_lines=chunk_lines)
    model = os.path.abspath(model)
    if not os.path.exists(model):
        raise InputError(f"{model}: no such run or export folder.")
    paths = [os.fspath(path) for path in inputs]
    job = {"model": _fingerprint(model), "options": options, "chunk_lines": chunk_lines}
    started, lines = time.monotonic(), 0
    with Output(output, paths, job) as target:
        waiting = [shard for shard in range(len(paths)) if not target.is_done(shard)]
        if waiting:
            with _ray(ray_address, workers * threads):
                engine = {"model": model, "threads": threads, "options": options}
                lines = _translate(target, paths, waiting, chunk_lines, engine, workers)
        target.clean()
    return {
        "output": os.fspath(output),
        "files": len(inputs),
        "lines_translated": lines,
        "seconds": round(time.monotonic() - started, 1),
    }


@contextlib.contextmanager
def _ray(address, cpus):
    """Starts Ray here, or joins a cluster, for the context."""
    if address is None:
        from keras_transformer.serving.local import private_ray

        with private_ray(cpus, _STORE_BYTES):
            yield
        return
    try:
        import ray
    except ImportError:
        rule = "Ray is needed here: pip install 'keras_transformer[serve]'."
        raise InputError(f"{rule} Received: no package ray.") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises nothing narrower.
        raise InputError(f"The cluster {address} cannot be joined: {error}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _translate(target, paths, waiting, chunk_lines, engine, workers):
    """Translates the missing parts of the files; returns the number of lines."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="`ray_remote_args`")  # There is no other way yet.
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.target_max_block_size = _BLOCK_BYTES
    context.target_min_block_size = 1
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    files = [
        {"shard": shard, "path": paths[shard], "done": target.parts(shard)} for shard in waiting
    ]
    chunks = ray.data.from_items(files, override_num_blocks=len(files)).flat_map(
        _Reader(chunk_lines), num_cpus=0, scheduling_strategy=here, max_retries=_MOST_FAILURES
    )
    translated = chunks.map_batches(
        _Worker,
        fn_constructor_kwargs={**engine, "chunk_lines": chunk_lines},
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=engine["threads"],
        # A text that ends its process is not tried for ever.
        max_restarts=-1,
        max_task_retries=_MOST_FAILURES - 1,
    )
    started = reported = time.monotonic()
    count, lines, ends = dict.fromkeys(waiting, 0), 0, {}
    try:
        for row in translated.iter_rows():
            for message in row["messages"]:
                say(message)
            if row["error"]:
                raise InputError(row["error"])
            shard, number = row["shard"], row["number"]
            if row["is_end"]:
                ends[shard] = row["read"], number
            else:
                target.write(shard, number, list(row["lines"]))
                lines += len(row["lines"])
                count[shard] += 1
            if shard in ends and count[shard] == ends[shard][0]:
                target.finish(shard, ends[shard][1])
            if (now := time.monotonic()) - reported > _REPORT_SECONDS:
                reported = now
                say(f"{lines} lines, {lines / (now - started):.0f} a second")
    except (ray.exceptions.RayError, RuntimeError) as error:
        reason = " ".join(str(getattr(error, "cause", None) or error).split())[:300]
        raise InputError(
            f"Workers failed {_MOST_FAILURES} times on a part of the text; translated parts stay. "
            f"Received: {reason}"
        ) from None
    return lines


class _Reader:
    """Yields the chunks of a file that have no part yet, then a row with two numbers.

    They are `number`, chunks of the file, and `read`, chunks that were yielded.
    """

    def __init__(self, chunk_lines):
        self._size = chunk_lines

    def __call__(self, file: dict[str, Any]) -> Iterator[dict[str, Any]]:
        done = dict(zip(*file["done"], strict=True))
        row = {"shard": file["shard"], "path": file["path"], "is_end": False, "error": ""}
        number = read = 0
        try:
            for number, lines in enumerate(read_chunks(file["path"], self._size), 1):
                if done.get(number - 1) != len(lines):
                    read += 1
                    yield {**row, "number": number - 1, "read": 0, "lines": lines}
        except InputError as error:
            row["error"] = str(error)
        yield {**row, "number": number, "read": read, "lines": [""], "is_end": True}


class _Worker:
    """Holds an engine in an actor of Ray Data."""

    def __init__(self, model, threads, options, chunk_lines):
        self._size = chunk_lines
        self._model, self._threads, self._options = model, threads, options
        self._translator = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Translates a batch of one chunk: `lines` become translations, warnings `messages`."""
        row = {key: values[0] for key, values in batch.items()}
        lines, messages, error = [str(line) for line in row["lines"]], [], row["error"]
        if not row["is_end"]:
            try:
                lines, messages = self._translated(row, lines)
            except InputError as found:
                error = str(found)
        return {
            **{key: [row[key]] for key in ("shard", "number", "read", "is_end")},
            "lines": [lines],
            "messages": [messages],
            "error": [error],
        }

    def _translated(self, row, lines):
        if self._translator is None:  # An actor that raises while it starts is started for ever.
            from keras_transformer.translator import Translator

            self._translator = Translator.load(self._model, self._threads)
        first = row["number"] * self._size + 1
        where = f"{row['path']}, lines {first}-{first + len(lines) - 1}: "
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                found = self._translator.translate(lines, **self._options)
            except InputError as error:
                raise InputError(f"{where}{error}") from None
        messages = [f"{where}{' '.join(str(each.message).split())}" for each in caught]
        return [each.text for each in found], messages


def say(message: str) -> None:
    """Writes one line to stderr."""
    print(f"keras-transformer: {message}", file=sys.stderr, flush=True)


def _fingerprint(model):
    """Returns a digest of the files of a model that decide its answers, without logs."""
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


def read_chunks(path: str, size: int) -> Iterator[list[str]]:
    """Reads a file of UTF-8, plain or `.gz`, in chunks of `size` lines, in constant memory.

    Raises:
        InputError: The file cannot be read; see `iterate_lines`. It may be empty.
    """
    lines = iterate_lines(path, may_be_empty=True)
    return iter(lambda: list(itertools.islice(lines, size)), [])


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
            if _JOB not in names and names - _LEFT_BY_A_START:
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
        """Returns True where a file is translated."""
        return (self._folder / self._names[shard]).exists()

    def parts(self, shard: int) -> tuple[list[int], list[int]]:
        """Returns the numbers of a file's translated chunks, and how many lines each has."""
        numbers, counts = [], []
        for path in sorted((self._folder / _PARTS / str(shard)).glob("[0-9]*.txt")):
            part = path.read_bytes()
            # A loss of power may leave a file short, empty or full of zeros; it is made again.
            if part.endswith(b"\n"):
                numbers.append(int(path.stem))
                counts.append(part.count(b"\n"))
        return numbers, counts

    def write(self, shard: int, number: int, texts: list[str]) -> None:
        """Keeps the translation of a chunk."""
        path = self._part(shard, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(one_line(text) + "\n" for text in texts))

    def finish(self, shard: int, chunks: int) -> None:
        """Makes the translated file of the `chunks` chunks that are there."""
        final = self._folder / self._names[shard]
        with replaced_file(final) as partial, open(partial, "wb") as whole:
            for number in range(chunks):
                with open(self._part(shard, number), "rb") as part:
                    shutil.copyfileobj(part, whole)
            whole.flush()
        shutil.rmtree(self._folder / _PARTS / str(shard), ignore_errors=True)

    def clean(self) -> None:
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
