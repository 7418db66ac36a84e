"""Search once more, in plain Python and float64, and models whose probabilities are known.

Between the two stands a scorer: `scorer(rows, prefixes)` gives the log-probabilities of what
follows each prefix (a tuple of ids) in sentence `rows[i]`, float64 `(prefixes, vocabulary)`.
"""

from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer import Transformer, TransformerConfig

PAD, BOS, EOS = 0, 1, 2
FORBIDDEN = (PAD, BOS)


class Hypothesis(NamedTuple):
    ids: tuple
    log_probability: float
    score: float


def log_softmax(logits):
    """Over the last axis, in float64."""
    logits = np.asarray(logits).astype("float64")
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def penalty(length, alpha):
    """Equation 14 of Wu et al. 2016."""
    return ((5 + length) / (5 + 1)) ** alpha


def log_probability(scorer, row, ids):
    """Of one sequence: the sum over its own tokens."""
    table = scorer([row] * len(ids), [ids[:i] for i in range(len(ids))])
    return sum(table[i, token] for i, token in enumerate(ids))


def naive_greedy(scorer, limits):
    """The most probable token again and again, every prefix scored from scratch."""
    ids = [() for _ in limits]
    totals = [0.0 for _ in limits]
    for length in range(max(limits)):
        rows = [r for r, limit in enumerate(limits) if length < limit and EOS not in ids[r]]
        if not rows:
            break
        for r, scores in zip(rows, scorer(rows, [ids[r] for r in rows]), strict=True):
            token = max((t for t in range(len(scores)) if t not in FORBIDDEN), key=scores.item)
            ids[r] += (token,)
            totals[r] += scores[token]
    return [[Hypothesis(i, total, total)] for i, total in zip(ids, totals, strict=True)]


def naive_beam(scorer, limits, beam_size, alpha, n_best):
    """Beam search that never stops before the limit, every prefix scored from scratch.

    Of the `beam_size` best extensions of a sentence's hypotheses, those that end are finished,
    and the best `beam_size` that do not end go on.
    """
    alive = [[((), 0.0)] for _ in limits]
    finished = [[] for _ in limits]
    for length in range(1, max(limits) + 1):
        rows = [r for r, limit in enumerate(limits) if length <= limit for _ in alive[r]]
        prefixes = [ids for r, limit in enumerate(limits) if length <= limit for ids, _ in alive[r]]
        table = iter(scorer(rows, prefixes))
        for r in sorted(set(rows)):
            extensions = [
                ((*ids, token), total + gained)
                for ids, total in alive[r]
                for token, gained in enumerate(next(table))
                if token not in FORBIDDEN
            ]
            best = sorted(extensions, key=lambda each: -each[1])
            finished[r] += [
                Hypothesis(ids, total, total / penalty(length, alpha))
                for ids, total in best[:beam_size]
                if ids[-1] == EOS
            ]
            alive[r] = [each for each in best if each[0][-1] != EOS][:beam_size]
    return [
        _in_order(finished[r], alive[r], limit, alpha, n_best) for r, limit in enumerate(limits)
    ]


def exhaustive_search(scorer, limits, alpha, n_best):
    """Looks at every sequence that there is."""
    results = []
    for row, limit in enumerate(limits):
        finished, level = [], [((), 0.0)]
        for length in range(1, limit + 1):
            table = scorer([row] * len(level), [ids for ids, _ in level])
            extended = []
            for (ids, total), scores in zip(level, table, strict=True):
                for token, gained in enumerate(scores):
                    if token == EOS:
                        finished.append(
                            Hypothesis(
                                (*ids, token),
                                total + gained,
                                (total + gained) / penalty(length, alpha),
                            )
                        )
                    elif token not in FORBIDDEN:
                        extended.append(((*ids, token), total + gained))
            level = extended
        results.append(_in_order(finished, level, limit, alpha, n_best))
    return results


