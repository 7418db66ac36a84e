"""Translating with an exported SavedModel."""

import contextlib
import dataclasses
import importlib.machinery
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.decoding.options import FILTERS, DecodingOptions
from keras_transformer.engine.engine import (
    Engine,
    LabelEngine,
    encoded,
    label_translation,
    with_alternatives,
)
from keras_transformer.engine.inputs import checked_list, in_batches, one_for_each
from keras_transformer.engine.manifest import opened_export
from keras_transformer.engine.translation import CONTINUATION, Translation
from keras_transformer.errors import InputError, first_line
from keras_transformer.options import check_positive
from keras_transformer.text import Tokenizer
from keras_transformer.text.dialog import Turns

IDS = "ids"
"""The subfolder with the SavedModel from ids to ids."""


SAMPLING_INPUTS = {"seed": "int32", **FILTERS}
"""Types of the inputs of `sample` in addition to the text."""


_TEXT = {"text": ("string", 1)}


INPUTS = {
    "serving_default": _TEXT,
    "greedy": _TEXT,
    "beam": _TEXT,
    "sample": {
        **_TEXT,
        **{name: (dtype, 1) for name, dtype in SAMPLING_INPUTS.items()},
    },
    "score": {"source": ("string", 1), "target": ("string", 1)},
    "align": _TEXT,
    "serving_ids": {"source_ids": ("int32", 2)},
}
"""The type and the number of axes of each signature's inputs; the first axis is the batch."""


_FIELDS = {
    "kind": str,
    "beam_size": int,
    "length_penalty": (int, float),
    "n_best": int,
    "largest_chunk": int,
    "max_source_length": int,
    "max_target_length": int,
    "signatures": dict,
}


