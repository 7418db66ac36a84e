"""Models whose probabilities are known, and checks against the searches in `naive_search`."""

import copy
import itertools
from typing import NamedTuple

import keras
import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from keras import ops
from naive_search import ANYTHING, BOS, EOS, PAD, Hypothesis, log_softmax

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.decoding import Constraints, Hypotheses, loop
from keras_transformer.engine import inputs
from keras_transformer.text.symbols import Placeholders


def as_lists(hypotheses):
    """What a search returned, in the shape of what the functions above return."""
    ids, log_probabilities, scores = (np.asarray(field) for field in list(hypotheses)[:3])
    assert ids.dtype == "int32" and log_probabilities.dtype == scores.dtype == "float32"

    def hypothesis(row, total, score):
        return Hypothesis(tuple(np.trim_zeros(row, "b").tolist()), float(total), float(score))

    sentences = zip(ids, log_probabilities, scores, strict=True)
    return [list(itertools.starmap(hypothesis, zip(*row, strict=True))) for row in sentences]


def check_equal(received, expected, tolerance=1e-4):
    """The same ids, and scores equal up to `tolerance`."""
    received = received if isinstance(received, list) else as_lists(received)
    assert len(received) == len(expected)
    for row, (ours, theirs) in enumerate(zip(received, expected, strict=True)):
        assert [h.ids for h in ours] == [h.ids for h in theirs], f"sentence {row}"
        for field in ("log_probability", "score"):
            values = ([getattr(h, field) for h in side] for side in (ours, theirs))
            message = f"{field} of sentence {row}"
            np.testing.assert_allclose(*values, rtol=tolerance, atol=tolerance, err_msg=message)


def check_tokens(hypotheses, scorer):
    """The log-probability of each token is the scorer's, 0 after the last, and they add up."""
    totals, by_token = np.asarray(hypotheses[1]), np.asarray(hypotheses[3])
    assert by_token.dtype == "float32" and by_token.shape == np.shape(hypotheses[0])
    np.testing.assert_allclose(by_token.sum(axis=2, dtype="float64"), totals, atol=1e-5)
    every = [
        (row, ids, by_token[row, index])
        for row, sentence in enumerate(as_lists(hypotheses))
        for index, (ids, *_) in enumerate(sentence)
    ]
    rows = [row for row, ids, _ in every for _ in ids]
    # One call for all, so that a scorer can fill its batches.
    table = iter(scorer(rows, [ids[:i] for _, ids, _ in every for i in range(len(ids))]))
    for _, ids, ours in every:
        expected = [next(table)[token] for token in ids]
        np.testing.assert_allclose(ours[: len(ids)], expected, rtol=1e-4, atol=1e-4)
        assert not ours[len(ids) :].any()


def check_hypotheses(hypotheses, expected, scorer):
    """What a beam found, token by token; where too little exists, its last places are empty."""
    ours = as_lists(hypotheses)
    for mine, theirs in zip(ours, expected, strict=True):
        for empty in mine[len(theirs) :]:
            assert (empty.ids, empty.log_probability) == ((), 0.0) and empty.score <= -1e29
        del mine[len(theirs) :]
    check_equal(ours, expected)
    check_tokens(hypotheses, scorer)


def check_varied(hypotheses):
    """That a comparison says something: sentences end at different lengths, or not at all."""
    best = [sentence[0].ids for sentence in hypotheses]
    ended = {len(ids) for ids in best if EOS in ids}
    assert len(ended) >= 3 and any(ids and EOS not in ids for ids in best), ended
    assert len({token for ids in best for token in ids}) >= 7


def many_seeds(check):
    """`check(seed)` for 25 seeds, always the same: some of thousands of sums may round alike."""
    # A smaller seed is no simpler.
    same = settings(max_examples=25, derandomize=True, phases=[Phase.generate])
    return same(given(seed=st.integers(0, 2**32 - 1))(check))


class _State(NamedTuple):
    node: object  # int32 [batch, beams]
    position: object


