"""A replica: an export in a process of its own, which Ray Serve starts, watches and replaces."""

import asyncio
import concurrent.futures
import os
import queue
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.files import digest_of
from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.protocol import (
    DEFAULT,
    Rejection,
    Signature,
    Tensor,
    answer_too_long,
    least_bytes,
)

PER_BATCH = ("temperature", "top_k", "top_p")
"""Inputs that all sentences of a batch share."""

# `tf.errors.InvalidArgumentError.error_code`.
_INVALID_ARGUMENT = 3
_TEXT, _NUMBER = Tensor("string"), Tensor("float32")
_BEST = {"translation": _TEXT, "score": _NUMBER}
_SAMPLING = {"temperature": _NUMBER, "top_k": Tensor("int32"), "top_p": _NUMBER}
_PAIR = {"source": _TEXT, "target": _TEXT}
_TOKENS = Tensor("string", (None,))
_ALIGNED = {"source_tokens": _TOKENS, "target_tokens": _TOKENS}
_ALIGNED["alignment"] = Tensor("float32", (None, None))


def export_digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 over names and contents of all files of an export.

    Raises:
        InputError: A file cannot be read.
    """
    folder = Path(path).parent if Path(path).is_file() else Path(path)
    try:
        return digest_of(folder)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None


def signatures_of(engine: Any) -> dict[str, Signature]:
    """Returns the signatures that an engine's capabilities allow, by name.

    Those of a SavedModel stand in its manifest; what takes ids is left out.
    """
    manifest, able = engine.manifest, engine.capabilities
    text = {"text": _TEXT}
    if engine.labels is not None:
        probabilities = Tensor("float32", (len(engine.labels),))
        return {DEFAULT: Signature(text, {"label": _TEXT, "probabilities": probabilities})}
    found = {DEFAULT: Signature(text, _BEST)}
    listed = manifest.get("signatures", {})
    if manifest["format"] == "keras_transformer.saved_model":
        known = {DEFAULT, "greedy", "beam", "sample", "score", "align"}
        for name in known & listed.keys():
            inputs, outputs = listed[name]["inputs"], listed[name]["outputs"]
            if isinstance(inputs, dict) and isinstance(outputs, dict):
                found[name] = Signature(_tensors(inputs), _tensors(outputs))
        return found
    number = {**_BEST, "log_probability": _NUMBER}
    found["greedy"] = Signature(text, number)
    beams = manifest.get("n_best") or manifest["beam_size"]
    many = {name: Tensor(tensor.dtype, (beams,)) for name, tensor in number.items()}
    found["beam"] = Signature(text, many)
    if "sample" in able:
        found["sample"] = Signature({**text, **_SAMPLING}, number)
    if "score" in able:
        found["score"] = Signature(_PAIR, {"log_probability": _NUMBER, "score": _NUMBER})
    if "align" in able:
        found["align"] = Signature(text, {**_BEST, **_ALIGNED})
    return found


def _tensors(described):
    return {
        name: Tensor(described[name]["dtype"], tuple(described[name]["shape"][1:]))
        for name in sorted(described)
    }


class Model:
    """Runs batches of a signature on what `Translator.load` returns.

    Several threads may call it: as many batches run at once as `threads` says.

    Raises:
        InputError: The folder holds no export, or a damaged one.
    """

    def __init__(self, folder: str, threads: int, max_answer_bytes: int):
        from keras_transformer.translator import Translator

        self._max_answer_bytes = max_answer_bytes
        first = Translator.load(folder, threads)
        self.engine = first.engine
        if self.engine.manifest is None:
            raise InputError(f"{folder}: expected an export. Received: a run folder.")
        self.signatures = signatures_of(self.engine)
        kind = self.engine.manifest.get("runtime", self.engine.manifest["format"])
        # An interpreter of LiteRT runs one batch at a time: each thread has its own.
        engines = [self.engine] * threads
        if kind in ("litert", "keras_transformer.litert", "keras_transformer.web"):
            engines = [Translator.load(folder, 1).engine for _ in range(threads)]
        self._free: queue.SimpleQueue = queue.SimpleQueue()
        for engine in engines:
            self._free.put(engine)

    def run(self, name: str, columns: dict[str, list]) -> list[dict[str, Any]]:
        """Runs a batch; returns the outputs of each sentence by name, numbers as in float32.

        Raises:
            ValueError: A text cannot be taken.
            Rejection: The alignments are longer than an answer may be.
        """
        engine = self._free.get()
        try:
            found = _call(engine, name, columns, self.signatures[name])
        finally:
            self._free.put(engine)
        outputs = self.signatures[name].outputs
        alignments = [each.alignment for each in found if each.alignment is not None]
        if least_bytes(each.size for each in alignments) > self._max_answer_bytes:
            too_long = answer_too_long(self._max_answer_bytes)
            # Counted as a fault of the text: requests of the batch are run again, each alone.
            raise Rejection(too_long.status, too_long.message, "model")
        return [_row(each, outputs, engine.labels) for each in found]

    def warm_up(self, options: ServerOptions) -> int:
        """Runs signatures in each shape that XLA compiles a program for; returns their number.

        Of what is not compiled one batch is run.

        Raises:
            InputError: A signature takes something else than texts or is missing.
        """
        names = options.warm_up_signatures.split(",") if options.warm_up_tokens else []
        for name in names:
            if name not in self.signatures or set(self.signatures[name].inputs) != {"text"}:
                known = ", ".join(n for n, each in self.signatures.items() if "text" in each.inputs)
                rule = f"`warm_up_signatures` must name signatures that take text alone: {known}."
                raise InputError(f"{rule} Received: {name}.")
        shapes = self.engine.manifest.get("shapes", {"rows": [1], "source_lengths": [16]})
        longest = options.warm_up_tokens + 1  # EOS takes one place.
        last = next((n for n in shapes["source_lengths"] if n >= longest), longest)
        batches = [
            (name, [self._text_of(min(length, longest) - 1)] * rows)
            for name in names
            for length in shapes["source_lengths"]
            for rows in shapes["rows"]
            if length <= last and rows < 2 * options.max_batch_size
        ]
        with concurrent.futures.ThreadPoolExecutor(options.threads) as pool:
            list(pool.map(lambda batch: self.run(batch[0], {"text": batch[1]}), batches))
        return len(batches)

    def _text_of(self, count):
        """Returns a text of `count` tokens, about so many where the tokenizer is in the graph."""
        tokenizer = self.engine.source_tokenizer
        for token in range(tokenizer.vocabulary_size if tokenizer else 0):
            text = tokenizer.detokenize([token] * count)
            if text.strip() and list(tokenizer.tokenize(text)) == [token] * count:
                return text
        return " ".join(["a"] * count)


def _call(engine, name, columns, signature):
    """Returns the `Translation` of each sentence."""
    if name == "score":
        return engine.score(columns["source"], columns["target"])
    if engine.labels is not None:
        return engine.translate(columns["text"], n_best=len(engine.labels), long_input="truncate")
    options: dict[str, Any] = {"long_input": "truncate"}
    if name == "greedy":
        options["beam_size"] = 1
    elif name == "beam":
        options["n_best"] = signature.outputs["score"].shape[0]
    elif name == "align":
        options["alignment"] = True
    elif name == "sample":
        options["sampling"] = True
        options |= {option: columns[option][0] for option in PER_BATCH}
        # Out of range, and NaN: the nearest that sampling takes, as in the signature.
        options["temperature"] = max(1e-6, options["temperature"])
        options["top_p"] = min(1.0, max(1e-6, options["top_p"]))
        options |= {"seed": columns["seed"]} if "seed" in columns else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Texts that are cut.
        return engine.translate(columns["text"], **options)


def _row(translation, outputs, labels):
    """Returns outputs of a sentence from its `Translation`."""
    every = [translation, *translation.alternatives]
    if labels is not None:
        by_label = {each.text: each.score for each in every}
        probabilities = [_float32(by_label.get(label, 0.0)) for label in labels]
        return {"label": translation.text, "probabilities": probabilities}
    row = {}
    for name, tensor in outputs.items():
        if len(tensor.shape) == 1 and tensor.shape[0]:  # Hypotheses of a beam.
            missing = "" if tensor.dtype == "string" else float("-inf")
            values = [_field(each, name, tensor.dtype) for each in every[: tensor.shape[0]]]
            row[name] = values + [missing] * (tensor.shape[0] - len(values))
        else:
            row[name] = _field(translation, name, tensor.dtype)
    return row


_FIELDS = {"translation": "text", "target_tokens": "tokens"}


def _field(translation, name, dtype):
    value = getattr(translation, _FIELDS.get(name, name))
    if name == "alignment":
        return [] if value is None else [[_float32(each) for each in row] for row in value]
    if isinstance(value, tuple):
        return list(value)
    if value is None:
        return 0
    return _float32(value) if dtype == "float32" else value


def _float32(value):
    """Returns the shortest decimal that means the float32, as TensorFlow Serving writes it."""
    import numpy as np

    return float(str(np.float32(value)))


class Replica:
    """Deployment that holds a model.

    Args:
        folder: Path of an export, the same on every node.
        number: Version of the model.
        digest: `export_digest` of the export when it was deployed: a replica that finds other
            files does not start.
        options: Options of the server.

    Raises:
        InputError: The export is damaged or another one.
    """

    def __init__(self, folder: str, number: int, digest: str, options: ServerOptions):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from keras_transformer.compilation_cache import enable_compilation_cache

        enable_compilation_cache()
        started = time.monotonic()
        self._number = number
        self._model = Model(folder, options.threads, options.max_answer_bytes)
        # Not before: files that change while they are loaded are found, too.
        if export_digest(folder) != digest:
            raise InputError(f"{folder}: the files have changed since this version was deployed.")
        self._pool = concurrent.futures.ThreadPoolExecutor(options.threads)
        self._timeout = options.batch_timeout
        self._hung = False
        self._model.warm_up(options)
        self._seconds = time.monotonic() - started

    async def describe(self) -> dict[str, Any]:
        """Returns version, signatures, seconds of the start, and if a batch has hung."""
        return {
            "number": self._number,
            "signatures": self._model.signatures,
            "seconds": self._seconds,
            "hung": self._hung,
        }

    async def run(self, name: str, columns: dict[str, list]) -> dict[str, Any]:
        """Runs a batch.

        Returns:
            `rows`; or `error`, a `Rejection`, with a `traceback` of an unforeseen one; or `again`,
            where nothing was run because another batch has hung.
        """
        if self._hung:
            return {"again": True}
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._pool, self._run, name, columns)
        done, _ = await asyncio.wait({work}, timeout=self._timeout)
        if not done:
            self._hung = True
            message = f"The batch has not ended within {self._timeout:g} seconds"
            return {"error": Rejection(504, message, "hung")}
        return work.result()

    def check_health(self) -> None:
        """Raises if a batch has hung: Ray Serve starts another replica."""
        if self._hung:
            raise RuntimeError(f"a batch has run for more than {self._timeout:g} seconds")

    def _run(self, name, columns):
        try:
            return {"rows": self._model.run(name, columns)}
        except Rejection as rejection:
            return {"error": rejection}
        # Told apart here: TensorFlow's exceptions cannot all be sent to another process.
        except ValueError as error:
            return {"error": Rejection(400, _cause(error), "model")}
        except Exception as error:
            if getattr(error, "error_code", None) == _INVALID_ARGUMENT:
                return {"error": Rejection(400, _cause(error), "model")}
            failure = Rejection(500, _cause(error), "model")
            return {"error": failure, "traceback": traceback.format_exc()}


def _cause(error):
    """Returns one line: TensorFlow writes the place in the graph before and after it."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    lines = [line for line in lines if line and not line.startswith("[[")]
    return lines[-1][:300] if lines else type(error).__name__
