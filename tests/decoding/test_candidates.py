"""A search among candidates is a search over the vocabulary without the other tokens."""

import decoding_oracles as oracles
import numpy as np
import pytest
from keras import ops
from naive_search import Rules, log_softmax, naive_beam, naive_greedy
from pairwise import pairwise

from keras_transformer.decoding import SearchModel
from keras_transformer.decoding.candidates import Candidates
from keras_transformer.decoding.search import search
from keras_transformer.engine.inputs import pad
from keras_transformer.impossible import NEG_INF
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
    "forced": {"beam_size": 2, "prefixes": pad(PREFIXES, 3, 2), "min_length": 3},
    "phrases": {
        "beam_size": 4,
        "phrases": np.stack([pad(phrases, 1, 2) for phrases in PHRASES]),
        "logit_bias": BIAS,
    },
    "sampling": {
        "sampling": True,
        "n_best": 3,
        "seeds": np.arange(3, dtype="int32"),
        "top_p": np.array([0.5, 0.9, 1], "float32"),
        "top_k": 6,
    },
    # The first is a candidate of another sentence, the last of its own.
    "language": {"beam_size": 3, "n_best": 2, "forced_ids": np.array([13, 16, 5], "int32")},
}


class Masked(SearchModel):
    """A model whose logits of other tokens than a sentence's candidates are the lowest."""

    forbidden_ids = (6,)

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
CASES = [(name, "pre_norm") for name in SEARCHES]
CASES += [(name, "untied") for name in ("greedy", "beam", "sampling")]


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


@pytest.mark.parametrize(
    "forced", [{"prefixes": pad([(7, 9), (4,), ()], 3, 2)}, {"phrases": np.full((3, 1, 1), 16)}]
)
def test_what_must_be_chosen_must_be_a_candidate(varied, forced):
    name, received = ("prefixes", 4) if "prefixes" in forced else ("phrases", 16)
    rule = f"`{name}` must be candidates of their sentence. Received: \\[{received}\\]"
    with pytest.raises(ValueError, match=rule):
        run(varied("pre_norm"), LISTS, {"beam_size": 2, **forced})


def test_an_id_that_is_no_candidate_is_read_as_itself_and_is_no_other_token():
    candidates = Candidates(np.array([0, 1, 2, 3, 7, 9, 0, 0]), np.ones((1, 8), "bool"))
    ids = np.array([[0, 2, 7, 8, 9, 16]])
    indices = np.asarray(candidates.indices(ops.convert_to_tensor(ids)))
    np.testing.assert_array_equal(indices, [[0, 2, 4, 8 + 8, 5, 8 + 16]])
    np.testing.assert_array_equal(np.asarray(candidates.at(indices)), ids)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
def test_with_all_tokens_it_is_the_search_without_candidates(varied, options):
    model = varied("pre_norm")
    oracles.check_equal(run(model, WHOLE, options), run(model, None, options), 1e-6)


class Among:
    """The scorer of full passes, over the candidates of each sentence."""

    def __init__(self, model, lists):
        self._full, self._lists = oracles.FullPass(model, sources(), LONGEST), lists

    def __call__(self, rows, prefixes):
        table = np.full((len(rows), oracles.VOCABULARY), -np.inf)
        for row, (sentence, scores) in enumerate(
            zip(rows, self._full(rows, prefixes), strict=True)
        ):
            ids = list(self._lists[sentence])
            table[row, ids] = log_softmax(scores[ids])
        return table


@pytest.mark.slow(after=2)
@pairwise(
    beam_size=[1, 3],
    lists=[LISTS, WHOLE, None],
    bias=[{}, {4: 1.5, 8: 2.0, 9: -0.5}],
    banned=[(), (5, 8)],
    forbidden=[(), (6, 9)],
    prefixes=[(), tuple(PREFIXES)],
    allow_unknown=[True, False],
    no_repeat_ngram_size=[0, 1, 2],
    early_stopping=[True, False],
)
def test_two_rules_at_once_among_candidates_are_those_of_the_masked_vocabulary(
    varied,
    monkeypatch,
    beam_size,
    lists,
    bias,
    banned,
    forbidden,
    prefixes,
    allow_unknown,
    no_repeat_ngram_size,
    early_stopping,
):
    model = varied("pre_norm")
    monkeypatch.setattr(type(model), "forbidden_ids", forbidden)
    options = dict(
        beam_size=beam_size,
        length_penalty=0.0 if beam_size == 1 else 0.6,
        logit_bias=bias,
        banned_ids=banned,
        allow_unknown=allow_unknown,
        no_repeat_ngram_size=no_repeat_ngram_size,
        n_best=beam_size,
    )
    if beam_size > 1:
        options["early_stopping"] = early_stopping
    if prefixes:
        options["prefixes"] = pad(prefixes, 3, 2)
    received = run(model, lists, options, size=None if lists is None else 17)
    values = np.zeros(oracles.VOCABULARY)
    for id, value in bias.items():
        values[id] = value
    values[list(banned)] = -np.inf
    excluded = (0, 1, *forbidden, *(() if allow_unknown else (3,)))
    weights = tuple(values) if bias or banned else ()
    rules = Rules((), prefixes, weights, no_repeat_ngram_size, (), excluded)
    scorer, limits = Among(model, lists or WHOLE), [LONGEST] * 3
    if beam_size == 1:
        expected = naive_greedy(scorer, limits, rules)
    else:
        beam = limits, beam_size, 0.6, beam_size, rules, early_stopping
        expected = naive_beam(scorer, *beam)
    for ours, theirs in zip(received, expected, strict=True):
        del ours[len(theirs) :]  # empty places
    oracles.check_equal(received, expected, 1e-4)
