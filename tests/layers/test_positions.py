"""Positions: sinusoids by their formulas, a trained table, and both with the tokens."""

import itertools

import keras
import numpy as np
import pytest
import reference
from keras import ops
from pairwise import pairwise
from reference import float64

from keras_transformer import layers
from keras_transformer.layers.positions import (
    alibi_scores,
    alibi_slopes,
    position_table,
)

BATCH, LENGTH, WIDTH, MAX_LENGTH = 2, 5, 14, 11
IDS = np.array([[3, 5, 7], [11, 13, 0]])
LAYERS = {
    "sinusoidal": layers.SinusoidalPositionalEncoding,
    "learned": lambda: layers.LearnedPositionalEmbedding(MAX_LENGTH),
}
EVERY_KIND = pytest.mark.parametrize("kind", LAYERS)


def built(kind):
    """A layer, and the vectors of its first positions."""
    layer = LAYERS[kind]()
    layer.build((None, None, WIDTH))
    return layer, vectors_of(layer)


def vectors_of(layer):
    if isinstance(layer, layers.LearnedPositionalEmbedding):
        return reference.weights_of(layer)["embeddings"]
    return reference.positional_encoding(MAX_LENGTH, WIDTH)


@EVERY_KIND
def test_start_index_may_be_a_tensor_inside_a_compiled_program(compiled, kind):
    layer, vectors = built(kind)
    inputs = ops.zeros((1, 1, WIDTH))
    step = compiled(lambda start: layer(inputs, start_index=start))
    for position in (0, 3, 10):
        outputs = step(ops.convert_to_tensor(position, "int32"))
        np.testing.assert_allclose(float64(outputs)[0, 0], vectors[position], atol=1e-5)


@pytest.mark.parametrize(("length", "start_index"), [(12, 0), (5, 7)])
def test_a_sequence_past_the_table_is_refused(length, start_index):
    layer, _ = built("learned")
    with pytest.raises(ValueError) as caught:
        layer(np.zeros((1, length, WIDTH), "float32"), start_index=start_index)
    for fact in ("max_length=11", f"start_index={start_index}", f"length={length}"):
        assert fact in str(caught.value)


@EVERY_KIND
@pytest.mark.parametrize("start_index", [-1, True, np.float32(2)])
def test_a_start_that_is_no_position_is_refused(kind, start_index):
    for layer in (LAYERS[kind](), layers.ConcatenatedPositions(LAYERS[kind]())):
        with pytest.raises(ValueError, match="`start_index` must be an integer of at least 0. "):
            layer(np.zeros((1, 3, WIDTH), "float32"), start_index)


def test_in_a_compiled_call_positions_outside_the_table_give_no_number(compiled):
    layer, table = built("learned")
    run = compiled(lambda start: layer(ops.zeros((1, 3, WIDTH)), start))
    for start in (-2, 0, MAX_LENGTH - 1):
        positions = range(start, start + 3)
        expected = [table[p] if 0 <= p < MAX_LENGTH else np.full(WIDTH, np.nan) for p in positions]
        np.testing.assert_allclose(run(ops.convert_to_tensor(start))[0], expected, atol=1e-7)
    with pytest.raises(ValueError, match="`start_index` must be ids, which are integers"):
        run(ops.convert_to_tensor(1.5))


@pytest.mark.tensorflow
def test_past_the_table_a_length_that_only_the_program_knows_gives_no_number():
    import tensorflow as tf

    layer, table = built("learned")
    signature = [tf.TensorSpec((1, None, WIDTH))]
    run = tf.function(layer, signature, jit_compile=True, autograph=False)
    outputs = np.asarray(run(np.zeros((1, MAX_LENGTH + 2, WIDTH), "float32")))[0]
    np.testing.assert_allclose(outputs[:MAX_LENGTH], table, atol=1e-7)
    assert np.isnan(outputs[MAX_LENGTH:]).all()


