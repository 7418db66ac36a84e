"""The weights of a decoding step: every layout gives the products of the layers."""

import re

import keras
import numpy as np
import pytest
from keras import ops
from pairwise import pairwise

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.layers.half_precision import HalfPrecisionWeights, matmul
from keras_transformer.models import LanguageModel, step_weights
from keras_transformer.models.config import LanguageModelConfig
from keras_transformer.models.step_weights import Linear, SplitLinear, StackedLinear, TableLinear

WIDTH, OUTPUTS = 5, 7
HALF = HalfPrecisionWeights()


@pairwise(
    one_row=(None, False, True),  # None: not cached
    rows=(1, 6),
    outputs=(1, 6, 7, 8),
    with_bias=(True, False),
)
def test_each_layout_gives_the_same_product(rng, monkeypatch, one_row, rows, outputs, with_bias):
    monkeypatch.setattr(step_weights, "_LEAST_SPLIT", 2 * WIDTH)
    matrix, bias = rng.normal(size=(WIDTH, outputs)), rng.normal(size=outputs)
    inputs = rng.normal(size=(rows, WIDTH))
    arrays = [ops.convert_to_tensor(x.astype("float32")) for x in (matrix, bias, inputs)]
    linear = Linear(arrays[0], arrays[1] if with_bias else None)
    if one_row is not None:
        linear = linear.to_cached(one_row)
    kinds = {True: StackedLinear, False: SplitLinear if outputs > 1 else Linear, None: Linear}
    assert type(linear) is kinds[one_row]
    if one_row:  # At most four blocks, of equally many columns.
        assert linear.matrix.shape[0] == {1: 1, 6: 2, 7: 1, 8: 4}[outputs]
    expected = inputs @ matrix + (bias if with_bias else 0.0)
    np.testing.assert_allclose(np.asarray(linear(arrays[2])), expected, rtol=1e-5, atol=1e-5)


def test_no_matrix_is_cut_in_two_for_a_gpu(monkeypatch):
    monkeypatch.setattr(step_weights, "_LEAST_SPLIT", 1)
    linear = Linear(ops.ones((WIDTH, OUTPUTS)), None)
    assert isinstance(linear.to_cached(one_row=False), SplitLinear)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["cpu:0", "gpu:0"])
    assert linear.to_cached(one_row=False) is linear


@pytest.mark.parametrize(
    "outputs, of_matrix, dtype, cached, expected",
    [
        (3, "float16", "float32", False, "float16"),
        (3, "float16", "float32", True, "float32"),
        (2, "float16", "float32", False, "float32"),
        (3, "float32", "float16", False, "float16"),
        (3, "float32", "bfloat16", False, "bfloat16"),
    ],
)
def test_only_large_matrices_of_half_precision_stay_as_they_are(
    monkeypatch, outputs, of_matrix, dtype, cached, expected
):
    monkeypatch.setattr(step_weights, "_MOST_JOINED", 4)
    matrix = step_weights._matrix(ops.ones((2, outputs), of_matrix), dtype, cached)
    assert keras.backend.standardize_dtype(matrix.dtype) == expected


VOCABULARY = 13
# The second is wide enough for a matrix that is cut in two.
WIDTHS = {"narrow": (8, 2, 12), "wide": (256, 4, 512)}
DECODERS = {
    "attention": {},
    "grouped": {"num_kv_heads": 1},
    "ssru": {"decoder": "ssru", "ssru_projection": True},
    "language model": None,
}


def made(width, decoder, tie, output_bias, policy, output_policy, quantized):
    dim, heads, inner = WIDTHS[width]
    fields = dict(model_dim=dim, num_heads=heads, intermediate_dim=inner, num_decoder_layers=1)
    fields |= dict(tie_embeddings=tie, output_bias=output_bias)
    if output_policy:  # Not with `quantized`: Keras quantizes no map of policies.
        policy = keras.dtype_policies.DTypePolicyMap(
            policy, {".*/output": keras.dtype_policies.DTypePolicy(output_policy)}
        )
    if decoder == "language model":
        fields["tie_embeddings"] = "none" if tie == "none" else "all"
        model = LanguageModel(LanguageModelConfig(VOCABULARY, **fields), dtype=policy)
    else:
        fields |= {"num_encoder_layers": 1, **DECODERS[decoder]}
        model = Transformer(TransformerConfig(VOCABULARY, **fields), dtype=policy)
    rng = np.random.default_rng(0)
    model.set_weights(
        [rng.normal(size=w.shape) * max(w.shape[0], 4) ** -0.5 for w in model.weights]
    )
    if quantized:
        model.quantize("int8")
    return model