class SavedModelEngine(Engine):
    """Translates with a folder that `export_saved_model` wrote, without model code.

    Attributes:
        manifest: The content of its `export.json`.

    Raises:
        InputError: The folder is missing, incomplete, damaged or no SavedModel export.
    """

    noun = "a SavedModel"
    long_inputs = ("truncate",)  # The graph truncates longer texts.
    search_options = tuple(SAMPLING_INPUTS)

    def __init__(self, folder: str | os.PathLike):
        noun = "a SavedModel"
        with opened_export(Path(folder), ("saved_model",), _FIELDS, noun) as self.manifest:
            self._run, tokenizers = load_saved_model(folder)
        self.source_tokenizer, self.target_tokenizer = tokenizers
        turns = self.manifest.get("turns")
        self.turns = None if turns is None else Turns(*turns)
        self.reads_sources = self.manifest["kind"] != "language_model"
        self.max_source_length = self.manifest["max_source_length"]
        self.max_target_length = self.manifest["max_target_length"]
        self._signatures = tuple(self.manifest["signatures"])
        names: Any = set(self._signatures)
        self.capabilities = frozenset({"translate", *{"score", "sample", "align"} & names})

    def translate(
        self,
        texts: Sequence[str],
        beam_size: int | None = None,
        length_penalty: float | None = None,
        n_best: int = 1,
        batch_size: int = 32,
        alignment: bool = False,
        sampling: bool = False,
        **other_options,
    ) -> list[Translation]:
        """Translates texts, in batches of similar length.

        Args (see `ModelEngine.translate` for the other arguments):
            texts: Strings. A text longer than the export's `max_source_length` is truncated; a
                conversation loses its oldest turns.
            beam_size: None or the value that the export was made with; or 1 for greedy search.
            length_penalty: None, or the value that the export was made with.
            n_best: Number of hypotheses per text, at most the export's beam size.
            batch_size: Maximum number of sentences in one call of the compiled search; the export
                itself takes at most its `largest_chunk`.
            sampling: Sample one translation instead of searching, with `temperature`, `top_k`,
                `top_p` and `seed` of `DecodingOptions`.
            **other_options: Other options of `ModelEngine.translate`, at the export's values: their
                defaults, and `long_input="truncate"`.

        Returns:
            A list of `Translation`, in the order of `texts`; they have tokens only with
            `alignment`. If the export has only `serving_default`, the log-probability is NaN,
            except for blank texts.

        Raises:
            InputError: The export does not support an option, or a text is no valid string.
        """
        decoding_options = DecodingOptions(
            beam_size=max(self.manifest["beam_size"], n_best if sampling else 1),
            n_best=n_best,
            sampling=sampling,
            **{key: other_options[key] for key in self.search_options if key in other_options},
        )
        check_positive(batch_size=batch_size)
        name = self._signature_for(beam_size, length_penalty, n_best, alignment, sampling)
        self.check_fixed(other_options, self.search_options)
        inputs: dict[str, list] = {"text": encoded("texts", texts)}
        if sampling:
            count = len(inputs["text"])
            inputs["seed"] = one_for_each("seed", decoding_options.seed, count)
            for option in FILTERS:
                inputs[option] = [getattr(decoding_options, option)] * count
        rows = self._call(name, inputs, batch_size)
        return [to_translation(row, n_best) for row in rows]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        length_penalty: float | None = None,
        batch_size: int = 32,
        **options: Any,
    ) -> list[Translation]:
        """Scores given translations as `ModelEngine.score`, only texts, and truncates long texts.

        Raises:
            InputError: There are not as many targets as sources, an option differs from the
                export's value, or the export has no signature `score`.
        """
        self._check_signature("score", "`score`")
        self.check_fixed({"length_penalty": length_penalty, **options})
        check_positive(batch_size=batch_size)
        sources, targets = checked_list("sources", sources), checked_list("targets", targets)
        inputs = {"source": encoded("sources", sources), "target": encoded("targets", targets)}
        if len(sources) != len(targets):
            raise InputError(
                "There must be a target for each source. "
                f"Received: {len(sources)} sources and {len(targets)} targets."
            )
        rows = self._call("score", inputs, batch_size)
        return [
            Translation(text, float(row["score"]), float(row["log_probability"]))
            for text, row in zip(targets, rows, strict=True)
        ]

    @property
    def fixed_options(self) -> dict[str, Any]:
        """Values of the options that the export was made with."""
        return {**super().fixed_options, "long_input": "truncate"}

    def _signature_for(self, beam_size, length_penalty, n_best, alignment, sampling):
        """Returns the name of the signature for these options."""
        self.check_fixed({"length_penalty": length_penalty})
        if sampling:
            self._check_signature("sample", "`sampling`")
            self._check_one("n_best", n_best, "of samples")
            self._check_not_aligned(alignment, "sampling=True")
            return "sample"
        exported_beam_size = self.manifest["beam_size"]
        if beam_size == 1 and exported_beam_size != 1 and "greedy" in self._signatures:
            self._check_one("n_best", n_best, "of greedy search")
            self._check_not_aligned(alignment, "beam_size=1")
            return "greedy"
        self.check_fixed({"beam_size": beam_size})
        if alignment:
            self._check_signature("align", "`alignment`")
            self._check_one("n_best", n_best, "with `alignment`")
            return "align"
        if n_best > 1:
            self._check_signature("beam", f"n_best={n_best}")
        return "beam" if "beam" in self._signatures else "serving_default"

    def _check_signature(self, signature, option):
        if signature not in self._signatures:
            raise InputError(
                f"{option} needs the signature `{signature}`, which this export does not have."
            )

    @staticmethod
    def _check_not_aligned(alignment, search_option):
        if alignment:
            rule = "Alignments (`alignment`, `markup=html`) need beam search in a SavedModel."
            raise InputError(f"{rule} Received: {search_option}.")

    @staticmethod
    def _check_one(name, value, search_noun):
        if value != 1:
            raise InputError(
                f"`{name}` must be 1 {search_noun} in an export. Received: {name}={value}."
            )

    def _call(self, name, inputs, batch_size):
        """Returns rows of outputs, dicts of arrays, in the order of the inputs."""

        def call(indices):
            batch_inputs = {key: [values[i] for i in indices] for key, values in inputs.items()}
            return list(rows_of(self._run(name, batch_inputs), len(indices)))

        lengths = [len(value) for value in next(iter(inputs.values()))]
        if batch_size >= self.manifest["largest_chunk"] and lengths:
            # One call, because the graph sorts by number of tokens and divides into chunks.
            return call(range(len(lengths)))
        return in_batches(lengths, batch_size, [call])


