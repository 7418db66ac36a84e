"""Translating with an exported LiteRT file."""

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.base import imports, memory
from keras_transformer.base.errors import InputError, first_line, require
from keras_transformer.base.ids import PAD_ID
from keras_transformer.base.impossible import HIDDEN
from keras_transformer.base.options import check_positive
from keras_transformer.engine.ids_engine import IdsEngine
from keras_transformer.engine.inputs import bucket, in_batches, pad
from keras_transformer.engine.request import CALL_OPTIONS, OptionRules, Request
from keras_transformer.engine.translation import Translation
from keras_transformer.export.manifest import (
    read_files,
    read_languages,
    read_manifest,
    read_shortlist,
    tokenizer_names,
)
from keras_transformer.text import Tokenizer
from keras_transformer.text.shortlist import union_of

MODEL_FILE = "model.tflite"
LIST_MULTIPLE = 128
"""Sizes of lists are multiples of it: fewer sizes need fewer plans of memory."""
_ROWS_WITH_SHORTLIST = 4  # The list of a batch grows with its sentences.
_LEAST_ROWS = 4  # A thread of its own pays from this number of rows on.
_FIELDS = {
    "searches": list,
    "beam_size": int,
    "n_best": int,
    "length_penalty": (int, float),
    "source_lengths": list,
    "source_tokenizer": str,
    "target_tokenizer": str,
}


