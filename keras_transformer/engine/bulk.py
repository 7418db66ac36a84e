"""Translates files chunk by chunk: writes translated chunks, and joins them in order.

A `Mapper` translates the chunks in this process, and in `serving.bulk` with Ray Data.
"""

import collections
import contextlib
import glob
import itertools
import json
import os
import pathlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from keras_transformer.engine.engine import long_input_of_commands
from keras_transformer.engine.lines import Line, translated_lines
from keras_transformer.errors import InputError, say
from keras_transformer.files import (
    check_writable,
    final_name,
    locked_folder,
    replaced_file,
    write_whole,
)
from keras_transformer.options import check_choice, check_positive, received
from keras_transformer.reading import (
    digest_of,
    iterate_lines,
    one_line,
    read_json,
    without_compression,
)
from keras_transformer.runs.names import WITHOUT_EFFECT
from keras_transformer.steps.glossary import glossary_of
from keras_transformer.text.per_text import LANGUAGE_OPTIONS
from keras_transformer.translation import pair_lines

_JOB = "bulk.json"
_PARTS = ".parts"
_REPORT_SECONDS = 10
MAX_FAILURES = 3
"""Number of times that a chunk is tried where a worker may end."""

Records = Literal["text", "pairs", "back"]


class Mapper:
    """Translates the chunks of files: this class in this process, a subclass elsewhere.

    Attributes:
        threads: Number of threads of each engine; None for the engine's default.
    """

    def __init__(self, threads: int | None = None):
        check_positive(or_none=True, threads=threads)
        self.threads = threads

    @property
    def failures(self) -> tuple[type[BaseException], ...]:
        """Exceptions that mean that workers have ended `MAX_FAILURES` times on a chunk."""
        return ()

    @contextlib.contextmanager
    def rows(
        self, files: list[dict[str, Any]], chunk_lines: int, worker: dict[str, Any]
    ) -> Iterator[Iterable[dict[str, Any]]]:
        """Yields the rows that `Worker(**worker)` makes of the rows of `chunks_of` of each file."""
        translate = Worker(**worker)
        yield map(translate, (row for file in files for row in chunks_of(file, chunk_lines)))


def translate_corpus(
    model: str | os.PathLike,
    inputs: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    records: Records = "text",
    mapper: Mapper | None = None,
    chunk_lines: int = 500,
    **options: Any,
) -> dict[str, Any]:
    """Translates text files.

    A second call after a crash continues: it does not translate finished parts again.

    Args:
        model: Path of a run folder or an export, the same on all machines of a mapper.
        inputs: Paths of the files, UTF-8, plain or compressed, read on this machine.
        output: Folder to make; each translated file has the name of its input, without the ending
            of a compressed file.
        records: `"text"` writes the best translation of each line. `"pairs"` writes TSVs of the
            line and all its hypotheses, `"back"` of hypotheses and line, with scores in
            `NAME.scores`.
        mapper: `Mapper` that translates the chunks; by default in this process, with all cores.
        chunk_lines: Number of lines that are translated at a time.
        **options: Options of `Translator.translate`. By default a line of too many tokens is split
            at sentence ends.

    Returns:
        A dict fit for JSON: number of files, number of lines translated by this call, seconds.

    Raises:
        InputError: A file, the model or an option is invalid, or workers repeatedly fail on a part.
            Translated parts remain, and a second call continues.
    """
    check_choice("records", records, get_args(Records))
    check_positive(chunk_lines=chunk_lines)
    if isinstance(inputs, (str, os.PathLike)):
        raise InputError(f"`inputs` must be a list of paths. Received: {os.fspath(inputs)!r}.")
    mapper = mapper or Mapper()
    model = os.path.abspath(model)
    if not os.path.exists(model):
        raise InputError(f"{model}: no such run or export folder.")
    paths = [os.fspath(path) for path in inputs]
    names = _names(paths, "" if records == "text" else ".tsv")
    job = {"model": _fingerprint(model), "chunk_lines": chunk_lines}
    job_options = dict(options)
    if options.get("glossary") is not None:
        # Read once, because the file may change before a worker starts.
        options["glossary"] = glossary = glossary_of(options["glossary"])
        job_options["glossary"] = {"sha256": glossary.digest}
    job["options"] = _plain(job_options)
    job["inputs"] = list(map(_identity, paths))
    if records != "text":
        job["records"] = records
    folder, started, lines = pathlib.Path(output), time.monotonic(), 0
    with locked_folder(folder):
        _check_job(folder, job)
        files = [
            {"path": path, "name": name, "done": _parts(folder, name)}
            for path, name in zip(paths, names, strict=True)
            if not (folder / name).exists()
        ]
        if files:
            worker = {
                "model": model,
                "digest": job["model"],
                "threads": mapper.threads,
                "options": options,
                "records": records,
            }
            with mapper.rows(files, chunk_lines, worker) as rows:
                lines = _keep(folder, job, rows, mapper.failures)
        _write_job(folder, job)  # for inputs without lines
        for file in files:
            _join(folder, file["name"], records != "text")
        shutil.rmtree(folder / _PARTS, ignore_errors=True)
    return {
        "output": os.fspath(output),
        "files": len(paths),
        "lines_translated": lines,
        "seconds": round(time.monotonic() - started, 1),
    }