def rows_of(outputs: dict[str, np.ndarray], count: int) -> Iterator[dict]:
    """Yields one dict per text of a call, with its row of each output."""
    for index in range(count):
        yield {name: values[index] for name, values in outputs.items()}


def to_translation(row: dict, n_best: int = 1, labels: Sequence[str] | None = None) -> Translation:
    """Converts one row of the outputs of a signature to a `Translation`."""
    if labels is not None:
        best = label_translation(row["probabilities"], labels, n_best)
        return dataclasses.replace(best, text=row["label"].decode("utf-8"))
    # A blank text has an empty translation with the probability 1.
    if np.max(row["score"]) == 0 and not any(np.ravel(row["translation"])):
        return Translation("", 0.0)
    if row["score"].ndim:
        columns = ({key: values[i] for key, values in row.items()} for i in range(n_best))
        return with_alternatives([to_translation(column) for column in columns])
    fields = {}
    if "alignment" in row:
        source, target = (
            tuple(token.decode("utf-8") for token in row[f"{side}_tokens"] if token)
            for side in ("source", "target")
        )
        alignment = row["alignment"][: len(target), : len(source)].copy()
        fields = {"tokens": target, "source_tokens": source, "alignment": alignment}
    fields |= {name: row[name].item() for name in CONTINUATION if name in row}
    log_probability = float(row.get("log_probability", math.nan))
    text = row["translation"]  # a Python object already, or an array of one
    text = text if isinstance(text, bytes) else text.item()
    return Translation(text.decode("utf-8"), float(row["score"]), log_probability, **fields)


def read_translations(
    answers: Sequence[dict[str, np.ndarray]], labels: Sequence[str] | None = None
) -> list[Translation]:
    """Converts outputs to translations, with the alignments of `align` if given.

    Args:
        answers: Outputs of `serving_default`, and of `align` for the same texts.
        labels: Labels of a classifier.
    """
    translations, *alignments = (
        [
            to_translation(row, labels=labels)
            for row in rows_of(outputs, len(min(outputs.values(), key=len)))
        ]
        for outputs in answers
    )
    if not alignments:
        return translations
    return [
        dataclasses.replace(
            translation, alignment=aligned.alignment, log_probability=aligned.log_probability
        )
        for translation, aligned in zip(translations, alignments[0], strict=True)
    ]


def load_saved_model(folder: str | os.PathLike) -> tuple[Callable, tuple]:
    """Loads a SavedModel with tensorflow-text's operations.

    Returns:
        `call(signature, inputs)`, and the tokenizers of `tokenizers_of` its graph.

    Raises:
        InputError: The folder is incomplete or damaged.
    """
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    tf.load_op_library(operations_library())
    unknown = []
    try:
        graph = graph_in(folder)
        unknown = [name for name in sorted(operations_of(graph)) if not op_def_registry.get(name)]
        if not unknown:
            return _load_in_session(os.fspath(folder)), tokenizers_of(graph)
        reason = f"unknown operations: {', '.join(unknown)}"
    # The loader documents no exceptions: a damaged file raises exceptions of protobuf, of the graph
    # importer, of the checkpoint reader or of Python.
    except Exception as error:
        reason = first_line(error)
    raise InputError(
        f"{os.fspath(folder)}: the SavedModel is incomplete or damaged. Received: {reason:.300}"
    )


