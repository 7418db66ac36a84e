import keras
import pytest

from keras_transformer import TransformerConfig
from keras_transformer.models.stacks import Decoder, Encoder


@pytest.mark.parametrize("stack_class", [Encoder, Decoder])
def test_every_block_is_made_as_the_configuration_says(stack_class):
    fields = dict(dropout=0.25, activation="gelu", attention_dropout=0.125)
    fields |= dict(feed_forward_dropout=0.5, layer_norm_epsilon=0.03)
    sizes = dict(model_dim=33, num_heads=3, num_encoder_layers=2, num_decoder_layers=2)
    for block in stack_class(TransformerConfig(29, **sizes, **fields)).blocks:
        for name, value in fields.items():
            made = getattr(block, name)
            assert (keras.activations.serialize(made) if name == "activation" else made) == value
