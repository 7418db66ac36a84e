import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig


@pytest.fixture(scope="session")
def shared_model():
    config = TransformerConfig(29, 15, 3, 13, num_encoder_layers=2, num_decoder_layers=3)
    model, normal = Transformer(config), np.random.default_rng(7).normal
    model.set_weights(
        [w.path.endswith("gamma") + normal(size=w.shape, scale=0.3) for w in model.weights]
    )
    return model, model.get_weights()


@pytest.fixture
def model(shared_model):
    """A `Transformer` of 29 ids, three heads, two blocks in the encoder, three in the decoder.

    It is made once; a test may change its weights.
    """
    model, weights = shared_model
    yield model
    model.set_weights(weights)


@pytest.fixture
def attention_of(model):
    """`attention_of(kind, layer)`: an attention layer of the model by its place."""

    def attention_of(kind, layer, model=model):
        block = (model.encoder if kind == "encoder" else model.decoder).blocks[layer]
        return block.cross_attention if kind == "cross" else block.self_attention

    return attention_of
