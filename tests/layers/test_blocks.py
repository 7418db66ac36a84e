"""The blocks of encoder and decoder against NumPy, and what their masks promise."""

import functools
import json

import keras
import numpy as np
import pytest
import reference
from keras import ops
from pairwise import POLICIES, pairwise
from reference import float64

from keras_transformer.layers import SSRU, DecoderBlock, EncoderBlock, TokenEmbedding
from keras_transformer.layers.kv_cache import Past

BATCH, LENGTH, SOURCE, HEADS, INNER, KEY_DIM = 2, 5, 7, 3, 13, 11
WIDTH, SOURCE_WIDTH = HEADS * KEY_DIM, 17
IDS = np.array([[3, 5, 7, 0, 0], [11, 0, 0, 0, 0]])
SOURCE_IDS = np.array([[3, 5, 7, 2, 0, 0, 0], [11, 2, 0, 0, 0, 0, 0]])
REAL, SOURCE_REAL = IDS != 0, SOURCE_IDS != 0
TOLERANCE = dict(zip(POLICIES, (2e-5, 1e-1, 1e-2), strict=True))
# The class of each kind, and the padding masks of its inputs.
KINDS = {
    "encoder": (EncoderBlock, ("padding_mask",)),
    "decoder": (DecoderBlock, ("decoder_padding_mask", "encoder_padding_mask")),
    "decoder_only": (DecoderBlock, ("decoder_padding_mask",)),
}
DECODERS = ["decoder", "decoder_only"]
BLOCKS = pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])


def built(randomize, kind, **arguments):
    block_class, names = KINDS[kind]
    block = block_class(INNER, HEADS, **arguments)
    block.build(*[(None, None, WIDTH), (None, None, SOURCE_WIDTH)][: len(names)])
    return randomize(block)


@pytest.fixture
def sequences(rng):
    """`sequences(kind)`: float32 inputs of a block."""
    target = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    source = rng.normal(size=(BATCH, SOURCE, SOURCE_WIDTH)).astype("float32")
    return lambda kind: [target, source][: len(KINDS[kind][1])]


def padding_of(kind, real=(REAL, SOURCE_REAL)):
    return dict(zip(KINDS[kind][1], real, strict=False))


def oracle(kind, block, inputs, masks, **options):
    weights = reference.weights_of(block)
    if kind == "encoder":
        return reference.encoder_block(weights, *inputs, masks[0], **options)
    memory = inputs[1] if kind == "decoder" else None
    return reference.decoder_block(weights, inputs[0], memory, *masks, **options)


@pairwise(kind=list(KINDS), normalize_first=[False, True], policy=POLICIES, masks=[0, 1, 2, 3])
def test_equals_the_numpy_oracle(rng, sequences, randomize, kind, normalize_first, policy, masks):
    block = built(randomize, kind, normalize_first=normalize_first, dtype=policy)
    inputs, call = sequences(kind), {}
    seen = [np.ones((1, 1, 1, 1), bool), np.ones((1, 1, 1, 1), bool)]
    if masks & 1:
        call |= padding_of(kind)
        seen = [m & real[:, None, None] for m, real in zip(seen, (REAL, SOURCE_REAL), strict=True)]
    if masks & 2:
        pairs = rng.random((BATCH, HEADS, LENGTH, LENGTH)) < 0.6
        pairs[..., 0] = True
        call["attention_mask" if kind == "encoder" else "decoder_attention_mask"] = pairs
        seen[0] = seen[0] & pairs
        if kind == "decoder":
            call["encoder_attention_mask"] = memory_pairs = rng.random((LENGTH, SOURCE)) < 0.7
            seen[1] = seen[1] & memory_pairs
    outputs = block(*inputs, **call)
    assert keras.backend.standardize_dtype(outputs.dtype) == block.compute_dtype
    expected = oracle(kind, block, inputs, seen, normalize_first=normalize_first)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(float64(outputs) / scale, expected / scale, atol=TOLERANCE[policy])


