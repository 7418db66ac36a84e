"""What runs in each replica: a SavedModel and its threads. Ray Serve starts and restarts it."""

import asyncio
import concurrent.futures
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError, first_line
from keras_transformer.inputs import length_buckets
from keras_transformer.owned_folder import MANIFEST
from keras_transformer.serving.model import folder_digest
from keras_transformer.serving.options import ServerOptions
from keras_transformer.serving.protocol import DEFAULT
from keras_transformer.serving.reporting import Rejection, answer_too_long
from keras_transformer.serving.signatures import (
    PADDED,
    Signature,
    array_bytes,
    read_signatures,
    to_array,
    to_values,
)

_TOKENIZE, _DETOKENIZE = "SentencepieceTokenizeOp", "SentencepieceDetokenizeOp"


class Replica:
    """Holds an artifact, in a process of its own.

    Raises:
        InputError: The folder does not have the `digest` that `folder_digest` gave when this
            version was first loaded: two replicas of it would answer differently.
    """

    def __init__(self, folder: str, options: ServerOptions, digest: str | None = None):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        started = time.monotonic()
        self._artifact = Artifact(folder, options.threads)
        # Not before: files that change while they are loaded are found, too.
        if digest is not None and folder_digest(folder) != digest:
            raise InputError(f"{folder}: the files have changed since this version was loaded.")
        self._pool = concurrent.futures.ThreadPoolExecutor(options.threads)
        self._longest = 2 * options.request_timeout
        self._max_answer_bytes = options.max_answer_bytes
        self._running = {}
        self._artifact.warm_up(options)
        self._seconds = time.monotonic() - started

    async def describe(self) -> tuple[dict[str, Signature], float]:
        """The signatures, and the seconds that loading and warming up took."""
        return self._artifact.signatures, self._seconds

    async def run(self, signature: str, columns: dict[str, list]) -> dict[str, Any]:
        """Runs a signature on one batch.

        Returns:
            `outputs` as `Artifact.run` gives them, and `tokens`, those of the sources and those of
            the translations; or `error`, a `Rejection`, with a `traceback` if nobody foresaw it.
        """
        ticket = object()
        self._running[ticket] = time.monotonic()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._run, signature, columns)
        finally:
            del self._running[ticket]

    def check_health(self):
        """Raises if a batch has hung, upon which Ray Serve starts another replica."""
        begun = min(self._running.values(), default=None)
        if begun is not None and time.monotonic() - begun > self._longest:
            raise RuntimeError(f"a batch has run for more than {self._longest} seconds")

    def _run(self, signature, columns):
        import tensorflow as tf

        try:
            outputs = self._artifact.run(signature, columns)
        # Told apart here: TensorFlow's exceptions cannot all be sent to another process.
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            return {"error": Rejection(400, _cause(error), "model")}
        except Exception as error:
            rejection = Rejection(500, _cause(error), "model")
            return {"error": rejection, "traceback": traceback.format_exc()}
        if array_bytes(outputs) > PADDED * self._max_answer_bytes:
            # As a fault of the model: requests that share the batch are run again, each alone.
            rejection = answer_too_long(self._max_answer_bytes)
            return {"error": Rejection(rejection.status, rejection.message, "model")}
        sources = columns.get("text") or columns.get("source") or []
        targets = outputs.get("translation", [])
        best = [each if isinstance(each, bytes) else each[0] for each in targets]
        tokens = self._artifact.tokens
        counts = tokens.count_sources(sources), tokens.count_targets(best)
        return {"outputs": outputs, "tokens": counts}


def _cause(error):
    """One line: TensorFlow writes the place in the graph before and after it."""
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines()]
    lines = [line for line in lines if line and not line.startswith("[[")]
    return lines[-1][:300] if lines else type(error).__name__


