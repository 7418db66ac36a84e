"""A search among candidates is a search over the vocabulary without the other tokens."""

import decoding_oracles as oracles
import numpy as np
import pytest
from keras import ops

from keras_transformer.base.impossible import NEG_INF
from keras_transformer.decoding import SearchModel
from keras_transformer.decoding.candidates import Candidates
from keras_transformer.decoding.search import search
from keras_transformer.engine.inputs import pad
from keras_transformer.text.shortlist import union_of

PREFIXES, PHRASES = [(7, 9), (), (4,)], [[(7, 8)], [], [(5,)]]
# Of each sentence: the special ids, its prefix and phrases, and some others.
LISTS = [[0, 1, 2, 3, 7, 8, 9, 11], [0, 1, 2, 3, 5, 6, 10], [0, 1, 2, 3, 4, 5, 12, 13, 15]]
LONGEST = 9
WHOLE = [range(oracles.VOCABULARY)] * 3
BIAS = np.linspace(-0.4, 0.6, oracles.VOCABULARY).astype("float32")
SEARCHES = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 3, "n_best": 2, "no_repeat_ngram_size": 2, "early_stopping": False},
    "phrases": {
        "beam_size": 4,
        "prefixes": pad(PREFIXES, 3, 2),
        "min_length": 3,
        "phrases": np.stack([pad(phrases, 1, 2) for phrases in PHRASES]),
        "logit_bias": BIAS,
    },
    "sampling": {
        "sampling": True,
        "n_best": 3,
        "seeds": np.arange(3, dtype="int32"),
        "top_p": np.array([0.5, 0.9, 1], "float32"),
        "top_k": 6,
        # The first is a candidate of another sentence, the last of its own.
        "forced_ids": np.array([13, 16, 5], "int32"),
    },
}


class Masked(SearchModel):
    """A model whose logits of other tokens than a sentence's candidates are the lowest."""

    forbidden_ids, has_unknown_id = (6,), True

    def __init__(self, model, lists):
        self._model = model
        self._mask = np.zeros((len(lists), 1, oracles.VOCABULARY), "bool")
        for row, ids in enumerate(lists):
            self._mask[row, 0, list(ids)] = True
        self.start_decoding, self.reorder = model.start_decoding, model.reorder

    def step(self, ids, cache):
        logits, cache = self._model.step(ids, cache)
        return ops.where(self._mask, logits, NEG_INF), cache


def sources(rows=slice(None)):
    return oracles.varied_sources()[3:6][rows]


def arguments_of(lists, options, rows=slice(None), size=None):
    """What a search takes; `rows` of what each sentence has its own of."""
    arguments = {
        name: value[rows] if np.ndim(value) and name != "logit_bias" else value
        for name, value in options.items()
    }
    if lists is not None:
        lists = [np.array(ids, "int32") for ids in lists[rows]]
        candidates = Candidates(*union_of(lists, len(lists), lambda _: size or oracles.VOCABULARY))
        arguments["candidates"] = candidates
    return arguments


def run(model, lists, options, size=None):
    arguments = arguments_of(lists, options, size=size)
    arguments |= {"max_length": LONGEST, "wrap_body": oracles.as_graph}
    return oracles.as_lists(search(model, sources(), **arguments))


def run_alone(graph, model, lists, options, size):
    """Each sentence in a batch of its own, in the same program."""

    def one(source_ids, arrays):
        return tuple(search(model, source_ids, max_length=LONGEST, **numbers, **arrays))

    program, hypotheses = graph(one), []
    for row in range(len(lists)):
        arguments = arguments_of(lists, options, slice(row, row + 1), size)
        arrays = {name: value for name, value in arguments.items() if not np.isscalar(value)}
        numbers = {name: value for name, value in arguments.items() if name not in arrays}
        hypotheses += oracles.as_lists(program(sources(slice(row, row + 1)), arrays))
    return hypotheses


# The logits of candidates depend on the embeddings, and on whether a step has one row.
CASES = [("greedy", "pre_norm"), ("beam", "untied")]
CASES += [("phrases", "pre_norm"), ("sampling", "pre_norm")]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_other_tokens_do_not_exist(varied, graph, monkeypatch, name, variant):
    model, options = varied(variant), SEARCHES[name]
    expected = run(Masked(model, LISTS), None, options)
    monkeypatch.setattr(type(model), "forbidden_ids", (6,))
    # The union has 16 of the 17 tokens.
    together = run(model, LISTS, options, size=16)
    oracles.check_equal(together, expected, 1e-5)
    oracles.check_equal(run_alone(graph, model, LISTS, options, size=9), together, 1e-5)
    if variant == "pre_norm":  # A model that always computes all logits.
        oracles.check_equal(run(Masked(model, WHOLE), LISTS, options, size=16), together, 1e-5)
    ids = {id for ranked in together for h in ranked for id in h.ids}
    assert ids > {2} and 6 not in ids


class Even(SearchModel):
    """Gives all tokens the same probability, after any tokens."""

    forbidden_ids, has_unknown_id = Masked.forbidden_ids, Masked.has_unknown_id

    def start_decoding(self, source_ids, capacity, num_beams=1):
        return source_ids

    def step(self, ids, cache):
        return ops.zeros((*ops.shape(ids), oracles.VOCABULARY)), cache


def test_samples_belong_to_ids_and_not_to_their_places_in_a_list():
    options = {"sampling": True, "n_best": 3, "seeds": np.arange(3), "max_length": 5}
    expected = search(Masked(Even(), LISTS), sources(), **options).ids
    ids = search(Even(), sources(), **options, **arguments_of(LISTS, {}, size=16)).ids
    np.testing.assert_array_equal(ids, expected)


@pytest.mark.parametrize(
    "forced", [{"prefixes": pad([(7, 9), (4,), ()], 3, 2)}, {"phrases": np.full((3, 1, 1), 16)}]
)
def test_what_must_be_chosen_must_be_a_candidate(varied, forced):
    name, received = ("prefixes", 4) if "prefixes" in forced else ("phrases", 16)
    rule = f"`{name}` must be candidates of their sentence. Received: \\[{received}\\]"
    with pytest.raises(ValueError, match=rule):
        run(varied("pre_norm"), LISTS, {"beam_size": 2, **forced})
