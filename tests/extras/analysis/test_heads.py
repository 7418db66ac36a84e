"""Roles and importance of heads, against hand-made weights and finite differences."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.base.errors import InputError
from keras_transformer.extras.analysis import heads
from keras_transformer.extras.analysis.attention import Attention
from keras_transformer.extras.analysis.heads import head_table

SOURCE = np.array([[3, 5, 7, 11, 2], [13, 17, 2, 0, 0]])
TARGET = np.array([[17, 19, 2, 0], [7, 11, 13, 2]])


def losses(model):
    """The loss of each sentence, in float64."""
    read = np.pad(TARGET[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    logits = ops.convert_to_numpy(model((SOURCE, read))).astype("float64")
    logits -= logits.max(-1, keepdims=True)
    loss = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, TARGET[..., None], 2)[..., 0]
    return np.where(TARGET != 0, loss, 0).sum(1)


def test_the_importance_is_the_slope_of_the_loss_over_each_head(model, attention_of):
    before = [ops.convert_to_numpy(variable) for variable in model.weights]
    importances = heads.head_importance(model, SOURCE, TARGET)
    for kind in ("encoder", "decoder", "cross"):
        assert getattr(importances, kind).shape == (2, 2 if kind == "encoder" else 3, 3)
        for layer, head in ((0, 1), (1, 2)):
            kernel = attention_of(kind, layer).projections[-1].kernel
            value, slopes = ops.convert_to_numpy(kernel), []
            for step in (0.002, -0.002):
                scaled = value.copy()
                scaled[head] *= 1 + step
                kernel.assign(scaled)
                slopes.append(losses(model))
            kernel.assign(value)
            slope = np.abs(slopes[0] - slopes[1]) / 0.004
            importance = getattr(importances, kind)[:, layer, head]
            np.testing.assert_allclose(importance, slope, rtol=2e-2, atol=5e-3)
    assert max(getattr(importances, kind).max() for kind in importances._fields) > 0.05
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), old)


def fixed_attention(model, source, target):
    """Weights of three heads: to the token before, to the one after, to the token at place 1."""

    def rows(length, keys):
        weights = np.zeros((1, 1, 3, length, keys), "float32")
        for i in range(length):
            weights[..., 0, i, max(i - 1, 0)] = 1.0
            weights[..., 1, i, min(i + 1, keys - 1)] = 1.0
            weights[..., 2, i, :2] = (0.25, 0.75)[:keys]
        return weights

    source, target = np.shape(source)[-1], np.shape(target)[-1]
    return Attention(rows(source, source), rows(target, target), rows(target, source))


def test_roles_of_heads_made_by_hand(monkeypatch):
    ones = np.ones((1, 1, 3), "float32")
    monkeypatch.setattr(heads, "attention", fixed_attention)
    monkeypatch.setattr(heads, "head_importance", lambda *_: Attention(ones, 2 * ones, ones))
    counts = np.full(29, 100)
    counts[5] = 1  # The token at place 1 is the rarest.
    table = heads.head_table(None, [([3, 5, 7, 11, 2], [17, 19, 2])], counts)
    by_name = {head.name: head for head in table}
    kinds = "encoder", "decoder", "cross"
    assert list(by_name) == [f"{kind}.0.{head}" for kind in kinds for head in range(3)]
    before, after, rare = table[:3]
    assert (before.role, before.previous, before.next) == ("positional", 1.0, 0.0)
    assert (after.role, after.previous, after.next) == ("positional", 0.0, 1.0)
    assert (rare.role, rare.rare, rare.confidence) == ("rare tokens", 1.0, 0.75)
    assert rare.entropy == pytest.approx(0.25 * 2 + 0.75 * np.log2(4 / 3))
    # The end of the sentence is no token to be sure of: two of five queries look there.
    assert after.confidence == pytest.approx(3 / 5)
    # Of what was read, the first token is the beginning: the two rows that look there do not count.
    assert by_name["decoder.0.0"].confidence == pytest.approx(1 / 3)
    assert by_name["decoder.0.0"].importance == 2
    assert np.isnan(by_name["cross.0.0"].previous) and np.isnan(by_name["decoder.0.0"].next)


def test_the_table_of_a_model_counts_each_sentence_alone(model):
    pairs = [(a[a > 0], b[b > 0]) for a, b in zip(SOURCE, TARGET, strict=True)]
    both = heads.head_table(model, pairs)
    alone = [heads.head_table(model, [pair], np.bincount(SOURCE[SOURCE > 0])) for pair in pairs]
    for index, head in enumerate(both):
        for name in ("confidence", "entropy", "importance"):
            mean = np.mean([getattr(table[index], name) for table in alone])
            assert getattr(head, name) == pytest.approx(mean, rel=1e-3)


def test_a_model_whose_loss_is_no_number_has_no_table(model, attention_of):
    kernel = attention_of("encoder", 0).projections[-1].kernel
    kernel.assign(ops.full(kernel.shape, float("nan")))
    with pytest.raises(InputError, match="gradient, is NaN or infinite"):
        head_table(model, [([3, 5, 2], [17, 2])])
