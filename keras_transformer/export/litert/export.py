"""Export for LiteRT: one file from ids to ids, with the tokenizers next to it."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.base.errors import InputError, require
from keras_transformer.base.files import SHORTLIST_FILE, write_whole
from keras_transformer.base.memory import is_large
from keras_transformer.base.reading import file_digests
from keras_transformer.decoding.search_options import DecodingOptions, exported_search_options
from keras_transformer.engine.model_engine import ModelEngine
from keras_transformer.export.child_process import engine_process
from keras_transformer.export.exporter import Exporter, check_tensorflow, read_template
from keras_transformer.export.litert.engine import MODEL_FILE
from keras_transformer.export.litert.export_options import LiteRTOptions
from keras_transformer.export.litert.file import convert, custom_operations, join, traced
from keras_transformer.export.litert.tokenizer_json import write_all_tokenizers
from keras_transformer.export.readme_languages import example_of
from keras_transformer.export.supported import check_portable, check_transformer
from keras_transformer.export.verification import TOLERANCES, verify

SOURCE_LENGTHS = (16, 32, 64, 128)
"""Numbers of source tokens that signatures are made for by default."""
SOURCE_LENGTHS_WITH_SHORTLIST = (12, 16, 20, 24, 32, 48, 64, 128)
"""The default with a shortlist: reading the source, with its padding, is most of the work then.

A page took 0.86 of the time. Each signature of a student of 17 M parameters takes 20 kB of the
file, and 10 MB of memory while it is loaded.
"""

_LIST_SCRIPT = "readme_list.py.txt"
_LIST_FIELDS = {
    "list_inputs": ", candidates=candidates, candidate_bias=bias",
    "list_arguments": ", `candidates` `[c]`, `candidate_bias` `[b, c]`",
    "list_rule": """- `candidates` are ids that translations are made of: those that
  `shortlist.npy` has for the source ids of the batch. `candidate_bias` is 0 for the candidates of
  a sentence, and -1e9 for candidates of other sentences. Scores are over a sentence's candidates.
""",
}
"""Parts of the README of an export with a shortlist."""


class LiteRTExporter(Exporter):
    """The format `litert`: `model.tflite` and the tokenizers.

    The file takes `source_ids` and gives `ids`, `score` and `log_probability` by signatures such as
    `greedy_32` and `beam_64`, one per length of a source, for any number of sentences. `align`
    takes one source and its translation, of any lengths. The file has no custom operation. A beam
    size of 1 leaves out `beam`.
    """

    format_name = "litert"
    packages = ("ai-edge-litert", "tensorflow", "keras")
    reading_packages = ("ai-edge-litert",)

    def resolve_export_options(self, engine: ModelEngine, options: LiteRTOptions) -> dict[str, Any]:
        listed = options.shortlist
        lengths: Sequence[int] = SOURCE_LENGTHS_WITH_SHORTLIST if listed else SOURCE_LENGTHS
        if is_large(engine.model):  # LiteRT packs all weights again for each signature that runs.
            lengths = lengths[-1:]
        return resolve_search_options(engine, options, lengths, options.n_best)

    def write(self, engine: ModelEngine, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
        engine = with_limits(engine, options)
        write_whole(folder / MODEL_FILE, model_file(engine, options))
        if engine.shortlist is not None and options["shortlist"]:
            engine.shortlist.save(folder / SHORTLIST_FILE)
        return {
            **options,
            "max_source_length": engine.max_source_length,
            **write_all_tokenizers(engine, folder),
            "files": described_files(folder),
        }

    def verify(
        self,
        engine: ModelEngine,
        folder: Path,
        manifest: dict,
        texts: Sequence[str] | None,
        disposable_weights: bool = False,
    ) -> dict[str, Any]:
        return verify_litert(folder, engine, manifest, texts, disposable_weights)

    def readme_fields(self, manifest: dict) -> dict[str, str]:
        example = example_of(manifest)
        lines = [f"ids = [{_id_of('source', piece)}, *ids]\n" for piece in example.source_prefix]
        lines += [f"ids.append({_id_of('source', piece)})\n" for piece in example.source_suffix]
        forced = (f"[{_id_of('target', piece)}]" for piece in example.target_prefix)
        return {
            "language_lines": "".join(lines),
            "language_inputs": "".join(f', forced_ids=np.array({ids}, "int32")' for ids in forced),
            "bytes": f"{manifest['files'][MODEL_FILE]['bytes']:,}",
            "weights": {"none": "float32"}.get(manifest["quantize"], manifest["quantize"]),
            "lengths": ", ".join(map(str, manifest["source_lengths"])),
            "length": manifest["source_lengths"][-1],
            "all_searches": " and ".join(f"`{name}`" for name in manifest["searches"]),
            "list_script": read_template(__file__, _LIST_SCRIPT).template
            if manifest["shortlist"]
            else "",
            **(_LIST_FIELDS if manifest["shortlist"] else dict.fromkeys(_LIST_FIELDS, "")),
        }


def _id_of(side, piece):
    return f'{side}.piece_to_id("{piece}")'


def resolve_search_options(
    engine: ModelEngine, options: Any, source_lengths: Sequence[int], n_best: int | None
) -> dict[str, Any]:
    """Returns the manifest's fields about the search.

    Args:
        engine: Engine of the trained model.
        options: `LiteRTOptions` or `WebOptions`.
        source_lengths: Default lengths of the signatures; longer ones than the engine takes fall
            back to its limit.
        n_best: Number of hypotheses that beam search returns; None for all.
    """
    check_exportable(engine)
    longest = engine.max_source_length
    lengths = sorted(
        {min(length, longest) for length in source_lengths}
        if options.source_lengths is None
        else {*options.source_lengths}
    )
    if lengths[-1] > longest:
        rule = f"`source_lengths` must be integers from 2 to {longest}."
        raise InputError(f"{rule} Received: source_lengths={lengths}.")
    search_options = exported_search_options(vars(options))
    n_best = options.beam_size if n_best is None else n_best
    DecodingOptions(**search_options, n_best=n_best)  # Checks them.
    return {
        "quantize": options.quantize,
        "searches": ["greedy", "beam"] if options.beam_size > 1 else ["greedy"],
        **search_options,
        "n_best": n_best,
        "source_lengths": lengths,
    }


def with_limits(engine: ModelEngine, options: dict[str, Any]) -> ModelEngine:
    """Returns an engine that takes sources up to the longest of an export's lengths."""
    return engine.with_(max_source_length=options["source_lengths"][-1])


