"""A small model with random weights, and sentences for it; compiled once for all tests."""

import keras
import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.benchmark.ours import Ours
from keras_transformer.config import EOS_ID

VOCABULARY = 61


@pytest.fixture(scope="session")
def set_random_weights():
    """`randomize` of all tests, for what lives longer than one of them."""

    def set_random_weights(model):
        rng = np.random.default_rng(11)
        model.set_weights(
            [w.path.endswith("gamma") + 0.3 * rng.normal(size=w.shape) for w in model.weights]
        )
        return model

    return set_random_weights


@pytest.fixture(scope="session")
def model(set_random_weights):
    """Whatever it reads, it wants to end at once: only what is forced to goes on."""
    config = TransformerConfig(
        VOCABULARY,
        model_dim=24,
        num_heads=3,
        intermediate_dim=40,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    model = set_random_weights(Transformer(config))
    # The last normalization moves its outputs by 1 each, so that an embedding of ones, on which
    # they sum up, gets a logit of about the width.
    model.decoder.blocks[-1].feed_forward_norm.beta.assign(np.ones(config.model_dim))
    table = keras.ops.convert_to_numpy(model.target_embedding.embeddings).copy()
    table[EOS_ID] = 1.0
    model.target_embedding.embeddings.assign(table)
    return model


@pytest.fixture(scope="session")
def source_ids():
    """Three sentences of 7, 7 and 5 tokens."""
    ids = np.random.default_rng(11).integers(4, VOCABULARY, (3, 6)).tolist()
    return [ids[0] + [EOS_ID], ids[1] + [EOS_ID], ids[2][:4] + [EOS_ID]]


@pytest.fixture(scope="session")
def nine_steps(model, source_ids):
    """What our search finds in nine forced steps, by beam size."""
    ours = Ours(model)
    return {beam_size: ours.translate(source_ids, beam_size, 9) for beam_size in (1, 4)}