class HistoryModel:
    """Next-token logits that depend on all tokens so far: `(sentences, histories, vocabulary)`.

    Histories are numbered as a heap numbers the nodes of a tree, modulo the table's rows. A batch
    of more sentences repeats them.
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

    def with_table(self, table):
        """The same model with other numbers, which may be the argument of a program."""
        other = copy.copy(self)
        other.table = table
        return other

    def start(self, beams, sentences=None):
        shape = (sentences or len(self.logits), beams)
        return _State(ops.zeros(shape, "int32"), ops.zeros((), "int32"))

    def step(self, ids, state):
        self.calls += 1
        sentences, histories, vocabulary = self.logits.shape
        following = (state.node * vocabulary + ids + 1) % histories
        node = ops.where(state.position == 0, 0, following)
        row = ops.arange(ids.shape[0], dtype="int32") % sentences
        logits = ops.take(self.table, ops.expand_dims(row, 1) * histories + node, axis=0)
        return logits, _State(node, state.position + 1)

    def reorder(self, state, parents):
        return state._replace(node=ops.take_along_axis(state.node, parents, axis=1))


def search_program(
    compiled, model, strategy, capacity, ngram_size=0, columns=5, sentences=None, phrases=None
):
    """A search as one program for all `HistoryModel`s of the shape of `model`.

    A function of a model, the limits, `Rules` and the arguments of `strategy`, which are traced: it
    gives the `Hypotheses` and the number of steps. `columns` are those of the prefixes, `phrases`
    the most phrases of a sentence and their most tokens.
    """

    def traced(table, arrays, numbers):
        chosen, ours = strategy(**numbers), model.with_table(table)
        *arrays, last = arrays
        constraints = Constraints(*arrays, no_repeat_ngram_size=ngram_size, phrases=last)
        state = loop.start(chosen, ours.start(chosen.beams, sentences), constraints, capacity)
        body = loop.make_step_body(chosen, ours.step, constraints, ours.reorder)
        state = loop.advance(body, state, capacity)
        return chosen.hypotheses(state, constraints), state.position

    program = compiled(traced)

    def run(model, limits, rules=ANYTHING, **numbers):
        last = rules.phrase_array((len(limits), *phrases)) if phrases else None
        arrays = *rules.arrays(limits, model.logits.shape[2], columns), last
        numbers = {
            name: np.asarray(value, "float32" if isinstance(value, float) else None)
            for name, value in numbers.items()
        }
        fields, steps = program(model.table, arrays, numbers)
        return Hypotheses(*fields), int(steps)

    return run


def as_graph(step_body):
    """`wrap_body` of a search that is no program: a step is a graph, instead of 500 operations.

    JAX compiles a loop's body anyway.
    """
    if keras.backend.backend() == "jax":
        return step_body
    import tensorflow as tf

    return tf.function(step_body, autograph=False)


class FullPass:
    """Scores prefixes by running a whole `Transformer` over them, without any cache."""

    ROWS = 32

    def __init__(self, model, source_ids, capacity):
        self.model, self.source_ids, self.capacity = model, np.asarray(source_ids), capacity

    def __call__(self, rows, prefixes):
        results = []
        for start in range(0, len(rows), self.ROWS):
            chosen = rows[start : start + self.ROWS]
            # One shape for all calls, so that little is compiled.
            source = np.full((self.ROWS, self.source_ids.shape[1]), 3, "int32")
            target = np.full((self.ROWS, self.capacity), PAD, "int32")
            target[:, 0] = BOS
            source[: len(chosen)] = self.source_ids[chosen]
            ends = [len(prefix) for prefix in prefixes[start : start + self.ROWS]]
            for i, prefix in enumerate(prefixes[start : start + self.ROWS]):
                target[i, 1 : 1 + len(prefix)] = prefix
            logits = np.asarray(self.model.call_with_attention(source, target)[0])
            results.append(log_softmax(logits[np.arange(len(chosen)), ends]))
        return np.concatenate(results)


VOCABULARY, MAX_LENGTH = 17, 23
LEARNED = dict(positions="learned", normalize_first=True)

# The seeds are those whose sentences vary most; `check_varied` holds them to it.
VARIED = {
    "post_norm": (6, dict(positions="sinusoidal", normalize_first=False)),
    "pre_norm": (7, LEARNED),
    "untied": (3, dict(tie_embeddings="none", num_decoder_layers=2, **LEARNED)),
    "rotary": (5, {**LEARNED, "positions": "rotary", "num_kv_heads": 1, "sliding_window": 4}),
}


class NumberTokenizer:
    """Each word is an id, written as a number."""

    vocabulary_size = VOCABULARY
    tag_ids = frozenset()
    tag_tokens: dict[str, str] = {}
    placeholders = Placeholders()
    annotates_terms = False

    def tokenize(self, texts, add_eos=False):
        return [[int(word) for word in text.split()] + [EOS] * add_eos for text in texts]

    def detokenize(self, ids):
        return [self._text(row) for row in ids]

    def split_tags(self, text):
        return "", text

    def pieces_of(self, ids):
        return [str(token) for token in ids]

    def _text(self, row):
        row = row[: row.index(EOS)] if EOS in row else row
        return " ".join(str(token) for token in row if token != PAD)


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


def ban_padding_and_bos(model):
    """Lowers only the logits of PAD and BOS, by more than 20 nats, by one axis of hidden vectors.

    Trained models give them no probability, and CTranslate2's log-probabilities leave them out.
    """
    table = np.array(model.target_embedding.embeddings)
    table[:, 0] = 0.0
    table[[PAD, BOS], 0] = -1.0
    model.target_embedding.embeddings.assign(table)
    last = model.decoder.final_norm or model.decoder.blocks[-1].feed_forward_norm
    last.beta.assign(np.where(np.arange(table.shape[1]) == 0, 30.0, last.beta))


def _random_weight(rng, weight):
    noise = rng.normal(size=weight.shape)
    if "positions" in weight.path:
        return noise
    for end, scale in (("embeddings", 0.3), ("output/kernel", 0.6), ("kernel", 0.7)):
        if weight.path.endswith(end):
            return scale * noise
    return weight.path.endswith("gamma") + 0.2 * noise


def varied_sources(sentences=13, columns=7, seed=0):
    """Random sentences of 1 to `columns` tokens, padded."""
    rng = np.random.default_rng(seed)
    source = np.full((sentences, columns), PAD, "int32")
    for row in range(sentences):
        length = 1 + row % columns
        source[row, :length] = rng.integers(3, VOCABULARY, size=length)
    return source


def pad_to_few_shapes(ids, max_length=512):
    """Lists of ids as one array of a power of two of rows and one of the `length_buckets`."""
    columns = inputs.bucket(max(map(len, ids)), inputs.length_buckets(max_length))
    return inputs.pad(ids, inputs.row_count(len(ids)), columns)