def _in_order(finished, unfinished, limit, alpha, n_best):
    """What ended, best first, then what did not."""
    finished = sorted(finished, key=lambda each: -each.score)
    unfinished = [
        Hypothesis(ids, total, total / penalty(limit, alpha))
        for ids, total in sorted(unfinished, key=lambda each: -each[1])
    ]
    return (finished + unfinished)[:n_best]


def as_lists(hypotheses):
    """What a search returned, in the shape of what the functions above return."""
    ids, log_probabilities, scores = (np.asarray(each) for each in list(hypotheses)[:3])
    assert ids.dtype == "int32" and log_probabilities.dtype == scores.dtype == "float32"
    results = []
    for row in range(len(ids)):
        results.append([])
        for place in range(ids.shape[1]):
            written = np.flatnonzero(ids[row, place] != PAD)
            length = written[-1] + 1 if len(written) else 0
            results[-1].append(
                Hypothesis(
                    tuple(ids[row, place, :length].tolist()),
                    float(log_probabilities[row, place]),
                    float(scores[row, place]),
                )
            )
    return results


def check_equal(received, expected, tolerance=1e-4):
    """The same ids, and scores equal up to `tolerance`."""
    received = received if isinstance(received, list) else as_lists(received)
    assert len(received) == len(expected)
    for row, (ours, theirs) in enumerate(zip(received, expected, strict=True)):
        assert [h.ids for h in ours] == [h.ids for h in theirs], f"sentence {row}"
        for field in ("log_probability", "score"):
            np.testing.assert_allclose(
                [getattr(h, field) for h in ours],
                [getattr(h, field) for h in theirs],
                rtol=tolerance,
                atol=tolerance,
                err_msg=f"{field} of sentence {row}",
            )


def check_varied(hypotheses):
    """That a comparison says something: sentences end at different lengths, or not at all."""
    best = [each[0].ids for each in hypotheses]
    ended = {len(ids) for ids in best if EOS in ids}
    assert len(ended) >= 3 and any(ids and EOS not in ids for ids in best), ended
    assert len({token for ids in best for token in ids}) >= 7


class _State(NamedTuple):
    node: object  # int32 [batch, beams]
    position: object


class HistoryModel:
    """Next-token logits that depend on all tokens so far, through a table of random numbers.

    Histories are numbered as a heap numbers the nodes of a tree, modulo the table's rows: no
    two short ones share a row, and no long one has the row of its last tokens alone.

    Args:
        logits: `(sentences, histories, vocabulary)`.
    """

    def __init__(self, logits):
        self.logits = np.asarray(logits, "float32")
        self.table = ops.convert_to_tensor(self.logits.reshape(-1, self.logits.shape[-1]))
        self.calls = 0

    @classmethod
    def random(cls, rng, sentences, vocabulary, histories=1009, scale=2.0, end=0.0):
        """Normal logits; `end` is added to those of the end of the sentence."""
        logits = scale * rng.normal(size=(sentences, histories, vocabulary))
        logits[..., EOS] += end
        return cls(logits)

    @classmethod
    def of_probabilities(cls, *sentences, vocabulary, histories=1009):
        """From a dict a sentence, of prefix to a dict of token to probability.

        What is not named has probability 0; after a prefix that is not named, all are equal.
        """
        model = cls(np.zeros((len(sentences), histories, vocabulary)))
        for row, probabilities in enumerate(sentences):
            for prefix, after in probabilities.items():
                model.logits[row, model._node(prefix)] = -np.inf
                for token, probability in after.items():
                    model.logits[row, model._node(prefix), token] = np.log(probability)
        return cls(model.logits)

    def _node(self, prefix):
        node = 0
        for token in prefix:
            node = (node * self.logits.shape[2] + token + 1) % self.logits.shape[1]
        return node

    def __call__(self, rows, prefixes):
        nodes = [self._node(prefix) for prefix in prefixes]
        return log_softmax(self.logits[rows, nodes])

    def start(self, beams):
        shape = (len(self.logits), beams)
        return _State(ops.zeros(shape, "int32"), ops.zeros((), "int32"))

    def step(self, ids, state):
        self.calls += 1
        sentences, histories, vocabulary = self.logits.shape
        following = (state.node * vocabulary + ids + 1) % histories
        node = ops.where(state.position == 0, 0, following)
        first = ops.expand_dims(ops.arange(sentences, dtype="int32"), 1) * histories
        return ops.take(self.table, first + node, axis=0), _State(node, state.position + 1)

    def reorder(self, state, parents):
        return state._replace(node=ops.take_along_axis(state.node, parents, axis=1))


