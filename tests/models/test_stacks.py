import keras
import numpy as np
import pytest

from keras_transformer import TransformerConfig
from keras_transformer.models.stacks import Decoder, Encoder, TurnEncoder

MASKS = [(Encoder, "padding_mask", (2, 5))]
MASKS += [(Encoder, "attention_mask", "(5, 5), (2, 5, 5) or (2, 3, 5, 5)")]
MASKS += [(Decoder, "decoder_padding_mask", (2, 5)), (Decoder, "encoder_padding_mask", (2, 7))]
MASKS += [(TurnEncoder, "padding_mask", (2, 5))]


@pytest.mark.parametrize(("stack_class", "name", "expected"), MASKS)
def test_a_mask_of_another_shape_is_named_with_the_shape_it_needs(stack_class, name, expected):
    sizes = dict(model_dim=33, num_heads=3, intermediate_dim=13)
    layers = dict(num_encoder_layers=1, num_decoder_layers=1, turn_layers=1, turn_id=4)
    inputs = [np.ones((2, length, 33), "float32") for length in (5, 7)]
    more = [np.zeros((2, 5), "int32")] if stack_class is TurnEncoder else inputs[1:]
    stack = stack_class(TransformerConfig(29, **sizes, **layers))
    arguments = [inputs[0], *([] if stack_class is Encoder else more)]
    with pytest.raises(ValueError) as caught:
        stack(*arguments, **{name: np.ones((2, 4, 6), bool)})
    assert f"`{name}` must have the axes " in str(caught.value)
    assert f"here {expected}. Received: {name} of shape (2, 4, 6)." in str(caught.value)


def test_a_decoder_in_a_model_of_ones_own_gives_its_attention():
    decoder = Decoder(TransformerConfig(29, model_dim=33, num_heads=3, num_decoder_layers=2))
    target, source = keras.Input((5, 33)), keras.Input((7, 33))
    outputs, scores = decoder(target, source, return_attention_scores=True)
    assert outputs.shape == (None, 5, 33)
    assert [weights.shape for weights in scores] == [(None, 3, 5, 7)] * 2