@pytest.mark.parametrize("key_dim", [None, 5])
@pytest.mark.parametrize("num_cross_heads", [None, 1, 2])
def test_heads_over_the_encoder_are_as_wide_as_the_other_heads(key_dim, num_cross_heads):
    block = DecoderBlock(INNER, HEADS, key_dim=key_dim, num_cross_heads=num_cross_heads)
    block.build((None, None, WIDTH), (None, None, SOURCE_WIDTH))
    for attention, heads in (
        (block.self_attention, HEADS),
        (block.cross_attention, num_cross_heads or HEADS),
    ):
        query, *_, output = attention.projections
        assert tuple(query.kernel.shape) == (WIDTH, heads, key_dim or KEY_DIM)
        assert tuple(output.kernel.shape) == (heads, key_dim or KEY_DIM, WIDTH)


def test_without_the_causal_mask_the_first_position_sees_the_last(sequences, randomize):
    block = built(randomize, "decoder_only")
    (target,) = sequences("decoder_only")
    changed = target.copy()
    changed[:, -1] += 1
    before, after = (float64(block(x, use_causal_mask=False)) for x in (target, changed))
    assert np.abs(after - before)[:, 0].max() > 1e-3


def embedded(kind, embedding, **arguments):
    """A block over embeddings whose id 0 Keras masks: its model, its ids and the embeddings."""
    sides = [(LENGTH, WIDTH, IDS), (SOURCE, SOURCE_WIDTH, SOURCE_IDS)][: len(KINDS[kind][1])]
    inputs = [keras.Input((length,), dtype="int32") for length, _, _ in sides]
    embeddings = [embedding(29, width) for _, width, _ in sides]
    block = KINDS[kind][0](INNER, HEADS, **arguments)
    encoded = block(*(embed(tensor) for embed, tensor in zip(embeddings, inputs, strict=True)))
    model = keras.Model(inputs, [encoded, keras.layers.GlobalAveragePooling1D()(encoded)])
    return block, model, [ids for _, _, ids in sides], embeddings


@pairwise(
    kind=list(KINDS),
    block=[("float32", False), ("float32", True), ("mixed_float16", False)],
    embedding=[functools.partial(keras.layers.Embedding, mask_zero=True), TokenEmbedding],
)
@pytest.mark.filterwarnings("error:.*mask:UserWarning")
def test_masks_of_embeddings_hide_padding_and_go_on(rng, kind, block, embedding):
    policy, normalize_first = block
    made = embedded(kind, embedding, normalize_first=normalize_first, dtype=policy)
    block, model, ids, embeddings = made
    before, pooled = (float64(x) for x in model(ids))
    vectors = [np.asarray(embed(side)) for embed, side in zip(embeddings, ids, strict=True)]
    explicit = float64(block(*vectors, **padding_of(kind)))
    np.testing.assert_array_equal(before, explicit)
    if policy != "float32":
        return
    if kind != "decoder_only":  # Of a causal block's own padding no real position sees any.
        assert np.abs(float64(block(*vectors)) - before)[REAL].max() > 1e-3
    np.testing.assert_allclose(pooled, np.stack([before[0, :3].mean(0), before[1, 0]]), atol=1e-6)
    for embedding in embeddings:
        table = np.array(embedding.get_weights()[0])
        table[0] = 5 * rng.normal(size=table[0].shape)
        embedding.set_weights([table])
    np.testing.assert_array_equal(float64(model(ids)[0])[REAL], before[REAL])


def test_explicit_and_implicit_masks_are_combined(rng):
    ids = keras.Input((LENGTH,), dtype="int32")
    padding = keras.Input((LENGTH,), dtype="bool")
    pairs = keras.Input((LENGTH, LENGTH), dtype="bool")
    embedding = keras.layers.Embedding(29, WIDTH, mask_zero=True)
    block = EncoderBlock(INNER, HEADS)
    encoded = block(embedding(ids), padding_mask=padding, attention_mask=pairs)
    model = keras.Model([ids, padding, pairs], encoded)
    padding = np.array([[True, True, False, True, True], [True] * LENGTH])
    pairs = rng.random((BATCH, LENGTH, LENGTH)) < 0.7
    combined = REAL[:, None] & padding[:, None] & pairs
    expected = block(np.asarray(embedding(IDS)), attention_mask=combined)
    np.testing.assert_array_equal(float64(model([IDS, padding, pairs])), float64(expected))


