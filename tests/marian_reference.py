"""Marian's Transformer in plain NumPy: one sentence at a time, tensors under Marian's names."""

import math

import numpy as np
from reference import softmax


def log_probabilities(tensors, options, source, target):
    """Natural log-probability of each word of a target, float64 `(target,)`.

    Args:
        tensors: Arrays by their names.
        options: `special:model.yml` as a dict of texts.
        source: Marian's ids of a source, the end included; like `target`.
    """
    encoded = _embed(tensors, options, "encoder", source)
    for number in range(1, int(options["enc-depth"]) + 1):
        name = f"encoder_l{number}"
        encoded = _attend(tensors, options, f"{name}_self", encoded, encoded)
        encoded = _feed(tensors, options, name, encoded)
    hidden = _embed(tensors, options, "decoder", [None, *target[:-1]])
    for number in range(1, int(options["dec-depth"]) + 1):
        name = f"decoder_l{number}"
        if f"{name}_rnn_W" in tensors:
            hidden = _norm(tensors, f"{name}_rnn_ffn", hidden + _ssru(tensors, name, hidden))
        else:
            hidden = _attend(tensors, options, f"{name}_self", hidden, hidden, causal=True)
        hidden = _attend(tensors, options, f"{name}_context", hidden, encoded)
        hidden = _feed(tensors, options, name, hidden)
    logits = hidden @ tensors["Wemb"].astype("float64").T + tensors["decoder_ff_logit_out_b"]
    return np.log(softmax(logits))[np.arange(len(target)), list(target)]


def _embed(tensors, options, side, ids):
    table = tensors.get("Wemb", tensors.get(f"{side}_Wemb")).astype("float64")
    width = table.shape[1]
    half = width // 2
    rows = np.zeros((len(ids), width))
    for position, id in enumerate(ids):
        if id is not None:
            rows[position] = table[id] * math.sqrt(width)
        for i in range(half):
            angle = position * 10000.0 ** (-i / (half - 1))
            rows[position, i] += math.sin(angle)
            rows[position, half + i] += math.cos(angle)
    return rows


def _linear(tensors, name, letter, rows):
    return rows @ tensors[f"{name}_W{letter}"] + tensors[f"{name}_b{letter}"]


def _norm(tensors, name, rows):
    centred = rows - rows.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-6)
    return scaled * tensors[f"{name}_ln_scale"] + tensors[f"{name}_ln_bias"]


def _attend(tensors, options, name, queries, values, causal=False):
    heads, width = int(options["transformer-heads"]), queries.shape[1]
    query = _linear(tensors, name, "q", queries)
    key, value = (_linear(tensors, name, letter, values) for letter in "kv")
    outputs = []
    for head in np.split(np.arange(width), heads):
        scores = query[:, head] @ key[:, head].T / math.sqrt(width // heads)
        if causal:
            scores[np.triu_indices_from(scores, 1)] = -np.inf
        outputs.append(softmax(scores) @ value[:, head])
    attended = _linear(tensors, name, "o", np.concatenate(outputs, axis=1))
    return _norm(tensors, f"{name}_Wo", queries + attended)


def _ssru(tensors, name, rows):
    cell, outputs = np.zeros(rows.shape[1]), []
    for row in rows:
        forget = 1 / (1 + np.exp(-(row @ tensors[f"{name}_rnn_Wf"] + tensors[f"{name}_rnn_bf"][0])))
        cell = forget * cell + (1 - forget) * (row @ tensors[f"{name}_rnn_W"])
        outputs.append(np.maximum(cell, 0))
    return np.array(outputs)


def _feed(tensors, options, name, rows):
    inner = _linear(tensors, f"{name}_ffn", "1", rows)
    if options["transformer-ffn-activation"] == "swish":
        inner = inner / (1 + np.exp(-inner))
    else:
        inner = np.maximum(inner, 0)
    return _norm(tensors, f"{name}_ffn_ffn", rows + _linear(tensors, f"{name}_ffn", "2", inner))