def chunks_of(file: dict[str, Any], chunk_lines: int) -> Iterator[dict[str, Any]]:
    """Yields the chunks of a file that have no finished part; an invalid line ends them."""
    lines_by_part = dict(zip(*file["done"], strict=True))
    file_lines = iterate_lines(file["path"], may_be_empty=True)
    for first in itertools.count(1, chunk_lines):
        row = {"name": file["name"], "path": file["path"], "first": first, "error": ""}
        try:
            lines = list(itertools.islice(file_lines, chunk_lines))
        except InputError as error:
            yield {**row, "lines": [], "error": str(error)}
            return
        if not lines:
            return
        if lines_by_part.get(first, 0) < len(lines):  # A line may have several hypotheses.
            yield {**row, "lines": lines}


class Worker:
    """Holds an engine, in this process or in a mapper's.

    Args:
        model: Path of the run folder or export.
        digest: `_fingerprint` of the model when the job began.
        threads: Number of threads of the engine.
        options: Options of `Translator.translate`.
        records: As in `translate_corpus`.
    """

    def __init__(
        self,
        model: str,
        digest: str,
        threads: int | None,
        options: dict[str, Any],
        records: Records = "text",
    ):
        self._model, self._digest, self._threads, self._options = model, digest, threads, options
        self._records = records
        self._translator: Any = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Translates a chunk: `lines` become translations, warnings become `messages`.

        `notes` are lines about the model, of the first chunk of this worker.

        A user's mistake becomes `error`: Ray would wrap an exception and log its traceback.
        """
        if row["error"]:
            return {**row, "count": 0, "messages": []}
        # Not in `__init__`, because Ray endlessly restarts an actor that raises when it starts.
        notes: list[str] = []
        if self._translator is None:
            try:
                notes = self._load()
            except InputError as error:
                return {**row, "error": str(error), "count": 0, "messages": []}
        messages: list[str] = []
        lines = [
            Line(number, str(text), 0) for number, text in enumerate(row["lines"], row["first"])
        ]
        written: list[str] = []
        try:
            results = translated_lines(self._translate, lines, row["path"], messages.append)
            for done, translations in results:
                for line, translation in zip(done, translations, strict=True):
                    written += self._lines_of(line.text, translation)
        except InputError as error:
            row["error"] = str(error)
        return {
            **row,
            "lines": written,
            "count": len(lines),
            "messages": messages,
            "notes": notes,
        }

    def _translate(self, lines):
        return self._translator.translate([line.text for line in lines], **self._options)

    def _lines_of(self, text, translation):
        if self._records == "text":
            return [one_line(translation.text)]
        return pair_lines(text, translation, self._records == "back")

    def _load(self):
        """Loads the model, and checks the options, because a wrong one is no line's fault.

        Returns lines about languages that the model lacks.
        """
        from keras_transformer.engine.translator import Translator

        translator = Translator.load(self._model, self._threads)
        # A worker that starts late, or again after a crash, may find another model here.
        if _fingerprint(self._model) != self._digest:
            problem = "the files have changed since the translation began"
            raise InputError(f"{self._model}: {problem}. Translate into another folder.")
        options = {"long_input": long_input_of_commands(translator.engine), **self._options}
        translator.check_options(**options)
        self._translator, self._options = translator, options
        return translator.engine.approximated_languages(*map(options.get, LANGUAGE_OPTIONS))


def _keep(folder, job, rows, failures=()):
    """Writes translated chunks as parts when they come; returns the number of lines.

    The job is written with the first part, so that a wrong option leaves no folder behind.
    """
    started = reported = time.monotonic()
    lines, said = 0, set[str]()
    try:
        for row in rows:
            # Each worker has the same notes about the model.
            notes = [note for note in row.get("notes", ()) if note not in said]
            said.update(notes)
            for message in [*notes, *row["messages"]]:
                say(message)
            if row["error"]:
                raise InputError(row["error"])
            _write_job(folder, job)
            path = folder / _PARTS / row["name"] / f"{row['first']}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, "".join(line + "\n" for line in row["lines"]))
            lines += row["count"]
            if (now := time.monotonic()) - reported > _REPORT_SECONDS:
                reported = now
                say(f"{lines} lines, {lines / (now - started):.0f} per second")
    except failures as error:
        cause = " ".join(str(getattr(error, "cause", None) or error).split())
        raise InputError(
            f"Workers failed {MAX_FAILURES} times on a part of the text; translated parts remain. "
            f"Received: {cause[-300:]}"
        ) from None
    return lines


def _parts(folder, name):
    """Returns numbers of first lines, and numbers of lines, of a file's translated chunks."""
    numbers, counts = [], []
    for path in (folder / _PARTS / name).glob("[0-9]*.txt"):
        part = path.read_bytes()
        # A loss of power may leave a file short, empty or full of zeros, to be made again.
        if part.endswith(b"\n"):
            numbers.append(int(path.stem))
            counts.append(part.count(b"\n"))
    return numbers, counts


