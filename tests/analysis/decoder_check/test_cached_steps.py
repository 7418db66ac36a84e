"""Faults of cached steps, which only decoding has, are found with their cause."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.analysis import check_decoder
from keras_transformer.decoding import SearchModel

VOCABULARY, WIDTH, LONGEST = 23, 8, 13


def attend(queries, keys, values, mask):
    """Attention of one head; True = may attend."""
    scores = ops.matmul(queries, ops.swapaxes(keys, -1, -2)) / math.sqrt(WIDTH)
    return ops.matmul(ops.softmax(ops.where(mask, scores, -1e9)), values)


class CachedDecoder(keras.Model):
    """A decoder of a head for the target and a head for the source, with a cache.

    `fault` is a fault of the steps; the full pass is right.
    """

    def __init__(self, fault="", has_positions=True):
        super().__init__()
        self.fault, self.has_positions = fault, has_positions
        normal = keras.initializers.RandomNormal(stddev=1.0)
        self.embedding = keras.layers.Embedding(VOCABULARY, WIDTH, normal)
        self.table = self.add_weight(shape=(LONGEST, WIDTH), initializer=normal)
        self.projections = [keras.layers.Dense(WIDTH, use_bias=False) for _ in range(5)]
        self.logits = keras.layers.Dense(VOCABULARY, kernel_initializer=normal)

    def embed(self, ids, positions):
        vectors = self.embedding(ids)
        return vectors + ops.take(self.table, positions, axis=0) * float(self.has_positions)

    def call(self, inputs):
        source_ids, target_ids = inputs
        length = target_ids.shape[1]
        hidden = self.embed(target_ids, ops.arange(length))
        queries, keys, values = (layer(hidden) for layer in self.projections[:3])
        causal = ops.tril(ops.ones((length, length), "bool"))
        hidden = hidden + attend(queries, keys, values, causal)
        mask = ops.expand_dims(ops.not_equal(source_ids, 0), 1)
        return self.logits(hidden + attend(hidden, *self.source(source_ids), mask))

    def source(self, source_ids):
        encoded = self.embedding(source_ids)
        return tuple(layer(encoded) for layer in self.projections[3:])


class Steps(SearchModel):
    """Steps of a `CachedDecoder`, with its fault."""

    def __init__(self, model):
        self.model, self.fault = model, model.fault

    def start_decoding(self, source_ids, capacity, num_beams=1):
        mask = ops.not_equal(source_ids, 0)
        if self.fault == "no source mask":
            mask = ops.ones_like(mask)
        keys, values = self.model.source(source_ids)

        def of_beams(tensor):
            if self.fault == "tiled":
                return ops.tile(tensor, (num_beams,) + (1,) * (len(tensor.shape) - 1))
            return ops.repeat(tensor, num_beams, axis=0)

        rows = source_ids.shape[0] * num_beams
        empty = ops.zeros((rows, capacity + 1, WIDTH))
        source = [of_beams(tensor) for tensor in (keys, values, ops.expand_dims(mask, 1))]
        return {"source": source, "keys": empty, "values": empty, "position": 0}

    def step(self, ids, cache):
        position = cache["position"]
        rows = ops.reshape(ids, (-1, 1))
        counted = {"restarted": 0, "shifted": position + 1}.get(self.fault, position)
        hidden = self.model.embed(rows, ops.array([counted]))
        queries, key, value = (layer(hidden) for layer in self.model.projections[:3])
        index = {"overwritten": 0, "next index": position + 1}.get(self.fault, position)
        places = ops.arange(cache["keys"].shape[1])
        is_new = ops.expand_dims(ops.equal(places, index), 1)
        keys = ops.where(is_new, key, cache["keys"])
        values = ops.where(is_new, value, cache["values"])
        last = {"empty places": 99, "overwritten": 0}.get(self.fault, position)
        hidden = hidden + attend(queries, keys, values, places <= last)
        logits = self.model.logits(hidden + attend(hidden, *cache["source"]))
        cache = {**cache, "keys": keys, "values": values, "position": position + 1}
        return ops.reshape(logits, (*ids.shape, -1)), cache

    def reorder(self, cache, parents):
        def reordered(tensor):
            beams = ops.reshape(tensor, (*parents.shape, -1))
            moved = ops.take_along_axis(beams, ops.expand_dims(parents, 2), axis=1)
            return ops.reshape(moved, tensor.shape)

        names = ["keys"] if self.fault == "half reordered" else ["keys", "values"]
        return {**cache, **{name: reordered(cache[name]) for name in names}}


class GrowingSteps(Steps):
    """Steps whose cache a search extends."""

    is_extendable = True

    def extended(self, cache, capacity):
        def grown(tensor):
            num_new = capacity + 1 - tensor.shape[1]
            before = num_new if self.fault == "extended in front" else 0
            return ops.pad(tensor, ((0, 0), (before, num_new - before), (0, 0)))

        return {**cache, **{name: grown(cache[name]) for name in ("keys", "values")}}


PAIR = np.ones((2, 7), "int32"), np.ones((2, 11), "int32")


def checked(fault, steps=Steps, **options):
    keras.utils.set_random_seed(7)
    model = CachedDecoder(fault, **options)
    return check_decoder(model, PAIR, search_model=steps(model), reload=False)


# Fault of the steps, and words of its cause.
FAULTS = {
    "overwritten": "The cache loses earlier tokens",
    "restarted": "Positions restart in cached steps",
    "shifted": "position does not start at 0",
    "next index": "written at the wrong index",
    "empty places": "empty places are attended to",
    "no source mask": "lacks the padding mask of the source",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_cached_steps_is_found_with_its_cause(fault):
    report = checked(fault)
    assert [check.name for check in report.failures] == ["cached steps"], str(report)
    check = report["cached steps"]
    assert FAULTS[fault] in check.cause, str(report)
    # The first step of a faulty cache may still be right.
    first = 1 if fault in ("overwritten", "restarted") else 0
    assert check.place[1] == first and check.difference > 0.01


@pytest.mark.parametrize("fault", ["next index", "empty places"])
def test_empty_places_are_named_where_the_model_has_no_positions(fault):
    report = checked(fault, has_positions=False)
    assert "empty or old places are attended to" in report["cached steps"].cause, str(report)


BEAMS = {
    "tiled": "`tile` where beams need `repeat`",
    "half reordered": "`reorder` leaves a tensor of the cache",
}


@pytest.mark.parametrize("fault", BEAMS)
def test_a_fault_of_several_hypotheses_is_found_with_its_cause(fault):
    report = checked(fault)
    assert [check.name for check in report.failures] == ["reordered beams"], str(report)
    assert BEAMS[fault] in report["reordered beams"].cause


def test_a_cache_that_loses_tokens_as_it_is_extended_is_found():
    report = checked("extended in front", GrowingSteps)
    assert [check.name for check in report.failures] == ["cached steps"], str(report)
    assert "The cache loses earlier tokens" in report["cached steps"].cause


@pytest.mark.parametrize("has_positions", [True, False])
@pytest.mark.parametrize("steps", [Steps, GrowingSteps])
def test_right_steps_pass(steps, has_positions):
    report = checked("", steps, has_positions=has_positions)
    assert report.ok, str(report)
    for name in ("cached steps", "reordered beams"):
        assert report[name].result == "passed"


def test_steps_without_reorder_and_steps_that_raise_say_so():
    class Greedy(Steps):
        reorder = SearchModel.reorder

    class Broken(Steps):
        def step(self, ids, cache):
            raise KeyError("keys")

    model = CachedDecoder()
    report = check_decoder(model, PAIR, search_model=Greedy(model), reload=False)
    assert report.ok and report["reordered beams"].result == "skipped"
    assert "reorder" in report["reordered beams"].message
    report = check_decoder(model, PAIR, search_model=Broken(model), reload=False)
    assert "KeyError" in report["cached steps"].message and not report.ok


WINDOW = 8


class Windowed(CachedDecoder):
    """Sees the last 8 tokens; keeps the encoder's outputs of its last call."""

    def attention_mask(self, length):
        places = ops.arange(length)
        distance = ops.expand_dims(places, 1) - ops.expand_dims(places, 0)
        return ops.logical_and(distance >= 0, distance < WINDOW)

    def call(self, inputs):
        source_ids, target_ids = inputs
        hidden = self.embed(target_ids, ops.arange(target_ids.shape[1]))
        queries, keys, values = (layer(hidden) for layer in self.projections[:3])
        hidden = hidden + attend(queries, keys, values, self.attention_mask(target_ids.shape[1]))
        mask = ops.expand_dims(ops.not_equal(source_ids, 0), 1)
        self.last = self.source(source_ids)
        return self.logits(hidden + attend(hidden, *self.last, mask))


