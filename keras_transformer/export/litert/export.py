"""Export for LiteRT: text to text, and ids to ids without any custom operation."""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import check_portable, check_transformer
from keras_transformer.engine import Engine
from keras_transformer.errors import InputError, require
from keras_transformer.export.child_process import remote_engine
from keras_transformer.export.exporter import (
    Exporter,
    check_tensorflow,
    log_duration,
    write_tokenizers,
)
from keras_transformer.export.litert.engine import IDS_FILE, TEXT_FILE
from keras_transformer.export.litert.file import convert, custom_operations, join, traced
from keras_transformer.export.options import LiteRTOptions
from keras_transformer.export.texts import fitting_texts, sample_texts, text_batches
from keras_transformer.export.verification import (
    BOUNDS,
    LABEL_BOUNDS,
    LiveAnswers,
    Search,
    verify,
)
from keras_transformer.options import DecodingOptions

SOURCE_LENGTHS = (32, 64, 128)
"""Tokens of a source that signatures are made for, where nothing else is asked for."""

_TEXT_OPERATIONS = ["TFText>FastSentencepieceDetokenize", "TFText>FastSentencepieceTokenize"]


class LiteRTExporter(Exporter):
    """The format `tflite`; a classifier has `model.tflite` alone.

    `model.tflite` takes `text` and gives `translation` and `score` by the signatures `greedy` and
    `beam`. `model_ids.tflite` takes `source_ids` and gives `ids`, `score` and `log_probability`
    by signatures such as `greedy_16` and `beam_32`, one for each length of a source, and has no
    custom operation. Both take any number of sentences. A beam size of 1 leaves out `beam`.
    """

    name = "litert"
    packages = ("ai-edge-litert", "tensorflow", "tensorflow-text", "keras")
    template = "litert.md"
    options = LiteRTOptions
    label_options = ("quantize",)

    def resolve_export_options(self, engine: Engine, options: LiteRTOptions) -> dict[str, Any]:
        if engine.labels is not None:
            check_exportable(engine)
            return {"quantize": options.quantize}
        resolved = resolve_search_options(engine, options, SOURCE_LENGTHS, options.n_best)
        return {**resolved, "ids_only": options.ids_only}

    def write(self, engine: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        options = dict(options)
        if engine.labels is not None:
            from keras_transformer.export.litert.text import litert_function

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
    engine: Any, options: Any, source_lengths: Sequence[int], n_best: int | None
) -> dict[str, Any]:
    """Returns the manifest's fields about the search.

    Args:
        engine: Live engine.
        options: `LiteRTOptions` or `WebOptions`.
        source_lengths: Lengths of the signatures where the options have none: the ones that fit.
        n_best: Hypotheses that beam search returns; all for None.
    """
    check_transformer(engine.model.config, "A LiteRT model")
    check_exportable(engine)
    most = engine.max_source_length
    lengths = sorted(
        {min(each, most) for each in source_lengths}
        if options.source_lengths is None
        else {*options.source_lengths}
    )
    if lengths[-1] > most:
        rule = f"`source_lengths` must be integers from 2 to {most}."
        raise InputError(f"{rule} Received: source_lengths={lengths}.")
    beam_size, penalty = options.beam_size, options.length_penalty
    n_best = beam_size if n_best is None else n_best
    DecodingOptions(beam_size, penalty, n_best=n_best)  # Checks `n_best`.
    return {
        "quantize": options.quantize,
        "searches": ["greedy", "beam"] if beam_size > 1 else ["greedy"],
        "beam_size": beam_size,
        "n_best": n_best,
        "length_penalty": penalty,
        "source_lengths": lengths,
    }


def with_limits(engine: Any, options: dict[str, Any]) -> Engine:
    """Returns a live engine that takes sources up to the longest of an export's lengths."""
    if engine.max_source_length == options["source_lengths"][-1]:
        return engine
    from keras_transformer.decoding import ModelEngine

    tokenizers = engine.source_tokenizer, engine.target_tokenizer
    limits = options["source_lengths"][-1], engine.max_target_length
    return ModelEngine(engine.model, *tokenizers, *limits)


def check_exportable(engine: Any) -> None:
    """Raises `InputError` for a model of any kind that LiteRT cannot have."""
    check_portable(engine.model.config, "A LiteRT model")
    require("ai_edge_litert", "LiteRT", "litert")
    check_tensorflow("LiteRT model")
    if engine.model.compute_dtype != "float32":
        raise InputError(
            "A LiteRT model computes in float32. "
            f"Received: a model that computes in {engine.model.compute_dtype}."
        )


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
    from keras_transformer.export.litert.search import LiteRTSearch

    common = {"length_penalty": options["length_penalty"], "max_length": engine.max_target_length}
    sizes = {"greedy": (1, 1), "beam": (options["beam_size"], options["n_best"])}
    for name in options["searches"]:
        beam_size, n_best = sizes[name]
        found = DecodingOptions(beam_size=beam_size, n_best=n_best, **common)
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


def verify_litert(
    folder: str | os.PathLike,
    engine: Any,
    manifest: dict,
    texts: Sequence[str] | None = None,
) -> dict:
    """Translates with the exported files in fresh processes, and with the live model.

    Every signature is run, of ids at every length of a source. Without `texts` they are of random
    tokens.

    Raises:
        VerificationError: A file does not load or run on its own, takes too long, or translates
            differently.
    """
    texts = sample_texts(engine.source_tokenizer) if texts is None else list(texts)
    if engine.labels is None:
        engine = with_limits(engine, manifest)
        bound, searches = BOUNDS[manifest["quantize"]], _verified_searches(engine, manifest, texts)
    else:
        bound = LABEL_BOUNDS[manifest["quantize"]]
        batches = text_batches(texts, engine.source_tokenizer, engine.max_source_length)
        every = [batch for batch in batches.values() if batch]
        searches = {"labels": Search(every, {"n_best": len(engine.labels)})}
    live = LiveAnswers(engine, manifest.get("length_penalty", 0.0))
    with contextlib.ExitStack() as stack:
        artifacts: dict[str, dict[str, tuple[Engine, Search]]] = {}
        for name in (IDS_FILE, TEXT_FILE):
            if (file := Path(folder) / name).exists():
                tested = stack.enter_context(remote_engine(file))
                artifacts[name] = {key: (tested, each) for key, each in searches.items()}
        return verify(artifacts, live, bound)


def _verified_searches(engine, manifest, texts):
    batches = text_batches(texts, engine.source_tokenizer, engine.max_source_length)
    every = [batches[name] for name in ("all", "too_long", "one", "none")]
    every += [
        fitting_texts(texts, engine.source_tokenizer, length)
        for length in manifest["source_lengths"]
    ]
    common = {"length_penalty": manifest["length_penalty"]}
    sizes = {"greedy": 1, "beam": manifest["beam_size"]}
    return {
        name: Search(every, {**common, "beam_size": sizes[name]}) for name in manifest["searches"]
    }
