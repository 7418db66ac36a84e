"""The searches need nothing but `step` and `reorder`: a language model of `DecoderBlock`s."""

from typing import NamedTuple

import keras
import numpy as np
import pytest
from decoding_oracles import check_equal
from keras import ops
from naive_search import BOS, EOS, log_softmax, naive_beam, naive_greedy

from keras_transformer.cache import KeyValue
from keras_transformer.decoding import Beam, Constraints, Greedy, decode
from keras_transformer.layers import DecoderBlock, LearnedPositionalEmbedding, TokenEmbedding

VOCABULARY, WIDTH, HEADS, LAYERS, PROMPT, ROOM = 13, 10, 2, 2, 3, 11


class _Cache(NamedTuple):
    layers: tuple  # a KeyValue a block, a row for each hypothesis
    position: object


class LanguageModel(keras.Model):
    """Goes on from a prompt. Each hypothesis has rows of its own, which `reorder` gathers."""

    def __init__(self):
        super().__init__()
        self.embedding = TokenEmbedding(VOCABULARY, WIDTH)
        self.positions = LearnedPositionalEmbedding(PROMPT + ROOM)
        self.output_layer = keras.layers.Dense(VOCABULARY)
        self.blocks = [DecoderBlock(17, HEADS, normalize_first=True) for _ in range(LAYERS)]

    def call(self, ids):
        hidden = self.positions(self.embedding(ids))
        for block in self.blocks:
            hidden = block(hidden)
        return self.output_layer(hidden)

    def start(self, prompt, beams):
        """Writes the prompt, all its positions at once."""
        prompt = ops.repeat(prompt, beams, axis=0)
        sizes = (prompt.shape[0], HEADS, PROMPT + ROOM, WIDTH // HEADS, WIDTH // HEADS)
        empty = KeyValue.empty(*sizes, "float32")
        cache = _Cache((empty,) * LAYERS, ops.zeros((), "int32"))
        return self._advance(prompt, cache)[1]

    def _advance(self, ids, cache):
        new = ids.shape[1]
        hidden = self.positions(self.embedding(ids), start_index=cache.position)
        queries = cache.position + ops.arange(new, dtype="int32")
        visible = ops.arange(PROMPT + ROOM, dtype="int32") <= ops.expand_dims(queries, 1)
        mask = ops.broadcast_to(visible, (ids.shape[0], 1, new, PROMPT + ROOM))
        written = []
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            hidden, layer, _ = block.step(hidden, layer, cache.position, mask)
            written.append(layer)
        return self.output_layer(hidden), _Cache(tuple(written), cache.position + new)

    def step(self, ids, cache):
        logits, cache = self._advance(ops.reshape(ids, (-1, 1)), cache)
        return ops.reshape(logits, (*ids.shape, VOCABULARY)), cache

    def reorder(self, cache, parents):
        batch, beams = parents.shape
        rows = ops.reshape(
            ops.expand_dims(ops.arange(batch, dtype="int32"), 1) * beams + parents, (-1,)
        )
        layers = tuple(
            KeyValue(*(ops.take(each, rows, axis=0) for each in layer)) for layer in cache.layers
        )
        return cache._replace(layers=layers)


@pytest.fixture
def language_model(rng):
    model = LanguageModel()
    model(np.ones((1, 2), "int32"))
    for weight in model.weights:
        weight.assign(0.5 * rng.normal(size=weight.shape))
    # Not one token for ever: the logits of random networks have a mean far from zero.
    ids = rng.integers(3, VOCABULARY, size=(31, PROMPT + ROOM)).astype("int32")
    model.output_layer.bias.assign_sub(np.asarray(model(ids)).mean(axis=(0, 1)))
    return model


@pytest.fixture
def prompts(rng):
    return rng.integers(3, VOCABULARY, size=(7, PROMPT)).astype("int32")


def scorer_of(model, prompts):
    def scorer(rows, prefixes):
        padded = np.zeros((len(prompts) * 4, PROMPT + ROOM), "int32")
        ends = [PROMPT + len(prefix) for prefix in prefixes]
        for i, (row, prefix) in enumerate(zip(rows, prefixes, strict=True)):
            padded[i, : ends[i] + 1] = (*prompts[row], BOS, *prefix)
        return log_softmax(np.asarray(model(padded))[np.arange(len(rows)), ends])

    return scorer


LIMITS = [11, 5, 7, 1, 11, 3, 2]


def test_greedy_search_goes_on_from_a_prompt(language_model, prompts):
    expected = naive_greedy(scorer_of(language_model, prompts), LIMITS)
    assert len({each[0].ids for each in expected}) >= 6
    assert len({token for each in expected for token in each[0].ids}) >= 5
    cache, constraints = language_model.start(prompts, 1), Constraints(ops.array(LIMITS))
    check_equal(decode(language_model.step, cache, Greedy(), constraints, ROOM), expected)


@pytest.mark.parametrize("beam_size, alpha", [(2, 0.6), (4, 1.0)])
def test_beam_search_goes_on_from_a_prompt(language_model, prompts, beam_size, alpha):
    model = language_model
    expected = naive_beam(scorer_of(model, prompts), LIMITS, beam_size, alpha, beam_size)
    assert any(EOS in each[0].ids for each in expected)
    result = decode(
        model.step,
        model.start(prompts, beam_size),
        Beam(beam_size, length_penalty=alpha, n_best=beam_size),
        Constraints(ops.array(LIMITS)),
        ROOM,
        model.reorder,
    )
    check_equal(result, expected)
