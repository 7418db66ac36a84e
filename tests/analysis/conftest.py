import pytest

from keras_transformer import Transformer, TransformerConfig


@pytest.fixture
def model(randomize):
    """A `Transformer` of 29 ids, three heads, two blocks in the encoder, three in the decoder."""
    config = TransformerConfig(29, 15, 3, 13, num_encoder_layers=2, num_decoder_layers=3)
    return randomize(Transformer(config))


@pytest.fixture
def attention_of(model):
    """`attention_of(kind, layer)`: an attention layer of the model by its place."""

    def attention_of(kind, layer, model=model):
        block = (model.encoder if kind == "encoder" else model.decoder).blocks[layer]
        return block.cross_attention if kind == "cross" else block.self_attention

    return attention_of
