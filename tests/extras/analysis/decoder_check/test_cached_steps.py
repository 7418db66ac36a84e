"""Faults of cached steps, which only decoding has, are found with their cause."""

import numpy as np
import pytest

from keras_transformer.decoding import SearchModel
from keras_transformer.extras.analysis import check_decoder

VOCABULARY, WIDTH, LONGEST = 23, 8, 13


def attend(queries, keys, values, mask):
    """Attention of one head; True = may attend."""
    scores = np.where(mask, queries @ keys.swapaxes(-1, -2) / WIDTH**0.5, -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


class CachedDecoder:
    """A decoder in NumPy with a head for the last `window` tokens of the target, and one for the
    source. It keeps the encoder's outputs of its last call. The full pass is right.
    """

    def __init__(self, has_positions=True, window=LONGEST):
        normal = np.random.default_rng(7).normal
        self.embedding, self.logits = normal(size=(2, VOCABULARY, WIDTH))
        self.table, self.window = normal(size=(LONGEST, WIDTH)) * has_positions, window
        self.projections = normal(size=(5, WIDTH, WIDTH)) / WIDTH**0.5

    def project(self, ids, positions, factor=1.0):
        """Vectors of tokens, with their queries, keys and values."""
        hidden = (self.embedding[ids] + self.table[positions]) * factor
        return hidden, *(hidden @ matrix for matrix in self.projections[:3])

    def source(self, source_ids):
        return [self.embedding[source_ids] @ matrix for matrix in self.projections[3:]]

    def __call__(self, inputs):
        source_ids, target_ids = map(np.asarray, inputs.values())
        places = np.arange(target_ids.shape[1])
        hidden, queries, keys, values = self.project(target_ids, places)
        distance = places[:, None] - places
        visible = (distance >= 0) & (distance < self.window)
        hidden = hidden + attend(queries, keys, values, visible)
        self.last = self.source(source_ids)
        hidden = hidden + attend(hidden, *self.last, (source_ids != 0)[:, None])
        return hidden @ self.logits.T


class Steps(SearchModel):
    """Steps of a `CachedDecoder`, with a fault."""

    def __init__(self, model, fault=""):
        self.model, self.fault = model, fault
        self.first_source = self.kept = None

    def start_decoding(self, source_ids, capacity, num_beams=1):
        source_ids = np.asarray(source_ids)
        mask = source_ids != (-1 if self.fault == "no source mask" else 0)
        source = [*self.model.source(source_ids), mask[:, None]]
        if self.fault == "tiled":
            source = [np.concatenate([array] * num_beams) for array in source]
        else:
            source = [np.repeat(array, num_beams, axis=0) for array in source]
        empty = np.zeros((len(source_ids) * num_beams, capacity + 1, WIDTH))
        cache = {"source": source, "keys": empty, "values": empty, "position": 0}
        self.first_source = self.first_source or source
        if num_beams > 1:
            return cache
        if self.fault == "encoder of the first call":
            cache["source"] = self.first_source
        elif self.fault == "encoder of the last call":
            cache["source"] = [*self.model.last, source[2]]
        elif self.fault == "not reset" and self.kept is not None:
            cache |= {name: self.kept[name][:, : capacity + 1] for name in ("keys", "values")}
        return cache

    def step(self, ids, cache):
        fault, position = self.fault, cache["position"]
        counted = {"restarted": 0, "shifted": position + 1}.get(fault, position)
        factor = 2.0 if fault == "factor of vectors" else 1.0
        rows = np.asarray(ids).reshape(-1, 1)
        hidden, queries, key, value = self.model.project(rows, counted, factor)
        keys, values = cache["keys"].copy(), cache["values"].copy()
        index = {"overwritten": 0, "next index": position + 1}.get(fault, position)
        keys[:, [index]], values[:, [index]] = key, value
        places = np.arange(keys.shape[1])
        last = {"empty places": 99, "overwritten": 0}.get(fault, position)
        first = position - self.model.window + (2 if fault == "short window" else 1)
        visible = (places <= last) & (places >= first)
        if fault == "not reset":
            visible = keys.any(axis=(0, 2))
        hidden = hidden + attend(queries, keys, values, visible)
        hidden = hidden + attend(hidden, *cache["source"])
        logits = hidden @ self.model.logits.T * (3.0 if fault == "factor of logits" else 1.0)
        self.kept = cache = {**cache, "keys": keys, "values": values, "position": position + 1}
        return logits.reshape(*ids.shape, -1), cache

    def reorder(self, cache, parents):
        parents = np.asarray(parents)
        rows = (parents + parents.shape[1] * np.arange(len(parents))[:, None]).ravel()
        names = ["keys"] if self.fault == "half reordered" else ["keys", "values"]
        return {**cache, **{name: cache[name][rows] for name in names}}


class GrowingSteps(Steps):
    """Steps whose cache a search extends."""

    is_extendable = True

    def extended(self, cache, capacity):
        def grown(tensor):
            num_new = capacity + 1 - tensor.shape[1]
            before = num_new if self.fault == "extended in front" else 0
            return np.pad(tensor, ((0, 0), (before, num_new - before), (0, 0)))

        return {**cache, **{name: grown(cache[name]) for name in ("keys", "values")}}


class GreedySteps(Steps):
    reorder = SearchModel.reorder


class BrokenSteps(Steps):
    def step(self, ids, cache):
        raise KeyError("keys")


INPUTS = {"source_ids": np.ones((2, 7), "int32"), "target_ids": np.ones((2, 11), "int32")}


def checked(fault, steps=Steps, **options):
    model = CachedDecoder(**options)
    return check_decoder(model, INPUTS, search_model=steps(model, fault))


NO_POSITIONS, WINDOW = {"has_positions": False}, {"window": 8}
# A fault of the steps, words of its cause, the token whose logits differ first, and options.
FAULTS = [
    ("overwritten", "The cache loses earlier tokens", 1, {}),
    ("restarted", "Positions restart in cached steps", 1, {}),
    ("shifted", "position does not start at 0", 0, {}),
    ("next index", "written at the wrong index", 0, {}),
    ("next index", "empty or old places are attended to", 0, NO_POSITIONS),
    ("empty places", "empty places are attended to", 0, {}),
    ("empty places", "empty or old places are attended to", 0, NO_POSITIONS),
    ("no source mask", "lacks the padding mask of the source", 0, {}),
    ("extended in front", "The cache loses earlier tokens", None, {"steps": GrowingSteps}),
    ("factor of logits", "times 3: a factor", 0, {}),
    ("factor of vectors", "a factor, a bias", 0, {}),
    ("factor of vectors", "a factor, a bias", 0, NO_POSITIONS),
    # Faults that a first sentence, or six tokens, do not show.
    ("short window", "mask of the steps hides them", 7, WINDOW),
    ("not reset", "of earlier sentences is kept", None, {}),
    ("encoder of the first call", "of earlier sentences is kept", None, {}),
    ("encoder of the last call", "of earlier sentences is kept", None, {}),
]


@pytest.mark.parametrize(("fault", "words", "first", "options"), FAULTS)
def test_a_fault_of_cached_steps_is_found_with_its_cause(fault, words, first, options):
    report = checked(fault, **options)
    assert [check.name for check in report.failures] == ["cached steps"], str(report)
    check = report["cached steps"]
    assert words in check.cause and check.difference > 0.01, str(report)
    assert first is None or check.place[1] == first


BEAMS = {"tiled": "`tile` where beams need `repeat`"}
BEAMS["half reordered"] = "`reorder` leaves a tensor of the cache"


@pytest.mark.parametrize("fault", BEAMS)
def test_a_fault_of_several_hypotheses_is_found_with_its_cause(fault):
    report = checked(fault)
    assert [check.name for check in report.failures] == ["reordered beams"], str(report)
    assert BEAMS[fault] in report["reordered beams"].cause


@pytest.mark.parametrize("options", [NO_POSITIONS, WINDOW, {"steps": GrowingSteps}])
def test_right_steps_pass(options):
    report = checked("", **options)
    assert report.ok, str(report)
    for name in ("cached steps", "reordered beams"):
        assert report[name].result == "passed"


def test_steps_without_reorder_and_steps_that_raise_say_so():
    report = checked("", GreedySteps)
    assert report.ok and report["reordered beams"].result == "skipped"
    assert "reorder" in report["reordered beams"].message
    report = checked("", BrokenSteps)
    assert "KeyError" in report["cached steps"].message and not report.ok