@pytest.mark.usefixtures("uncollected")
@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")  # Keras' own layers
@pairwise(
    width=tuple(WIDTHS),
    decoder=tuple(DECODERS),
    # Each projection to logits meets each kind of layer: only plain layers have prepared weights.
    output=(("all", True), ("decoder", False), ("none", False), ("none", True)),
    layers=(
        ("float32", None, False),
        ("float32", None, True),
        ("mixed_bfloat16", "float32", False),
        (HALF, None, False),
        (HALF, None, True),
    ),
    one_row=(False, True),
    cached=(False, True),
)
def test_steps_with_prepared_weights_give_the_logits_of_the_whole_model(
    width, decoder, output, layers, one_row, cached, monkeypatch
):
    (tie, output_bias), (policy, output_policy, quantized) = output, layers
    if policy == HALF:
        monkeypatch.setattr(step_weights, "_MOST_JOINED", 1)  # All matrices stay as they are.
    model = made(width, decoder, tie, output_bias, policy, output_policy, quantized)
    rng = np.random.default_rng(1)
    batch, beams = (1, 1) if one_row else (2, 3)
    source = rng.integers(4, VOCABULARY, (batch, 5)).astype("int32")
    target = rng.integers(4, VOCABULARY, (batch, 3)).astype("int32")
    whole, _ = model.call_with_attention(source, target)
    expected = np.repeat(np.asarray(whole)[:, None], beams, axis=1)
    candidates = np.array([0, 1, 2, 3, 7, 12, 0, 0], "int32")
    weights = model.step_weights(one_row, cached)
    step, after = model.step_function(weights), model.start_decoding(source, 3, beams)
    logits = []
    for tokens in target.T:
        before, rows = after, np.repeat(tokens[:, None], beams, axis=1)
        one, after = step(rows, before)
        logits.append(np.asarray(one))
    tolerance = 0.1 if policy == "mixed_bfloat16" else 1e-4
    received = np.stack(logits, axis=2)  # [batch, beams, position, ids]
    np.testing.assert_allclose(received, expected, rtol=tolerance, atol=tolerance)
    # The layers themselves round otherwise than prepared weights.
    for prepared, rounding in ((weights, 1e-5), (None, tolerance)):
        received, _ = model.step_function(prepared, candidates)(rows, before)
        few = logits[-1][..., candidates]
        np.testing.assert_allclose(np.asarray(received), few, rtol=rounding, atol=rounding)


PRODUCTS = {
    "rows": matmul,
    "linear": lambda rows, matrix: Linear(matrix, None)(rows),
    "table": lambda rows, matrix: TableLinear(matrix)(rows),
    "a cast": lambda rows, matrix: ops.matmul(rows, ops.cast(matrix, "float32")),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", PRODUCTS)
def test_no_loop_holds_the_matrix_in_float32(name, rng):
    """XLA moves a cast of what a loop does not change in front of it."""
    import tensorflow as tf

    product, is_half = PRODUCTS[name], name != "a cast"
    shape = 64, 64
    matrix = keras.Variable(rng.normal(size=shape), dtype="float16")

    @tf.function(jit_compile=True)
    def loop(rows):
        return ops.fori_loop(0, 3, lambda _, rows: product(rows, matrix.value), rows)

    rows = tf.zeros((2, 64))
    program = loop.experimental_get_compiler_ir(rows)(stage="optimized_hlo")
    (carried,) = re.findall(r"= (\(.*?\)) while\(", program)
    assert ("f32[64,64]" in carried) != is_half
    assert "f16[64,64]" in carried or not is_half
