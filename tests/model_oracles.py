"""Every kind of model once more, in plain NumPy and float64, written from the papers.

`outputs_of` knows each field of a configuration that a formula has; sizes are in the weights.
With `training=True` each dropout multiplies by what it keeps on average (`reference.kept`).
"""

import math

import numpy as np
from reference import (
    decoder_block,
    encoder_block,
    kept,
    layer_norm,
    part,
    positional_encoding,
    scored_attention,
    sigmoid,
    softmax,
)

EOS = 2


def outputs_of(weights, config, *ids, training=False):
    """Logits of a model of any kind, from the ids of its sequences, padded with 0."""
    return ORACLES[config.kind](_Weights(weights, config, training), config, *ids)


class _Weights:
    """The weights of a model, and its rates, which are 0 where it does not train."""

    def __init__(self, weights, config, training):
        self.all, self.config = weights, config
        names = "dropout", "attention_dropout", "feed_forward_dropout", "word_dropout"
        self.rates = {name: training * getattr(config, name, 0.0) for name in names}

    def table(self, side):
        target_table = self.all.get("target_embedding/embeddings")
        return self.all.get(f"{side}_embedding/embeddings", target_table)

    def dropped(self, inputs, name="dropout"):
        return kept(inputs, self.rates[name])

    def embedded(self, side, ids):
        return self.table(side)[ids] * math.sqrt(self.config.model_dim)

    def read(self, side, ids):
        """Embedded ids with their positions."""
        config, embedded = self.config, self.dropped(self.embedded(side, ids), "word_dropout")
        learned = part(self.all, f"{side}_positions")
        if config.positions == "learned":
            table = learned.get("embeddings", learned.get("positions/embeddings"))
            positions = table[: ids.shape[1]]
        elif config.positions == "sinusoidal":
            positions = positional_encoding(
                ids.shape[1],
                config.model_dim,
                config.position_offset,
                layout=config.position_layout,
                frequencies=config.position_frequencies,
            )
        else:
            return self.dropped(embedded)
        if config.combine_positions == "add":
            return self.dropped(embedded + positions)
        both = np.concatenate([embedded, np.broadcast_to(positions, embedded.shape)], axis=-1)
        return self.dropped(both @ learned["projection/kernel"])

    def blocks(self, side, block, *inputs, inside=True):
        """The blocks of one side, and the normalization after them."""
        config, weights = self.config, part(self.all, side)
        options = {name: rate for name, rate in self.rates.items() if name != "word_dropout"}
        options |= {"normalize_first": config.normalize_first, "activation": config.activation}
        if inside:  # What concerns the positions of tokens.
            options |= {name: config.positions == name for name in ("rotary", "alibi")}
            options["window"] = config.sliding_window
        hidden, *memory_and_masks = inputs
        for number in range(len({name.split("/")[0] for name in weights if "block_" in name})):
            layer = part(weights, f"block_{number}")
            epsilon = config.layer_norm_epsilon
            hidden = block(layer, hidden, *memory_and_masks, epsilon=epsilon, **options)
        if not config.normalize_first:
            return hidden
        return layer_norm(part(weights, "final_norm"), hidden, config.layer_norm_epsilon)

    def logits(self, hidden, side="target"):
        kernel, bias = (self.all.get(f"output/{name}") for name in ("kernel", "bias"))
        if kernel is None:
            kernel = self.table(side).T
            bias = self.all.get(f"{side}_embedding/output_bias")
        return hidden @ kernel + (0.0 if bias is None else bias)


def _real(ids):
    return (ids != 0)[:, None, None, :]


def _transformer(weights, config, source_ids, target_ids):
    mask, source = _real(source_ids), weights.read("source", source_ids)
    if not config.source_eos:
        mask = mask & (source_ids != EOS)[:, None, None, :]
    if config.turn_layers:
        rows = zip(source, source_ids, mask, strict=True)
        encoded = np.stack([_turns(weights, config, *row) for row in rows])
    else:
        encoded = weights.blocks("encoder", encoder_block, source, mask)
    target = weights.read("target", target_ids)
    masks = _real(target_ids), mask
    return weights.logits(weights.blocks("decoder", decoder_block, target, encoded, *masks))


def _turns(weights, config, source, source_ids, mask):
    """Each turn of a row by itself, then the turns' means in a row, the last turn first."""
    starts = [0, *np.flatnonzero(source_ids == config.turn_id), np.count_nonzero(source_ids)]
    turns = [slice(*ends) for ends in zip(starts, starts[1:], strict=False)]
    encoded = np.zeros_like(source)
    for turn in turns:
        alone = source[None, turn], mask[None, ..., turn]
        encoded[turn] = weights.blocks("encoder", encoder_block, *alone)[0]
    means = np.stack([encoded[turn].mean(axis=0) for turn in turns])
    means += positional_encoding(len(turns), config.model_dim)[::-1]
    over_turns = weights.blocks("turns/encoder", encoder_block, means[None], inside=False)[0]
    for turn, added in zip(turns, over_turns, strict=True):
        encoded[turn] += added
    return encoded


