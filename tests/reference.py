"""The Transformer once more, in plain NumPy and float64: slow, short, and written from the papers.

Weights come as a dict from a path such as `"self_attention/query/kernel"` to an array.
"""

import math

import numpy as np


def float64(tensor):
    """A tensor of any backend and any float dtype as a float64 array."""
    return np.asarray(tensor).astype("float64")


def weights_of(layer):
    """The weights of a built layer by their path inside it."""
    return {w.path.removeprefix(f"{layer.path}/"): float64(w.numpy()) for w in layer.weights}


def part(weights, prefix):
    """The weights under one sublayer's path."""
    prefix += "/"
    return {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}


def softmax(scores):
    """Softmax over the last axis."""
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def kept(inputs, rate):
    """What a dropout keeps on average, without its division: tests replace the drawing by this."""
    return inputs * (1.0 - rate)


def attention(
    weights, query, value, key=None, mask=None, rotary=False, window=None, alibi=False, dropout=0.0
):
    """Multi-head attention: one sentence, one head and one query at a time.

    Args:
        weights: `query`, `key`, `value` and `attention_output`, with or without biases.
        query: `(batch, query, features)`.
        value: `(batch, key, features)`.
        key: The same length as `value`, which is the default.
        mask: Bool, broadcastable to `(batch, heads, query, key)`.
        rotary: Whether queries and keys are turned by their positions.
        window: Keys within this - 1 of a query are seen.
        alibi: Whether scores fall with the distance, by `slopes`; to the right at the slope of the
            head at the other end.
        dropout: Rate on the weights, of `kept`; the returned weights are those before.

    Fewer heads of keys than of queries are shared by neighbours; `distance_embeddings` are those of
    Shaw et al. 2018, a vector for each clipped distance of a key from a query, and
    `distance_values` those for values.

    Returns:
        The output, and the attention weights `(batch, heads, query, key)`: a query that sees no
        key has zeros.
    """
    key = value if key is None else key
    heads, key_dim = weights["query/kernel"].shape[1:]
    shape = (len(query), heads, query.shape[1], value.shape[1])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    scores = np.zeros(shape)
    output = np.zeros((*query.shape[:2], weights["attention_output/kernel"].shape[-1]))
    output += weights.get("attention_output/bias", 0.0)

    def project(x, name, head):
        bias = weights.get(f"{name}/bias")
        product = x @ weights[f"{name}/kernel"][:, head]
        return product if bias is None else product + bias[head]

    for b in range(len(query)):
        for head in range(heads):
            queries = project(query[b], "query", head)
            shared = head * weights["key/kernel"].shape[1] // heads
            keys = project(key[b], "key", shared)
            values = project(value[b], "value", shared)
            if rotary:
                queries, keys = turned(queries), turned(keys)
            for i, one_query in enumerate(queries):
                seen = np.flatnonzero(mask[b, head, i])
                if window is not None:
                    seen = seen[abs(seen - i) < window]
                if not len(seen):
                    continue
                offered = {"distance_embeddings": keys[seen], "distance_values": values[seen]}
                for name in offered.keys() & weights.keys():
                    limit = len(weights[name]) // 2
                    distances = [min(max(j - i, -limit), limit) for j in seen]
                    offered[name] = offered[name] + weights[name][limit + np.array(distances)]
                one_row = offered["distance_embeddings"] @ one_query / math.sqrt(key_dim)
                if alibi:
                    left, right = slopes(heads)[head], slopes(heads)[heads - 1 - head]
                    one_row -= [(i - j) * left if j < i else (j - i) * right for j in seen]
                row = softmax(one_row)
                scores[b, head, i, seen] = row
                mixed = kept(row, dropout) @ offered["distance_values"]
                output[b, i] += mixed @ weights["attention_output/kernel"][head]
    return output, scores


def scored_attention(weights, score, query, value, key=None, mask=True):
    """Attention of recurrent models by a score of one pair: its output, and its weights.

    Luong et al. 2015, section 3.1; Bahdanau et al. 2014, appendix A.1.2, of which `vector` is v.
    """
    key = value if key is None else key
    scores = np.zeros((*query.shape[:2], key.shape[1]))
    for b, i, j in np.ndindex(scores.shape):
        q, k = query[b, i], key[b, j]
        if score == "additive":
            inner = q @ weights["query/kernel"] + k @ weights["key/kernel"]
            scores[b, i, j] = weights["vector"] @ np.tanh(inner)
        else:
            k = k @ weights["key/kernel"] if score == "general" else k
            scores[b, i, j] = q @ k / (math.sqrt(len(q)) if score == "scaled_dot" else 1)
    shares = np.where(mask, np.exp(scores - scores.max(axis=2, keepdims=True)), 0.0)
    totals = shares.sum(axis=2, keepdims=True)
    shares = np.divide(shares, totals, out=np.zeros_like(shares), where=totals > 0)
    return shares @ value, shares


