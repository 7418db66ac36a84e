"""Every layer passes Keras' own checks, survives its configuration, and names a bad argument."""

import json

import keras
import numpy as np
import pytest
from keras.src import testing
from reference import float64

from keras_transformer.layers import (
    SSRU,
    Attention,
    ConcatenatedPositions,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    LearnedPositionalEmbedding,
    MaskedPooling,
    MultiHeadAttention,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)

BATCH, QUERY, KEY, WIDTH, OTHER = 2, 5, 7, 12, 17
BLOCK = {"intermediate_dim": 13, "num_heads": 3, "dropout": 0.1}
ONE, TWO = (BATCH, QUERY, WIDTH), (BATCH, KEY, OTHER)
NORM, FEED, ATTENTION = 2, 4, 8  # weights of a part
DECODER = 2 * ATTENTION + FEED + 3 * NORM
HEADS = {"num_heads": 3, "key_dim": 11, "dropout": 0.1}
SIDES = {"decoder_sequence_shape": ONE, "encoder_sequence_shape": TWO}
FIXED = {"positions": SinusoidalPositionalEncoding()}
# A layer, its arguments, the shapes of its inputs, its weights and generators of random numbers.
LAYERS = {
    "attention": (
        MultiHeadAttention,
        HEADS,
        dict(query_shape=ONE, value_shape=TWO),
        (ATTENTION, 1),
    ),
    "encoder_block": (EncoderBlock, BLOCK, ONE, (ATTENTION + FEED + 2 * NORM, 1)),
    "decoder_block": (DecoderBlock, BLOCK, SIDES, (DECODER, 1)),
    "decoder_only": (DecoderBlock, BLOCK, ONE, (ATTENTION + FEED + 2 * NORM, 1)),
    "feed_forward": (FeedForward, {"intermediate_dim": 13, "dropout": 0.1}, ONE, (FEED, 1)),
    "learned": (LearnedPositionalEmbedding, {"max_length": 11}, ONE, (1, 0)),
    "sinusoidal": (SinusoidalPositionalEncoding, {"max_wavelength": 37}, ONE, (0, 0)),
    "concatenated": (ConcatenatedPositions, FIXED, ONE, (1, 0)),
    "embedding": (TokenEmbedding, {"vocabulary_size": 23, "model_dim": WIDTH}, (2, 5), (1, 0)),
    "ssru": (SSRU, {"use_projection": True}, ONE, (5, 0)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_keras_own_layer_checks_pass(name):
    layer, arguments, shapes, (weights, generators) = LAYERS[name]
    options = {} if name != "embedding" else {"input_dtype": "int32"}
    # Keras' check feeds one input, and a layer without weights learns nothing.
    options["run_training_check"] = bool(weights) and not isinstance(shapes, dict)
    by_position = shapes.values() if isinstance(shapes, dict) else [shapes]
    assert tuple(layer(**arguments).compute_output_shape(*by_position)) == ONE
    if name == "concatenated":
        options["run_mixed_precision_check"] = False
    options |= dict(expected_num_trainable_weights=weights, expected_num_non_trainable_weights=0)
    options |= dict(expected_num_seed_generators=generators, supports_masking=True)
    test = testing.TestCase().run_layer_test
    test(layer, arguments, input_shape=shapes, expected_output_shape=ONE, **options)


class MaskReader(keras.layers.Layer):
    """Keeps the mask that Keras hands to it."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        self.mask = mask
        return inputs


@pytest.mark.parametrize("name", sorted(set(LAYERS) - {"embedding"}))
def test_a_cast_to_the_compute_dtype_keeps_the_mask_of_the_inputs(name, rng):
    layer_class, arguments, shapes, _ = LAYERS[name]
    shapes = list(shapes.values()) if isinstance(shapes, dict) else [shapes]
    layer = layer_class(**arguments, dtype="mixed_float16")
    embedding = TokenEmbedding(23, shapes[0][2])
    ids = np.array([[3, 5, 7, 0, 0], [11, 0, 0, 0, 0]])
    others = [rng.normal(size=shape).astype("float32") for shape in shapes[1:]]
    outputs = layer(embedding(ids), *others)
    assert outputs.dtype == "float16"
    mask, reader = embedding.compute_mask(ids), MaskReader(dtype="float16")
    reader(outputs)
    np.testing.assert_array_equal(reader.mask, mask)
    if name == "encoder_block":
        explicit = layer(float64(embedding(ids)), padding_mask=mask)
        np.testing.assert_array_equal(float64(outputs)[ids > 0], float64(explicit)[ids > 0])


ATTENTION_ARGUMENTS = dict(num_heads=3, key_dim=11, value_dim=13, dropout=0.25, use_bias=False)
ATTENTION_ARGUMENTS |= dict(num_kv_heads=1, sliding_window=3, positions="relative", max_distance=5)
BLOCK_ARGUMENTS = dict(intermediate_dim=13, num_heads=3, dropout=0.1, normalize_first=True)
BLOCK_ARGUMENTS |= dict(attention_dropout=0.2, feed_forward_dropout=0.3, layer_norm_epsilon=1e-3)
BLOCK_ARGUMENTS |= dict(activation=keras.activations.gelu, key_dim=10, num_kv_heads=1)
BLOCK_ARGUMENTS |= dict(sliding_window=3, positions="rotary")
CONFIGURED = [
    (MultiHeadAttention, ATTENTION_ARGUMENTS | dict(relative_values=True, seed=7)),
    *((block, BLOCK_ARGUMENTS) for block in (EncoderBlock, DecoderBlock)),
    (FeedForward, dict(intermediate_dim=13, dropout=0.25, activation=keras.activations.gelu)),
    (LearnedPositionalEmbedding, dict(max_length=11)),
    (SinusoidalPositionalEncoding, dict(max_wavelength=37, offset=2)),
    (TokenEmbedding, dict(vocabulary_size=23, model_dim=7, mask_zero=False)),
    (Attention, dict(score="additive", units=3)),
    (MaskedPooling, dict(mode="attention")),
]


@pytest.mark.parametrize(("layer_class", "arguments"), CONFIGURED)
def test_config_round_trip_keeps_every_argument(layer_class, arguments):
    layer = layer_class(**arguments, name="mine", dtype="mixed_bfloat16")
    copy = layer_class.from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()
    assert {name: getattr(copy, name) for name in arguments} == arguments
    assert (copy.name, copy.compute_dtype) == ("mine", "bfloat16")


INTEGER = "must be a positive integer below 2**31. Received: "
RATE = "must be in [0, 1). Received: "
AXES = "must be None or 1, the axis of the length. Received: "
REQUIRED = {
    MultiHeadAttention: {"num_heads": 3, "key_dim": 11},
    **dict.fromkeys((EncoderBlock, DecoderBlock), {"intermediate_dim": 13, "num_heads": 3}),
    FeedForward: {"intermediate_dim": 13},
    TokenEmbedding: {"vocabulary_size": 23, "model_dim": 7},
}
NO_INTEGERS = {
    EncoderBlock: {"intermediate_dim": 0, "num_heads": -1, "key_dim": 0},
    DecoderBlock: {"num_cross_heads": 0, "num_heads": "2"},
    MultiHeadAttention: {"num_heads": 2.0, "key_dim": -1, "value_dim": 0, "num_kv_heads": 0}
    | {"sliding_window": True, "max_distance": -1},
    FeedForward: {"intermediate_dim": 0},
    LearnedPositionalEmbedding: {"max_length": 0},
    TokenEmbedding: {"vocabulary_size": 0, "model_dim": -1},
}
BAD = [(kind, *item, INTEGER) for kind, values in NO_INTEGERS.items() for item in values.items()]
NO_RATES = {"dropout": 1.5, "attention_dropout": 1, "feed_forward_dropout": -1}
BAD += [(EncoderBlock, name, value, RATE) for name, value in NO_RATES.items()]
BAD += [(kind, "dropout", 1.0, RATE) for kind in (MultiHeadAttention, FeedForward)]
FLAGS = {EncoderBlock: ("normalize_first", "relative_values"), SSRU: ("use_projection",)}
FLAGS |= {MultiHeadAttention: ("use_bias",), TokenEmbedding: ("mask_zero", "output_bias")}
FLAG = "must be True or False. Received: "
BAD += [(kind, name, value, FLAG) for kind in FLAGS for name in FLAGS[kind] for value in ("yes", 1)]
BAD += [
    (kind, "layer_norm_epsilon", value, "must be a positive number. Received: ")
    for kind in (EncoderBlock, DecoderBlock)
    for value in (-1, 0, "1e-5")
]
BAD += [
    (MultiHeadAttention, "num_kv_heads", 2, "must divide `num_heads`. Received: num_heads=3, "),
    (
        MultiHeadAttention,
        "positions",
        "absolute",
        "must be one of rotary, relative, alibi. Received: ",
    ),
    (MultiHeadAttention, "use_gate", True, "must be False: there is no gate. Received: "),
    (MultiHeadAttention, "attention_axes", (1, 2), AXES),
    (MultiHeadAttention, "flash_attention", True, "must be None or False. Received: "),
    (SinusoidalPositionalEncoding, "max_wavelength", 0, "must be a positive number. Received: "),
    (SinusoidalPositionalEncoding, "offset", -1, "must be an integer of at least 0. Received: "),
    (SinusoidalPositionalEncoding, "layout", "x", "must be one of interleaved, halves. Received: "),
    (Attention, "score", "x", "must be one of dot, scaled_dot, general, additive. Received: "),
    (MaskedPooling, "mode", "sum", "must be one of mean, max, attention. Received: "),
]


@pytest.mark.parametrize(("layer_class", "name", "value", "rule"), BAD)
def test_a_bad_argument_is_named(layer_class, name, value, rule):
    required = REQUIRED.get(layer_class, {})
    with pytest.raises(ValueError) as caught:
        layer_class(**{**required, name: value})
    assert f"`{name}` {rule}{name}={value!r}." in str(caught.value)


SIZE, OTHER_SIZE = np.int64(6), np.int32(3)
OF_NUMPY = [
    (MultiHeadAttention, dict(num_heads=SIZE, key_dim=SIZE, value_dim=SIZE, output_shape=SIZE)),
    (MultiHeadAttention, dict(num_heads=SIZE, key_dim=SIZE, output_shape=(OTHER_SIZE, SIZE))),
    (MultiHeadAttention, dict(num_heads=SIZE, key_dim=SIZE, num_kv_heads=OTHER_SIZE)),
    (EncoderBlock, dict(intermediate_dim=SIZE, num_heads=SIZE, layer_norm_epsilon=np.float32(0.5))),
    (EncoderBlock, dict(intermediate_dim=SIZE, num_heads=SIZE, sliding_window=OTHER_SIZE)),
    (DecoderBlock, dict(intermediate_dim=SIZE, num_heads=SIZE, num_cross_heads=OTHER_SIZE)),
    (FeedForward, dict(intermediate_dim=SIZE)),
    (TokenEmbedding, dict(vocabulary_size=SIZE, model_dim=SIZE)),
    (LearnedPositionalEmbedding, dict(max_length=SIZE)),
    (SinusoidalPositionalEncoding, dict(max_wavelength=np.float32(37), offset=SIZE)),
    (Attention, dict(score="additive", units=SIZE)),
]


@pytest.mark.parametrize(("layer_class", "arguments"), OF_NUMPY)
def test_numbers_of_numpy_are_taken_and_saved(layer_class, arguments):
    layer = layer_class(**arguments)
    inputs = (np.ones((2, 5), int) if layer_class is TokenEmbedding else np.ones(ONE, "float32"),)
    outputs = layer(*inputs * (1 + (layer_class in (MultiHeadAttention, Attention))))
    assert np.isfinite(float64(outputs)).all()
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))["config"]
    for name, value in arguments.items():
        values = np.ravel(config[name]).tolist()
        assert values == np.ravel(value).tolist()


@pytest.mark.parametrize("layer_class", [MultiHeadAttention, EncoderBlock, DecoderBlock])
@pytest.mark.parametrize("positions", [None, "rotary"])
def test_vectors_of_the_values_distances_need_relative_positions(layer_class, positions):
    sizes = dict.fromkeys(("num_heads", "key_dim"), 2)
    if layer_class is not MultiHeadAttention:
        sizes["intermediate_dim"] = 3
    with pytest.raises(ValueError, match='needs `positions="relative"`. Received: relative_values'):
        layer_class(**sizes, positions=positions, relative_values=True)


QUANTIZED = {
    "EncoderBlock": (lambda: EncoderBlock(13, 3), 1),
    "DecoderBlock": (lambda: DecoderBlock(13, 3), 2),
    "a decoder alone": (lambda: DecoderBlock(13, 3), 1),
    "a block with SSRU": (lambda: DecoderBlock(13, 3, mixer=SSRU(True)), 1),
    "SSRU": (lambda: SSRU(True), 1),
    "MultiHeadAttention": (lambda: MultiHeadAttention(3, 4), 2),
    "Attention": (lambda: Attention("additive"), 2),
    "FeedForward": (lambda: FeedForward(13), 1),
    "MaskedPooling": (lambda: MaskedPooling("attention"), 1),
    "ConcatenatedPositions": (lambda: ConcatenatedPositions(SinusoidalPositionalEncoding()), 1),
}


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_model_of_quantized_layers_is_saved_and_loaded(rng, tmp_path, name):
    make, count = QUANTIZED[name]
    symbolic = [keras.Input(shape[1:]) for shape in (ONE, (BATCH, KEY, WIDTH))[:count]]
    model = keras.Model(symbolic, make()(*symbolic))
    inputs = [rng.normal(size=(BATCH, *x.shape[1:])).astype("float32") for x in symbolic]
    before = float64(model(inputs))
    model.quantize("int8")
    quantized = [layer.name for layer in model._flatten_layers() if layer.quantization_mode]
    expected = float64(model(inputs))
    assert quantized and np.abs(expected - before).max() > 0
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(float64(loaded(inputs)), expected, atol=1e-6)
    names = [layer.name for layer in loaded._flatten_layers() if layer.quantization_mode]
    assert names == quantized


def test_rotary_positions_need_pairs_of_features():
    with pytest.raises(ValueError, match="need an even `key_dim`. Received: key_dim=11"):
        MultiHeadAttention(3, 11, positions="rotary")


# A layer, its padding masks and its attention masks, with the lengths of queries and keys.
SELF, CROSS = (QUERY, QUERY), (QUERY, KEY)
DECODER_MASKS = [
    {"decoder_padding_mask": QUERY, "encoder_padding_mask": KEY},
    {"decoder_attention_mask": SELF, "encoder_attention_mask": CROSS},
]
MASKED = {
    MultiHeadAttention(3, 4): ({"value_mask": KEY, "key_mask": KEY}, {"attention_mask": CROSS}),
    Attention("additive"): ({"value_mask": KEY, "key_mask": KEY}, {"attention_mask": CROSS}),
    EncoderBlock(13, 3): ({"padding_mask": QUERY}, {"attention_mask": SELF}),
    **dict.fromkeys((DecoderBlock(13, 3), DecoderBlock(13, 3, mixer=SSRU())), DECODER_MASKS),
    MaskedPooling(): (dict.fromkeys(("padding_mask", "mask", "inputs_mask"), QUERY), {}),
}


@pytest.mark.parametrize("layer", MASKED, ids=lambda layer: type(layer).__name__)
def test_a_mask_of_another_shape_is_named_with_the_shape_it_needs(rng, layer):
    padding_masks, attention_masks = MASKED[layer]
    takes_two = not isinstance(layer, (EncoderBlock, MaskedPooling))
    shapes = [(BATCH, QUERY, WIDTH), (BATCH, KEY, WIDTH)][: 1 + takes_two]
    inputs = [rng.normal(size=shape).astype("float32") for shape in shapes]
    heads = 1 if isinstance(layer, Attention) else 3
    layer(*inputs)

    def refused(name, shape, expected):
        with pytest.raises(ValueError) as caught:
            layer(*inputs, **{name: np.ones(shape, bool)})
        message = str(caught.value)
        assert f"`{name}` must have the axes " in message and f"here {expected}. " in message
        assert f"Received: {name} of shape {shape}." in message
        return message

    for name, length in padding_masks.items():
        for shape in ((BATCH, length, length), (length,), (), (3, length), (BATCH, 1), (BATCH, 4)):
            refused(name, shape, (BATCH, length))
        for batch in (1, BATCH):
            layer(*inputs, **{name: np.ones((batch, length), bool)})
    for name, (query, key) in attention_masks.items():
        full = (query, key), (BATCH, query, key), (BATCH, heads, query, key)
        words = "{}, {} or {}".format(*full)
        for shape in ((4, query, key), (BATCH, 7, query, key), (BATCH, query, 4), (key,)):
            assert "mask[:, None]" not in refused(name, shape, words)
        assert "mask[:, None]" in refused(name, (BATCH, key), words)
        for shape in (*full, (BATCH, 1, key), (1, 1, 1, key)):
            layer(*inputs, **{name: np.ones(shape, bool)})


@pytest.mark.parametrize("layer", MASKED, ids=lambda layer: type(layer).__name__)
def test_a_float_mask_has_two_opposite_meanings_and_is_refused_by_name(rng, layer):
    padding_masks, attention_masks = MASKED[layer]
    takes_two = not isinstance(layer, (EncoderBlock, MaskedPooling))
    shapes = [(BATCH, QUERY, WIDTH), (BATCH, KEY, WIDTH)][: 1 + takes_two]
    inputs = [rng.normal(size=shape).astype("float32") for shape in shapes]
    bools = {name: np.ones((BATCH, length), bool) for name, length in padding_masks.items()}
    bools |= {name: np.ones(lengths, bool) for name, lengths in attention_masks.items()}
    for name, mask in bools.items():
        layer(*inputs, **{name: mask.astype("int32")})
        for hidden in (0.0, -1e9, -np.inf):
            added_to_scores = np.where(mask, 0.0, hidden).astype("float32")
            with pytest.raises(ValueError) as caught:
                layer(*inputs, **{name: added_to_scores})
            rule = f"`{name}` must be bool, True = may attend. Received: {name} of dtype float32. "
            assert rule in str(caught.value)
    if not isinstance(layer, MaskedPooling):  # Keras calls it only with numbers.
        symbolic = [keras.KerasTensor(shape, "float32") for shape in shapes]
        with pytest.raises(ValueError, match="of dtype float32"):
            layer(*symbolic, **{name: keras.KerasTensor(mask.shape, "float32")})