def _language_model(weights, config, ids):
    inputs = weights.read("target", ids), None, _real(ids)
    return weights.logits(weights.blocks("decoder", decoder_block, *inputs))


def _classifier(weights, config, ids):
    encoded = weights.blocks("encoder", encoder_block, weights.read("source", ids), _real(ids))
    pooled = []
    for vectors, row in zip(encoded, ids, strict=True):
        vectors = vectors[row != 0]
        if config.pooling == "attention":
            pooled.append(softmax((vectors @ weights.all["pooling/score/kernel"])[:, 0]) @ vectors)
        else:
            pooled.append(getattr(vectors, config.pooling)(axis=0))
    return weights.logits(weights.dropped(np.stack(pooled)))[:, None]


def gru(weights, inputs, hidden):
    """Cho et al. 2014 as in CuDNN: the reset gate is applied after the product."""
    width = len(hidden)
    inputs = inputs @ weights["kernel"] + weights["bias"][0]
    recurrent = hidden @ weights["recurrent_kernel"] + weights["bias"][1]
    update, reset = np.split(sigmoid(inputs + recurrent)[: 2 * width], 2)
    candidate = np.tanh(inputs[2 * width :] + reset * recurrent[2 * width :])
    return (update * hidden + (1 - update) * candidate,)


def lstm(weights, inputs, hidden, cell):
    """Hochreiter and Schmidhuber 1997, with a forget gate."""
    gates = inputs @ weights["kernel"] + hidden @ weights["recurrent_kernel"] + weights["bias"]
    enter, forget, candidate, leave = np.split(gates, 4)
    cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(candidate)
    return sigmoid(leave) * np.tanh(cell), cell


CELLS = {"gru": (gru, 1), "lstm": (lstm, 2)}


def _recurrent(weights, config, source_ids, target_ids):
    rows = zip(source_ids, target_ids, strict=True)
    return np.stack([_recurrent_row(weights, config, row[row != 0], ids) for row, ids in rows])


def _recurrent_row(weights, config, source_ids, target_ids):
    apply, count = CELLS[config.cell]
    hidden = weights.embedded("source", source_ids)
    for number in range(config.num_encoder_layers):
        directions = _directions(part(weights.all, f"encoder_{number}"))
        hidden = weights.dropped(hidden)
        read = [
            _states(apply, count, directions["forward"], hidden),
            _states(apply, count, directions["backward"], hidden[::-1])[::-1],
        ]
        hidden = np.concatenate(read, axis=1)
        last = np.concatenate([read[0][-1], read[1][0]])
    start = np.tanh(last @ weights.all["start/kernel"] + weights.all["start/bias"])
    states = np.split(start, count * config.num_decoder_layers)
    output, outputs = np.zeros(config.model_dim), []
    for embedded in weights.dropped(weights.embedded("target", target_ids)):
        inputs = [embedded]
        if config.input_feeding:
            inputs.append(output)
        if config.attention == "bahdanau":  # The state before the step attends.
            inputs.append(_context(weights.all, config.score, states[-count], hidden))
        top = np.concatenate(inputs)
        for number in range(config.num_decoder_layers):
            own = slice(count * number, count * (number + 1))
            states[own] = apply(part(weights.all, f"decoder_{number}"), top, *states[own])
            top = states[own][0]
        features = [top]
        if config.attention == "bahdanau":
            features.append(inputs[-1])
        elif config.attention == "luong":  # The state after the step attends.
            features.append(_context(weights.all, config.score, top, hidden))
        output = np.tanh(np.concatenate(features) @ weights.all["readout/kernel"])
        outputs.append(output)
    return weights.logits(weights.dropped(np.stack(outputs)))


def _directions(layer):
    """Weights of both directions, whose names Keras numbers."""
    directions = {"forward": {}, "backward": {}}
    for name, value in layer.items():
        directions[name.split("_")[0]][name.split("/")[-1]] = value
    return directions


def _states(apply, count, weights, inputs):
    """The hidden state after each input, from a state of zeros."""
    states, hidden = [np.zeros(len(weights["recurrent_kernel"]))] * count, []
    for row in inputs:
        states = apply(weights, row, *states)
        hidden.append(states[0])
    return np.stack(hidden)


def _context(weights, score, query, values):
    attention = part(weights, "attention")
    return scored_attention(attention, score, query[None, None], values[None])[0][0, 0]


ORACLES = {
    "transformer": _transformer,
    "language_model": _language_model,
    "classifier": _classifier,
    "recurrent": _recurrent,
}
