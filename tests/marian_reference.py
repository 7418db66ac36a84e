"""Marian's Transformer in plain NumPy: one sentence at a time, tensors under Marian's names."""

import math

import numpy as np
from reference import softmax

OF_M2M100 = {"epsilon": 1e-5, "offset": 2}
"""Options in which models of many languages differ from Marian's."""


def log_probabilities(tensors, options, source, target):
    """Natural log-probability of each word of a target, float64 `(target,)`.

    Args:
        tensors: Arrays by their names.
        options: `special:model.yml` as a dict of texts.
        source: Marian's ids of a source, the end included; like `target`.
    """
    scores = np.log(softmax(logits(tensors, options, source, target)))
    return scores[np.arange(len(target)), list(target)]


def logits(tensors, options, source, target, start=None):
    """Logits of each word of a target, float64 `(target, vocabulary)`.

    Args:
        tensors: Arrays by their names.
        options: `special:model.yml` as a dict of texts.
        source: Marian's ids of a source, the end included; like `target`.
        start: Id that the decoder reads first; None: a vector of zeros.
    """
    encoded = _embed(tensors, options, "encoder", source)
    for number in range(1, int(options["enc-depth"]) + 1):
        name = f"encoder_l{number}"
        encoded = _attend(tensors, options, f"{name}_self", encoded)
        encoded = _feed(tensors, options, name, encoded)
    encoded = _top(tensors, options, "encoder", encoded)
    hidden = _embed(tensors, options, "decoder", [start, *target[:-1]])
    for number in range(1, int(options["dec-depth"]) + 1):
        name = f"decoder_l{number}"
        if f"{name}_rnn_W" in tensors:
            norm = f"{name}_rnn" if _is_pre(options) else f"{name}_rnn_ffn"
            recurrent = lambda rows, name=name: _ssru(tensors, name, rows)  # noqa: E731
            hidden = _sublayer(tensors, options, norm, hidden, recurrent)
        else:
            hidden = _attend(tensors, options, f"{name}_self", hidden, causal=True)
        hidden = _attend(tensors, options, f"{name}_context", hidden, encoded)
        hidden = _feed(tensors, options, name, hidden)
    hidden = _top(tensors, options, "decoder", hidden)
    table = tensors.get("Wemb", tensors.get("decoder_Wemb")).T
    output = tensors.get("decoder_ff_logit_out_W", table).astype("float64")
    return hidden @ output + tensors.get("decoder_ff_logit_out_b", 0.0)


def _is_pre(options):
    return "n" in options["transformer-preprocess"]


def _sublayer(tensors, options, norm, rows, function):
    """Normalizes what a sublayer reads, or the sum with what it gives."""
    if _is_pre(options):
        return rows + function(_norm(tensors, options, norm, rows, "_pre"))
    return _norm(tensors, options, norm, rows + function(rows))


def _top(tensors, options, side, rows):
    return _norm(tensors, options, f"{side}_top", rows) if _is_pre(options) else rows


def _embed(tensors, options, side, ids):
    table = tensors.get("Wemb", tensors.get(f"{side}_Wemb")).astype("float64")
    width = table.shape[1]
    half = width // 2
    rows = np.zeros((len(ids), width))
    for position, id in enumerate(ids):
        if id is not None:
            rows[position] = table[id] * math.sqrt(width)
        for i in range(half):
            index = position + options.get("offset", 0)
            angle = index * 10000.0 ** (-i / (half - 1))
            rows[position, i] += math.sin(angle)
            rows[position, half + i] += math.cos(angle)
    return rows


def _linear(tensors, name, letter, rows):
    return rows @ tensors[f"{name}_W{letter}"] + tensors[f"{name}_b{letter}"]


def _norm(tensors, options, name, rows, end=""):
    centred = rows - rows.mean(1, keepdims=True)
    variances = (centred**2).mean(1, keepdims=True) + options.get("epsilon", 1e-6)
    scaled = centred / np.sqrt(variances)
    return scaled * tensors[f"{name}_ln_scale{end}"] + tensors[f"{name}_ln_bias{end}"]


def _attend(tensors, options, name, rows, encoded=None, causal=False):
    """Attention to the rows themselves, or to `encoded`."""
    heads, width = int(options["transformer-heads"]), rows.shape[1]

    def attention(queries):
        values = queries if encoded is None else encoded
        query = _linear(tensors, name, "q", queries)
        key, value = (_linear(tensors, name, letter, values) for letter in "kv")
        outputs = []
        for head in np.split(np.arange(width), heads):
            scores = query[:, head] @ key[:, head].T / math.sqrt(width // heads)
            if causal:
                scores[np.triu_indices_from(scores, 1)] = -np.inf
            outputs.append(softmax(scores) @ value[:, head])
        return _linear(tensors, name, "o", np.concatenate(outputs, axis=1))

    return _sublayer(tensors, options, f"{name}_Wo", rows, attention)


def _ssru(tensors, name, rows):
    cell, outputs = np.zeros(rows.shape[1]), []
    for row in rows:
        forget = 1 / (1 + np.exp(-(row @ tensors[f"{name}_rnn_Wf"] + tensors[f"{name}_rnn_bf"][0])))
        cell = forget * cell + (1 - forget) * (row @ tensors[f"{name}_rnn_W"])
        outputs.append(np.maximum(cell, 0))
    return np.array(outputs)


_ACTIVATIONS = {
    "relu": lambda rows: np.maximum(rows, 0),
    "swish": lambda rows: rows / (1 + np.exp(-rows)),
    "gelu": np.vectorize(lambda value: value * (1 + math.erf(value / math.sqrt(2))) / 2),
}


def _feed(tensors, options, name, rows):
    activation = _ACTIVATIONS[options["transformer-ffn-activation"]]
    feed_forward = lambda rows: _linear(  # noqa: E731
        tensors, f"{name}_ffn", "2", activation(_linear(tensors, f"{name}_ffn", "1", rows))
    )
    return _sublayer(tensors, options, f"{name}_ffn_ffn", rows, feed_forward)