@pairwise(kind=DECODERS, normalize_first=[False, True], policy=POLICIES)
def test_steps_with_the_cache_equal_one_call(sequences, randomize, kind, normalize_first, policy):
    block = built(randomize, kind, normalize_first=normalize_first, dtype=policy)
    target, *source = (ops.cast(sequence, block.compute_dtype) for sequence in sequences(kind))
    expected = float64(block(target, *source))
    memory = block.cross_attention.project_key_value(*source) if source else None
    state, begin = block.token_mixer.start(BATCH, 1, LENGTH + 2), 0
    for end in (1, 3, 4, LENGTH):  # One or two positions at a time.
        mask = np.arange(LENGTH + 2) <= np.arange(begin, end)[:, None]
        past = Past(begin, mask[None, None])
        outputs, state, _ = block.step(target[:, begin:end], state, past, memory)
        atol = TOLERANCE[policy] * np.abs(expected).max()
        np.testing.assert_allclose(float64(outputs), expected[:, begin:end], atol=atol)
        begin = end


@pytest.mark.parametrize("kind", DECODERS)
def test_an_encoder_sequence_may_not_come_and_go(sequences, randomize, kind):
    block, (target, source) = built(randomize, kind), sequences("decoder")
    built_how, called_how = ("with", "none") if kind == "decoder" else ("without", "one")
    with pytest.raises(ValueError, match=f"built {built_how} .* called with {called_how}"):
        block(target, None if kind == "decoder" else source)


@BLOCKS
@pytest.mark.parametrize("normalize_first", [False, True])
def test_dropout_falls_on_sublayers_and_never_on_the_residual(rng, block_class, normalize_first):
    block = block_class(INNER, HEADS, dropout=0.5, normalize_first=normalize_first)
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    block.build(inputs.shape)
    # Sublayers whose last projection is zero give nothing that could be dropped.
    is_last = lambda w: "attention_output" in w.path or "outer" in w.path  # noqa: E731
    block.set_weights([w.numpy() * (not is_last(w)) for w in block.weights])
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
def test_epsilon_and_activation_reach_the_sublayers(rng, block_class):
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    relu = lambda x: ops.maximum(x, 0)  # noqa: E731
    block = block_class(INNER, HEADS, activation=relu, layer_norm_epsilon=0.7)
    outputs = float64(block(inputs))
    oracle = reference.encoder_block if block_class is EncoderBlock else reference.decoder_block
    expected = oracle(reference.weights_of(block), inputs, epsilon=0.7)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@BLOCKS
@pytest.mark.parametrize("normalize_first", [False, True])
def test_attention_scores_are_those_of_the_sublayers(rng, randomize, block_class, normalize_first):
    block = block_class(INNER, HEADS, normalize_first=normalize_first)
    shapes = [(BATCH, LENGTH, WIDTH), (BATCH, 7, 17)][: 1 + (block_class is DecoderBlock)]
    inputs = [rng.normal(size=shape).astype("float32") for shape in shapes]
    block.build(*shapes)
    randomize(block)
    outputs, *scores = block(*inputs, return_attention_scores=True)
    np.testing.assert_array_equal(float64(outputs), float64(block(*inputs)))
    names = ["self_attention", "cross_attention"][: len(inputs)]
    hidden, causal = float64(inputs[0]), np.tri(LENGTH, dtype=bool) if len(inputs) > 1 else None
    weights = reference.weights_of(block)
    for name, received, mask in zip(names, scores, (causal, None), strict=False):
        norm = reference.part(weights, f"{name}_norm")
        seen = reference.layer_norm(norm, hidden) if normalize_first else hidden
        value = seen if name == "self_attention" else inputs[1]
        output, expected = reference.attention(
            reference.part(weights, name), seen, value, mask=mask
        )
        np.testing.assert_allclose(float64(received), expected, atol=1e-5)
        hidden = hidden + output
        hidden = hidden if normalize_first else reference.layer_norm(norm, hidden)
    assert len(scores) == len(inputs)
    symbolic = block(*(keras.Input(shape[1:]) for shape in shapes), return_attention_scores=True)
    assert [x.shape[1:] for x in symbolic] == [x.shape[1:] for x in (outputs, *scores)]


