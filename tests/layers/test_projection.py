"""LoRA of a layer is LoRA of each of its projections."""

import math

import keras
import numpy as np
import pytest
from reference import float64

from keras_transformer.layers import (
    SSRU,
    Attention,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    projection,
)
from keras_transformer.layers.mixer import Mixer

WIDTH, RANK = 12, 2


@keras.saving.register_keras_serializable(package="tests")
class Mean(Mixer):
    """The projected mean of the positions so far: a mixer of somebody else."""

    sublayer_name = "mean"

    def build(self, input_shape):
        self.dense = keras.layers.Dense(input_shape[2])
        self.dense.build(input_shape)

    def call(self, inputs):
        sums = keras.ops.cumsum(self.dense(inputs), axis=1)
        count = keras.ops.arange(1, keras.ops.shape(inputs)[1] + 1, dtype=sums.dtype)
        return sums / keras.ops.expand_dims(count, 1)


# A layer, and its inputs.
LAYERS = {
    "attention": (lambda: MultiHeadAttention(3, 5, num_kv_heads=1), 2),
    "feed_forward": (lambda: FeedForward(13), 1),
    "additive": (lambda: Attention("additive"), 2),
    "ssru": (lambda: SSRU(True), 1),
    "encoder_block": (lambda: EncoderBlock(13, 3, positions="relative"), 1),
    "decoder_block": (lambda: DecoderBlock(13, 3), 2),
    "ssru_block": (lambda: DecoderBlock(13, 3, mixer=SSRU()), 2),
    "own_mixer": (lambda: DecoderBlock(13, 3, mixer=Mean()), 1),
}


@pytest.fixture
def model_of(rng):
    """Makes a model of one layer, which is built, and inputs for it."""

    def model_of(name):
        make, count = LAYERS[name]
        symbolic = [keras.Input((length, WIDTH)) for length in (5, 7)[:count]]
        inputs = [rng.normal(size=(2, *x.shape[1:])).astype("float32") for x in symbolic]
        layer = make()
        return layer, keras.Model(symbolic, layer(*symbolic)), inputs

    return model_of


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["attention", "feed_forward", "additive", "ssru"])
def test_a_call_computes_no_array_as_large_as_a_kernel(model_of, name):
    import tensorflow as tf

    layer, model, inputs = model_of(name)
    layer.enable_lora(RANK)
    smallest = min(math.prod(x.shape) for x in layer.weights if x.path.endswith("/kernel"))
    # The number of rows is unknown, so that only arrays without rows have a known size.
    rows = [tf.TensorSpec((None, *x.shape[1:])) for x in inputs]
    graph = tf.function(lambda *x: model(list(x))).get_concrete_function(*rows).graph
    computed = [x for x in graph.get_operations() if x.type not in ("ReadVariableOp", "Reshape")]
    sizes = [(x.name, x.shape.num_elements() or 0) for step in computed for x in step.outputs]
    assert sizes and [(name, size) for name, size in sizes if size >= smallest] == []


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
@pytest.mark.parametrize("name", ["ssru_block", "own_mixer"])
def test_training_changes_the_small_matrices_and_a_file_has_the_merged_kernels(
    model_of, tmp_path, name
):
    layer, model, inputs = model_of(name)
    layer.enable_lora(RANK)
    kernels = [weight for weight in layer.weights if weight.path.endswith("/kernel")]
    before = [float64(weight) for weight in kernels], float64(model(inputs))
    model.compile("adam", "mse", run_eagerly=keras.backend.backend() == "tensorflow")
    model.fit(inputs, np.ones((2, 5, WIDTH)), epochs=2, verbose=0)
    after = float64(model(inputs))
    assert np.abs(after - before[1]).max() > 1e-4
    for weight, values in zip(kernels, before[0], strict=True):
        np.testing.assert_array_equal(float64(weight), values)
    assert all(float64(weight).any() for weight in layer.weights if "kernel_b" in weight.path)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not any("lora" in weight.path for weight in loaded.weights)
    np.testing.assert_allclose(float64(loaded(inputs)), after, atol=1e-5)


ONE_OF_KERAS = {
    "EinsumDense": (projection.Projection, ("btd,df->btf", (None, 10))),
    "Dense": (projection.Dense, (10,)),
}


@pytest.mark.usefixtures("uncollected")
@pytest.mark.skipif(
    not hasattr(keras.quantizers, "Int4QuantizationConfig"),
    reason=f"Keras {keras.__version__} does not take a configuration",
)
@pytest.mark.parametrize("name", ONE_OF_KERAS)
def test_a_projection_is_quantized_as_keras_layer_with_the_same_configuration(rng, name):
    ours_class, arguments = ONE_OF_KERAS[name]
    ours, theirs = ours_class(*arguments), getattr(keras.layers, name)(*arguments)
    inputs = rng.normal(size=(2, 5, WIDTH)).astype("float32")
    for layer in (theirs, ours):
        layer.build(inputs.shape)
    ours.set_weights(theirs.get_weights())
    before = float64(ours(inputs))
    for layer in (ours, theirs):
        layer.quantize("int4", config=keras.quantizers.Int4QuantizationConfig(block_size=4))
    np.testing.assert_array_equal(float64(ours(inputs)), float64(theirs(inputs)))
    assert np.abs(float64(ours(inputs)) - before).max() > 1e-4


@pytest.mark.usefixtures("uncollected")
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_lora_on_top_of_int8_is_trained(model_of, rng):
    layer, model, inputs = model_of("encoder_block")
    model.quantize("int8")
    before = float64(model(inputs))
    layer.enable_lora(RANK)
    np.testing.assert_allclose(float64(model(inputs)), before, atol=1e-6)
    assert {weight.dtype for weight in layer.trainable_weights} == {"float32"}
    for weight in layer.trainable_weights:
        weight.assign(weight + rng.normal(size=weight.shape))
    assert np.abs(float64(model(inputs)) - before).max() > 0.1


@pytest.mark.parametrize("rank", [0, 2.5, None])
def test_a_rank_is_a_positive_integer(model_of, rank):
    layer, _, _ = model_of("feed_forward")
    with pytest.raises(ValueError, match="`rank` must be a positive integer .* Received: rank="):
        layer.enable_lora(rank)


def test_lora_needs_projections_without_lora(model_of):
    for layer in (EncoderBlock(13, 3, name="mine"), Attention("dot", name="mine")):
        with pytest.raises(ValueError, match="needs a layer with projections, .* Received: mine,"):
            layer.enable_lora(RANK)
    layer, _, _ = model_of("encoder_block")
    layer.feed_forward.enable_lora(RANK)
    before = [weight.path for weight in layer.weights]
    with pytest.raises(ValueError, match="only once. Received: .*/feed_forward/"):
        layer.enable_lora(RANK)
    assert [weight.path for weight in layer.weights] == before
