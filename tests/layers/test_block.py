"""What the encoder's and the decoder's block have in common."""

import keras
import numpy as np
import pytest
import reference
from reference import float64

from keras_transformer.layers import DecoderBlock, EncoderBlock

BATCH, LENGTH, HEADS, INNER = 2, 5, 3, 13
WIDTH = HEADS * 11
BLOCKS = pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])


@BLOCKS
@pytest.mark.parametrize("normalize_first", [False, True])
def test_dropout_falls_on_the_sublayers_and_never_on_the_residual(
    rng, block_class, normalize_first
):
    block = block_class(INNER, HEADS, dropout=0.5, normalize_first=normalize_first)
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    block.build(inputs.shape)
    # Sublayers whose last projection is zero give nothing that could be dropped.
    block.set_weights(
        [
            np.zeros(w.shape) if "attention_output" in w.path or "outer" in w.path else w.numpy()
            for w in block.weights
        ]
    )
    unit = {"gamma": 1.0, "beta": 0.0}
    expected = inputs
    if not normalize_first:
        expected = reference.layer_norm(unit, reference.layer_norm(unit, inputs))
    np.testing.assert_allclose(float64(block(inputs, training=True)), expected, atol=1e-5)


@BLOCKS
@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "feed_forward_dropout"])
def test_each_rate_acts_while_training_only(rng, randomize, block_class, rate):
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    plain, dropping = block_class(INNER, HEADS), block_class(INNER, HEADS, **{rate: 0.5})
    for block in (plain, dropping):
        block.build(inputs.shape)
    randomize(plain)
    dropping.set_weights(plain.get_weights())
    expected = float64(plain(inputs))
    np.testing.assert_array_equal(float64(dropping(inputs)), expected)
    np.testing.assert_array_equal(float64(plain(inputs, training=True)), expected)
    first, second = (float64(dropping(inputs, training=True)) for _ in range(2))
    assert np.abs(first - expected).max() > 1e-3
    assert np.abs(first - second).max() > 1e-3


@BLOCKS
def test_the_activation_is_the_given_one(rng, randomize, block_class):
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    blocks = [block_class(INNER, HEADS, activation=a) for a in ("linear", lambda x: x, "relu")]
    for block in blocks:
        block.build(inputs.shape)
    randomize(blocks[0])
    for block in blocks[1:]:
        block.set_weights(blocks[0].get_weights())
    linear, same, relu = (float64(block(inputs)) for block in blocks)
    np.testing.assert_array_equal(same, linear)
    assert np.abs(relu - linear).max() > 1e-3


@BLOCKS
def test_heads_that_do_not_divide_the_width_are_refused(block_class):
    with pytest.raises(ValueError, match="`num_heads` must divide .* num_heads=3, .*35"):
        block_class(INNER, HEADS)(np.zeros((BATCH, LENGTH, 35), "float32"))


@BLOCKS
def test_the_epsilon_reaches_every_normalization(rng, block_class):
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    block = block_class(INNER, HEADS, layer_norm_epsilon=0.7)
    outputs = float64(block(inputs))
    oracle = reference.encoder_block if block_class is EncoderBlock else reference.decoder_block
    expected = oracle(reference.weights_of(block), inputs, epsilon=0.7)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@BLOCKS
@pytest.mark.parametrize("normalize_first", [False, True])
def test_the_attention_scores_are_those_of_the_sublayers(
    rng, randomize, block_class, normalize_first
):
    block = block_class(INNER, HEADS, normalize_first=normalize_first)
    shapes = [(BATCH, LENGTH, WIDTH), (BATCH, 7, 17)][: 1 + (block_class is DecoderBlock)]
    inputs = [rng.normal(size=shape).astype("float32") for shape in shapes]
    block.build(*shapes)
    randomize(block)
    outputs, *scores = block(*inputs, return_attention_scores=True)
    np.testing.assert_array_equal(float64(outputs), float64(block(*inputs)))
    weights = reference.weights_of(block)

    def attended(name, x, value, mask=None):
        """The sum after a sublayer, normalized where that comes after it, and the scores."""

        def norm(y):
            return reference.layer_norm(reference.part(weights, f"{name}_norm"), y)

        seen = norm(x) if normalize_first else x
        attention = reference.part(weights, name)
        out, found = reference.attention(
            attention, seen, seen if value is None else value, mask=mask
        )
        return (x + out if normalize_first else norm(x + out)), found

    causal = np.tri(LENGTH, dtype=bool) if block_class is DecoderBlock else None
    hidden, expected = attended("self_attention", inputs[0], None, causal)
    np.testing.assert_allclose(float64(scores[0]), expected, atol=1e-5)
    if block_class is DecoderBlock:
        _, expected = attended("cross_attention", hidden, inputs[1])
        np.testing.assert_allclose(float64(scores[1]), expected, atol=1e-5)
    assert len(scores) == len(inputs)
    symbolic = block(*(keras.Input(shape[1:]) for shape in shapes), return_attention_scores=True)
    assert [each.shape[1:] for each in symbolic] == [each.shape[1:] for each in (outputs, *scores)]