class FullPass:
    """Scores prefixes by running a whole `Transformer` over them, without any cache."""

    ROWS = 32

    def __init__(self, model, source_ids, room):
        self.model, self.source_ids, self.room = model, np.asarray(source_ids), room

    def __call__(self, rows, prefixes):
        results = []
        for start in range(0, len(rows), self.ROWS):
            chosen = rows[start : start + self.ROWS]
            # One shape for all calls, so that little is compiled.
            source = np.full((self.ROWS, self.source_ids.shape[1]), 3, "int32")
            target = np.full((self.ROWS, self.room), PAD, "int32")
            target[:, 0] = BOS
            source[: len(chosen)] = self.source_ids[chosen]
            ends = [len(prefix) for prefix in prefixes[start : start + self.ROWS]]
            for i, prefix in enumerate(prefixes[start : start + self.ROWS]):
                target[i, 1 : 1 + len(prefix)] = prefix
            logits = np.asarray(self.model((source, target)))
            results.append(log_softmax(logits[np.arange(len(chosen)), ends]))
        return np.concatenate(results)


VOCABULARY, MAX_LENGTH = 17, 23

# The seeds are those whose sentences vary most; `check_varied` holds them to it.
VARIED = {
    "post_norm": (6, dict(positions="sinusoidal", normalize_first=False)),
    "pre_norm": (7, dict(positions="learned", normalize_first=True)),
    "untied": (
        3,
        dict(
            positions="learned",
            normalize_first=True,
            tie_embeddings="none",
            num_decoder_layers=2,
        ),
    ),
}


def varied_transformer(variant):
    """A small random model whose sentences end at different lengths.

    Random networks say one token for ever. So the logits are centred over random input, by way
    of the last normalization's offset, and the end of the sentence gets a standard deviation more.
    """
    seed, fields = VARIED[variant]
    sizes = dict(model_dim=12, num_heads=3, intermediate_dim=19, max_length=32)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(VOCABULARY, **{**sizes, **layers, **fields}))
    rng = np.random.default_rng(seed)
    model.set_weights([_random_weight(rng, w) for w in model.weights])
    source, target = rng.integers(3, VOCABULARY, size=(2, 23, MAX_LENGTH)).astype("int32")
    target[:, 0] = BOS
    logits = np.asarray(model((source, target)))
    wanted = -logits.mean(axis=(0, 1))
    wanted[EOS] += logits.std()
    table = np.asarray(model.target_embedding.embeddings)
    if model.output_projection is not None:
        table = np.asarray(model.output_projection.kernel).T
    last = model.decoder.final_norm or model.decoder.blocks[-1].feed_forward_norm
    last.beta.assign_add(np.linalg.lstsq(table, wanted, rcond=None)[0])
    return model


def _random_weight(rng, weight):
    noise = rng.normal(size=weight.shape)
    if "positions" in weight.path:
        return noise
    if weight.path.endswith("embeddings"):
        return 0.3 * noise
    if weight.path.endswith("output/kernel"):
        return 0.6 * noise
    if weight.path.endswith("kernel"):
        return 0.7 * noise
    return (1.0 if weight.path.endswith("gamma") else 0.0) + 0.2 * noise


def varied_sources(sentences=13, columns=7, seed=0):
    """Random sentences of 1 to `columns` tokens, padded."""
    rng = np.random.default_rng(seed)
    source = np.full((sentences, columns), PAD, "int32")
    for row in range(sentences):
        length = 1 + row % columns
        source[row, :length] = rng.integers(3, VOCABULARY, size=length)
    return source
