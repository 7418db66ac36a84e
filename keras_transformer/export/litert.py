"""Export for LiteRT: text to text, and ids to ids without any custom operation."""

import importlib.metadata
import itertools
import os
import time

from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.export.litert_file import FORMAT, convert, custom_operations, join
from keras_transformer.export.litert_process import IDS_FILE, TEXT_FILE
from keras_transformer.export.litert_quantization import QUANTIZATIONS
from keras_transformer.export.litert_readme import readme
from keras_transformer.export.litert_search import Search
from keras_transformer.export.litert_strategies import Options
from keras_transformer.export.litert_text import text_to_text
from keras_transformer.export.litert_verification import verify_litert
from keras_transformer.export.manifest import write_json
from keras_transformer.export.saved_model import ExportReport
from keras_transformer.files import MANIFEST, staged_folder

SOURCE_LENGTHS = (32, 64, 128)
"""Tokens of a source that signatures are made for, where nothing else is asked for."""

_TEXT_OPERATIONS = ["TFText>FastSentencepieceDetokenize", "TFText>FastSentencepieceTokenize"]


def export_litert(
    engine,
    output,
    quantize="none",
    beam_size=4,
    length_penalty=0.6,
    n_best=None,
    source_lengths=None,
    ids_only=False,
    verification_texts=None,
    overwrite=False,
):
    """Writes a folder with LiteRT models, verified against the live model.

    `model.tflite` takes `text` and gives `translation` and `score` by the signatures `greedy` and
    `beam`. `model_ids.tflite` takes `source_ids` and gives `ids`, `score` and `log_probability`
    by signatures such as `greedy_16` and `beam_32`, one for each length of a source, and has no
    custom operation. Both take any number of sentences. The folder gets its name after a fresh
    process without TensorFlow has given the live model's translations.

    Args:
        engine: `ModelEngine`.
        output: Path of the folder to make.
        quantize: How the weights of the products are stored: `"none"` (float32), `"float16"` or
            `"int8"` (and the products then computed in int8, dynamic range).
        beam_size: Hypotheses of the signatures of beam search; 1 leaves these signatures out.
        length_penalty: Exponent of the GNMT length penalty.
        n_best: Hypotheses that beam search returns; all by default.
        source_lengths: Tokens of a source, its end included, of each signature of ids; the
            largest is the most that a text may have. `SOURCE_LENGTHS` by default.
        ids_only: Whether `model.tflite` is left out.
        verification_texts: A list of sentences to verify with, 200 or more to be telling.
        overwrite: Whether an earlier export of that name is replaced.

    Returns:
        `ExportReport`.

    Raises:
        InputError: An option is out of range, `output` exists, or the run has something that
            LiteRT or tensorflow-text's operations for it do not.
        ImportError: `ai-edge-litert` is not installed; it comes with the extra `litert`.
        VerificationError: The export does not translate as the live model does.
    """
    start = time.perf_counter()
    _check(engine, quantize)
    n_best = beam_size if n_best is None else n_best
    lengths = _lengths(engine, source_lengths)
    engine = ModelEngine(
        engine.model,
        engine.source_tokenizer,
        engine.target_tokenizer,
        max_source_length=lengths[-1],
        max_target_length=engine.max_target_length,
    )
    # Checks these options.
    engine.translate([], beam_size=beam_size, length_penalty=length_penalty, n_best=n_best)
    searches = {"greedy": (1, 1)}
    if beam_size > 1:
        searches["beam"] = (beam_size, n_best)
    with staged_folder(output, overwrite) as folder:
        names = _write_tokenizers(engine, folder)
        contents = _files(engine, searches, lengths, length_penalty, quantize, ids_only)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
        manifest = {
            "format": FORMAT,
            "format_version": 1,
            "quantize": quantize,
            "searches": list(searches),
            "beam_size": beam_size,
            "n_best": n_best,
            "length_penalty": length_penalty,
            "source_lengths": lengths,
            "max_source_length": lengths[-1],
            "max_target_length": engine.max_target_length,
            **names,
            "source_vocabulary_size": engine.source_tokenizer.vocabulary_size,
            "target_vocabulary_size": engine.target_tokenizer.vocabulary_size,
            "files": {name: _description(content) for name, content in contents.items()},
            "versions": _versions(),
        }
        write_json(folder / MANIFEST, manifest)
        (folder / "README.md").write_text(readme(manifest), encoding="utf-8")
        verification = verify_litert(folder, engine, manifest, verification_texts)
        write_json(folder / "verification.json", verification)
    seconds = time.perf_counter() - start
    return ExportReport(os.fspath(output), manifest, verification, seconds)


