"""Export for LiteRT: text to text, and ids to ids without any custom operation."""

import hashlib
import importlib.metadata
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from keras_transformer.config import check_choice, check_portable, check_transformer
from keras_transformer.engine import Engine
from keras_transformer.errors import InputError
from keras_transformer.export.classifier import classifier_readme
from keras_transformer.export.exporter import (
    Exporter,
    ExportReport,
    check_no_other_options,
    check_tensorflow,
    log_duration,
    write_tokenizers,
)
from keras_transformer.export.litert.engine import IDS_FILE, TEXT_FILE
from keras_transformer.export.litert.file import convert, custom_operations, join, traced
from keras_transformer.export.litert.quantization import QUANTIZATIONS
from keras_transformer.export.litert.verification import verify_litert

SOURCE_LENGTHS = (32, 64, 128)
"""Tokens of a source that signatures are made for, where nothing else is asked for."""

_TEXT_OPERATIONS = ["TFText>FastSentencepieceDetokenize", "TFText>FastSentencepieceTokenize"]


def export_litert(
    engine: Engine,
    output: str | os.PathLike,
    quantize: Literal["none", "float16", "int8"] = "none",
    beam_size: int = 4,
    length_penalty: float = 0.6,
    n_best: int | None = None,
    source_lengths: Sequence[int] | None = None,
    ids_only: bool = False,
    verification_texts: Sequence[str] | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Writes a folder with LiteRT models, verified against the live model.

    `model.tflite` takes `text` and gives `translation` and `score` by the signatures `greedy` and
    `beam`. `model_ids.tflite` takes `source_ids` and gives `ids`, `score` and `log_probability`
    by signatures such as `greedy_16` and `beam_32`, one for each length of a source, and has no
    custom operation. Both take any number of sentences. The folder gets its name after a fresh
    process without TensorFlow has given the live model's translations.

    Args (the others are those of `export_saved_model`):
        quantize: Storage of the products' weights: `"none"` (float32), `"float16"` or `"int8"`
            (the products are then computed in int8, dynamic range).
        beam_size: Hypotheses of the signatures of beam search; 1 leaves these signatures out.
        n_best: Hypotheses that beam search returns; all by default.
        source_lengths: Tokens of a source, its end included, of each signature of ids; the
            largest is the most that a text may have. `SOURCE_LENGTHS` by default.
        ids_only: Whether `model.tflite` is left out.

    Raises:
        InputError: An option is out of range, `output` exists, or the run has something that
            LiteRT or tensorflow-text's operations for it do not.
        ImportError: `ai-edge-litert` is not installed; it comes with the extra `litert`.
        VerificationError: The export does not translate as the live model does.
    """
    options: dict[str, Any] = {
        "quantize": quantize,
        "beam_size": beam_size,
        "length_penalty": length_penalty,
    }
    options |= {"n_best": n_best, "source_lengths": source_lengths, "ids_only": ids_only}
    return LiteRTExporter().export(engine, output, verification_texts, overwrite, **options)


class LiteRTExporter(Exporter):
    """The format `tflite`; a classifier has `model.tflite` alone."""

    name = "litert"
    packages = ("ai-edge-litert", "tensorflow", "tensorflow-text", "keras")
    template = "litert.md"

    def resolve_export_options(self, engine: Engine, **options: Any) -> dict[str, Any]:
        if engine.labels is not None:
            quantize = options.pop("quantize", "none")
            check_no_other_options("a classifier", options)
            check_exportable(engine, quantize)
            return {"quantize": quantize}
        ids_only = options.pop("ids_only", False)
        return {**resolve_search_options(engine, **options), "ids_only": ids_only}

    def write(self, engine: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        options = dict(options)
        if engine.labels is not None:
            from keras_transformer.export.classifier_graphs import litert_function

            with log_duration("signature traced and saved"):
                functions = [("serving_default", litert_function(engine))]
                parts = convert(functions, custom_operations=True)
                contents = {TEXT_FILE: join(parts, options["quantize"])}
        else:
            engine = with_limits(engine, options)
            contents = _contents(engine, options, options.pop("ids_only"))
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        fields = {**options, "files": {name: description(each) for name, each in contents.items()}}
        if engine.labels is not None:
            return fields
        limit = {"max_source_length": engine.max_source_length}
        return {**fields, **limit, **write_tokenizers(engine, folder)}

    def verify(
        self, engine: Engine, folder: Path, manifest: dict, texts: Sequence[str] | None
    ) -> dict[str, Any]:
        return verify_litert(folder, engine, manifest, texts)

    def readme(self, manifest: dict) -> str:
        if "labels" in manifest:
            return classifier_readme(manifest, "load_litert.md")
        return super().readme(manifest)

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        files = [
            f"| `{name}` | {each['bytes']:,} | {', '.join(each['custom_operations']) or 'none'} |"
            for name, each in manifest["files"].items()
        ]
        return {
            "files": "\n".join(files),
            "lengths": ", ".join(map(str, manifest["source_lengths"])),
            "length": manifest["source_lengths"][-1],
            "all_searches": " and ".join(f"`{name}`" for name in manifest["searches"]),
        }


def resolve_search_options(
    engine: Any,
    quantize: str = "none",
    beam_size: int = 4,
    length_penalty: float = 0.6,
    n_best: int | None = None,
    source_lengths: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Returns the manifest's fields about the search; raises what `export_litert` does."""
    check_transformer(engine.model.config, "A LiteRT model")
    check_exportable(engine, quantize)
    lengths = _checked_lengths(engine, source_lengths)
    n_best = beam_size if n_best is None else n_best
    searched = {"beam_size": beam_size, "n_best": n_best, "length_penalty": length_penalty}
    engine.translate([], **searched)  # Checks these options.
    searches = ["greedy", "beam"] if beam_size > 1 else ["greedy"]
    return {"quantize": quantize, "searches": searches, **searched, "source_lengths": lengths}


def with_limits(engine: Any, options: dict[str, Any]) -> Engine:
    """Returns a live engine that takes sources up to the longest of an export's lengths."""
    if engine.max_source_length == options["source_lengths"][-1]:
        return engine
    from keras_transformer.decoding import ModelEngine

    tokenizers = engine.source_tokenizer, engine.target_tokenizer
    limits = options["source_lengths"][-1], engine.max_target_length
    return ModelEngine(engine.model, *tokenizers, *limits)


def check_exportable(engine: Any, quantize: str) -> None:
    """Raises what `export_litert` does for a model of any kind that LiteRT cannot have."""
    check_portable(engine.model.config, "A LiteRT model")
    try:
        importlib.metadata.version("ai-edge-litert")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError('LiteRT is needed: pip install "keras_transformer[litert]".') from None
    check_tensorflow("LiteRT model")
    check_choice("quantize", quantize, QUANTIZATIONS)
    if engine.model.compute_dtype != "float32":
        raise InputError(
            "A LiteRT model computes in float32. "
            f"Received: a model that computes in {engine.model.compute_dtype}."
        )


def _checked_lengths(engine, source_lengths):
    """Lengths of the signatures of ids, ascending; `SOURCE_LENGTHS` that fit by default."""
    most = engine.max_source_length
    if source_lengths is None:
        longest = min(most, SOURCE_LENGTHS[-1])
        return [*(each for each in SOURCE_LENGTHS if each < longest), longest]
    lengths = sorted(set(source_lengths))
    if not lengths or not all(isinstance(each, int) and 2 <= each <= most for each in lengths):
        raise InputError(
            f"`source_lengths` must be integers from 2 to {most}. "
            f"Received: source_lengths={list(source_lengths)}."
        )
    return lengths


def _contents(engine, options, ids_only):
    """The content of each file, by its name."""
    functions = ids_to_ids(engine, options)
    searches, quantize = options["searches"], options["quantize"]
    if not ids_only:
        functions = itertools.chain(functions, _text_to_text(engine, options))
    parts = convert(functions, custom_operations=not ids_only)
    ids = [part for part in parts if part.name not in searches]
    with log_duration("files written"):
        contents = {IDS_FILE: join(ids, quantize)}
        check_custom_ops(contents[IDS_FILE], [])
        if not ids_only:
            text = [part for part in parts if part.name in searches]
            contents[TEXT_FILE] = join(text, quantize)
            check_custom_ops(contents[TEXT_FILE], _TEXT_OPERATIONS)
    return contents


def _searches(engine, options):
    """`(name, LiteRTSearch)` for any source that the engine takes."""
    from keras_transformer.export.litert.search import LiteRTOptions, LiteRTSearch

    sizes = {"greedy": (1, 1), "beam": (options["beam_size"], options["n_best"])}
    for name in options["searches"]:
        beam_size, n_best = sizes[name]
        penalty, most = float(options["length_penalty"]), engine.max_target_length
        found = LiteRTOptions(beam_size, penalty, n_best, most)
        yield name, LiteRTSearch(engine.model, found, engine.max_source_length)


def ids_to_ids(
    engine: Engine, options: dict[str, Any], batch_sizes: Sequence[int | None] = (None,)
) -> Iterator[tuple]:
    """Yields `(name, concrete function)` of each signature from ids to ids.

    `greedy_32` takes any number of sentences, `greedy_4x32` four: a batch size of None or 4.
    """
    import tensorflow as tf

    for name, search in _searches(engine, options):
        for rows, length in itertools.product(batch_sizes, options["source_lengths"]):
            spec = tf.TensorSpec((rows, length), tf.int32, name="source_ids")
            shape = f"{rows}x{length}" if rows else length
            yield f"{name}_{shape}", traced(search.__call__, spec)


def _text_to_text(engine, options):
    """`(name, concrete function)` of each signature from text to text."""
    import tensorflow as tf

    from keras_transformer.export.litert.text import text_to_text

    tokenizers = engine.source_tokenizer, engine.target_tokenizer
    for name, search in _searches(engine, options):
        function = text_to_text(search, *tokenizers, engine.max_source_length)
        yield name, traced(function, tf.TensorSpec((None,), tf.string, name="text"))


def description(content: bytes) -> dict[str, Any]:
    """Returns a manifest's entry about a LiteRT file."""
    return {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "custom_operations": custom_operations(content),
    }


def check_custom_ops(content: bytes, allowed: list[str]) -> None:
    """Raises `RuntimeError` for operations (Flex for one) that LiteRT does not bring."""
    found = custom_operations(content)
    if found != allowed:
        raise RuntimeError(f"The custom operations must be {allowed}. Received: {found}.")
