"""Export as a SavedModel that takes text and gives text."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from keras_transformer.decoding import ModelEngine
from keras_transformer.errors import InputError, VerificationError
from keras_transformer.export.manifest import (
    ExportReport,
    check_tensorflow,
    common_fields,
    phase,
    staged_export,
    write_tokenizers,
)
from keras_transformer.export.saved_model.verification import CHUNK_SIZE, IDS, verify
from keras_transformer.files import file_digests
from keras_transformer.inputs import length_buckets

_TEXT = {"text": ("string", 1)}
INPUTS = {
    "serving_default": _TEXT,
    "greedy": _TEXT,
    "beam": _TEXT,
    "sample": {
        **_TEXT,
        "seed": ("int32", 1),
        "temperature": ("float32", 1),
        "top_k": ("int32", 1),
        "top_p": ("float32", 1),
    },
    "score": {"source": ("string", 1), "target": ("string", 1)},
    "align": _TEXT,
    "serving_ids": {"source_ids": ("int32", 2)},
}
"""The type and the number of axes of each signature's inputs; the first axis is the batch."""

SIGNATURES = tuple(INPUTS)


def export_saved_model(
    engine: ModelEngine,
    output: str | os.PathLike,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    verification_texts: list[str] | None = None,
    overwrite: bool = False,
    signatures: Iterable[str] = SIGNATURES,
) -> ExportReport:
    """Writes a SavedModel with the tokenizers inside, verified against the live model.

    Its signature `serving_default` takes `text`, string `(batch,)`, and gives `translation`,
    string `(batch,)`, and `score`, float32 `(batch,)`: the same as `engine.translate`. With
    `serving_ids` a second SavedModel lies in the subfolder `ids`, from ids to ids, without
    tensorflow-text's operations, and the tokenizers' files beside it. The folder gets its name
    after fresh processes, through both of TensorFlow's loaders, have given the live model's
    answers; until then, and after any failure, nothing is there.

    Args:
        output: Path of the folder to make.
        beam_size: Hypotheses that stay alive; 1 is greedy search. Fixed in the export.
        length_penalty: Exponent of the GNMT length penalty. Fixed in the export.
        verification_texts: A list of source sentences to verify with, 200 or more to be telling.
            By default texts of random tokens of the source vocabulary.
        overwrite: Whether an earlier export of that name is replaced.
        signatures: Names from `SIGNATURES`; `serving_default` is always there.

    Raises:
        InputError: An option is out of range, `output` exists, or Keras runs on a backend other
            than TensorFlow.
        VerificationError: The export does not translate as the live model does.
    """
    check_tensorflow("SavedModel")
    from keras_transformer.export.saved_model.batches import ROWS
    from keras_transformer.export.saved_model.signatures import Signatures

    engine.translate([], beam_size=beam_size, length_penalty=length_penalty)  # Checks both.
    names = check_signatures(signatures, bool(engine.model.config.heads_of("cross")))
    with staged_export(output, overwrite) as (folder, finish):
        saved = save(engine, folder, Signatures(engine, beam_size, length_penalty), names)
        manifest = {
            **common_fields("saved_model", 2, engine, ("tensorflow", "tensorflow-text", "keras")),
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "n_best": 1,
            "largest_chunk": CHUNK_SIZE,
            # XLA compiles a program for each pair of these, when it first occurs.
            "shapes": {
                "rows": list(ROWS),
                "source_lengths": length_buckets(engine.max_source_length),
                "target_lengths": length_buckets(engine.max_target_length),
            },
            **saved,
            "files": file_digests(folder),
        }
        return finish(manifest, lambda: verify(folder, engine, manifest, verification_texts))


