"""Every layer is its formula in NumPy, and keeps what Keras' own layers promise.

`CASES` has layers with their arguments, formulas, inputs and masks. Each test below is one promise,
made by all cases or by those that have what it needs. Arithmetic is proved on each backend, what
follows from it or from Keras on TensorFlow.
"""

import inspect
import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import reference
from keras import ops
from keras.src import testing
from pairwise import POLICIES
from reference import float64, weights_of

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
from keras_transformer.layers.kv_cache import Past
from keras_transformer.layers.projection import LayerOfProjections, dense_layers

BATCH, WIDTH, OTHER, RANK, ALPHA = 2, 12, 17, 2, 3
ENDS = (3, 5), (2, 7)  # where padding begins: of two sentences, in the first and in other inputs
TOLERANCE = dict(zip(POLICIES, (2e-5, 1e-1, 1e-2), strict=True))


class Case(NamedTuple):
    """A layer, and `formula(weights, inputs, visible, seen, **options)`, with `options_of`.

    `visible` has the mask of each attention, `(batch, heads, query, key)`, and `seen` is given the
    weights of each attention. `padding` names masks of an input, `pairs` masks of two inputs.
    """

    layer: Any
    arguments: dict
    formula: Callable
    num_weights: int
    inputs: tuple = ((5, WIDTH),)  # length and features
    padding: dict = {}
    pairs: dict = {}
    call: dict = {}
    is_causal: bool = False


def options_of(case, training=False):
    """Arguments of a layer by their names in `reference`; sizes are in the weights."""
    names = "normalize_first", "activation", "score", "mode", "layout", "frequencies", "offset"
    names += "max_wavelength", "layer_norm_epsilon", "sliding_window"
    names += ("dropout", "attention_dropout", "feed_forward_dropout") if training else ()
    others = {"layer_norm_epsilon": "epsilon", "sliding_window": "window", "offset": "start_index"}
    options = {others.get(name, name): case.arguments.get(name) for name in names}
    if (inside := case.arguments.get("positions")) in ("rotary", "alibi"):
        options[inside] = True
    if callable(options["activation"]):
        options["activation"] = options["activation"].__name__
    return {name: value for name, value in options.items() if value is not None}


def attention(weights, inputs, visible, seen, **options):
    output, scores = reference.attention(weights, *inputs, mask=visible[0], **options)
    seen.append(scores)
    return output


def encoder_block(weights, inputs, visible, seen, **options):
    return reference.encoder_block(weights, *inputs, *visible, seen=seen, **options)


def decoder_block(weights, inputs, visible, seen, **options):
    memory = inputs[1] if len(inputs) > 1 else None
    return reference.decoder_block(weights, inputs[0], memory, *visible, seen=seen, **options)


def scored_attention(weights, inputs, visible, seen, score):
    output, shares = reference.scored_attention(weights, score, *inputs, mask=visible[0][:, 0])
    seen.append(shares[:, None])
    return output


def pooling(weights, inputs, visible, seen, mode):
    return reference.pooling(weights, mode, *inputs, visible[0][:, 0, 0])


def feed_forward(weights, inputs, visible, seen, **options):
    return reference.feed_forward(weights, *inputs, **options)


def ssru(weights, inputs, visible, seen):
    return reference.ssru(weights, *inputs)


def sinusoids(weights, inputs, visible, seen, **options):
    return inputs[0] + reference.positional_encoding(*inputs[0].shape[1:], **options)


def learned(weights, inputs, visible, seen):
    return inputs[0] + weights["embeddings"][: inputs[0].shape[1]]


def concatenated(weights, inputs, visible, seen):
    vectors = reference.positional_encoding(*inputs[0].shape[1:])
    both = [inputs[0], np.broadcast_to(vectors, inputs[0].shape)]
    return np.concatenate(both, axis=2) @ weights["projection/kernel"]


def embedding(weights, inputs, visible, seen):
    return weights["embeddings"][inputs[0]] * WIDTH**0.5


def ssru_block(use_projection=False, **arguments):
    return DecoderBlock(mixer=SSRU(use_projection, name="ssru"), **arguments)


