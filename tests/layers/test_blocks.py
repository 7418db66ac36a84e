"""Facts of the blocks alone; what all layers promise is in test_every_layer.py."""

import numpy as np
import pytest
from reference import float64

from keras_transformer.layers import DecoderBlock, EncoderBlock

BATCH, LENGTH, HEADS, INNER, WIDTH = 2, 5, 3, 13, 33


def test_without_the_causal_mask_the_first_position_sees_the_last(rng):
    block, target = DecoderBlock(INNER, HEADS), rng.normal(size=(BATCH, LENGTH, WIDTH))
    changed = np.concatenate([target[:, :-1], target[:, -1:] + 1], axis=1)
    before, after = (float64(block(x, use_causal_mask=False)) for x in (target, changed))
    assert np.abs(after - before)[:, 0].max() > 1e-3


@pytest.mark.parametrize("count", [1, 2])
def test_an_encoder_sequence_may_not_come_and_go(rng, count):
    block, inputs = DecoderBlock(INNER, HEADS), rng.normal(size=(2, BATCH, LENGTH, WIDTH))
    block(*inputs[:count])
    built_how, called_how = ("with", "none") if count == 2 else ("without", "one")
    with pytest.raises(ValueError, match=f"built {built_how} .* called with {called_how}"):
        block(*inputs[: 3 - count])


@pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
def test_kerashubs_configuration_drops_weights_of_attention_at_the_rate_of_outputs(block_class):
    config = {"intermediate_dim": INNER, "num_heads": HEADS, "dropout": 0.25}
    block = block_class.from_config(config | {"decoder_sequence_shape": (None, None, WIDTH)})
    assert (block.dropout, block.attention_dropout, block.feed_forward_dropout) == (0.25, 0.25, 0)


@pytest.mark.tensorflow
@pytest.mark.parametrize(("block_class", "traced"), [(EncoderBlock, None), (DecoderBlock, 61)])
def test_a_training_step_with_a_window_has_no_array_of_all_pairs(rng, block_class, traced):
    """As `fit` and searches compile it, also where the length is unknown in the trace."""
    import tensorflow as tf

    block = block_class(INNER, HEADS, sliding_window=4)
    block.build((None, None, WIDTH))
    signature = [tf.TensorSpec((None, traced, WIDTH))]

    @tf.function(input_signature=signature, jit_compile=True, autograph=False)
    def run(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(inputs) ** 2)
        return tape.gradient(loss, [weight.value for weight in block.trainable_variables])

    length = 61  # No other axis has this length.
    inputs = tf.constant(rng.normal(size=(BATCH, length, WIDTH)).astype("float32"))
    program = run.experimental_get_compiler_ir(inputs)(stage="optimized_hlo")
    assert f"{BATCH},{length},{WIDTH}]" in program
    assert f"{length},{length}" not in program
