"""Alignments of scored targets."""

import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.decoding.search import score_targets


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_an_alignment_is_the_mean_of_the_heads_of_the_last_block(layers):
    """Without the last block's attention to the source, the alignment is uniform."""
    sizes = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 9, "num_encoder_layers": 1}
    model = Transformer(TransformerConfig(12, num_decoder_layers=layers, **sizes))
    source, target = np.random.default_rng(0).integers(3, 12, (2, 4, 5)).astype("int32")
    begun = np.pad(target, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    _, attention = model.call_with_attention(source, begun)
    _, alignment = score_targets(model, source, target)
    expected = np.asarray(attention[layers - 1]).mean(axis=1)
    np.testing.assert_allclose(alignment, expected, rtol=1e-5)
    query, *_ = model.decoder.blocks[-1].cross_attention.projections
    query.kernel.assign(0 * query.kernel)
    _, alignment = score_targets(model, source, target)
    np.testing.assert_allclose(alignment, np.full(alignment.shape, 1 / 5), rtol=1e-5)