INT = np.int32  # Sizes may be numbers of NumPy.
HEADS = dict(num_heads=INT(4), key_dim=INT(6))
HALF = dict(HEADS, dropout=0.5)
BLOCK = dict(intermediate_dim=INT(13), num_heads=INT(3))
RATES = dict(dropout=0.25, attention_dropout=0.5, feed_forward_dropout=0.125)
INNER = dict(RATES, normalize_first=True, activation="silu", layer_norm_epsilon=np.float32(0.5))
ROTARY = dict(positions="rotary", key_dim=INT(10), num_kv_heads=INT(1), sliding_window=INT(2))
RELATIVE = dict(positions="relative", max_distance=INT(2), relative_values=True)
ALIBI = dict(positions="alibi", sliding_window=3)
ONE, TWO = ((5, WIDTH),), ((5, WIDTH), (7, OTHER))
OF_KEYS = (TWO, {"value_mask": 1, "key_mask": 1}, {"attention_mask": (0, 1)})
OF_SAME = (((5, WIDTH), (7, WIDTH)), *OF_KEYS[1:])
WITH_KEY = ((*TWO, (7, 23)), *OF_KEYS[1:])
OF_ENCODER = (ONE, {"padding_mask": 0}, {"attention_mask": (0, 0)})
OF_DECODER = (ONE, {"decoder_padding_mask": 0}, {"decoder_attention_mask": (0, 0)}, {}, True)
OF_BOTH = (
    TWO,
    {"decoder_padding_mask": 0, "encoder_padding_mask": 1},
    {"decoder_attention_mask": (0, 0), "encoder_attention_mask": (0, 1)},
    {},
    True,
)
CAUSAL = (((5, WIDTH),) * 2, *OF_KEYS[1:], {"use_causal_mask": True}, True)
OF_POOLING = (ONE, dict.fromkeys(("padding_mask", "mask", "inputs_mask"), 0))
MARIAN = dict(layout="halves", frequencies="marian", offset=INT(2))
SPLIT = dict(num_kv_heads=INT(2), value_dim=INT(5), use_bias=False, dropout=0.25, seed=7)
CASES = {
    "attention": Case(MultiHeadAttention, HEADS, attention, 8, *OF_KEYS),
    "attention_split": Case(MultiHeadAttention, HEADS | SPLIT, attention, 4, *WITH_KEY),
    "attention_rotary": Case(MultiHeadAttention, HALF | ROTARY, attention, 8, *CAUSAL),
    "attention_relative": Case(MultiHeadAttention, HALF | RELATIVE, attention, 10, *OF_KEYS),
    "attention_alibi": Case(MultiHeadAttention, HALF | ALIBI, attention, 8, *CAUSAL),
    "encoder": Case(EncoderBlock, BLOCK | RATES, encoder_block, 16, *OF_ENCODER),
    "encoder_rotary": Case(EncoderBlock, BLOCK | INNER | ROTARY, encoder_block, 16, *OF_ENCODER),
    "encoder_relative": Case(EncoderBlock, BLOCK | RELATIVE, encoder_block, 18, *OF_ENCODER),
    "decoder": Case(DecoderBlock, BLOCK | RATES, decoder_block, 26, *OF_BOTH),
    "decoder_cross": Case(
        DecoderBlock, BLOCK | INNER | ROTARY | {"num_cross_heads": 2}, decoder_block, 26, *OF_BOTH
    ),
    "decoder_alone": Case(DecoderBlock, BLOCK | ALIBI, decoder_block, 16, *OF_DECODER),
    "decoder_relative": Case(DecoderBlock, BLOCK | RELATIVE, decoder_block, 18, *OF_DECODER),
    "ssru_block": Case(ssru_block, BLOCK | RATES, decoder_block, 21, *OF_BOTH),
    "ssru_block_inner": Case(
        ssru_block, BLOCK | INNER | {"use_projection": True}, decoder_block, 13, *OF_DECODER
    ),
    "feed_forward": Case(
        FeedForward, dict(intermediate_dim=INT(13), dropout=0.25), feed_forward, 4
    ),
    "feed_forward_silu": Case(
        FeedForward, dict(intermediate_dim=13, activation=keras.activations.silu), feed_forward, 4
    ),
    "ssru": Case(SSRU, {}, ssru, 3, is_causal=True),
    "ssru_projected": Case(SSRU, dict(use_projection=True), ssru, 5, is_causal=True),
    "dot": Case(Attention, dict(score="dot"), scored_attention, 0, *OF_SAME),
    "scaled_dot": Case(Attention, dict(score="scaled_dot"), scored_attention, 0, *OF_SAME),
    "general": Case(Attention, dict(score="general"), scored_attention, 1, *WITH_KEY),
    "additive": Case(
        Attention, dict(score="additive", units=INT(7)), scored_attention, 3, *WITH_KEY
    ),
    "mean": Case(MaskedPooling, dict(mode="mean"), pooling, 0, *OF_POOLING),
    "max": Case(MaskedPooling, dict(mode="max"), pooling, 0, *OF_POOLING),
    "pooled_attention": Case(MaskedPooling, dict(mode="attention"), pooling, 1, *OF_POOLING),
    "sinusoids": Case(
        SinusoidalPositionalEncoding, dict(max_wavelength=np.float32(37)), sinusoids, 0
    ),
    "sinusoids_of_marian": Case(SinusoidalPositionalEncoding, MARIAN, sinusoids, 0),
    "learned": Case(LearnedPositionalEmbedding, dict(max_length=INT(11)), learned, 1),
    "concatenated": Case(
        ConcatenatedPositions, dict(positions=SinusoidalPositionalEncoding()), concatenated, 1
    ),
    "embedding": Case(
        TokenEmbedding, dict(vocabulary_size=INT(23), model_dim=INT(WIDTH)), embedding, 1, ((5,),)
    ),
}
EVERY_LAYER = pytest.mark.parametrize("name", CASES)


