"""Sampling and a beam with every constraint on a real Transformer; see test_search.py."""

import decoding_oracles as oracles
import numpy as np
import pytest
from naive_search import EOS

from keras_transformer.decoding import DecodingOptions
from keras_transformer.decoding.arguments import search_arguments
from keras_transformer.decoding.search import Search
from keras_transformer.engine.inputs import pad

# Their operations run on JAX in test_constrained_search.py, test_search.py and test_sampling.py.
pytestmark = pytest.mark.tensorflow

LONGEST = 17
LENGTHS = dict(min_length=2, min_length_ratio=0.7, length_penalty=1.0)
STRATEGIES = {
    "sampling": DecodingOptions(
        sampling=True, n_best=3, temperature=1.2, top_p=0.95, no_repeat_ngram_size=3, **LENGTHS
    ),
    "beam": DecodingOptions(beam_size=4, n_best=4, no_repeat_ngram_size=2, **LENGTHS),
}
PREFIXES = [(), (7, 9), (4,), (), (11, 4, 13), (), (), (8, 8, 8), (), (), (6,), (), (15, 3)]
BIAS = np.linspace(-0.4, 0.6, oracles.VOCABULARY).astype("float32")
BIAS[EOS] = 1.0
BIAS[[5, 12]] = -np.inf


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("options", STRATEGIES.values(), ids=STRATEGIES)
def test_batch_mates_and_padding_change_nothing(varied, options):
    def run(source_ids, prefixes, seeds):
        arguments = search_arguments(options, source_ids, LONGEST, seeds, prefixes, BIAS)
        return oracles.as_lists(Search(varied("pre_norm"), options, arguments).run(LONGEST))

    source = oracles.varied_sources()
    prefixes, seeds = pad(PREFIXES, len(source), 3), np.arange(len(source), dtype="int32") * 7 - 3
    together = run(source, prefixes, seeds)
    order = np.random.default_rng(3).permutation(len(source))
    wider = [np.pad(x[order], ((0, 2), (0, more))) for x, more in ((source, 12), (prefixes, 3))]
    mixed = run(*wider, np.pad(seeds[order], (0, 2)))
    oracles.check_equal(mixed[:-2], [together[row] for row in order], 1e-5)
    assert {h.ids for ranked in mixed[-2:] for h in ranked} == {()}
    alone = run(source[4:5, :5], prefixes[4:5], seeds[4:5])
    oracles.check_equal(alone, together[4:5], 1e-5)
