"""Sampling and a beam with every constraint on a real Transformer; see test_search.py."""

import decoding_oracles as oracles
import numpy as np
import pytest
from naive_search import EOS, Rules, penalty

from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.search import Search, search_arguments
from keras_transformer.engine.inputs import pad

# Their operations run on JAX in test_constrained_search.py, test_search.py and test_sampling.py.
pytestmark = pytest.mark.tensorflow

BANNED, LONGEST = (5, 12), 17
LENGTHS = dict(min_length=2, min_length_ratio=0.7, length_penalty=1.0)
STRATEGIES = {
    "sampling": DecodingOptions(
        sampling=True, n_best=3, temperature=1.2, top_p=0.95, no_repeat_ngram_size=3, **LENGTHS
    ),
    "beam": DecodingOptions(beam_size=4, n_best=4, no_repeat_ngram_size=2, **LENGTHS),
}
PREFIXES = [(), (7, 9), (4,), (), (11, 4, 13), (), (), (8, 8, 8), (), (), (6,), (), (15, 3)]


def bias():
    values = np.linspace(-0.4, 0.6, oracles.VOCABULARY)
    values[EOS] = 1.0
    values[list(BANNED)] = -np.inf
    return values


def inputs_of(source):
    """Source ids, prefixes and seeds: a row each for every sentence."""
    return source, pad(PREFIXES, len(source), 3), np.arange(len(source), dtype="int32") * 7 - 3


@pytest.fixture(scope="module", params=STRATEGIES)
def strategy(request, varied):
    """The name of a strategy, `run`, and what it gives for `varied_sources`."""
    model, options = varied("pre_norm"), STRATEGIES[request.param]

    def run(source_ids, prefixes, seeds):
        values = bias().astype("float32")
        arguments = search_arguments(options, source_ids, LONGEST, seeds, prefixes, values)
        return Search(model, options, arguments).run(LONGEST)

    return request.param, run, run(*inputs_of(oracles.varied_sources()))


@pytest.mark.slow(after=1)
def test_scores_are_those_of_full_passes(varied, strategy):
    name, _, result = strategy
    source, model = oracles.varied_sources(), varied("pre_norm")
    oracles.check_tokens(result, oracles.FullPass(model, source, LONGEST))
    rules = Rules(prefixes=PREFIXES, bias=tuple(bias()))
    best = [hypotheses[0] for hypotheses in oracles.as_lists(result)]
    # A logit bias is in the score of what ranks by it.
    forced, by_token = list(map(len, PREFIXES)), np.asarray(result.token_log_probabilities)[:, 0]
    bonuses = [rules.bonus(row, ids) * (name == "beam") for row, (ids, *_) in enumerate(best)]
    ranked = [by_token[row, forced[row] :].sum() + bonus for row, bonus in enumerate(bonuses)]
    expected = [
        total / penalty(len(ids) - count, 1.0)
        for total, count, (ids, *_) in zip(ranked, forced, best, strict=True)
    ]
    np.testing.assert_allclose([h.score for h in best], expected, atol=1e-4)


@pytest.mark.slow(after=1)
def test_batch_mates_and_padding_change_nothing(strategy):
    _, run, result = strategy
    source, prefixes, seeds = inputs_of(oracles.varied_sources())
    together = oracles.as_lists(result)
    order = np.random.default_rng(3).permutation(len(source))
    wider = [np.pad(x[order], ((0, 2), (0, more))) for x, more in ((source, 12), (prefixes, 3))]
    mixed = oracles.as_lists(run(*wider, np.pad(seeds[order], (0, 2))))
    oracles.check_equal(mixed[:-2], [together[row] for row in order], 1e-5)
    assert {h.ids for ranked in mixed[-2:] for h in ranked} == {()}
    alone = run(source[4:5, :5], prefixes[4:5], seeds[4:5])
    oracles.check_equal(alone, together[4:5], 1e-5)