def check_exportable(engine: ModelEngine) -> None:
    """Raises `InputError` for a model that cannot be exported for LiteRT."""
    check_transformer(engine.model.config, "A LiteRT model")
    check_portable(engine.model.config, "A LiteRT model")
    require("ai_edge_litert", "LiteRT", "litert")
    check_tensorflow("LiteRT model")
    if engine.model.compute_dtype != "float32":
        raise InputError(
            "A LiteRT model computes in float32. "
            f"Received: a model that computes in {engine.model.compute_dtype}."
        )


def _searches(engine, options):
    """Yields `(name, LiteRTSearch)` of each search, for any source that the engine takes."""
    from keras_transformer.export.litert.search import LiteRTSearch

    beam = search_options(engine, options)
    searches = {"greedy": dataclasses.replace(beam, beam_size=1, n_best=1), "beam": beam}
    for name in options["searches"]:
        limit, is_forced = engine.max_source_length, engine.has_target_prefix
        yield name, LiteRTSearch(engine.model, searches[name], limit, is_forced)


def search_options(engine: ModelEngine, options: dict[str, Any]) -> DecodingOptions:
    """Returns the options of the largest search of an export."""
    limits = {"n_best": options["n_best"], "max_length": engine.max_target_length}
    return DecodingOptions(**exported_search_options(options), **limits)


def ids_to_ids(
    engine: ModelEngine, options: dict[str, Any], batch_sizes: Sequence[int | None] = (None,)
) -> Iterator[tuple]:
    """Yields `(name, concrete function)` of each signature from ids to ids.

    With a shortlist a signature also takes candidates. In some models of several languages it takes
    forced ids; see `LiteRTSearch`. `greedy_32` takes any number of sentences, `greedy_4x32` takes
    four: a batch size of None or 4. The number of candidates is any, or one of `list_sizes` in the
    options.
    """
    import tensorflow as tf

    for name, search in _searches(engine, options):
        for rows, length in itertools.product(batch_sizes, options["source_lengths"]):
            shape = f"{rows}x{length}" if rows else length
            specs = [tf.TensorSpec((rows, length), tf.int32, name="source_ids")]
            if options["shortlist"]:
                count = options["list_sizes"][shape] if rows else None
                specs.append(tf.TensorSpec((count,), tf.int32, name="candidates"))
                specs.append(tf.TensorSpec((rows, count), tf.float32, name="candidate_bias"))
            if engine.has_target_prefix:
                specs.append(tf.TensorSpec((rows,), tf.int32, name="forced_ids"))
            yield f"{name}_{shape}", traced(search.__call__, *specs)


def _alignment(engine, options, shape):
    """Yields `(name, concrete function)` of the signature `align`.

    `shape` is the numbers of source and target tokens; None are any numbers.
    """
    import tensorflow as tf

    from keras_transformer.export.litert.alignment import LiteRTAlignment

    # Equal to `LiteRTSearch`'s: a forced token has a position, too.
    longest = max(engine.max_source_length, engine.max_target_length + engine.has_target_prefix)
    align = LiteRTAlignment(engine.model, longest)
    pairs = zip(("source_ids", "target_ids"), shape, strict=True)
    specs = [tf.TensorSpec((1, size), tf.int32, name=name) for name, size in pairs]
    yield "align", traced(align.__call__, *specs)


def model_file(
    engine: ModelEngine,
    options: dict[str, Any],
    batch_sizes: Sequence[int | None] = (None,),
    align_shape: tuple[int | None, int | None] = (None, None),
) -> memoryview:
    """Returns a file with the searches of `ids_to_ids`, and `align` for one pair of sequences.

    `align_shape` is the numbers of source and target tokens; None are any numbers.

    Raises:
        RuntimeError: The file needs operations that LiteRT does not include, such as Flex.
    """
    functions = ids_to_ids(engine, options, batch_sizes), _alignment(engine, options, align_shape)
    content = join(convert(itertools.chain(*functions)), options["quantize"])
    if names := custom_operations(content):
        raise RuntimeError(f"LiteRT's own operations must be enough. Received: {names}.")
    return content


def described_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the manifest's entries about the files of an export with a LiteRT model."""
    described = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": digest}
        for name, digest in file_digests(folder).items()
    }
    described[MODEL_FILE]["custom_operations"] = []  # as `model_file` has checked
    return described


def verify_litert(
    folder: Path,
    engine: ModelEngine,
    manifest: dict,
    texts: Sequence[str] | None,
    disposable_weights: bool,
) -> dict[str, Any]:
    """Translates in a process without Keras and TensorFlow; see `verification.verify`."""
    options = {**exported_search_options(manifest), "alignment": True}
    with engine_process(folder) as child:
        engine, tolerance = with_limits(engine, manifest), TOLERANCES[manifest["quantize"]]
        return verify(child, engine, texts, tolerance, disposable_weights, **options)