def _check(engine, quantize):
    import keras

    try:
        importlib.metadata.version("ai-edge-litert")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError('LiteRT is needed: pip install "keras_transformer[litert]".') from None
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            "A LiteRT model is exported on Keras' TensorFlow backend. "
            f"Received: backend={keras.backend.backend()!r}."
        )
    if quantize not in QUANTIZATIONS:
        raise InputError(
            f"`quantize` must be one of {', '.join(QUANTIZATIONS)}. "
            f"Received: quantize={quantize!r}."
        )
    if engine.model.compute_dtype != "float32":
        raise InputError(
            "A LiteRT model computes in float32. "
            f"Received: a model that computes in {engine.model.compute_dtype}."
        )


def _lengths(engine, source_lengths):
    most = engine.max_source_length
    if source_lengths is None:
        longest = min(most, SOURCE_LENGTHS[-1])
        return [*(each for each in SOURCE_LENGTHS if each < longest), longest]
    lengths = sorted(set(source_lengths))
    if not lengths or any(
        isinstance(each, bool) or not isinstance(each, int) or not 2 <= each <= most
        for each in lengths
    ):
        raise InputError(
            f"`source_lengths` must be integers from 2 to {most}. "
            f"Received: source_lengths={list(source_lengths)}."
        )
    return lengths


def _options(engine, beam_size, n_best, length_penalty):
    return Options(beam_size, float(length_penalty), n_best, engine.max_target_length)


def _files(engine, searches, lengths, length_penalty, quantize, ids_only):
    """The content of each file, by its name."""
    functions = _ids_to_ids(engine, searches, lengths, length_penalty)
    if not ids_only:
        functions = itertools.chain(functions, _text_to_text(engine, searches, length_penalty))
    parts = convert(functions, custom_operations=not ids_only)
    ids = [part for part in parts if part.name not in searches]
    contents = {IDS_FILE: _checked(join(ids, quantize), [])}
    if not ids_only:
        text = [part for part in parts if part.name in searches]
        contents[TEXT_FILE] = _checked(join(text, quantize), _TEXT_OPERATIONS)
    return contents


def _ids_to_ids(engine, searches, lengths, length_penalty):
    """`(name, concrete function)` of each signature from ids to ids."""
    import tensorflow as tf

    for name, (beam_size, n_best) in searches.items():
        options = _options(engine, beam_size, n_best, length_penalty)
        for length in lengths:
            spec = tf.TensorSpec((None, length), tf.int32, name="source_ids")
            search = Search(engine.model, options, lengths[-1])
            yield f"{name}_{length}", _traced(search.__call__, spec)


def _text_to_text(engine, searches, length_penalty):
    """`(name, concrete function)` of each signature from text to text."""
    import tensorflow as tf

    for name, (beam_size, n_best) in searches.items():
        options = _options(engine, beam_size, n_best, length_penalty)
        function = text_to_text(
            Search(engine.model, options, engine.max_source_length),
            engine.source_tokenizer,
            engine.target_tokenizer,
            engine.max_source_length,
        )
        yield name, _traced(function, tf.TensorSpec((None,), tf.string, name="text"))


def _traced(function, spec):
    import tensorflow as tf

    return tf.function(function, [spec], autograph=False).get_concrete_function()


def _checked(content, allowed):
    """The same, after it is seen to hold no operation (of Flex for one) that is not wanted."""
    found = custom_operations(content)
    if found != allowed:
        raise RuntimeError(f"The custom operations must be {allowed}. Received: {found}.")
    return content


def _description(content):
    import hashlib

    return {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "custom_operations": custom_operations(content),
    }


def _write_tokenizers(engine, folder):
    source, target = engine.source_tokenizer, engine.target_tokenizer
    if source == target:
        names = ["tokenizer.model"] * 2
    else:
        names = ["source_tokenizer.model", "target_tokenizer.model"]
        target.save(folder / names[1])
    source.save(folder / names[0])
    return dict(zip(("source_tokenizer", "target_tokenizer"), names, strict=True))


def _versions():
    import keras_transformer

    packages = ("ai-edge-litert", "tensorflow", "tensorflow-text", "keras")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"keras_transformer": keras_transformer.__version__, **versions}