def _load_in_session(folder):
    """Loads a SavedModel with the TensorFlow 1 loader.

    It takes a fraction of the time of `tf.saved_model.load`, which makes Python objects of all
    operations of all functions. Returns `call(signature, inputs)`, which returns a dict of arrays.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    session = tf.compat.v1.Session(graph=tf.Graph(), config=config)
    with session.graph.as_default(), _quiet(tf.get_logger()):
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], folder)

    def call(name, inputs):
        signature = meta.signature_def[name]
        feeds = {}
        for argument, values in inputs.items():
            info = signature.inputs[argument]
            shape = None if values else [0] * len(info.tensor_shape.dim)
            tensor = tf.make_tensor_proto(values, info.dtype, shape)
            feeds[info.name] = tf.make_ndarray(tensor)
        return session.run({key: output.name for key, output in signature.outputs.items()}, feeds)

    return call


@contextlib.contextmanager
def _quiet(logger):
    """Hides warnings, because TensorFlow calls the TensorFlow 1 loader deprecated."""
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


class ExportedClassifier(LabelEngine):
    """Labels texts with the SavedModel of a classifier, without model code.

    Raises:
        InputError: The folder is incomplete, damaged or no export of a classifier.
    """

    long_inputs = ("truncate",)

    def __init__(self, folder: str | os.PathLike):
        folder, fields = Path(folder), {"labels": list, "max_source_length": int}
        with opened_export(folder, ("saved_model",), fields, "a classifier") as self.manifest:
            self._call, (self.source_tokenizer, _) = load_saved_model(folder)
        self.labels = self.manifest["labels"]
        self.max_source_length = self.manifest["max_source_length"]

    def probabilities(self, texts, batch_size=32, long_input="truncate"):
        encoded_texts = encoded("texts", texts)
        probabilities = [np.zeros((0, len(self.labels)), "float32")]
        for start in range(0, len(encoded_texts), batch_size):
            batch = encoded_texts[start : start + batch_size]
            outputs = self._call("serving_default", {"text": batch})
            self._check_labels(outputs)
            probabilities.append(outputs["probabilities"])
        return np.concatenate(probabilities)

    def _check_labels(self, outputs):
        """Raises `InputError` unless the graph names the most probable label of each text."""
        rows = outputs["probabilities"]
        expected = [self.labels[np.argmax(row)] if row.any() else "" for row in rows]
        received = [label.decode("utf-8") for label in outputs["label"]]
        if received != expected:
            rule = "The export must name the most probable label of each text."
            raise InputError(f"{rule} Received: {received!r:.100} instead of {expected!r:.100}.")


def graph_in(folder: str | os.PathLike):
    """Returns the `GraphDef` of a SavedModel."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = (Path(folder) / "saved_model.pb").read_bytes()
    return saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def


def tokenizers_of(graph) -> tuple[Tokenizer | None, Tokenizer | None]:
    """Returns the source's and the target's tokenizer inside a `GraphDef`.

    The target's tokenizer is the tokenizer that detokenizes. A classifier has no such tokenizer.
    """
    tokenizing, detokenizing = set(), set()
    for function in graph.library.function:
        operations = {node.op for node in function.node_def}
        models = detokenizing if "SentencepieceDetokenizeOp" in operations else tokenizing
        models |= {
            node.attr["model"].s for node in function.node_def if node.op == "SentencepieceOp"
        }
    tokenizers = {model: Tokenizer(model) for model in tokenizing | detokenizing}
    # `score` also tokenizes targets.
    sources = (tokenizing - detokenizing) or tokenizing
    source, target = (next(iter(models), None) for models in (sources, detokenizing))
    return tokenizers.get(source), tokenizers.get(target)


def operations_of(graph) -> set[str]:
    """Returns the names of the operations in a `GraphDef` and its functions."""
    # Not from `meta_info_def`, whose list lacks operations in the body of a loop.
    library = graph.library.function
    functions = {function.signature.name for function in library}
    nodes = [
        *graph.node,
        *(node for function in library for node in function.node_def),
    ]
    return {node.op for node in nodes} - functions


def operations_library() -> str:
    """Returns the path of the shared object with tensorflow-text's operations of SentencePiece.

    `import tensorflow_text` would import Keras, which takes seconds.
    """
    package = importlib.machinery.PathFinder.find_spec("tensorflow_text")
    if package is None or not package.submodule_search_locations:
        raise InputError("A SavedModel needs the package tensorflow-text, which is not installed.")
    folder = os.path.join(package.submodule_search_locations[0], "python", "ops")
    return os.path.join(folder, "_sentencepiece_tokenizer.so")
