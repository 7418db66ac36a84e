"""Translates files chunk by chunk: writes translated chunks, and joins them in order."""

import collections
import contextlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from keras_transformer.base.errors import InputError, check_folder, print_message
from keras_transformer.base.files import (
    check_writable,
    final_name,
    locked_folder,
    replaced_file,
    write_whole,
)
from keras_transformer.base.options import check_choice, received
from keras_transformer.base.reading import read_json, without_compression
from keras_transformer.engine.steps.glossary import glossary_of
from keras_transformer.extras.bulk.chunks import Records, Worker, chunks_of, fingerprint
from keras_transformer.extras.bulk.options import BulkOptions

_JOB = "bulk.json"
_PARTS = ".parts"
_REPORT_SECONDS = 10


def translate_corpus(
    model: str | os.PathLike,
    inputs: Sequence[str | os.PathLike],
    output: str | os.PathLike,
    records: Records = "text",
    with_ray: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Translates text files with Ray Data, or in this process.

    A second call after a crash continues: it does not translate finished parts again.

    Args:
        model: Path of a run folder or an export, the same on all machines of the cluster.
        inputs: Paths of the files, UTF-8, plain or compressed, read on this machine.
        output: Folder to make; each translated file has the name of its input, without the ending
            of a compressed file.
        records: `"text"` writes the best translation of each line. `"pairs"` writes CSVs of the
            line and all its hypotheses, `"back"` of hypotheses and line, with scores in
            `NAME.scores`.
        with_ray: False translates in this process, by default with all cores.
        **options: Fields of `bulk.options.BulkOptions`, and options of `Translator.translate`. By
            default a line of too many tokens is split at sentence ends.

    Returns:
        A dict fit for JSON: number of files, number of lines translated by this call, seconds.

    Raises:
        InputError: A file, the model or an option is invalid, or workers repeatedly fail on a part.
            Translated parts remain, and a second call continues.
    """
    check_choice("records", records, get_args(Records))
    names_of_bulk = BulkOptions.model_fields.keys() & options.keys()
    bulk_options = BulkOptions(**{name: options.pop(name) for name in names_of_bulk})
    if isinstance(inputs, (str, os.PathLike)):
        raise InputError(f"`inputs` must be a list of paths. Received: {os.fspath(inputs)!r}.")
    model = os.path.abspath(model)
    if not os.path.exists(model):
        raise InputError(f"{model}: no such run or export folder.")
    paths = [os.fspath(path) for path in inputs]
    names = _names(paths, "" if records == "text" else ".csv")
    if records != "text":  # The sides of a pair are lines.
        options.setdefault("split_sentences", False)
    job = {"model": fingerprint(model), "chunk_lines": bulk_options.chunk_lines}
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
                "threads": bulk_options.threads,
                "options": options,
                "records": records,
            }
            with _translated(files, worker, bulk_options, with_ray) as rows:
                lines = _keep(folder, job, rows)
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


def _translated(files, worker, options, with_ray):
    """Returns a context with the rows that `Worker(**worker)` makes of the chunks of files."""
    if with_ray:
        check_folder("extras/cluster")
        from keras_transformer.extras.cluster.files import translated_over_ray

        return translated_over_ray(files, worker, options)
    chunks = (row for file in files for row in chunks_of(file, options.chunk_lines))
    return contextlib.nullcontext(map(Worker(**worker), chunks))


def _keep(folder, job, rows):
    """Writes translated chunks as parts when they come; returns the number of lines.

    The job is written with the first part, so that a wrong option leaves no folder behind.
    """
    started = reported = time.monotonic()
    lines, said = 0, set[str]()
    for row in rows:
        # Each worker has the same notes about the model.
        notes = [note for note in row.get("notes", ()) if note not in said]
        said.update(notes)
        for message in [*notes, *row["messages"]]:
            print_message(message)
        if row["error"]:
            raise InputError(row["error"])
        _write_job(folder, job)
        path = folder / _PARTS / row["name"] / f"{row['first']}-{len(row['lines'])}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(row["lines"]))
        lines += row["count"]
        if (now := time.monotonic()) - reported > _REPORT_SECONDS:
            reported = now
            print_message(f"{lines} lines, {lines / (now - started):.0f} per second")
    return lines


def _parts(folder, name):
    """Returns the number of the first line of each translated chunk of a file.

    The name of a part has it, and the number of rows: a line may have several hypotheses.
    """
    numbers = []
    for path in (folder / _PARTS / name).glob("[0-9]*-[0-9]*.txt"):
        first, rows = map(int, path.stem.split("-"))
        part = path.read_bytes()
        # A loss of power may leave a file short, empty or full of zeros, to be made again.
        if part.count(b"\n") == rows:
            numbers.append(first)
    return numbers


def _join(folder, name, with_scores=False):
    """Joins all parts to the translated file, and writes their last column to a file of scores."""
    parts = list((folder / _PARTS / name).glob("[0-9]*-[0-9]*.txt"))
    parts.sort(key=lambda path: int(path.stem.partition("-")[0]))
    columns = {name: lambda line: line}
    if with_scores:  # The file `name`, which shows that all is complete, is last.
        columns = {
            f"{name}.scores": lambda line: line.rpartition(b",")[2],
            name: lambda line: line.rpartition(b",")[0] + b"\n",
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