def check_signatures(names: Iterable[str], with_attention: bool = True) -> list[str]:
    """The names in the order of `SIGNATURES`; `serving_default` is always among them.

    Of a model without attention all names are all but `align`.

    Raises:
        InputError: A name is unknown, or asks for attention that the model has none of.
    """
    names = set(names)
    if not with_attention and "align" in names:
        if names != set(SIGNATURES):
            raise InputError("The signature `align` needs attention, which the model has none of.")
        names.remove("align")
    for name in names:
        if name not in INPUTS:
            raise InputError(
                f"`signatures` must be among {', '.join(SIGNATURES)}. Received: {name!r}."
            )
    return [name for name in SIGNATURES if name in {"serving_default", *names}]


def trackable_variables(model):
    """The weights of a Keras model as plain TensorFlow variables, for a SavedModel to track.

    Tracking the model itself gives each weight a second handle that nothing initializes: the
    Python loader works, sessions (TensorFlow Serving, the C library) end with "uninitialized".
    """
    return [variable.value for variable in model.variables]


def save(engine, folder: Path, signatures, names: Iterable[str]) -> dict:
    """Writes a SavedModel of some `Signatures`; gives what the manifest says of it."""
    import tensorflow as tf

    from keras_transformer.export.saved_model.batches import write_warmup

    with phase("signatures traced and saved"):
        module = tf.Module()
        module.weights = trackable_variables(engine.model)
        functions = {name: signatures.concrete(name) for name in names}
        tf.saved_model.save(module, os.fspath(folder), functions)
        if "serving_ids" in functions:
            _save_ids(engine, folder, module, functions["serving_ids"])
    return {**_operations(folder, functions), "warmup": write_warmup(folder, engine, names)}


def _save_ids(engine, folder, module, function):
    """A SavedModel of its own: a graph that knows tensorflow-text's operations does not load
    where these are missing, whichever signature is asked for."""
    import tensorflow as tf

    ids = folder / IDS
    tf.saved_model.save(
        module, os.fspath(ids), {"serving_default": function, "serving_ids": function}
    )
    # The same weights under the same names: one file on the disk for both.
    shutil.rmtree(ids / "variables")
    (ids / "variables").mkdir()
    for path in (folder / "variables").iterdir():
        try:
            os.link(path, ids / "variables" / path.name)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, ids / "variables" / path.name)
    write_tokenizers(engine, ids)


def _operations(folder, functions):
    """The manifest's signatures, of concrete functions, and the operations in the folder."""
    custom, used = _custom_ops(), operations_in(folder)
    if (folder / IDS).exists() and (wrong := operations_in(folder / IDS) & custom):
        raise VerificationError(
            "The SavedModel from ids to ids must have core operations alone. "
            f"Received: {', '.join(sorted(wrong))}."
        )
    return {
        "signatures": {name: _signature(each, custom) for name, each in functions.items()},
        "custom_ops": sorted(used & custom),
        "core_ops": sorted(used - custom),
    }


def _signature(function, custom):
    def described(specs):
        return {
            name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
            for name, spec in sorted(specs.items())
        }

    inputs = {spec.name: spec for spec in function.structured_input_signature[0]}
    return {
        "inputs": described(inputs),
        "outputs": described(function.structured_outputs),
        "custom_ops": sorted(_operations_of(function.graph.as_graph_def()) & custom),
    }


def _custom_ops():
    """Names of the operations that tensorflow-text brings."""
    import tensorflow as tf
    import tensorflow_text

    libraries = Path(tensorflow_text.__file__).parent.glob("python/ops/_*.so")
    # Loaded already: this only gives the wrappers, which are named like the operations.
    brought = {name for path in libraries for name in dir(tf.load_op_library(os.fspath(path)))}
    # The wrappers' modules hold more names than those, `Any` of typing for one.
    return brought - set(dir(tf.raw_ops))


def operations_in(folder: str | os.PathLike) -> set[str]:
    """Names of the operations in a SavedModel, those of its functions too."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = (Path(folder) / "saved_model.pb").read_bytes()
    return _operations_of(saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def)


def _operations_of(graph):
    # Not the list of operations in `meta_info_def`: it misses those in the body of a loop.
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    return {node.op for node in nodes} - functions