def _join(folder, name, with_scores=False):
    """Joins all parts to the translated file, and writes their last column to a file of scores."""
    parts = sorted((folder / _PARTS / name).glob("[0-9]*.txt"), key=lambda path: int(path.stem))
    columns = {name: lambda line: line}
    if with_scores:  # The file `name`, which shows that all is complete, is last.
        columns = {
            f"{name}.scores": lambda line: line.rpartition(b"\t")[2],
            name: lambda line: line.rpartition(b"\t")[0] + b"\n",
        }
    for file_name, column in columns.items():
        with replaced_file(folder / file_name) as path, open(path, "wb") as file:
            for part in parts:
                with open(part, "rb") as lines:
                    file.writelines(map(column, lines))


def _check_job(folder, job):
    """Checks that the folder of a job is missing or empty, or holds the same job.

    Raises:
        InputError: The folder holds other files, or cannot be written.
    """
    path = folder / _JOB
    try:
        names = {final_name(path.name) for path in folder.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}.") from None
    if names - {_JOB} and not path.exists():
        raise InputError(f"{folder}: expected an empty folder, or one of the same job.")
    if path.exists() and _read_job(path) != json.loads(_content_of(job)):
        rule = "holds the output of another job, whose model, options or inputs differ"
        raise InputError(f"{folder}: {rule}: see {_JOB}, or give another output folder.")
    check_writable(path)


def _write_job(folder, job):
    """Makes the folder of a job, unless it is there."""
    if not (folder / _JOB).exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _JOB, _content_of(job))


def _read_job(path):
    """Returns the job of a folder, None if its file is damaged."""
    with contextlib.suppress(InputError):
        return read_json(path)
    return None


def _content_of(job):
    return json.dumps(job, indent=2) + "\n"


def _plain(value):
    """Returns a value of an option as JSON has it, so that a later call can compare it."""
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(member) for key, member in value.items()}
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    rule = "Options must be numbers, texts, or lists and dicts of them"
    raise InputError(f"{rule}. Received: {received(value)}.")


def _names(paths, suffix):
    """Returns the names of the translated files."""
    names = [without_compression(os.path.basename(path)) for path in paths]
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise InputError(f"The inputs must have different names. Received: {name} twice.")
        # Names with a point: `.parts`, temporary files, and ".gz", which has no ending.
        if name == _JOB or not name or name.startswith("."):
            raise InputError(
                f"An input's name must not be {_JOB} nor begin with a point, "
                f"as the output folder's own files do. Received: {name!r}."
            )
    return [name + suffix for name in names]


def _identity(path):
    try:
        status = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if not os.path.isfile(path):
        raise InputError(f"{path}: expected a text file.")
    return {"path": os.path.abspath(path), "bytes": status.st_size, "changed": status.st_mtime_ns}


def _fingerprint(model):
    """Returns a checksum of a model's files that its translations depend on."""
    # A file `*.tflite` needs the tokenizer and the manifest in its folder.
    root = pathlib.Path(os.path.dirname(model) if os.path.isfile(model) else model)
    names = map(pathlib.Path, glob.glob("**", root_dir=root, recursive=True))  # no hidden ones
    return digest_of(root, [root / name for name in names if WITHOUT_EFFECT.isdisjoint(name.parts)])