def under_two_policies(names):
    """Each case in float32, and one after the other in bfloat16 and in float16."""
    halves = itertools.cycle(POLICIES[1:])
    rows = [row for name in names for row in ((name, "float32"), (name, next(halves)))]
    return pytest.mark.parametrize(("name", "policy"), rows)


@pytest.fixture
def built(rng, randomize):
    """`built(name, policy)`: a layer with random weights, and float32 inputs for it."""

    def built(name, policy="float32"):
        case = CASES[name]
        layer = case.layer(**case.arguments, dtype=policy)
        if name == "embedding":
            inputs = [rng.integers(0, 23, (BATCH, 5))]
        else:
            inputs = [rng.normal(size=(BATCH, *size)).astype("float32") for size in case.inputs]
        layer.build(*(x.shape for x in inputs))
        return randomize(layer), inputs

    return built


def masks_of(case, rng, axes):
    """Random masks of all arguments, those of two inputs with some axes, and what each hides."""
    lengths = [size[0] for size in case.inputs]
    padding = {name: rng.random((BATCH, lengths[i])) < 0.7 for name, i in case.padding.items()}
    heads = 1 if case.layer is Attention else case.arguments.get("num_heads", 1)
    pairs = {}
    for name, (query, key) in case.pairs.items():
        count = case.arguments.get("num_cross_heads", heads) if name[:3] == "enc" else heads
        shape = (BATCH, count, lengths[query], lengths[key])
        shape = {2: shape[2:], 3: (shape[0], *shape[2:]), 4: shape}[axes]
        pairs[name] = rng.random(shape) < 0.7
    visible = []
    for name, (_, key) in (case.pairs or {None: (0, 0)}).items():
        mask = np.array(True) if name is None else pairs[name]
        mask = mask[:, None] if mask.ndim == 3 else mask
        for argument, i in case.padding.items():
            mask = mask & (padding[argument][:, None, None] if i == key else True)
        visible.append(mask)
    return padding | pairs, visible


def expected_of(case, layer, inputs, visible=None, training=False):
    """Outputs and weights of attention by the formula; all is visible by default."""
    shapes = case.pairs.values() or [(0, 0)]
    lengths = [x.shape[1] for x in inputs]
    visible = visible or [np.ones((BATCH, 1, lengths[q], lengths[k]), bool) for q, k in shapes]
    if case.call:
        visible = [mask & np.tri(lengths[0], lengths[1], dtype=bool) for mask in visible]
    inputs = [x if x.dtype == int else float64(x) for x in inputs]
    weights = layer if isinstance(layer, dict) else weights_of(layer)
    seen = []
    return case.formula(weights, inputs, visible, seen, **options_of(case, training)), seen


def close(received, expected, policy="float32"):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(float64(received) / scale, expected / scale, atol=TOLERANCE[policy])


def outputs_and_scores(layer, inputs, **call):
    """Outputs, and the weights of each attention, all with an axis of heads."""
    received = layer(*inputs, **call, return_attention_scores=True)
    outputs, *scores = (x for x in received if x is not None)
    return outputs, [weights if weights.ndim == 4 else weights[:, None] for weights in scores]


@under_two_policies(CASES)
def test_outputs_are_those_of_the_formula_under_every_mask(built, rng, name, policy):
    case, (layer, inputs) = CASES[name], built(name, policy)
    outputs = layer(*inputs, **case.call)
    close(outputs, expected_of(case, layer, inputs)[0], policy)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    assert tuple(layer.compute_output_shape(*(x.shape for x in inputs))) == outputs.shape
    if not case.padding:
        return
    masks, visible = masks_of(case, rng, axes=4 - POLICIES.index(policy))
    expected, seen = expected_of(case, layer, inputs, visible)
    close(layer(*inputs, **case.call, **masks), expected, policy)
    if case.pairs:
        received, scores = outputs_and_scores(layer, inputs, **case.call, **masks)
        for ours, theirs in zip((received, *scores), (expected, *seen), strict=True):
            close(ours, theirs, policy)


