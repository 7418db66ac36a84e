"""A small model with random weights, and sentences for it; compiled once for all tests."""

import itertools
import time
import types

import keras
import numpy as np
import pytest

from benchmarks import measure
from keras_transformer import Transformer, TransformerConfig
from keras_transformer.base.ids import EOS_ID, UNK_ID
from keras_transformer.models import config

VOCABULARY = 61
SIZES = dict(model_dim=24, num_heads=3, intermediate_dim=40)
SIZES |= dict(num_encoder_layers=1, num_decoder_layers=1)


@pytest.fixture
def clock(monkeypatch):
    """`clock(module)`: each reading of the clock in a module is a second after the one before."""

    def clock(module):
        readings = map(float, itertools.count())
        own = types.SimpleNamespace(perf_counter=lambda: next(readings), sleep=time.sleep)
        monkeypatch.setattr(module, "time", own)

    return clock


@pytest.fixture(scope="session")
def model():
    """Whatever it reads, it wants to end at once, and takes no other special id."""
    model, rng = Transformer(TransformerConfig(VOCABULARY, **SIZES)), np.random.default_rng(11)
    for weight in model.weights:
        weight.assign(weight.path.endswith("gamma") + 0.3 * rng.normal(size=weight.shape))
    # The last normalization moves its outputs by 1 each, so that an embedding of ones, on which
    # they sum up, gets a logit of about the width, and one of -1 as much below 0.
    model.decoder.blocks[-1].feed_forward_norm.beta.assign(np.ones(SIZES["model_dim"]))
    table = keras.ops.convert_to_numpy(model.target_embedding.embeddings).copy()
    table[: UNK_ID + 1] = -1.0
    table[EOS_ID] = 1.0
    model.target_embedding.embeddings.assign(table)
    return model


@pytest.fixture(scope="session")
def source_ids():
    """Three sentences of 7 tokens."""
    ids = np.random.default_rng(11).integers(4, VOCABULARY, (3, 7))
    ids[:, -1] = EOS_ID
    return ids.tolist()


@pytest.fixture(scope="module")
def tiny():
    """The preset `transformer_tiny` is small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.PRESETS, "transformer_tiny", SIZES)
        yield


@pytest.fixture(scope="module")
def short_turns():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "_TURN_SECONDS", 1e-6)
        patch.setattr(measure, "_PAUSE_SECONDS", 0)
        yield