def pooling(weights, mode, inputs, real):
    """The mean, the largest or a learned mean of the vectors at tokens, 0 without any."""
    pooled = np.zeros((len(inputs), inputs.shape[2]))
    for row, (vectors, is_real) in enumerate(zip(inputs, real, strict=True)):
        vectors = vectors[is_real]
        if not len(vectors):
            continue
        if mode == "attention":
            pooled[row] = softmax((vectors @ weights["score/kernel"])[:, 0]) @ vectors
        else:
            pooled[row] = vectors.mean(axis=0) if mode == "mean" else vectors.max(axis=0)
    return pooled


def slopes(heads):
    """Press et al. 2022: a geometric sequence that starts at its ratio, which is `2^(-8/heads)`.

    Other numbers than powers of two: those of the smaller power, then every second of the larger.
    """
    power = 1
    while 2 * power <= heads:
        power *= 2
    if power == heads:
        return [(2 ** (-8 / heads)) ** k for k in range(1, heads + 1)]
    return slopes(power) + slopes(2 * power)[::2][: heads - power]


def turned(rows, max_wavelength=10000):
    """Su et al. 2021: each pair of features of row `p` is a complex number, turned by its angle."""
    half = rows.shape[1] // 2
    numbers = rows[:, :half] + 1j * rows[:, half:]
    for p in range(len(rows)):
        for i in range(half):
            numbers[p, i] *= np.exp(1j * p / max_wavelength ** (i / half))
    return np.concatenate([numbers.real, numbers.imag], axis=1)


def positional_encoding(
    length, width, start_index=0, max_wavelength=10000, layout="interleaved", frequencies="paper"
):
    """Section 3.5 of Vaswani et al. 2017, one number at a time: `(length, width)`.

    Marian's frequencies reach the longest wavelength in the last pair; halves are all sines, then
    all cosines.
    """
    encoding, half = np.zeros((length, width)), (width + 1) // 2
    for row in range(length):
        for column in range(width):
            pair, is_cosine = column // 2, column % 2
            if layout == "halves":
                pair, is_cosine = column % half, column >= half
            share = 2 * pair / width if frequencies == "paper" else pair / max(width / 2 - 1, 1)
            angle = (start_index + row) / max_wavelength**share
            encoding[row, column] = math.cos(angle) if is_cosine else math.sin(angle)
    return encoding


def layer_norm(weights, inputs, epsilon=1e-5):
    """Layer normalization over the last axis."""
    mean = inputs.mean(axis=-1, keepdims=True)
    variance = ((inputs - mean) ** 2).mean(axis=-1, keepdims=True)
    return (inputs - mean) / np.sqrt(variance + epsilon) * weights["gamma"] + weights["beta"]


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0.0), "silu": lambda x: x * sigmoid(x)}


def feed_forward(weights, inputs, activation="relu", dropout=0.0):
    """Two projections with an activation, by default a rectifier, between them."""
    inner = ACTIVATIONS[activation](inputs @ weights["inner/kernel"] + weights["inner/bias"])
    return kept(inner, dropout) @ weights["outer/kernel"] + weights["outer/bias"]


def ssru(weights, inputs):
    """Kim et al. 2019, one position after another."""
    cell, outputs = np.zeros_like(inputs[:, 0]), []
    for position in range(inputs.shape[1]):
        row = inputs[:, position]
        forget = sigmoid(row @ weights["forget/kernel"] + weights["forget/bias"])
        cell = forget * cell + (1 - forget) * (row @ weights["input/kernel"])
        outputs.append(np.maximum(cell, 0.0))
    outputs = np.stack(outputs, axis=1)
    if "output/kernel" in weights:
        outputs = outputs @ weights["output/kernel"] + weights["output/bias"]
    return outputs


