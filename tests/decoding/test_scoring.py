"""Scoring given targets: against the whole model's logits, and its attention."""

import numpy as np
import pytest
from decoding_oracles import MAX_LENGTH, VOCABULARY, FullPass, varied_sources
from naive_search import BOS, EOS, log_probability

from keras_transformer import Transformer, TransformerConfig
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


@pytest.mark.parametrize("layers", [1, 3])
def test_an_alignment_is_the_mean_of_the_heads_of_the_last_block(layers):
    """Without the last block's attention to the source, the alignment is uniform."""
    sizes = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 9, "num_encoder_layers": 1}
    model = Transformer(TransformerConfig(12, num_decoder_layers=layers, **sizes))
    source, target = np.random.default_rng(0).integers(3, 12, (2, 4, 5)).astype("int32")
    source[1, 2:] = 0  # Padding is never attended to.
    begun = np.pad(target, ((0, 0), (1, 0)), constant_values=BOS)[:, :-1]
    _, attention = model.call_with_attention(source, begun)
    _, alignment = score_targets(model, source, target)
    expected = np.asarray(attention[layers - 1]).mean(axis=1)
    np.testing.assert_allclose(alignment, expected, rtol=1e-5)
    query, *_ = model.decoder.blocks[-1].cross_attention.projections
    query.kernel.assign(0 * query.kernel)
    _, alignment = score_targets(model, source, target)
    real = (source != 0)[:, None]
    uniform = np.broadcast_to(real / real.sum(axis=2, keepdims=True), alignment.shape)
    np.testing.assert_allclose(alignment, uniform, rtol=1e-5)