class FaultySteps(Steps):
    """Faults that a first sentence, or six tokens, do not show."""

    kept = None

    def start_decoding(self, source_ids, capacity, num_beams=1):
        cache = super().start_decoding(source_ids, capacity, num_beams)
        if self.kept is None:
            self.kept = cache
        if self.fault == "encoder of the first call" and num_beams == 1:
            return {**cache, "source": self.kept["source"]}
        if self.fault == "encoder of the last call" and num_beams == 1:
            return {**cache, "source": [*self.model.last, cache["source"][2]]}
        if self.fault == "not reset" and num_beams == 1 and self.kept["position"] > 0:
            return {**cache, "keys": self.kept["keys"], "values": self.kept["values"]}
        return cache

    def step(self, ids, cache):
        window = {"short window": WINDOW - 1, "window": WINDOW}.get(self.fault, LONGEST)
        places = ops.arange(cache["keys"].shape[1])
        is_old = places <= cache["position"] - window
        if self.fault == "not reset":
            is_old = places < 0
        old = ops.cast(ops.reshape(is_old, (1, -1, 1)), "float32")
        # A key of large negative products with any query would do as well: old keys are hidden.
        hidden_cache = {**cache, "hidden": old}
        logits, new = self.step_of(ids, hidden_cache)
        self.kept = new
        factor = {"factor of logits": 3.0}.get(self.fault, 1.0)
        return logits * factor, new

    def step_of(self, ids, cache):
        position, rows = cache["position"], ops.reshape(ids, (-1, 1))
        hidden = self.model.embed(rows, ops.array([position]))
        hidden = hidden * {"factor of vectors": 2.0}.get(self.fault, 1.0)
        queries, key, value = (layer(hidden) for layer in self.model.projections[:3])
        places = ops.arange(cache["keys"].shape[1])
        is_new = ops.expand_dims(ops.equal(places, position), 1)
        keys = ops.where(is_new, key, cache["keys"])
        values = ops.where(is_new, value, cache["values"])
        is_visible = ops.logical_and(places <= position, cache["hidden"][0, :, 0] == 0)
        if self.fault == "not reset":
            is_visible = ops.any(keys != 0, axis=(0, 2))
        hidden = hidden + attend(queries, keys, values, is_visible)
        logits = self.model.logits(hidden + attend(hidden, *cache["source"]))
        cache = {**cache, "keys": keys, "values": values, "position": position + 1}
        cache.pop("hidden")
        return ops.reshape(logits, (*ids.shape, -1)), cache


STEPS = {
    "": (CachedDecoder, "", True),
    "window": (Windowed, "", True),
    "short window": (Windowed, "mask of the steps hides them", True),
    "not reset": (CachedDecoder, "of earlier sentences is kept", True),
    "encoder of the first call": (CachedDecoder, "of earlier sentences is kept", True),
    "encoder of the last call": (Windowed, "of earlier sentences is kept", True),
    "factor of logits": (CachedDecoder, "times 3: a factor", True),
    "factor of vectors": (CachedDecoder, "a factor, a bias", True),
    "factor of vectors ": (CachedDecoder, "a factor, a bias", False),
}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("fault", STEPS)
def test_steps_are_compared_for_other_sentences_and_all_tokens(fault):
    model_class, words, has_positions = STEPS[fault]
    model = model_class(fault.strip(), has_positions)
    report = check_decoder(model, PAIR, search_model=FaultySteps(model), reload=False)
    if not words:
        assert report.ok, str(report)
        return
    assert report["cached steps"].result == "failed", str(report)
    assert words in report["cached steps"].cause, str(report)
