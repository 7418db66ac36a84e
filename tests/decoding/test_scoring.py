"""Scoring given targets: against the whole model's logits, and its attention."""

import numpy as np
import pytest
from decoding_oracles import MAX_LENGTH, VOCABULARY, FullPass, varied_sources
from naive_search import BOS, EOS, log_probability

from keras_transformer.decoding.search import score_targets
from keras_transformer.engine.scheduler import Scheduler


def random_pairs(count, seed=0):
    rng = np.random.default_rng(seed)
    sources = [row[row != 0].tolist() for row in varied_sources(count)]
    lengths = rng.integers(0, 9, count)
    targets = [[*rng.integers(3, VOCABULARY, n).tolist(), EOS] for n in lengths]
    return list(zip(sources, targets, strict=True))


def test_log_probabilities_are_those_of_the_whole_model(varied):
    model, pairs = varied("pre_norm"), random_pairs(11)
    source = varied_sources(11)
    scorer = FullPass(model, source, MAX_LENGTH)
    scheduler = Scheduler(model, (32, 32))
    assert scheduler.score([], 32) == []
    scored = scheduler.score(pairs, batch_size=4)
    assert scheduler.compilations == 1  # Pairs of similar length share a program.
    for row, ((_, target), (by_token, alignment)) in enumerate(zip(pairs, scored, strict=True)):
        assert alignment is None and len(by_token) == len(target)
        expected = log_probability(scorer, row, tuple(target))
        assert sum(by_token) == pytest.approx(expected, abs=1e-4)


@pytest.mark.tensorflow
def test_the_alignment_is_the_mean_attention_of_the_last_blocks_heads(varied):
    model = varied("untied")  # two blocks of three heads
    source = np.array([[5, 7, 11, 2, 0], [3, 2, 0, 0, 0]], "int32")
    target = np.array([[3, 13, 4, EOS], [8, EOS, 0, 0]], "int32")
    _, alignment = score_targets(model, source, target)
    read = np.concatenate([np.full((2, 1), BOS, "int32"), target[:, :-1]], axis=1)
    _, (_, heads) = model.call_with_attention(source, read)
    np.testing.assert_allclose(alignment, np.asarray(heads).mean(axis=1), atol=1e-5)
    assert not np.asarray(alignment)[1, :, 2:].any()  # padding is never attended to
