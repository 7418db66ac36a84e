import keras
import pytest

from keras_transformer import TransformerConfig
from keras_transformer.models.stacks import Decoder, Encoder


def config(**fields):
    return TransformerConfig(
        11,
        model_dim=6,
        num_heads=3,
        intermediate_dim=5,
        num_encoder_layers=2,
        num_decoder_layers=3,
        **fields,
    )


@pytest.mark.parametrize(("stack_class", "blocks"), [(Encoder, 2), (Decoder, 3)])
@pytest.mark.parametrize("normalize_first", [False, True])
def test_a_stack_has_its_own_number_of_blocks_and_a_norm_after_pre_norm_ones(
    stack_class, blocks, normalize_first
):
    stack = stack_class(config(normalize_first=normalize_first))
    assert len(stack.blocks) == blocks
    assert (stack.final_norm is not None) == normalize_first


@pytest.mark.parametrize("stack_class", [Encoder, Decoder])
def test_every_block_is_made_as_the_configuration_says(stack_class):
    fields = dict(
        dropout=0.25,
        activation="gelu",
        attention_dropout=0.125,
        feed_forward_dropout=0.5,
        layer_norm_epsilon=0.03,
    )
    for block in stack_class(config(**fields)).blocks:
        for name, value in fields.items():
            made = getattr(block, name)
            assert (keras.activations.serialize(made) if name == "activation" else made) == value


@pytest.mark.parametrize("stack_class", [Encoder, Decoder])
def test_a_stack_survives_its_configuration(stack_class):
    stack = stack_class(config(normalize_first=True), name="mine")
    again = stack_class.from_config(stack.get_config())
    assert (again.config, again.name) == (stack.config, "mine")
