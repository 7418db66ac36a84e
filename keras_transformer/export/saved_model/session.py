"""Loads the graph of a SavedModel, which computes in a session, and reads its tokenizers."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from keras_transformer.base.errors import InputError, first_line
from keras_transformer.text import Tokenizer


def load_saved_model(folder: str | os.PathLike) -> tuple[Callable, tuple]:
    """Loads a SavedModel with tensorflow-text's operations.

    Returns:
        `call(signature, inputs)`, and the tokenizers of `tokenizers_of` its graph.

    Raises:
        InputError: The folder is incomplete or damaged, or tensorflow-text is missing.
    """
    from tensorflow.python.framework import op_def_registry

    from keras_transformer.export.saved_model.graph_tokenizer import load_operations

    load_operations()
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
