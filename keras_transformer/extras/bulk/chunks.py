"""Chunks of files, and the worker that translates them, here or on another machine."""

import glob
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import Any, Literal

from keras_transformer.base.errors import InputError
from keras_transformer.base.reading import digest_of, iterate_lines, one_line
from keras_transformer.engine.engine import long_input_of_commands
from keras_transformer.engine.translation import pair_lines
from keras_transformer.extras.bulk.lines import Line, translated_lines
from keras_transformer.runs.names import WITHOUT_EFFECT
from keras_transformer.text.per_text import LANGUAGE_OPTIONS

Records = Literal["text", "pairs", "back"]


def chunks_of(file: dict[str, Any], chunk_lines: int) -> Iterator[dict[str, Any]]:
    """Yields the chunks of a file that have no finished part; an invalid line ends them.

    Lines have their line ends.
    """
    done = set(file["done"])
    file_lines = iterate_lines(file["path"], may_be_empty=True, keep_ends=True)
    for first in itertools.count(1, chunk_lines):
        row = {"name": file["name"], "path": file["path"], "first": first, "error": ""}
        try:
            lines = list(itertools.islice(file_lines, chunk_lines))
        except InputError as error:
            yield {**row, "lines": [], "error": str(error)}
            return
        if not lines:
            return
        if first not in done:
            yield {**row, "lines": lines}


class Worker:
    """Holds an engine, in this process or in one of Ray's.

    Args:
        model: Path of the run folder or export.
        digest: `fingerprint` of the model when the job began.
        threads: Number of threads of the engine.
        options: Options of `Translator.translate`.
        records: As in `corpus.translate_corpus`.
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
        """Translates a chunk: `lines` become lines of the output, warnings become `messages`.

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
        lines = [_line(number, str(line)) for number, line in enumerate(row["lines"], row["first"])]
        written: list[str] = []
        try:
            results = translated_lines(self._translate, lines, row["path"], messages.append)
            for done, translations in results:
                for line, translation in zip(done, translations, strict=True):
                    written += self._lines_of(line, translation)
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

    def _lines_of(self, line, translation):
        if self._records == "text":
            return [one_line(translation.text) + line.end]
        return pair_lines(line.text, translation, self._records == "back")

    def _load(self):
        """Loads the model, and checks the options, because a wrong option is not a line's fault.

        Returns lines about languages that the model lacks.
        """
        from keras_transformer.engine.translator import Translator

        translator = Translator.load(self._model, self._threads)
        # A worker that starts late, or again after a crash, may find another model here.
        if fingerprint(self._model) != self._digest:
            problem = "the files have changed since the translation began"
            raise InputError(f"{self._model}: {problem}. Translate into another folder.")
        options = {"long_input": long_input_of_commands(translator.engine), **self._options}
        translator.check_options(**options)
        self._translator, self._options = translator, options
        return translator.engine.directions.approximated(*map(options.get, LANGUAGE_OPTIONS))


def _line(number, line):
    text = line.removesuffix("\n").removesuffix("\r")
    return Line(number, text, len(line.encode()), end=line[len(text) :])


def fingerprint(model: str) -> str:
    """Returns a checksum of a model's files that its translations depend on."""
    # A file `model.tflite` needs the tokenizer and the manifest in its folder.
    root = pathlib.Path(os.path.dirname(model) if os.path.isfile(model) else model)
    names = map(pathlib.Path, glob.glob("**", root_dir=root, recursive=True))  # no hidden ones
    return digest_of(root, [root / name for name in names if WITHOUT_EFFECT.isdisjoint(name.parts)])