@pytest.mark.parametrize("name", [name for name in CASES if RATES.keys() & CASES[name].arguments])
def test_dropouts_act_in_training_where_the_formula_has_them(built, monkeypatch, name):
    case, (layer, inputs) = CASES[name], built(name)

    def call(self, inputs, training=False):
        return reference.kept(inputs, self.rate) if training else inputs

    monkeypatch.setattr(keras.layers.Dropout, "call", call)
    close(layer(*inputs, **case.call), expected_of(case, layer, inputs)[0])
    expected, seen = expected_of(case, layer, inputs, training=True)
    close(layer(*inputs, **case.call, training=True), expected)
    if case.pairs:  # The weights that are returned are those before the dropout.
        received, scores = outputs_and_scores(layer, inputs, **case.call, training=True)
        for ours, theirs in zip((received, *scores), (expected, *seen), strict=True):
            close(ours, theirs)
    monkeypatch.undo()
    first, second = (float64(layer(*inputs, **case.call, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.tensorflow
@EVERY_LAYER
def test_padding_the_future_and_other_sentences_change_nothing(built, name):
    """Padding at the end is masked, except in what only later positions see."""
    case, (layer, inputs) = CASES[name], built(name)
    padded, masks = [], {}
    for index, (whole, ends) in enumerate(zip(inputs, (*ENDS, ENDS[1]), strict=False)):
        ends = np.minimum(ends, whole.shape[1])
        real = np.arange(whole.shape[1]) < ends[:, None]
        axes = (slice(None), slice(None), *[None] * (whole.ndim - 2))
        padded.append(np.where(real[axes], whole, np.asarray(5, whole.dtype)))
        is_hidden = case.is_causal and index == 0
        of_input = [argument for argument, i in case.padding.items() if i == index]
        masks |= {} if is_hidden else dict.fromkeys(of_input, real)
    outputs = float64(layer(*padded, **case.call, **masks))
    for row in range(BATCH):
        ends = [ENDS[min(i, 1)][row] for i in range(len(inputs))]
        alone = [x[row : row + 1, :end] for x, end in zip(inputs, ends, strict=True)]
        alone = float64(layer(*alone, **case.call))[0]
        real = outputs[row, : len(alone)] if alone.ndim == 2 else outputs[row]
        np.testing.assert_allclose(real, alone, atol=2e-5 * np.abs(alone).max())


@under_two_policies([name for name in CASES if CASES[name].formula is decoder_block])
def test_cached_steps_equal_one_pass(built, name, policy):
    layer, inputs = built(name, policy)
    target, *source = (ops.cast(x, layer.compute_dtype) for x in inputs)
    expected = float64(layer(target, *source))
    memory = layer.cross_attention.project_key_value(*source) if source else None
    capacity, begin = target.shape[1] + 2, 0
    state = layer.token_mixer.start(BATCH, 1, capacity)
    for end in (1, 2, 3, 4, 5) if CASES[name].layer is ssru_block else (1, 3, 4, 5):
        mask = np.arange(capacity) <= np.arange(begin, end)[:, None]
        past = Past(begin, mask[None, None])
        outputs, state, _ = layer.step(target[:, begin:end], state, past, memory)
        np.testing.assert_allclose(
            float64(outputs),
            expected[:, begin:end],
            atol=TOLERANCE[policy] * np.abs(expected).max(),
        )
        begin = end


@pytest.mark.parametrize("name", [name for name in CASES if name != "embedding"])
def test_gradients_are_those_of_the_formula(built, rng, pull_back, name):
    """In a random direction of each input, by differences of the formula."""
    case, (layer, inputs) = CASES[name], built(name)
    weights = weights_of(layer)
    for index, moved in enumerate(inputs):

        def outputs_at(x, index=index):
            return [*inputs[:index], x, *inputs[index + 1 :]]

        outputs, pull = pull_back(lambda x: layer(*outputs_at(x), **case.call), moved)
        cotangent, direction = rng.normal(size=outputs.shape), rng.normal(size=moved.shape)
        after, before = (
            expected_of(case, weights, outputs_at(moved + step * direction))[0]
            for step in (1e-6, -1e-6)
        )
        received = (pull(cotangent) * direction).sum()
        expected = ((after - before) / 2e-6 * cotangent).sum()
        assert received == pytest.approx(expected, rel=1e-3, abs=1e-3)


def model_of(case, layer):
    symbolic = [keras.Input(size, dtype=None if len(size) > 1 else "int32") for size in case.inputs]
    return keras.Model(symbolic, layer(*symbolic, **case.call))


# The last case of each layer, and a layer of two inputs.
SAVED = ["decoder", *{case.layer: name for name, case in CASES.items()}.values()]


@pytest.mark.tensorflow
@EVERY_LAYER
def test_a_configuration_and_a_file_keep_everything(built, tmp_path, name):
    case = CASES[name]
    layer = case.layer(**case.arguments, name="mine", dtype="mixed_bfloat16")
    config = json.loads(json.dumps(layer.get_config()))
    copy = type(layer).from_config(config)
    assert json.loads(json.dumps(copy.get_config())) == config
    assert (copy.name, copy.compute_dtype) == ("mine", "bfloat16")
    for argument, value in case.arguments.items():
        if argument != "use_projection" or case.layer is SSRU:  # An argument of the block's mixer.
            is_object = callable(getattr(copy, argument))
            assert is_object or config[argument] == getattr(copy, argument) == value
    if name not in SAVED:
        return
    layer, inputs = built(name)
    model = model_of(case, layer)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[-1]) is type(layer)
    np.testing.assert_array_equal(float64(loaded(inputs)), float64(model(inputs)))


def test_every_argument_has_a_case():
    of_layers = {}
    for case in CASES.values():
        made = DecoderBlock if case.layer is ssru_block else case.layer
        of_layers.setdefault(made, set()).update(case.arguments)
    elsewhere = {MultiHeadAttention: {"use_gate", "attention_axes", "flash_attention"}}
    elsewhere[MultiHeadAttention] |= {"output_shape"}  # test_multi_head_attention.py
    elsewhere[TokenEmbedding] = {"output_bias", "mask_zero", "embeddings_initializer"}
    elsewhere[DecoderBlock] = {"mixer"}  # of the cases with SSRU
    for layer, arguments in of_layers.items():
        signatures = [inspect.signature(made.__init__) for made in layer.__mro__[:2]]
        names = set().union(*(signature.parameters for signature in signatures))
        of_all = (inspect.signature(base.__init__) for base in (keras.Layer, LayerOfProjections))
        names -= {"args"}.union(*(signature.parameters for signature in of_all))
        assert names <= arguments | elsewhere.get(layer, set()), layer


SIZES = [
    ("attention", "query/kernel", (WIDTH, 4, 6)),
    ("attention", "value/kernel", (OTHER, 4, 6)),
    ("attention_split", "key/kernel", (23, 2, 6)),
    ("attention_split", "value/kernel", (OTHER, 2, 5)),
    ("attention_split", "attention_output/kernel", (4, 5, WIDTH)),
    ("attention_relative", "distance_values", (5, 6)),
    ("encoder", "self_attention/query/kernel", (WIDTH, 3, 4)),
    ("encoder", "feed_forward/inner/kernel", (WIDTH, 13)),
    ("encoder_rotary", "self_attention/key/kernel", (WIDTH, 1, 10)),
    ("decoder", "cross_attention/value/kernel", (OTHER, 3, 4)),
    ("decoder_cross", "self_attention/query/kernel", (WIDTH, 3, 10)),
    ("decoder_cross", "cross_attention/query/kernel", (WIDTH, 2, 10)),
    ("decoder_cross", "cross_attention/key/kernel", (OTHER, 1, 10)),
    ("decoder_relative", "self_attention/distance_embeddings", (5, 4)),
    ("additive", "key/kernel", (23, 7)),
    ("learned", "embeddings", (11, WIDTH)),
    ("embedding", "embeddings", (23, WIDTH)),
]


def test_weights_have_the_sizes_of_the_arguments(built):
    shapes = {name: {k: v.shape for k, v in weights_of(built(name)[0]).items()} for name in CASES}
    assert {name: len(weights) for name, weights in shapes.items()} == {
        name: case.num_weights for name, case in CASES.items()
    }
    for name, path, shape in SIZES:
        assert shapes[name][path] == shape, (name, path)


# Numbers of sources of random numbers.
CHECKED = {"attention_split": 1, "encoder": 3, "decoder": 4, "feed_forward": 1}
CHECKED |= dict.fromkeys(("ssru", "learned", "embedding"), 0)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", CHECKED)
def test_keras_own_layer_checks_pass(name):
    case, options = CASES[name], {}
    shapes = [(BATCH, *size) for size in case.inputs]
    if len(shapes) > 1:
        names = list(inspect.signature(case.layer.build).parameters)[1:]
        shapes = [dict(zip(names, shapes, strict=True))]
    if name == "embedding":
        options = {"input_dtype": "int32"}
    # Keras' check feeds one input, and a layer without weights learns nothing.
    options["run_training_check"] = len(case.inputs) == 1 and case.num_weights > 0
    options |= dict(expected_num_trainable_weights=case.num_weights, supports_masking=True)
    options |= dict(expected_num_non_trainable_weights=0)
    options |= dict(expected_num_seed_generators=CHECKED[name])
    test = testing.TestCase().run_layer_test
    output_shape = (BATCH, 5, WIDTH)
    test(case.layer, case.arguments, shapes[0], expected_output_shape=output_shape, **options)


# Masks that Keras gives to a layer: those of its inputs.
BY_KERAS = "mask", "inputs_mask", "value_mask", "key_mask"
OF_EACH_KIND_OF_MASKS = "attention_split", "attention_rotary", "encoder", "decoder"
OF_EACH_KIND_OF_MASKS += "decoder_alone", "ssru_block", "additive", "mean"


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, "float32") for name in OF_EACH_KIND_OF_MASKS]
    + [(name, "mixed_float16") for name in ("attention", "encoder", "decoder", "mean")],
)
@pytest.mark.filterwarnings("error:.*mask:UserWarning")
def test_masks_of_embeddings_hide_padding_and_go_on(rng, name, policy):
    case = CASES[name]
    layer = case.layer(**case.arguments, dtype=policy)
    symbolic = [keras.Input((length,), dtype="int32") for length, _ in case.inputs]
    if policy == "float32":
        tables = [TokenEmbedding(29, features) for _, features in case.inputs]
    else:
        sizes = [features for _, features in case.inputs]
        tables = [keras.layers.Embedding(29, features, mask_zero=True) for features in sizes]
    vectors = [table(ids) for table, ids in zip(tables, symbolic, strict=True)]
    outputs = [layer(*vectors, **case.call)]
    if case.formula is pooling:
        assert getattr(outputs[0], "_keras_mask", None) is None
    else:
        outputs.append(keras.layers.GlobalAveragePooling1D()(outputs[0]))
    ids = [rng.integers(1, 29, (BATCH, length)) for length, _ in case.inputs]
    ids = [
        np.where(np.arange(x.shape[1]) < np.reshape(ends, (2, 1)), x, 0)
        for x, ends in zip(ids, (*ENDS, ENDS[1]), strict=False)
    ]
    outputs = keras.Model(symbolic, outputs)(ids)
    received, *pooled = map(float64, outputs if case.formula is not pooling else [outputs])
    vectors = [np.asarray(table(x)) for table, x in zip(tables, ids, strict=True)]
    masks = {argument: ids[i] != 0 for argument, i in case.padding.items()}
    np.testing.assert_array_equal(received, float64(layer(*vectors, **case.call, **masks)))
    if policy == "float32" and (not case.is_causal or len(ids) > 1):
        assert np.abs(received - float64(layer(*vectors, **case.call))).max() > 1e-4
    if policy == "float32" and pooled:
        means = [row[: ids[0][i].astype(bool).sum()].mean(axis=0) for i, row in enumerate(received)]
        np.testing.assert_allclose(pooled[0], means, atol=1e-5)
    # Given masks hide more than those of Keras.
    given = {k: v for k, v in masks_of(case, rng, axes=4)[0].items() if k not in BY_KERAS}
    both = {argument: masks.get(argument, True) & given.get(argument, True) for argument in given}
    vectors_with_masks = [table(x) for table, x in zip(tables, ids, strict=True)]
    np.testing.assert_array_equal(
        float64(layer(*vectors_with_masks, **case.call, **given)),
        float64(layer(*vectors, **case.call, **masks | both)),
    )