@BLOCKS
def test_weights_of_all_projections_are_made_as_the_arguments_say(block_class):
    kernels = keras.initializers.RandomNormal(stddev=0.25)
    arguments = dict(kernel_initializer=kernels, bias_initializer="ones")
    arguments |= dict(kernel_regularizer="l2", kernel_constraint="non_neg")
    block = block_class.from_config(block_class(INNER, HEADS, **arguments).get_config())
    block.build(*[(None, None, WIDTH)] * (1 + (block_class is DecoderBlock)))
    parts = [block.self_attention, getattr(block, "cross_attention", None), block.feed_forward]
    layers = [layer for part in parts if part for layer in part.projections]
    assert len(layers) == (10 if block_class is DecoderBlock else 6)
    kernels = np.concatenate([float64(layer.kernel).ravel() for layer in layers])
    assert kernels.std() == pytest.approx(0.25, rel=0.05)
    assert len({float64(layer.kernel).flat[0] for layer in layers}) == len(layers)
    assert all((float64(layer.bias) == 1).all() for layer in layers)
    assert all(isinstance(layer.kernel_constraint, keras.constraints.NonNeg) for layer in layers)
    assert len(block.losses) == len(layers)


@BLOCKS
def test_inputs_of_other_shapes_are_refused_in_words(block_class):
    with pytest.raises(ValueError, match=r"`inputs` must have the axes .*shape \(2, 33\)"):
        block_class(INNER, HEADS).build((2, WIDTH))
    with pytest.raises(ValueError, match="`num_heads` must divide .* num_heads=3, .*35"):
        block_class(INNER, HEADS).build((None, None, 35))
    block = block_class(INNER, HEADS)
    block.build((None, None, WIDTH))
    with pytest.raises(ValueError, match=r"`inputs` must have the 33 features .*\(2, 5, 34\)"):
        block(np.ones((2, 5, 34), "float32"))


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


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_a_decoder_of_keras_hub_becomes_a_block_with_its_weights(rng, normalize_first, count):
    hub = pytest.importorskip("keras_hub", reason="comes with the extra [peers]")
    options = {"dropout": 0.25, "activation": "gelu", "layer_norm_epsilon": 0.5}
    initializers = {"kernel_initializer": "he_normal", "bias_initializer": "ones"}
    theirs = hub.layers.TransformerDecoder(
        INNER, HEADS, **options, **initializers, normalize_first=normalize_first, name="theirs"
    )
    shapes = [(BATCH, LENGTH, WIDTH), (BATCH, LENGTH + 2, WIDTH)][:count]
    inputs = [rng.normal(size=shape).astype("float32") for shape in shapes]
    before = theirs(*inputs)
    block = DecoderBlock.from_config(theirs.get_config())
    block(*inputs)
    block.set_weights(theirs.get_weights())
    np.testing.assert_allclose(float64(block(*inputs)), float64(before), atol=2e-6)
    assert block.name == "theirs"
    assert (block.dropout, block.attention_dropout, block.feed_forward_dropout) == (0.25, 0.25, 0)
    config = block.get_config()
    for name in initializers:
        class_name = config[name]["class_name"]
        assert class_name == theirs.get_config()[name]["class_name"]


def test_an_encoder_of_keras_hub_gives_its_configuration():
    hub = pytest.importorskip("keras_hub", reason="comes with the extra [peers]")
    theirs = hub.layers.TransformerEncoder(INNER, HEADS, dropout=0.25, normalize_first=True)
    block = EncoderBlock.from_config(theirs.get_config())
    assert (block.intermediate_dim, block.num_heads) == (INNER, HEADS)
    assert block.normalize_first and (block.dropout, block.attention_dropout) == (0.25, 0.25)


@pytest.mark.parametrize("is_built", [False, True])
@pytest.mark.parametrize("mixer", [None, {}, {"use_projection": True}])
def test_a_decoder_block_goes_through_keras_serialization(sequences, mixer, is_built):
    options = {"num_cross_heads": 1, "dropout": 0.25, "attention_dropout": 0.0}
    mixer = None if mixer is None else SSRU(**mixer)
    block = DecoderBlock(INNER, HEADS, mixer=mixer, activation=keras.activations.gelu, **options)
    if is_built:
        block(*sequences("decoder"))
    config = keras.saving.serialize_keras_object(block)
    copy = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert type(copy) is DecoderBlock and copy.get_config() == block.get_config()
    copy(*sequences("decoder"))
    assert (copy.token_mixer.sublayer_name == "ssru") == (mixer is not None)
    if is_built:
        copy.set_weights(block.get_weights())
        inputs = sequences("decoder")
        np.testing.assert_array_equal(float64(copy(*inputs)), float64(block(*inputs)))
