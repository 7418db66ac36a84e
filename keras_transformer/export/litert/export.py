"""Export for LiteRT: text to text, and ids to ids without any custom operation."""

import hashlib
import importlib.metadata
import itertools
import os
from typing import Literal

from keras_transformer.config import check_choice, check_portable, check_transformer
from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.export.fresh_process import IDS_FILE, TEXT_FILE
from keras_transformer.export.litert.file import convert, custom_operations, join, traced
from keras_transformer.export.litert.quantization import QUANTIZATIONS
from keras_transformer.export.litert.verification import verify_litert
from keras_transformer.export.manifest import (
    ExportReport,
    check_tensorflow,
    common_fields,
    phase,
    staged_export,
    write_tokenizers,
)
from keras_transformer.inputs import is_integer

SOURCE_LENGTHS = (32, 64, 128)
"""Tokens of a source that signatures are made for, where nothing else is asked for."""

_TEXT_OPERATIONS = ["TFText>FastSentencepieceDetokenize", "TFText>FastSentencepieceTokenize"]


def export_litert(
    engine: ModelEngine,
    output: str | os.PathLike,
    quantize: Literal["none", "float16", "int8"] = "none",
    beam_size: int = 4,
    length_penalty: float = 0.6,
    n_best: int | None = None,
    source_lengths: list[int] | None = None,
    ids_only: bool = False,
    verification_texts: list[str] | None = None,
    overwrite: bool = False,
) -> ExportReport:
    """Writes a folder with LiteRT models, verified against the live model.

    `model.tflite` takes `text` and gives `translation` and `score` by the signatures `greedy` and
    `beam`. `model_ids.tflite` takes `source_ids` and gives `ids`, `score` and `log_probability`
    by signatures such as `greedy_16` and `beam_32`, one for each length of a source, and has no
    custom operation. Both take any number of sentences. The folder gets its name after a fresh
    process without TensorFlow has given the live model's translations.

    Args (the others are those of `export_saved_model`):
        quantize: How the weights of the products are stored: `"none"` (float32), `"float16"` or
            `"int8"` (and the products then computed in int8, dynamic range).
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
    n_best = beam_size if n_best is None else n_best
    engine, searches, fields = prepared(
        engine, quantize, beam_size, length_penalty, n_best, source_lengths
    )
    with staged_export(output, overwrite) as (folder, finish):
        lengths = fields["source_lengths"]
        contents = _files(engine, searches, lengths, length_penalty, quantize, ids_only)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        packages = ("ai-edge-litert", "tensorflow", "tensorflow-text", "keras")
        manifest = {
            **common_fields("litert", 1, engine, packages),
            **fields,
            **write_tokenizers(engine, folder),
            "files": {name: description(content) for name, content in contents.items()},
        }
        return finish(manifest, lambda: verify_litert(folder, engine, manifest, verification_texts))


def prepared(engine, quantize, beam_size, length_penalty, n_best, source_lengths):
    """The engine with an export's limits, its searches, and what the manifest says of these.

    Raises what `export_litert` does for options and models that LiteRT cannot have.
    """
    check_transformer(engine.model.config, "A LiteRT model")
    check_exportable(engine, quantize)
    lengths = _checked_lengths(engine, source_lengths)
    tokenizers = engine.source_tokenizer, engine.target_tokenizer
    engine = ModelEngine(engine.model, *tokenizers, lengths[-1], engine.max_target_length)
    searched = {"beam_size": beam_size, "n_best": n_best, "length_penalty": length_penalty}
    engine.translate([], **searched)  # Checks these options.
    searches = {"greedy": (1, 1)} | ({"beam": (beam_size, n_best)} if beam_size > 1 else {})
    fields = {"quantize": quantize, "searches": list(searches), **searched}
    return engine, searches, {**fields, "source_lengths": lengths}


def check_exportable(engine, quantize):
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
    if not lengths or not all(is_integer(each) and 2 <= each <= most for each in lengths):
        raise InputError(
            f"`source_lengths` must be integers from 2 to {most}. "
            f"Received: source_lengths={list(source_lengths)}."
        )
    return lengths


def _files(engine, searches, lengths, length_penalty, quantize, ids_only):
    """The content of each file, by its name."""
    functions = ids_to_ids(engine, searches, lengths, length_penalty)
    if not ids_only:
        functions = itertools.chain(functions, _text_to_text(engine, searches, length_penalty))
    parts = convert(functions, custom_operations=not ids_only)
    ids = [part for part in parts if part.name not in searches]
    with phase("files written"):
        contents = {IDS_FILE: without_others(join(ids, quantize), [])}
        if not ids_only:
            text = [part for part in parts if part.name in searches]
            contents[TEXT_FILE] = without_others(join(text, quantize), _TEXT_OPERATIONS)
    return contents


def _searches(engine, searches, length_penalty):
    """`(name, LiteRTSearch)` for any source that the engine takes."""
    from keras_transformer.export.litert.search import LiteRTOptions, LiteRTSearch

    for name, (beam_size, n_best) in searches.items():
        options = LiteRTOptions(beam_size, float(length_penalty), n_best, engine.max_target_length)
        yield name, LiteRTSearch(engine.model, options, engine.max_source_length)


def ids_to_ids(engine, searches, lengths, length_penalty, batch_sizes=(None,)):
    """`(name, concrete function)` of each signature from ids to ids.

    `greedy_32` takes any number of sentences, `greedy_4x32` four: a batch size of None or 4.
    """
    import tensorflow as tf

    for name, search in _searches(engine, searches, length_penalty):
        for rows, length in itertools.product(batch_sizes, lengths):
            spec = tf.TensorSpec((rows, length), tf.int32, name="source_ids")
            shape = f"{rows}x{length}" if rows else length
            yield f"{name}_{shape}", traced(search.__call__, spec)


def _text_to_text(engine, searches, length_penalty):
    """`(name, concrete function)` of each signature from text to text."""
    import tensorflow as tf

    from keras_transformer.export.litert.text import text_to_text

    tokenizers = engine.source_tokenizer, engine.target_tokenizer
    for name, search in _searches(engine, searches, length_penalty):
        function = text_to_text(search, *tokenizers, engine.max_source_length)
        yield name, traced(function, tf.TensorSpec((None,), tf.string, name="text"))


def description(content):
    """What a manifest says of a LiteRT file."""
    return {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "custom_operations": custom_operations(content),
    }


def without_others(content, allowed):
    """The same, after it is seen to hold no operation (of Flex for one) that is not wanted."""
    found = custom_operations(content)
    if found != allowed:
        raise RuntimeError(f"The custom operations must be {allowed}. Received: {found}.")
    return content