PROJECTED = [
    name
    for name, case in CASES.items()
    if case.num_weights and case.formula not in (learned, embedding, concatenated, pooling)
]
QUANTIZED = "decoder", "attention_alibi", "encoder_relative", "ssru_block_inner", "additive"
QUANTIZED += "pooled_attention", "concatenated"
MAY_BE_TRAINED = ("/bias", "/gamma", "/beta", "/vector", "distance_embeddings", "distance_values")


@pytest.mark.parametrize("name", PROJECTED)
def test_lora_adds_a_product_of_a_rank_to_each_kernel(built, rng, name):
    case, (layer, inputs) = CASES[name], built(name)
    before, weights = float64(layer(*inputs, **case.call)), weights_of(layer)
    kernels = [path for path in weights if path.endswith("/kernel")]
    layer.enable_lora(RANK, lora_alpha=ALPHA)
    # The second matrix is zero.
    np.testing.assert_allclose(float64(layer(*inputs, **case.call)), before, atol=1e-6)
    small = [weight for weight in layer.trainable_weights if "lora_kernel" in weight.path]
    assert len(small) == 2 * len(kernels) and all(RANK in weight.shape for weight in small)
    others = [weight.path for weight in layer.trainable_weights if "lora" not in weight.path]
    assert all(path.endswith(MAY_BE_TRAINED) for path in others)
    for weight in small:
        weight.assign(rng.normal(size=weight.shape, scale=0.3))
    matrices = weights_of(layer)
    for path in kernels:
        parts = [matrices[f"{path.removesuffix('kernel')}lora_kernel_{part}"] for part in "ab"]
        weights[path] = weights[path] + ALPHA / RANK * np.tensordot(*parts, axes=1)
    expected, _ = expected_of(case, weights, inputs)
    assert np.abs(expected - before).max() > 0.1
    close(layer(*inputs, **case.call), expected)


