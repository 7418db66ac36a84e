"""Marian's tensors as the weights of a `Transformer`."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import received
from keras_transformer.extras.foreign.foreign_model import Tensors
from keras_transformer.extras.foreign.vocabulary import Table, Vocabulary

if TYPE_CHECKING:  # Keras takes seconds, and a reader needs none.
    from keras_transformer.models import Transformer

# Values of weights that a file may lack.
_MISSING = {"bias": 0.0, "gamma": 1.0, "beta": 0.0}
# Axis of the heads, before the axis of a head.
_HEAD_AXIS = {"Wq": 1, "Wk": 1, "Wv": 1, "Wo": 0, "bq": 0, "bk": 0, "bv": 0}
# Axis of the inner units; a bias of a file is `(1, units)`.
_INNER_AXIS = {"ffn_W1": -1, "ffn_b1": -1, "ffn_W2": 0}


def named_weights(model: "Transformer") -> Iterator[tuple[str, Any]]:
    """Yields each weight of the blocks with its name in Marian."""
    suffix = "_pre" if model.config.normalize_first else ""
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, block in enumerate(stack.blocks, 1):
            name = f"{side}_l{number}"
            if side == "decoder" and model.config.decoder == "ssru":
                input_dense, *gates = block.ssru.projections
                yield f"{name}_rnn_W", input_dense.kernel
                yield from _of_dense(f"{name}_rnn", gates, "fo"[: len(gates)])
                norm = f"{name}_rnn" if suffix else f"{name}_rnn_ffn"
                yield from _of_norm(norm, block.ssru_norm, suffix)
            else:
                yield from _of_dense(f"{name}_self", block.self_attention.projections, "qkvo")
                yield from _of_norm(f"{name}_self_Wo", block.self_attention_norm, suffix)
                yield from _of_distances(f"{name}_self", block.self_attention)
            if side == "decoder":
                yield from _of_dense(f"{name}_context", block.cross_attention.projections, "qkvo")
                yield from _of_norm(f"{name}_context_Wo", block.cross_attention_norm, suffix)
            yield from _of_dense(f"{name}_ffn", block.feed_forward.projections, "12")
            yield from _of_norm(f"{name}_ffn_ffn", block.feed_forward_norm, suffix)
        if suffix:
            yield from _of_norm(f"{side}_top", stack.final_norm)


def _of_dense(name, layers, letters):
    for layer, letter in zip(layers, letters, strict=True):
        yield f"{name}_W{letter}", layer.kernel
        yield f"{name}_b{letter}", layer.bias


def _of_distances(name, layer):
    if layer.distance_embeddings is not None:
        yield f"{name}_distance_keys", layer.distance_embeddings
    if layer.distance_values is not None:
        yield f"{name}_distance_values", layer.distance_values


def _of_norm(name, layer, suffix=""):
    yield f"{name}_ln_scale{suffix}", layer.gamma
    yield f"{name}_ln_bias{suffix}", layer.beta


def named_arrays(model: "Transformer") -> Iterator[tuple[str, np.ndarray]]:
    """Yields the weights of the blocks in float32 by Marian's names; see `matrix_of`."""
    for name, variable in named_weights(model):
        yield name, matrix_of(name, variable)


def matrix_of(name: str, variable: Any, heads: int | None = None) -> np.ndarray:
    """Returns a weight of a block in float32, as a matrix `(inputs, outputs)` or a vector.

    The heads of an attention are consecutive columns, and for its output consecutive rows.

    Args:
        name: Marian's name.
        variable: The weight.
        heads: Number of heads of a program that has one number for all blocks. Missing heads are
            filled with zeros.
    """
    array = np.asarray(variable, "float32")
    axis = _HEAD_AXIS.get(name.rpartition("_")[2])
    if axis is None:
        return array
    missing = np.zeros((array.ndim, 2), int)
    missing[axis, 1] = heads - array.shape[axis] if heads else 0
    array = np.pad(array, missing)
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def fill(model: "Transformer", tensors: Tensors, vocabularies: Sequence[Vocabulary]) -> None:
    """Assigns the tensors of a file to the weights of a model."""
    for name, variable in named_weights(model):
        missing = _MISSING.get(variable.name)
        default = None if missing is None else np.full(variable.shape, missing)
        _assign(variable, tensors.get(name, default), tensors.file, _INNER_AXIS.get(name[-6:]))
    if model.config.positions == "learned":
        for side, layer in (
            ("encoder", model.source_positions),
            ("decoder", model.target_positions),
        ):
            table = tensors.get(f"{side}_Wpos")[: model.config.max_length]
            _assign(layer.embeddings, table, tensors.file)
    _fill_tables(model, tensors, *vocabularies)  # Last: their copies need the most memory.
    tensors.check_all_used()


def _fill_tables(model, tensors, source, target):
    file, shared = tensors.file, tensors.arrays.get("Wemb")
    names = ["encoder_Wemb", "decoder_Wemb"] if shared is None else ["Wemb", "Wemb"]
    if model.source_embedding is not model.target_embedding:
        table = source.table(tensors.get_rows(names[0]), file)
        _assign(model.source_embedding.embeddings, table, file)
        tensors.arrays |= {} if shared is None else {"Wemb": shared}
    table = target.table(tensors.get_rows(names[1]), file)
    _assign(model.target_embedding.embeddings, table, file)
    if model.output_projection is not None:
        name = "decoder_ff_logit_out_W"
        output = tensors.get(name).T if name in tensors else tensors.get(f"{name}t")
        _assign(model.output_projection.kernel, target.table(output, file)[:].T, file)
    bias = tensors.get("decoder_ff_logit_out_b", np.zeros(len(target.names)))
    _assign(model.output_bias, target.bias(bias, file), file)


def _assign(variable, values, file, inner_axis=None):
    """Assigns values of the variable's size; a narrower feed-forward is padded with zeros.

    An inner unit of zeros is 0 after each supported activation, and its output weights are 0.
    """
    shape = tuple(variable.shape)
    if inner_axis is not None:
        padding = np.zeros((values.ndim, 2), int)
        padding[inner_axis, 1] = max(0, shape[inner_axis] - values.shape[inner_axis])
        values = np.pad(values, padding)
    if math.prod(values.shape) != math.prod(shape):
        rule = f"{file}: the shape of {variable.path} must be {shape}"
        raise InputError(f"{rule}. Received: {received(values.shape)}.")
    from keras_transformer.base.large_variables import assign_rows  # Late: it imports Keras.

    try:
        assign_rows(variable, [values if isinstance(values, Table) else values.reshape(shape)])
    except ValueError as error:  # numbers that half precision does not have
        raise InputError(f"{file}: {error} Import it with `--dtype float32`.") from None