class _Sublayers:
    """Sublayers of one block, with their residuals, dropout and normalizations."""

    def __init__(self, weights, normalize_first, epsilon, dropout, seen):
        self.weights, self.normalize_first = weights, normalize_first
        self.epsilon, self.dropout, self.seen = epsilon, dropout, seen

    def __call__(self, name, inputs, function, *arguments, **options):
        layer, norm = part(self.weights, name), part(self.weights, f"{name}_norm")
        before = layer_norm(norm, inputs, self.epsilon) if self.normalize_first else inputs
        outputs = inputs + kept(function(layer, before, *arguments, **options), self.dropout)
        return outputs if self.normalize_first else layer_norm(norm, outputs, self.epsilon)

    def attend(self, name, inputs, memory=None, **options):
        """Attention to `memory`, or of `inputs` to themselves."""

        def function(layer, x):
            outputs, scores = attention(layer, x, x if memory is None else memory, **options)
            if self.seen is not None:
                self.seen.append(scores)
            return outputs

        return self(name, inputs, function)


def encoder_block(
    weights,
    inputs,
    mask=None,
    normalize_first=False,
    epsilon=1e-5,
    activation="relu",
    dropout=0.0,
    attention_dropout=0.0,
    feed_forward_dropout=0.0,
    seen=None,
    **options,
):
    """One layer of the encoder; `mask` and the options of self-attention are `attention`'s.

    `seen`, a list, is given the weights of each attention.
    """
    sublayers = _Sublayers(weights, normalize_first, epsilon, dropout, seen)
    options |= {"mask": mask, "dropout": attention_dropout}
    hidden = sublayers.attend("self_attention", inputs, **options)
    return sublayers("feed_forward", hidden, feed_forward, activation, feed_forward_dropout)


def decoder_block(
    weights,
    inputs,
    memory=None,
    mask=None,
    memory_mask=None,
    normalize_first=False,
    epsilon=1e-5,
    activation="relu",
    dropout=0.0,
    attention_dropout=0.0,
    feed_forward_dropout=0.0,
    seen=None,
    **options,
):
    """One layer of the decoder. `mask` applies in addition to the causal mask."""
    length = inputs.shape[1]
    causal = np.array([[j <= i for j in range(length)] for i in range(length)])
    mask = causal if mask is None else causal & mask
    sublayers = _Sublayers(weights, normalize_first, epsilon, dropout, seen)
    if part(weights, "ssru"):
        hidden = sublayers("ssru", inputs, ssru)
    else:
        options |= {"mask": mask, "dropout": attention_dropout}
        hidden = sublayers.attend("self_attention", inputs, **options)
    if memory is not None:
        options = {"mask": memory_mask, "dropout": attention_dropout}
        hidden = sublayers.attend("cross_attention", hidden, memory, **options)
    return sublayers("feed_forward", hidden, feed_forward, activation, feed_forward_dropout)


def target_distribution(label, vocabulary, label_smoothing):
    """One-hot, smoothed over the whole vocabulary."""
    distribution = np.full(vocabulary, label_smoothing / vocabulary)
    distribution[label] += 1.0 - label_smoothing
    return distribution


def token_loss(label, logits, label_smoothing=0.0):
    """Cross-entropy of one token between two explicit distributions."""
    target = target_distribution(label, len(logits), label_smoothing)
    return -float(np.sum(target * np.log(softmax(np.asarray(logits, "float64")))))


def smoothed_loss(labels, logits, label_smoothing=0.1, ignore_id=0, sample_weight=None):
    """Weighted mean over the labels that are not `ignore_id`; `sample_weight` as the labels."""
    total = count = 0.0
    for position, label in np.ndenumerate(labels):
        if label == ignore_id:
            continue
        weight = 1.0 if sample_weight is None else sample_weight[position]
        total += weight * token_loss(label, logits[position], label_smoothing)
        count += weight
    return total / count if count else 0.0


def perplexity(labels, logits, ignore_id=0):
    """`exp` of the mean unsmoothed loss."""
    return math.exp(smoothed_loss(labels, logits, 0.0, ignore_id))


def schedule(step, model_dim, warmup_steps, scale=1.0):
    """Equation 3 of Vaswani et al. 2017; `step` counts from 1."""
    return scale * model_dim**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def model_1(pairs, iterations=5):
    """Brown et al.'s equations, word by word: {(source, target): t(target | source)}."""
    words = [[{"", *source.split()}, {"", *target.split()}] for source, target in pairs]
    table = {}
    for _ in range(iterations):
        counts, totals = {}, {}
        for source, target in words:
            for t in target:
                whole = sum(table.get((s, t), 1.0) for s in source)
                for s in source:
                    share = table.get((s, t), 1.0) / whole
                    counts[s, t] = counts.get((s, t), 0.0) + share
                    totals[s] = totals.get(s, 0.0) + share
        table = {(s, t): count / totals[s] for (s, t), count in counts.items()}
    return table
