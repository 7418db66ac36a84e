"""Translating with an exported LiteRT file."""

import dataclasses
import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from keras_transformer import imports
from keras_transformer.engine.engine import (
    Engine,
    encoded,
    with_alternatives,
)
from keras_transformer.engine.inputs import bucket, checked_list, in_batches, pad, source_ids
from keras_transformer.engine.manifest import read_files, read_manifest, tokenizer_names
from keras_transformer.engine.translation import Translation
from keras_transformer.errors import InputError, first_line, require
from keras_transformer.ids import PAD_ID
from keras_transformer.options import check_positive
from keras_transformer.text import Tokenizer

MODEL_FILE = "model.tflite"
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


class LiteRTEngine(Engine):
    """Translates with a file that `export_litert` wrote, without TensorFlow and model code.

    Several threads may call it at once: they share the interpreters, batch by batch.

    Args:
        path: Path of `model.tflite`, with the tokenizers next to it, or its directory; or the
            directory of a web export.
        threads: Default number of threads of `translate`.

    Attributes:
        manifest: The content of its `export.json`.

    Raises:
        InputError: The file is missing, damaged or not the file that its `export.json` describes,
            or a package that it needs is not installed.
    """

    noun = "a LiteRT export"

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
        if "align_lengths" in self.manifest:  # of a web export
            self.capabilities = frozenset({"translate", "align"})
        self.max_source_length = self.manifest["source_lengths"][-1]
        self._batch_sizes = self.manifest.get("batch_sizes", [])  # fixed in a file for browsers
        self.source_tokenizer, self.target_tokenizer = (Tokenizer(contents[name]) for name in names)
        # Later interpreters are made of the same bytes, because the file may be another by then.
        self._content = contents[self.path.name]
        self._interpreters: dict[int, list[SharedInterpreter]] = {}  # by their number of threads
        self._loading = threading.Lock()
        self._interpreters_of(1, threads)

    def translate(
        self,
        texts: Sequence[str],
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        batch_size: int = 8,
        threads: int | None = None,
        alignment: bool = False,
        long_input: Literal["refuse", "split", "truncate"] = "refuse",
        **other_options,
    ) -> list[Translation]:
        """Translates texts, in batches of similar length.

        Args (see `ModelEngine.translate` for the other arguments):
            beam_size: 1 for greedy search, or the export's beam size, which is the default.
            length_penalty: None, or the value that the export was made with.
            n_best: Number of hypotheses per text, at most the number that the export returns; 1 for
                greedy search.
            batch_size: Sentences per batch. Small batches stay in a core's cache.
            threads: Total number of threads. With enough sentences, each thread computes a batch;
                otherwise all threads compute one batch.
            alignment: Whether each translation gets its alignment, which a web export can compute.
            long_input: Treatment of a text of more tokens than the export takes: `"refuse"`, or
                `"truncate"` or `"split"`, both with a warning.
            **other_options: Other options of `ModelEngine.translate`, at their defaults.

        Returns:
            A list of `Translation`, in the order of `texts`.

        Raises:
            InputError: An option differs from the export's value, or a text is too long.
        """
        search = self._search(beam_size, n_best)
        if alignment and "align" not in self.capabilities:
            raise self.lacks("align", "alignment")
        self.check_fixed({"length_penalty": length_penalty, **other_options})
        texts = checked_list("texts", texts)
        encoded("texts", texts)  # Checks them.
        check_positive(batch_size=batch_size)
        batch_size = min([batch_size, *self._batch_sizes[-1:]])
        sources, parts = source_ids(
            texts, self.source_tokenizer, self.max_source_length, long_input
        )
        threads = self._threads if threads is None else threads
        check_positive(threads=threads)

        def call(interpreter, indices):
            batch = [sources[index] for index in indices]
            translations = list(self._run(interpreter, search, batch, n_best))
            if alignment:
                pairs = zip(batch, translations, strict=True)
                translations = [self._aligned(interpreter, *pair) for pair in pairs]
            return translations

        # Two halves of a batch, each on one thread, take less time than one batch on two threads.
        parts_at_once = max(1, min(threads, len(sources) // _LEAST_ROWS))
        batch_size = min(batch_size, max(1, -(-len(sources) // parts_at_once)))
        interpreters = self._interpreters_of(parts_at_once, threads // parts_at_once)
        calls = [functools.partial(call, interpreter) for interpreter in interpreters]
        translations = in_batches([len(row) for row in sources], batch_size, calls)
        return [Translation.joined([translations[index] for index in indices]) for indices in parts]

    def _search(self, beam_size, n_best):
        manifest = self.manifest
        beam_size = manifest["beam_size"] if beam_size is None else beam_size
        sizes = sorted({1, manifest["beam_size"]})
        if beam_size not in sizes:
            rule = f"`beam_size` must be {' or '.join(map(str, sizes))} in this export."
            raise InputError(f"{rule} Received: beam_size={beam_size!r}.")
        limit = 1 if beam_size == 1 else manifest["n_best"]
        check_positive(n_best=n_best)
        if n_best > limit:
            raise InputError(
                f"`n_best` must be at most {limit} in this search of this export. "
                f"Received: n_best={n_best}."
            )
        return "greedy" if beam_size == 1 else "beam"

    def _run(self, interpreter, search, sources, n_best):
        columns = bucket(max(map(len, sources)), self.manifest["source_lengths"])
        rows, shape = len(sources), f"{columns}"
        if self._batch_sizes:
            rows = bucket(rows, self._batch_sizes)
            shape = f"{rows}x{columns}"
        outputs = interpreter.run(f"{search}_{shape}", source_ids=pad(sources, rows, columns))
        ids = outputs["ids"].reshape(rows, -1, outputs["ids"].shape[-1])[:, :n_best]
        scores, sums = (
            outputs[name].reshape(rows, -1)[:, :n_best].tolist()
            for name in ("score", "log_probability")
        )
        # Not strict: the batch may have more rows than there are sentences.
        for source, *columns in zip(sources, ids.tolist(), scores, sums, strict=False):
            rows_of_ids = [[i for i in row if i != PAD_ID] for row in columns[0]]
            texts = self.target_tokenizer.detokenize(rows_of_ids)
            yield with_alternatives(
                [
                    Translation(
                        text,
                        score,
                        log_probability,
                        tokens=tuple(self.target_tokenizer.pieces_of(row)),
                        ids=tuple(row),
                        source_tokens=tuple(self.source_tokenizer.pieces_of(source)),
                    )
                    for text, row, score, log_probability in zip(
                        texts, rows_of_ids, *columns[1:], strict=True
                    )
                ]
            )

    def _aligned(self, interpreter, source, translation):
        columns = bucket(len(source), self.manifest["source_lengths"])
        steps = self.manifest["align_lengths"][str(columns)]
        ids = {
            "source_ids": pad([source], 1, columns),
            "target_ids": pad([translation.ids], 1, steps),
        }
        alignment = interpreter.run(f"align_1x{columns}", **ids)["alignment"][0]
        alignment = alignment[: len(translation.ids), : len(source)]
        return dataclasses.replace(translation, alignment=alignment)

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
        self._interpreter = _load(content, path, threads)
        self._lock = threading.Lock()

    def run(self, signature: str | None = None, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Runs a signature, and returns copies of its outputs by name.

        `signature` may be None if the file has only one.
        """
        with self._lock:
            return self._interpreter.get_signature_runner(signature)(**inputs)


def _load(content, path, threads):
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
