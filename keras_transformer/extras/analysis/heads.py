"""Roles, confidence and importance of attention heads."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.engine.inputs import pad
from keras_transformer.extras.analysis.attention import (
    KINDS,
    Attention,
    attention,
    attention_layers,
    entropy,
    kinds_of,
)

# Voita et al. 2019 call heads positional from 90% on; their head for rare tokens attended to them
# in 66% of the sentences.
_POSITIONAL, _RARE = 0.9, 0.5


class Head(NamedTuple):
    """A row of the table of heads; NaN where a number has no meaning for a kind.

    Attributes:
        name: As `encoder.0.1`: the kind, the layer and the head, counted from 0.
        role: `positional`, `rare tokens` or `other`.
        confidence: The mean over queries of the largest weight, without keys of special tokens.
        entropy: The mean entropy of a row, in bits.
        previous: Share of queries whose largest weight is on the token before.
        next: Share of queries whose largest weight is on the token after.
        rare: Share of queries whose largest weight is on the source's rarest token.
        importance: The mean of |∂loss/∂gate|, in nats per sentence; see `head_importance`.
    """

    name: str
    role: str
    confidence: float
    entropy: float
    previous: float
    next: float
    rare: float
    importance: float


def head_table(
    model: keras.Model,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    counts: np.ndarray | None = None,
    batch_size: int = 32,
) -> list[Head]:
    """Measures every head of a `Transformer` on sentence pairs.

    Args:
        pairs: Ids of sources and targets, EOS included.
        counts: Frequency of each id in the language, `(vocabulary,)`, for the rarest token; by
            default the frequency in the sources of `pairs`.
        batch_size: Number of pairs in one call of the model.

    Reference: Voita et al. 2019, section 5 (arXiv:1905.09418); the importance: Michel et al. 2019
    (arXiv:1905.10650).
    """
    if counts is None:
        counts = np.bincount(np.concatenate([source for source, _ in pairs]), minlength=EOS_ID + 1)
    sums: dict[str, list] = {kind: [] for kind in KINDS}
    importance: dict[str, list] = {kind: [] for kind in KINDS}
    ordered = sorted(pairs, key=lambda pair: len(pair[0]))  # for little padding
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        source, target = (
            pad(ids, len(batch), max(map(len, ids))) for ids in zip(*batch, strict=True)
        )
        decoder_ids = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
        weights_of_batch = attention(model, source, decoder_ids)
        for kind, gradients in zip(KINDS, head_importance(model, source, target), strict=True):
            if not gradients.size:  # The model lacks this kind.
                continue
            importance[kind].append(gradients)
            for row, (source_ids, target_ids) in enumerate(batch):
                queries = len(source_ids) if kind == "encoder" else len(target_ids)
                keys = np.asarray(source_ids)
                if kind == "decoder":
                    keys = decoder_ids[row, :queries]
                weights = getattr(weights_of_batch, kind)[row, :, :, :queries, : len(keys)]
                sums[kind].append(_measured(weights, keys, counts, kind))
    heads = []
    for kind in filter(sums.get, KINDS):
        numbers = np.mean(sums[kind], axis=0)  # --> [measures, layers, heads]
        mean_importance = np.concatenate(importance[kind], axis=0).mean(0)
        for layer, head in np.argwhere(~np.isnan(mean_importance)).tolist():
            name = f"{kind}.{layer}.{head}"
            values = numbers[:, layer, head].tolist()
            heads.append(_head(name, values, float(mean_importance[layer, head])))
    return heads


def _measured(weights, keys, counts, kind):
    """Measures one sentence: confidence, entropy, previous, next, rare, `(5, layers, heads)`."""
    is_special = np.isin(keys, (PAD_ID, BOS_ID, EOS_ID))
    nothing = np.full(weights.shape[:2], np.nan)
    most_attended = weights.argmax(-1)  # --> [layers, heads, query]
    confidence = np.where(is_special, 0.0, weights).max(-1).mean(-1)
    before = after = nothing
    if kind != "cross":
        offsets = most_attended - np.arange(weights.shape[2])
        # Queries without a neighbour on that side do not count.
        before = (offsets[..., 1:] == -1).mean(-1) if weights.shape[2] > 1 else nothing
        after = nothing if kind == "decoder" else (offsets[..., :-1] == 1).mean(-1)
    rare = nothing
    if kind != "decoder" and not is_special.all():
        rarest = np.where(is_special, np.inf, counts[keys]).argmin()
        rare = (most_attended == rarest).mean(-1)
    return np.stack([confidence, entropy(weights).mean(-1), before, after, rare])


def _head(name, numbers, importance):
    confidence, bits, before, after, rare = numbers
    role = "other"
    if rare >= _RARE:
        role = "rare tokens"
    if before >= _POSITIONAL or after >= _POSITIONAL:
        role = "positional"
    return Head(name, role, confidence, bits, before, after, rare, importance)


def head_importance(
    model: keras.Model, source_ids: np.ndarray, target_ids: np.ndarray
) -> Attention:
    """Computes the importance of each head for the loss of each sentence: |∂loss/∂gate|.

    A gate of 1 multiplies the output of each head; the importance is the derivative at 1.

    Args:
        model: `Transformer`. It is not changed.
        source_ids: Integer `(batch, source)`, padded with 0.
        target_ids: Integer `(batch, target)`, the expected output, with EOS and then padding.

    Returns:
        `Attention` of float32 `(batch, layers, heads)`, in nats: the loss is summed over a
        sentence's tokens. NaN for heads that a layer lacks.

    Raises:
        InputError: The loss, or its gradient, is NaN or infinite.

    Reference: Michel et al. 2019, section 3.3, equation 2 (arXiv:1905.10650).
    """
    layers = attention_layers(model)
    decoder_ids = np.pad(target_ids[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)
    gated = _Gated(model, layers, len(source_ids))
    # A step of plain gradient descent with learning rate 1 moves each gate by its gradient, on any
    # backend.
    gated.compile(keras.optimizers.SGD(1.0), loss=_sentence_loss, run_eagerly=True)
    gated.train_on_batch((source_ids, decoder_ids), target_ids)
    # Keras computes the mean over the batch, so multiply by its size.
    gradients = np.abs(ops.convert_to_numpy(gated.offsets)) * len(source_ids)
    if not np.isfinite(gradients).all():
        raise InputError("The loss of the model, or its gradient, is NaN or infinite.")
    for index, layer in enumerate(layers):
        gradients[:, index, layer.num_heads :] = np.nan
    kinds = kinds_of(model)
    by_kind = ([i for i, layer in enumerate(layers) if kinds[id(layer)] == kind] for kind in KINDS)
    return Attention(*(gradients[:, indices] for indices in by_kind))


class _Gated(keras.Model):
    """A model whose only weights are offsets of its heads' gates, for each sentence."""

    def __init__(self, model, layers, batch):
        super().__init__(autocast=False)
        shape = (batch, len(layers), max(layer.num_heads for layer in layers))
        self.offsets = self.add_weight(name="offsets", shape=shape, initializer="zeros")
        # In closures, so that Keras does not add the layers' weights to this model.
        self._layers_of_model = lambda: layers
        self._run = lambda inputs: model(inputs, training=False)

    def call(self, inputs):
        layers = self._layers_of_model()
        for index, layer in enumerate(layers):
            layer.project_output = self._through_gate(layer, layer.project_output, index)
        try:
            return self._run(inputs)
        finally:
            for layer in layers:
                del layer.project_output

    def _through_gate(self, layer, project, index):
        gate = 1.0 + self.offsets[:, index, : layer.num_heads]  # --> [batch, heads]
        gate = ops.cast(ops.expand_dims(gate, (1, 3)), layer.compute_dtype)
        return lambda heads: project(heads * gate)


def _sentence_loss(labels, logits):
    labels = ops.cast(labels, "int32")
    logits = ops.cast(logits, "float32")
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return ops.sum(ops.where(labels != PAD_ID, losses, 0.0), axis=1)
