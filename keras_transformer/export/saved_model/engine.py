"""Translating with an exported SavedModel."""

import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.imports import import_tensorflow
from keras_transformer.decoding.search_options import FILTERS
from keras_transformer.engine.device import give_tensorflow
from keras_transformer.engine.engine import Engine
from keras_transformer.engine.inputs import encoded, in_batches
from keras_transformer.engine.label_engine import LabelEngine
from keras_transformer.engine.request import CALL_OPTIONS, OptionRules, Request
from keras_transformer.engine.translation import CONTINUATION, Translation
from keras_transformer.export.manifest import has_labels, opened_export, read_languages
from keras_transformer.export.saved_model.session import load_saved_model
from keras_transformer.export.signature import SAMPLING_INPUTS
from keras_transformer.text.dialog import Turns
from keras_transformer.text.per_text import LANGUAGE_OPTIONS

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


def open_export(path: Path, threads: int | None) -> "SavedModelEngine | ExportedClassifier":
    """Opens the folder of an export, of a classifier too."""
    import_tensorflow()
    if threads is not None:
        give_tensorflow(threads)
    return ExportedClassifier(path) if has_labels(path) else SavedModelEngine(path)


class SavedModelEngine(Engine):
    """Translates with a folder that `export_saved_model` wrote, without model code.

    Raises:
        InputError: The folder is missing, incomplete, damaged or no SavedModel export.
    """

    noun = "a SavedModel"
    long_inputs = ("truncate",)  # The graph truncates longer texts.
    option_rules = OptionRules(
        translate=({*CALL_OPTIONS} - {"long_input"}) | {"n_best", "sampling", *SAMPLING_INPUTS}
    )
    batch_size = 32

    def __init__(self, folder: str | os.PathLike):
        noun = "a SavedModel"
        with opened_export(Path(folder), ("saved_model",), _FIELDS, noun) as self.manifest:
            self._run, tokenizers = load_saved_model(folder)
        self.source_tokenizer, self.target_tokenizer = tokenizers
        self.languages = read_languages(self.manifest, self.source_tokenizer)
        turns = self.manifest.get("turns")
        self.turns = None if turns is None else Turns(*turns)
        self.reads_sources = self.manifest["kind"] != "language_model"
        self.max_source_length = self.manifest["max_source_length"]
        self.max_target_length = self.manifest["max_target_length"]
        self._signatures = tuple(self.manifest["signatures"])
        names: Any = set(self._signatures)
        self.capabilities = frozenset({"translate", *{"score", "sample", "align"} & names})

    def request(self, beam_size: int | None = None, **options: Any) -> Request:
        """Checks the options of `translate`; `beam_size` is 1 or the export's."""
        request = super().request(**options)
        return dataclasses.replace(request, signature=self._signature_for(beam_size, request))

    def search(self, jobs, request):
        directions = [job.direction for job in jobs]
        rows = {"text": [job.source for job in jobs], **self._language_inputs(directions)}
        if request.options.sampling:
            rows["seed"] = [job.seed for job in jobs]
            for name in FILTERS:
                rows[name] = [getattr(request.options, name)] * len(jobs)
        outputs = self._call(request.signature, rows, request.batch_size)
        return [hypotheses_of(row, request.options.n_best) for row in outputs]

    def score_pairs(self, pairs, request):
        sources, targets, directions = zip(*pairs, strict=True)
        inputs = {"source": sources, "target": targets, **self._language_inputs(directions)}
        rows = self._call("score", inputs, request.batch_size)
        return [Translation("", float(row["score"]), float(row["log_probability"])) for row in rows]

    def _language_inputs(self, directions):
        """Returns the inputs of a signature that name languages, "" for an unnamed language."""
        if self.languages is None:
            return {}
        codes = zip(*(direction.codes for direction in directions), strict=True)
        named = zip(LANGUAGE_OPTIONS, codes, strict=True)
        return {
            name: [code or "" for code in values]
            for name, values in named
            if name in self.languages.inputs
        }

    def _signature_for(self, beam_size, request):
        """Returns the name of the signature for these options."""
        n_best = request.options.n_best
        if request.options.sampling:
            self._check_signature("sample", "`sampling`")
            self._check_one("n_best", n_best, "of samples")
            self._check_not_aligned(request.alignment, "sampling=True")
            return "sample"
        is_searched = self.manifest["beam_size"] != 1
        if beam_size == 1 and is_searched and "greedy" in self._signatures:
            self._check_one("n_best", n_best, "of greedy search")
            self._check_not_aligned(request.alignment, "beam_size=1")
            return "greedy"
        self.check_fixed({"beam_size": beam_size})
        if request.alignment:
            self._check_one("n_best", n_best, "with `alignment`")
            return "align"
        if n_best > 1:
            self._check_signature("beam", f"n_best={n_best}")
        return "beam" if "beam" in self._signatures else "serving_default"

    def error_of_lack(self, capability, option=None):
        if capability in ("score", "align"):
            return self._lacks_signature(capability, f"`{option or capability}`")
        return super().error_of_lack(capability, option)

    def _check_signature(self, signature, option):
        if signature not in self._signatures:
            raise self._lacks_signature(signature, option)

    @staticmethod
    def _lacks_signature(signature, option):
        return InputError(
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


def hypotheses_of(row: dict, n_best: int = 1) -> list[Translation]:
    """Converts one row of the outputs of a signature to the hypotheses of its sentence."""
    # A blank text has an empty translation with the probability 1.
    if np.max(row["score"]) == 0 and not any(np.ravel(row["translation"])):
        return [Translation("", 0.0)]
    if row["score"].ndim:
        columns = ({key: values[i] for key, values in row.items()} for i in range(n_best))
        return [translation for column in columns for translation in hypotheses_of(column)]
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
    return [Translation(text.decode("utf-8"), float(row["score"]), log_probability, **fields)]


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