@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_model_of_quantized_layers_is_near_and_is_saved_and_loaded(built, tmp_path, name):
    layer, inputs = built(name)
    model = model_of(CASES[name], layer)
    before = float64(model(inputs))
    model.quantize("int8")
    quantized = [layer.name for layer in model._flatten_layers() if layer.quantization_mode]
    expected = float64(model(inputs))
    assert quantized and 0 < np.abs(expected - before).max() < 0.2 * np.abs(before).max()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(float64(loaded(inputs)), expected, atol=1e-6)
    names = [layer.name for layer in loaded._flatten_layers() if layer.quantization_mode]
    assert names == quantized


MASKED = "attention", "additive", "encoder", "decoder", "ssru_block", "mean"


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_of_another_shape_is_named_with_the_shape_it_needs(built, name):
    case, (layer, inputs) = CASES[name], built(name)
    heads = int(case.arguments.get("num_heads", 1))

    def refused(argument, shape, expected):
        with pytest.raises(ValueError) as caught:
            layer(*inputs, **{argument: np.ones(shape, bool)})
        message = str(caught.value)
        assert f"`{argument}` must have the axes " in message and f"here {expected}. " in message
        assert f"Received: {argument} of shape {shape}." in message
        return message

    for argument, index in case.padding.items():
        length = inputs[index].shape[1]
        for shape in ((BATCH, length, length), (length,), (), (3, length), (BATCH, 1), (BATCH, 4)):
            refused(argument, shape, (BATCH, length))
        for batch in (1, BATCH):
            layer(*inputs, **{argument: np.ones((batch, length), bool)})
    for argument, indices in case.pairs.items():
        query, key = (inputs[index].shape[1] for index in indices)
        full = (query, key), (BATCH, query, key), (BATCH, heads, query, key)
        words = "{}, {} or {}".format(*full)
        for shape in ((4, query, key), (BATCH, 7, query, key), (BATCH, query, 4), (key,)):
            assert "mask[:, None]" not in refused(argument, shape, words)
        assert "mask[:, None]" in refused(argument, (BATCH, key), words)
        for shape in (*full, (BATCH, 1, key), (1, 1, 1, key)):
            layer(*inputs, **{argument: np.ones(shape, bool)})


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", MASKED)
def test_a_float_mask_has_two_opposite_meanings_and_is_refused_by_name(built, rng, name):
    case, (layer, inputs) = CASES[name], built(name)
    for argument, mask in masks_of(case, rng, axes=4)[0].items():
        layer(*inputs, **{argument: mask.astype("int32")})
        rule = f"`{argument}` must be bool, True = may attend. Received: {argument} of dtype "
        for hidden in (0.0, -1e9, -np.inf):
            added_to_scores = np.where(mask, 0.0, hidden).astype("float32")
            with pytest.raises(ValueError) as caught:
                layer(*inputs, **{argument: added_to_scores})
            assert rule in str(caught.value)
        if name != "mean":  # Keras calls it only with numbers.
            symbolic = [keras.KerasTensor(x.shape, "float32") for x in inputs]
            with pytest.raises(ValueError, match="of dtype float32"):
                layer(*symbolic, **{argument: keras.KerasTensor(mask.shape, "float32")})