class LiteRTEngine(IdsEngine):
    """Translates with a file that `export_litert` wrote, without TensorFlow and model code.

    Several threads may call it at once: they share the interpreters, batch by batch.

    Args:
        path: Path of `model.tflite`, with the tokenizers next to it, or its directory; or the
            directory of a web export.
        threads: Default number of threads of `translate`.

    Raises:
        InputError: The file is missing, damaged or not the file that its `export.json` describes,
            or a package that it needs is not installed.
    """

    noun = "a LiteRT export"
    capabilities = frozenset({"translate", "align"})
    option_rules = OptionRules(translate=(*CALL_OPTIONS, "beam_size", "n_best"))
    batch_size = 8  # Small batches stay in a core's cache.

    def __init__(self, path: str | os.PathLike, threads: int = 2):
        path = Path(path)
        self.path = path / MODEL_FILE if path.is_dir() else path
        check_positive(threads=threads)
        self._threads = threads
        if not self.path.is_file():
            raise InputError(f"{self.path}: expected a LiteRT model. Received: no such file.")
        folder = self.path.parent
        self.manifest = read_manifest(folder, ("litert", "web"), _FIELDS, "a LiteRT model")
        names = tokenizer_names(self.manifest)
        # LiteRT does not check a file, and a damaged file would end the process.
        contents = read_files(folder, self.manifest, [self.path.name, *names])
        self.max_source_length = self.manifest["source_lengths"][-1]
        # These are fixed in a file for browsers.
        self._batch_sizes = self.manifest.get("batch_sizes", [])
        self._list_sizes = self.manifest.get("list_sizes", {})
        tokenizers = {name: Tokenizer(contents[name]) for name in set(names)}
        self.source_tokenizer, self.target_tokenizer = (tokenizers[name] for name in names)
        self.languages = read_languages(self.manifest, self.source_tokenizer)
        self.shortlist = read_shortlist(folder, self.manifest)
        if self.shortlist is not None:
            self.batch_size = _ROWS_WITH_SHORTLIST
        # Later interpreters are made of the same bytes, because the file may be another by then.
        self._content = contents[self.path.name]
        self._interpreters: dict[int, list[SharedInterpreter]] = {}  # by their number of threads
        self._loading = threading.Lock()
        self._interpreters_of(1, threads)

    def request(self, threads: int | None = None, **options: Any) -> Request:
        """Checks the options of `translate`; `threads` is the total number of threads of a call.

        With enough sentences each thread computes a batch; otherwise all threads compute one batch.
        """
        beam_size, n_best = options.get("beam_size"), options.get("n_best")
        exported_size = self.manifest["beam_size"]
        beam_size = exported_size if beam_size is None else beam_size
        sizes = sorted({1, exported_size})
        if beam_size not in sizes:
            rule = f"`beam_size` must be {' or '.join(map(str, sizes))} in {self.noun}."
            raise InputError(f"{rule} Received: beam_size={beam_size!r}.")
        limit = 1 if beam_size == 1 else self.manifest["n_best"]
        check_positive(or_none=True, n_best=n_best, threads=threads)
        if n_best is not None and n_best > limit:
            raise InputError(
                f"`n_best` must be at most {limit} in this search of {self.noun}. "
                f"Received: n_best={n_best}."
            )
        return dataclasses.replace(
            super().request(**options),
            threads=threads or self._threads,
            signature="greedy" if beam_size == 1 else "beam",
        )

    def search(self, jobs, request):
        def call_with(interpreter):
            return lambda indices: self._run(interpreter, request, [jobs[i] for i in indices])

        interpreters = self._interpreters_for(len(jobs), request)
        rows_at_once = -(-len(jobs) // len(interpreters))
        batch_size = min([request.batch_size, *self._batch_sizes[-1:], rows_at_once])
        calls = [call_with(interpreter) for interpreter in interpreters]
        return in_batches([len(job.source) for job in jobs], batch_size, calls)

    def _run(self, interpreter, request, jobs):
        sources = [job.source for job in jobs]
        columns = bucket(max(map(len, sources)), self.manifest["source_lengths"])
        rows, shape = len(sources), f"{columns}"
        if self._batch_sizes:
            rows = bucket(rows, self._batch_sizes)
            shape = f"{rows}x{columns}"
        inputs = {"source_ids": pad(sources, rows, columns)}
        if self.shortlist is not None:
            inputs |= self._candidates(sources, rows, self._list_sizes.get(shape))
        if self.has_target_prefix:
            forced_ids = pad([job.direction.target_prefix for job in jobs], rows, 1)
            inputs["forced_ids"] = forced_ids[:, 0]
        outputs = interpreter.run(f"{request.signature}_{shape}", **inputs)
        n_best = request.options.n_best
        ids = outputs["ids"].reshape(rows, -1, outputs["ids"].shape[-1])[:, :n_best]
        scores, sums = (
            outputs[name].reshape(rows, -1)[:, :n_best].tolist()
            for name in ("score", "log_probability")
        )
        # The batch may have more rows than there are sentences.
        for index in range(len(sources)):
            hypotheses = zip(ids[index].tolist(), scores[index], sums[index], strict=True)
            yield [
                Translation("", score, total, ids=tuple(id for id in row if id != PAD_ID))
                for row, score, total in hypotheses
            ]

    def _candidates(self, sources, rows, list_size):
        def padded_size(count):
            return list_size or -(-count // LIST_MULTIPLE) * LIST_MULTIPLE

        lists = [self.shortlist.candidates_of(source) for source in sources]
        ids, mask = union_of(lists, rows, padded_size)
        return {"candidates": ids, "candidate_bias": np.where(mask, 0, HIDDEN).astype("float32")}

    def align(self, pairs, request):
        columns, steps = self.manifest.get("align_shape", (None, None))

        def call_with(interpreter):
            # The model reads one pair at a time, as long as it is: nothing is padded.
            def align(indices):
                for source, target in map(pairs.__getitem__, indices):
                    source_ids = pad([source], 1, columns or len(source))
                    target_ids = pad([target], 1, steps or len(target))
                    outputs = interpreter.run("align", source_ids=source_ids, target_ids=target_ids)
                    yield outputs["alignment"][0, : len(target), : len(source)]

            return align

        interpreters = self._interpreters_for(len(pairs), request)
        lengths = [(len(source), len(target)) for source, target in pairs]
        return in_batches(lengths, self.batch_size, [*map(call_with, interpreters)])

    def _interpreters_for(self, num_rows, request):
        """Returns the interpreters that compute a number of sentences."""
        # Two halves of a batch, each on one thread, take less time than one batch on two threads.
        # Each interpreter brings all weights into a layout of its own.
        is_large = len(self._content) >= memory.LARGE_MODEL_BYTES // 2
        at_once = 1 if is_large else max(1, min(request.threads, num_rows // _LEAST_ROWS))
        return self._interpreters_of(at_once, request.threads // at_once)

    def _interpreters_of(self, count, threads):
        with self._loading:
            interpreters = self._interpreters.setdefault(threads, [])
            while len(interpreters) < count:
                interpreters.append(SharedInterpreter(self._content, self.path, threads))
            return interpreters[:count]


class SharedInterpreter:
    """LiteRT's interpreter of a file, for any number of threads: one call runs at a time.

    The interpreter's own memory holds inputs and outputs, and another call would overwrite them.
    All interpreters of a file share its bytes.

    Args:
        content: Bytes of the file.
        path: Path of the file, for messages.
        threads: Number of threads that compute one call.

    Raises:
        InputError: LiteRT is not installed, or cannot load the file.
    """

    def __init__(self, content: bytes, path: Path, threads: int):
        self._interpreter, self._path = _load_interpreter(content, path, threads), path
        self._lock = threading.Lock()

    def run(self, signature: str | None = None, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Runs a signature, and returns copies of its outputs by name.

        `signature` may be None if the file has only one. Raises `InputError` if LiteRT cannot
        compute it, as in a damaged file.
        """
        with self._lock:
            try:
                return self._interpreter.get_signature_runner(signature)(**inputs)
            except RuntimeError as error:  # Parts of a file are not checked while it is loaded.
                reason = f"{first_line(error):.300}"
                rule = f"{self._path}: LiteRT cannot compute it"
                raise InputError(f"{rule}. Received: {reason}") from error


def _load_interpreter(content, path, threads):
    litert = require("ai_edge_litert.interpreter", "LiteRT", "litert")
    try:
        with imports.stderr_kept_back():
            loaded = litert.Interpreter(model_content=content, num_threads=threads)
            # Now, so that LiteRT does not print the name of its delegate in the first call.
            loaded.allocate_tensors()
        return loaded
    except (RuntimeError, ValueError) as error:
        reason = f"{first_line(error):.300}"
        raise InputError(f"{path}: LiteRT cannot load it. Received: {reason}") from error
