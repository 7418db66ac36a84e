"""Scoring given targets: against the whole model's logits, and attention computed by hand."""

import numpy as np
import pytest
from decoding_oracles import MAX_LENGTH, VOCABULARY, FullPass, varied_sources
from keras import ops
from naive_search import BOS, EOS, log_probability

from keras_transformer.decoding.search import score_targets
from keras_transformer.engine.scheduler import Scheduler
from keras_transformer.layers import masks


def random_pairs(count, seed=0):
    rng = np.random.default_rng(seed)
    sources = [row[row != 0].tolist() for row in varied_sources(count)]
    lengths = rng.integers(0, 9, count)
    targets = [[*rng.integers(3, VOCABULARY, n).tolist(), EOS] for n in lengths]
    return list(zip(sources, targets, strict=True))


def by_hand(model, source, target, layer):
    """Cross attention of one block, `(heads, target, source)`, from what the block is given."""
    encoded, source_mask = model.encode(source)
    hidden = model._embed(target, model.target_embedding, model.target_positions)
    for block in model.decoder.blocks[:layer]:
        hidden = block(hidden, encoded, encoder_padding_mask=source_mask)
    block = model.decoder.blocks[layer]

    first, norm = block.normalize_first, block.self_attention_norm
    query = norm(hidden) if first else hidden
    hidden = hidden + block.self_attention(query, query, use_causal_mask=True)
    hidden = hidden if first else norm(hidden)
    query = block.cross_attention_norm(hidden) if first else hidden
    _, weights = block.cross_attention(
        query, encoded, attention_mask=masks.key_mask(source_mask), return_attention_scores=True
    )
    return np.asarray(weights)


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
    expected = by_hand(model, source, ops.convert_to_tensor(read), layer=1).mean(axis=1)
    np.testing.assert_allclose(alignment, expected, atol=1e-5)
    np.testing.assert_allclose(np.asarray(alignment).sum(axis=-1), 1, atol=1e-5)
    assert not np.asarray(alignment)[1, :, 2:].any()  # padding is never attended to


@pytest.mark.tensorflow
def test_batches_and_order_change_nothing(varied):
    pairs = random_pairs(13)
    scheduler = Scheduler(varied("pre_norm"), (32, 32), max_compiled=0)
    together = scheduler.score(pairs, 32, alignment=True)
    for i in (0, 5, 12):
        ((by_token, alignment),) = scheduler.score([pairs[i]], 1, alignment=True)
        np.testing.assert_allclose(by_token, together[i][0], atol=1e-5)
        assert alignment.shape == together[i][1].shape == (len(pairs[i][1]), len(pairs[i][0]))
        np.testing.assert_allclose(alignment, together[i][1], atol=1e-5)