INTEGER = "must be a positive integer below 2**31. Received: "
RATE = "must be in [0, 1). Received: "
AXES = "must be None or 1, the axis of the length. Received: "
KINDS = MultiHeadAttention, EncoderBlock, DecoderBlock, FeedForward
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


NO_AXES = r"`{}` must have the axes .*{} of shape \(2, 12\)"
SHAPES = [  # a layer that is built for a length of 5 and 12 or 17 features, inputs, an error
    ("attention", [(2, 12)], NO_AXES.format("query", "query")),
    ("attention", [(2, 5, 18)], r"`query` must have the 12 features .*\(2, 5, 18\)"),
    ("attention", [(2, 5, 12), (2, 7, 17), (2, 7, 20)], "`key` must have the 17 features"),
    ("attention", [(2, 5, 12), (2, 7, 17), (2, 8, 17)], "`value` and `key` must have the same"),
    ("encoder", [(2, 12)], NO_AXES.format("inputs", "inputs")),
    ("encoder", [(2, 5, 13)], r"`inputs` must have the 12 features .*\(2, 5, 13\)"),
    ("decoder", [(2, 5, 13)], r"`inputs` must have the 12 features .*\(2, 5, 13\)"),
]


@pytest.mark.parametrize(("name", "shapes", "message"), SHAPES)
def test_inputs_of_another_shape_are_named(built, name, shapes, message):
    layer, inputs = built(name)
    inputs[: len(shapes)] = [np.ones(shape, "float32") for shape in shapes]
    with pytest.raises(ValueError, match=message):
        layer(*inputs)
    if len(shapes[0]) == 2:
        with pytest.raises(ValueError, match=message):
            CASES[name].layer(**CASES[name].arguments).build(*shapes, *CASES[name].inputs[1:])