@BLOCKS
def test_weights_of_all_projections_are_made_as_the_arguments_say(block_class):
    arguments = dict(
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.25),
        bias_initializer="ones",
        kernel_regularizer="l2",
        kernel_constraint="non_neg",
    )
    block = block_class.from_config(block_class(INNER, HEADS, **arguments).get_config())
    block.build(*[(None, None, WIDTH)] * (1 + (block_class is DecoderBlock)))
    attentions = [block.self_attention]
    if block_class is DecoderBlock:
        attentions.append(block.cross_attention)
    layers = [each for a in attentions for each in a.projections] + list(
        block.feed_forward.projections
    )
    assert len(layers) == 4 * len(attentions) + 2
    kernels = [float64(layer.kernel) for layer in layers]
    assert len({kernel.flat[0] for kernel in kernels}) == len(layers)  # each has drawn its own
    assert np.concatenate([kernel.ravel() for kernel in kernels]).std() == pytest.approx(
        0.25, rel=0.05
    )
    assert all((float64(layer.bias) == 1).all() for layer in layers)
    assert all(isinstance(layer.kernel_constraint, keras.constraints.NonNeg) for layer in layers)
    assert len(block.losses) == len(layers)


@BLOCKS
def test_inputs_of_other_shapes_are_refused_in_words(block_class):
    with pytest.raises(ValueError, match=r"`inputs` must have the axes .*shape \(2, 33\)"):
        block_class(INNER, HEADS).build((2, WIDTH))
    block = block_class(INNER, HEADS)
    block.build((None, None, WIDTH))
    assert block.compute_output_shape((2, 5, WIDTH)) == (2, 5, WIDTH)
    with pytest.raises(ValueError, match=r"`inputs` must have the 33 features .*\(2, 5, 34\)"):
        block(np.ones((2, 5, 34), "float32"))


@pytest.mark.tensorflow
@BLOCKS
def test_a_training_step_with_a_window_has_no_array_of_all_pairs(rng, block_class):
    """As `fit` and searches compile it: the length is unknown while the program is traced."""
    import tensorflow as tf

    block = block_class(INNER, HEADS, sliding_window=4)
    block.build((None, None, WIDTH))

    @tf.function(
        input_signature=[tf.TensorSpec((None, None, WIDTH))], jit_compile=True, autograph=False
    )
    def run(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(block(inputs) ** 2)
        return tape.gradient(loss, [weight.value for weight in block.trainable_variables])

    length = 61  # Of nothing else in the program.
    inputs = tf.constant(rng.normal(size=(BATCH, length, WIDTH)).astype("float32"))
    program = run.experimental_get_compiler_ir(inputs)(stage="optimized_hlo")
    assert f"{BATCH},{length},{WIDTH}]" in program
    assert f"{length},{length}" not in program


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX lists the arrays of a call")
@BLOCKS
def test_a_call_with_a_window_makes_no_array_of_all_pairs(rng, block_class):
    """Whatever a compiler would have left of it."""
    import jax

    block = block_class(INNER, HEADS, sliding_window=4)
    block.build((None, None, WIDTH))
    length = 61
    arrays = str(jax.make_jaxpr(block)(np.ones((BATCH, length, WIDTH), "float32")))
    assert f"[{BATCH},{length},{WIDTH}]" in arrays
    assert f"{length},{length}" not in arrays