class Artifact:
    """Loads a SavedModel and runs its signatures. Nothing but its graph is run.

    Raises:
        InputError: The folder holds no SavedModel that can be served.
    """

    def __init__(self, folder: str, threads: int | None = None):
        import tensorflow as tf
        import tensorflow_text  # noqa: F401 (registers the tokenizer's operations)
        from tensorflow.python.saved_model import loader_impl

        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        self._folder = os.fspath(folder)
        try:
            graph = loader_impl.parse_saved_model(self._folder).meta_graphs[0]
            found = read_signatures(graph, (Path(folder) / MANIFEST).is_file())
            # Held: the signatures alone do not keep the variables alive.
            self._module = tf.saved_model.load(self._folder)
        # The loader names no exceptions: a damaged file ends in those of protobuf, of the graph
        # importer, of the checkpoint reader or of Python.
        except Exception as error:
            rule = f"{self._folder}: the SavedModel is incomplete or damaged."
            raise InputError(f"{rule} Received: {first_line(error):.300}") from None
        self._functions = self._module.signatures
        self.signatures = {name: found[name] for name in sorted(found) if name in self._functions}
        if not self.signatures:
            raise InputError(f"{self._folder}: no signature takes and gives batches.")
        self.tokens = TokenCounter(graph)

    def run(self, signature: str, columns: dict[str, list]) -> dict[str, Any]:
        """Runs a signature on one batch.

        Inputs have a list with a value for each sentence, outputs such a list or an array.
        """
        import tensorflow as tf

        inputs = self.signatures[signature].inputs
        tensors = {
            key: tf.constant(to_array(values, inputs[key]), inputs[key].dtype)
            for key, values in columns.items()
        }
        results = self._functions[signature](**tensors)
        return {key: to_values(results[key].numpy()) for key in sorted(results)}

    def warm_up(self, options: ServerOptions) -> int:
        """Runs signatures once in each of the shapes that XLA compiles a program for.

        `serving_default` is left out where it takes something else than texts or is missing.

        Returns:
            The number of batches that were run.

        Raises:
            InputError: Another signature takes something else or is missing.
        """
        names = filter(self._is_warmable, options.warm_up_signatures.split(","))
        names = list(names) if options.warm_up_tokens else []
        rows = [1 << power for power in range((options.max_batch_size - 1).bit_length() + 1)]
        # The end of the sentence takes one place.
        lengths = length_buckets(min(options.warm_up_tokens + 1, self._max_source_length()))
        texts = [self.tokens.text_of(columns - 1) for columns in lengths]
        batches = [(name, [text] * count) for name in names for text in texts for count in rows]

        def run(batch):
            name, values = batch
            self.run(name, dict.fromkeys(self.signatures[name].inputs, values))

        with concurrent.futures.ThreadPoolExecutor(options.threads) as pool:
            list(pool.map(run, batches))
        return len(batches)

    def _is_warmable(self, name):
        found = self.signatures.get(name)
        if found is not None and {each.dtype for each in found.inputs.values()} == {"string"}:
            return True
        if name == DEFAULT:  # Nobody asked for it.
            return False
        takes = "no such signature" if found is None else f"inputs {', '.join(found.inputs)}"
        raise InputError(
            f"{self._folder}: a signature to be warmed up takes nothing but texts. "
            f"Received: {name}, {takes}."
        )

    def _max_source_length(self):
        try:
            manifest = json.loads((Path(self._folder) / MANIFEST).read_text(encoding="utf-8"))
            return int(manifest["max_source_length"])
        except (OSError, ValueError, KeyError, TypeError):
            return 512  # Somebody else's SavedModel.


class TokenCounter:
    """The SentencePiece models of a `MetaGraphDef`, for the metrics and the warm-up.

    Without tensorflow-text's operations nothing is counted.
    """

    def __init__(self, graph: Any):
        import sentencepiece

        functions = graph.graph_def.library.function
        models = {}
        for body in [graph.graph_def.node, *(each.node_def for each in functions)]:
            nodes = {node.name: node for node in body}
            for node in body:
                if node.op in (_TOKENIZE, _DETOKENIZE) and node.op not in models and node.input:
                    # In a function an input is `name:output:index`.
                    maker = nodes.get(node.input[0].split(":")[0].lstrip("^"))
                    if maker is not None and maker.op == "SentencepieceOp":
                        models[node.op] = sentencepiece.SentencePieceProcessor(
                            model_proto=maker.attr["model"].s
                        )
        self._source, self._target = models.get(_TOKENIZE), models.get(_DETOKENIZE)

    def count_sources(self, texts: list[bytes]) -> int:
        """Tokens in a list of sources; 0 where there is no tokenizer."""
        # As bytes, as the graph has them: U+FFFD for a broken character would be a space.
        return sum(map(len, self._source.encode(texts))) if self._source else 0

    def count_targets(self, texts: list[bytes]) -> int:
        """Tokens in a list of translations."""
        return sum(map(len, self._target.encode(texts))) if self._target else 0

    def text_of(self, count: int) -> bytes:
        """A text of about `count` tokens, exactly so many where there is a tokenizer."""
        for token in range(self._source.vocab_size() if self._source and count else 0):
            text = self._source.decode([token] * count)
            if text.strip() and self._source.encode(text) == [token] * count:
                return text.encode("utf-8")
        return " ".join(["a"] * count).encode("utf-8")