def test_initial_rows_have_the_size_of_a_token_vector():
    layer = layers.LearnedPositionalEmbedding(211)
    layer.build((None, None, 101))
    table = reference.weights_of(layer)["embeddings"]
    assert abs(table.std() * 101**0.5 - 1) < 0.03


@EVERY_KIND
@pytest.mark.parametrize("start", [0, 5])
def test_concatenated_is_the_product_of_both_side_by_side(rng, randomize, kind, start):
    layer = layers.ConcatenatedPositions(LAYERS[kind]())
    layer.build((None, None, WIDTH))
    weights = reference.weights_of(randomize(layer))
    inputs = rng.normal(size=(2, 5, WIDTH)).astype("float32")
    positions = (
        reference.positional_encoding(5, WIDTH, start)
        if kind == "sinusoidal"
        else next(v for k, v in weights.items() if k.endswith("embeddings"))[start : start + 5]
    )
    both = np.concatenate([inputs, np.broadcast_to(positions, inputs.shape)], axis=2)
    expected = both @ weights["projection/kernel"]
    np.testing.assert_allclose(float64(layer(inputs, start_index=start)), expected, atol=1e-5)


def test_a_model_is_saved_with_learned_positions_that_two_layers_share(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(29, WIDTH)(ids)
    positions = layers.LearnedPositionalEmbedding(11)
    model = keras.Model(ids, [layers.ConcatenatedPositions(positions)(embedded) for _ in range(2)])
    assert len(model.weights) == 1 + 2 + 1  # tokens, projections, a table of positions
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    for outputs, expected in zip(loaded(IDS), model(IDS), strict=True):
        np.testing.assert_array_equal(float64(outputs), float64(expected))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_table_of_positions_ends_where_the_learned_one_does(wrapped):
    layer = layers.LearnedPositionalEmbedding(MAX_LENGTH)
    layer = layers.ConcatenatedPositions(layer) if wrapped else layer
    layer.build((None, None, WIDTH))
    for length, rows in ((MAX_LENGTH - 1, MAX_LENGTH - 1), (MAX_LENGTH + 2, MAX_LENGTH)):
        assert position_table(layer, length, WIDTH).shape == (rows, WIDTH)


@pairwise(
    layout=("interleaved", "halves"),
    frequencies=("paper", "marian"),
    offset=(0, 2),
    wavelength=(10000, 50.0),
)
def test_sinusoids_of_all_options_are_their_formula_also_after_saving(
    layout, frequencies, offset, wavelength
):
    layer = layers.SinusoidalPositionalEncoding(wavelength, layout, frequencies, offset)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    for width, start in itertools.product((1, 2, 3, 7, 8), (0, 5)):
        expected = reference.positional_encoding(
            4, width, start + offset, wavelength, layout, frequencies
        )
        inputs = np.full((2, 4, width), 0.5, "float32")
        for one in (layer, copy):
            for index in ({"start_index": start}, {"positions": np.arange(start, start + 4)}):
                output = np.asarray(one(inputs, **index))
                np.testing.assert_allclose(output, inputs + expected, atol=2e-5)


PACKED = {**LAYERS, "concatenated": lambda: layers.ConcatenatedPositions(LAYERS["learned"]())}


@pytest.mark.parametrize("kind", PACKED)
def test_given_positions_are_the_positions_of_each_token(rng, compiled, kind):
    layer = PACKED[kind]()
    inputs = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    layer(inputs)
    given = np.array([[0, 1, 2, 0, 1], [10, 3, 3, 0, 7]])
    if kind == "concatenated":
        one_by_one = [
            [float64(layer(inputs[i : i + 1, j : j + 1], given[i, j]))[0, 0] for j in range(LENGTH)]
            for i in range(BATCH)
        ]
    else:
        one_by_one = inputs + vectors_of(layer)[given]
    for call in (layer, compiled(lambda x, p: layer(x, positions=p))):
        outputs = call(inputs, 0, given) if call is layer else call(inputs, given)
        np.testing.assert_allclose(float64(outputs), one_by_one, atol=2e-6)
    np.testing.assert_array_equal(
        float64(layer(inputs, positions=given[0])),
        float64(layer(inputs, positions=[given[0], given[0]])),
    )
    names = keras.Input((LENGTH, WIDTH)), keras.Input((None,), dtype="int32")
    model = keras.Model(names, layer(names[0], positions=names[1]))
    np.testing.assert_allclose(float64(model([inputs, given])), one_by_one, atol=2e-6)


WRONG = [np.zeros(LENGTH - 1, int), np.zeros((3, LENGTH), int), np.zeros(LENGTH), [[[0]]]]


@EVERY_KIND
def test_positions_of_another_shape_or_dtype_or_below_0_are_refused(compiled, kind):
    layer, _ = built(kind)
    inputs = np.zeros((BATCH, LENGTH, WIDTH), "float32")
    for positions in [*WRONG, [0, 1, -1, 0, 1]]:
        with pytest.raises(
            ValueError, match=r"must be integers .* here \(5,\) or \(2, 5\). Received: "
        ):
            layer(inputs, positions=positions)
    zeros, both = np.zeros(LENGTH, int), "Give `positions` or `start_index`. Received: both, "
    for one in (layer, layers.ConcatenatedPositions(LAYERS[kind]())):
        with pytest.raises(ValueError, match=f"{both}start_index=3"):
            one(inputs, start_index=3, positions=zeros)
    with pytest.raises(ValueError, match=both):
        compiled(lambda start: layer(inputs, start, positions=zeros))(ops.convert_to_tensor(0))


def test_given_positions_outside_the_table_give_no_number(compiled):
    layer, vectors = built("learned")
    call = compiled(lambda positions: layer(ops.zeros((1, 3, WIDTH)), positions=positions))
    outputs = float64(call(ops.convert_to_tensor([[MAX_LENGTH, 2, -1]], "int32")))[0]
    assert np.isnan(outputs[[0, 2]]).all()
    np.testing.assert_array_equal(outputs[1], vectors[2])


@pytest.mark.parametrize(
    ("block_class", "positions"),
    [
        (layers.EncoderBlock, None),
        (layers.DecoderBlock, "rotary"),
        (layers.EncoderBlock, "relative"),
        (layers.DecoderBlock, "alibi"),
    ],
)
def test_sequences_that_are_packed_in_a_row_give_what_they_give_alone(
    rng, randomize, block_class, positions
):
    lengths = 3, 2  # and one token of padding
    segments = np.array([[1, 1, 1, 2, 2, 0]])
    begins_again = np.array([[0, 1, 2, 0, 1, 0]])
    encoding = layers.SinusoidalPositionalEncoding()
    block = block_class(13, 2, positions=positions)
    block.build((None, None, WIDTH - 2))
    randomize(block)
    packed = rng.normal(size=(1, 6, WIDTH - 2)).astype("float32")
    name = "attention_mask" if block_class is layers.EncoderBlock else "decoder_attention_mask"
    with_positions = encoding(packed, positions=begins_again)
    outputs = float64(block(with_positions, **{name: layers.masks.segment_mask(segments)}))
    for start, length in zip((0, 3), lengths, strict=True):
        alone = float64(block(encoding(packed[:, start : start + length])))
        np.testing.assert_allclose(outputs[:, start : start + length], alone, atol=1e-5)


def test_slopes_of_eight_heads_are_the_paper_s():
    np.testing.assert_array_equal(alibi_slopes(8), 0.5 ** np.arange(1, 9))


@pytest.mark.parametrize("heads", [1, 3, 8, 20])
def test_scores_fall_by_the_distance_at_another_slope_to_each_side(heads):
    slopes, queries, keys = reference.slopes(heads), [0, 7, 300], [7, 2, 1000]
    expected = [
        [
            [-slopes[h] * (i - j) if j < i else -slopes[heads - 1 - h] * (j - i) for j in keys]
            for i in queries
        ]
        for h in range(heads)
    ]
    scores = alibi_scores(heads, np.array(queries), np.array(keys))
    np.testing.assert_allclose(float64(scores), expected, rtol=1e-6)
