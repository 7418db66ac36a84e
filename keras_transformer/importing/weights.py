"""Marian's tensors as the weights of a `Transformer`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.errors import InputError
from keras_transformer.importing.vocabulary import Vocabulary
from keras_transformer.models import Transformer


class Tensors:
    """Tensors of a file by name; each must be used exactly once.

    Args:
        arrays: Arrays by their names in Marian; matrices `(inputs, outputs)`.
        file: The file, for errors.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], file: Any):
        self.arrays, self.file = dict(arrays), file

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def get(self, name: str, default: np.ndarray | None = None) -> np.ndarray:
        """Removes a tensor and returns it as float32; raises `InputError` for a missing one."""
        array = self.arrays.pop(name, default)
        if array is None:
            raise InputError(f"{self.file}: the model has no tensor {name}.")
        return np.asarray(array, "float32")

    @property
    def tied_embeddings(self) -> str:
        """The value of `tie_embeddings` for a model with these tensors."""
        if {"decoder_ff_logit_out_W", "decoder_ff_logit_out_Wt"} & set(self.arrays):
            return "none"
        return "all" if "Wemb" in self.arrays else "decoder"

    def check_all_used(self) -> None:
        """Raises `InputError` for a tensor that no layer of this package has."""
        for name in sorted(self.arrays):
            raise InputError(f"{self.file}: the tensor {name} has no place in a model here.")


def fill(model: Transformer, tensors: Tensors, vocabularies: tuple[Vocabulary, Vocabulary]) -> None:
    """Gives a model the weights of a file."""
    suffix = "_pre" if model.config.normalize_first else ""
    for number, block in enumerate(model.encoder.blocks, 1):
        name = f"encoder_l{number}"
        _fill_attention(block.self_attention, tensors, f"{name}_self")
        _fill_norm(block.self_attention_norm, tensors, f"{name}_self_Wo", suffix)
        _fill_feed_forward(block, tensors, f"{name}_ffn", suffix)
    for number, block in enumerate(model.decoder.blocks, 1):
        name = f"decoder_l{number}"
        if block.self_attention is None:
            _fill_ssru(block.ssru, tensors, f"{name}_rnn")
            norm = f"{name}_rnn" if suffix else f"{name}_rnn_ffn"
            _fill_norm(block.ssru_norm, tensors, norm, suffix)
        else:
            _fill_attention(block.self_attention, tensors, f"{name}_self")
            _fill_norm(block.self_attention_norm, tensors, f"{name}_self_Wo", suffix)
        _fill_attention(block.cross_attention, tensors, f"{name}_context")
        _fill_norm(block.cross_attention_norm, tensors, f"{name}_context_Wo", suffix)
        _fill_feed_forward(block, tensors, f"{name}_ffn", suffix)
    if suffix:
        _fill_norm(model.encoder.final_norm, tensors, "encoder_top")
        _fill_norm(model.decoder.final_norm, tensors, "decoder_top")
    _fill_tables(model, tensors, *vocabularies)  # Last: their copies need the most memory.
    tensors.check_all_used()


def _fill_tables(model, tensors, source, target):
    shared = tensors.get("Wemb") if "Wemb" in tensors else None
    if model.source_embedding is not model.target_embedding:
        table = tensors.get("encoder_Wemb") if shared is None else shared
        _assign(model.source_embedding.embeddings, source.table(table))
    table = tensors.get("decoder_Wemb") if shared is None else shared
    _assign(model.target_embedding.embeddings, target.table(table))
    if model.output_projection is not None:
        if "decoder_ff_logit_out_W" in tensors:
            output = tensors.get("decoder_ff_logit_out_W").T
        else:
            output = tensors.get("decoder_ff_logit_out_Wt")
        _assign(model.output_projection.kernel, target.table(output).T)
    bias = "decoder_ff_logit_out_b"
    values = tensors.get(bias).reshape(-1) if bias in tensors else None
    _assign(model.output_bias, target.bias(values))


def _fill_attention(layer, tensors, name):
    for letter, dense in zip("qkvo", layer.projections, strict=True):
        _fill_dense(dense, tensors, f"{name}_W{letter}", f"{name}_b{letter}")


def _fill_ssru(layer, tensors, name):
    input_dense, forget_dense, *output_dense = layer.projections
    _assign(input_dense.kernel, tensors.get(f"{name}_W"))
    _fill_dense(forget_dense, tensors, f"{name}_Wf", f"{name}_bf")
    for dense in output_dense:
        _fill_dense(dense, tensors, f"{name}_Wo", f"{name}_bo")


def _fill_feed_forward(block, tensors, name, suffix):
    for number, dense in enumerate(block.feed_forward.projections, 1):
        _fill_dense(dense, tensors, f"{name}_W{number}", f"{name}_b{number}")
    _fill_norm(block.feed_forward_norm, tensors, f"{name}_ffn", suffix)


def _fill_dense(dense, tensors, kernel, bias):
    _assign(dense.kernel, tensors.get(kernel))
    _assign(dense.bias, tensors.get(bias, np.zeros(1)))


def _fill_norm(layer, tensors, name, suffix=""):
    _assign(layer.gamma, tensors.get(f"{name}_ln_scale{suffix}", np.ones(layer.gamma.shape)))
    _assign(layer.beta, tensors.get(f"{name}_ln_bias{suffix}", np.zeros(layer.beta.shape)))


def _assign(variable, values):
    """Assigns values of the variable's size; a narrower feed-forward is padded with zeros.

    An inner unit of zeros gives 0 after any activation here, and is multiplied with 0.
    """
    shape = tuple(variable.shape)
    if values.size == np.prod(shape):
        values = values.reshape(shape)
    elif len(shape) <= 2:
        values = values.reshape((-1, values.shape[-1]) if len(shape) == 2 else (-1,))
        padding = [(0, size - actual) for size, actual in zip(shape, values.shape, strict=True)]
        if min(min(side) for side in padding) < 0:
            raise InputError(
                f"{variable.path} must have the shape {shape}. Received: {values.shape}."
            )
        values = np.pad(values, padding)
    variable.assign(ops.convert_to_tensor(values))