@pytest.mark.parametrize("score", ["dot", "scaled_dot"])
def test_a_product_needs_keys_as_wide_as_the_queries(rng, score):
    query, value = rng.normal(size=(3, 4, 6)), rng.normal(size=(3, 5, 9))
    with pytest.raises(ValueError, match=f"{score} score needs keys with as many features"):
        Attention(score)(query, value)


@pytest.mark.parametrize("layer_class", [EncoderBlock, DecoderBlock])
def test_heads_divide_the_features_of_a_block(layer_class):
    with pytest.raises(ValueError, match="`num_heads` must divide .* num_heads=3, .*35"):
        layer_class(13, 3).build((None, None, 35))


@pytest.mark.parametrize(("layer_class", "count"), [*zip(KINDS, (4, 6, 10, 2), strict=True)])
def test_projections_are_made_as_the_arguments_say_and_each_draws_for_itself(layer_class, count):
    arguments = {
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.25),
        "bias_initializer": "ones",
        "kernel_regularizer": keras.regularizers.L1(0.25),
        "bias_regularizer": keras.regularizers.L2(0.125),
        "activity_regularizer": keras.regularizers.L2(0.5),
        "kernel_constraint": "non_neg",
        "bias_constraint": keras.constraints.MaxNorm(3),
    }
    layer = layer_class(**REQUIRED[layer_class], **arguments)
    layer = layer_class.from_config(layer.get_config())
    layer.build(*[(None, None, WIDTH)] * (1 + (layer_class in (MultiHeadAttention, DecoderBlock))))
    expected = keras.layers.Dense(1, **arguments).get_config()
    names = arguments.keys() - {"kernel_initializer"}  # Each layer's has a seed of its own.
    projections = dense_layers(layer)
    assert len(projections) == count
    for projection in projections:
        config = projection.get_config()
        assert {name: config[name] for name in names} == {name: expected[name] for name in names}
        assert (float64(projection.bias) == 1).all()
    kernels = np.concatenate([float64(projection.kernel).ravel() for projection in projections])
    assert kernels.std() == pytest.approx(0.25, rel=0.1)
    assert len({float64(projection.kernel).flat[0] for projection in projections}) == count


@pytest.mark.parametrize("layer_class", [MultiHeadAttention, EncoderBlock, DecoderBlock])
@pytest.mark.parametrize("positions", [None, "rotary"])
def test_vectors_of_the_values_distances_need_relative_positions(layer_class, positions):
    sizes = dict.fromkeys(("num_heads", "key_dim"), 2)
    if layer_class is not MultiHeadAttention:
        sizes["intermediate_dim"] = 3
    with pytest.raises(ValueError, match='needs `positions="relative"`. Received: relative_values'):
        layer_class(**sizes, positions=positions, relative_values=True)


@pytest.mark.parametrize("layer_class", [EncoderBlock, DecoderBlock])
def test_a_block_refuses_unknown_positions_before_it_is_built(layer_class):
    with pytest.raises(ValueError, match="`positions` must be one of .* Received: .*'rotery'"):
        layer_class(intermediate_dim=3, num_heads=2, positions="rotery")


def test_rotary_positions_need_pairs_of_features():
    with pytest.raises(ValueError, match="heads of an even width. Received: key_dim=11"):
        MultiHeadAttention(3, 11, positions="rotary")
