"""TokenEmbedding: scaled rows of a table one way, its transpose the other way."""

import math
import sys

import h5py
import keras
import numpy as np
import pytest
import reference
from keras import ops
from reference import float64

from keras_transformer.base import large_variables
from keras_transformer.layers import DecoderBlock, TokenEmbedding

BATCH, LENGTH, VOCABULARY, WIDTH = 2, 5, 23, 7


def built(vocabulary=VOCABULARY, width=WIDTH, **arguments):
    layer = TokenEmbedding(vocabulary, width, **arguments)
    layer.build((None, None))
    return layer, reference.weights_of(layer)["embeddings"]


def test_initial_rows_have_standard_deviation_one_over_root_width():
    _, table = built(503, 101)
    # 50,803 draws: the standard error of the deviation is 0.3%.
    assert abs(table.std() * math.sqrt(101) - 1) < 0.015
    assert abs(table.mean()) * math.sqrt(101) < 0.02


@pytest.mark.parametrize(
    ("policy", "dtype"),
    [("mixed_bfloat16", "int32"), ("mixed_float16", "int64"), ("mixed_float16", "uint16")],
)
def test_large_ids_are_not_rounded_in_half_precision(policy, dtype):
    layer, table = built(4099, 3, dtype=policy)
    ids = np.array([[257, 2049, 4097, 4098]])
    outputs = float64(layer(ops.convert_to_tensor(ids.astype(dtype))))
    np.testing.assert_allclose(outputs, table[ids] * math.sqrt(3), rtol=2e-2, atol=1e-3)
    assert keras.backend.standardize_dtype(layer(ids).dtype) == layer.compute_dtype


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("output_bias", [False, True])
def test_logits_have_the_compute_dtype_also_with_a_bias(policy, output_bias):
    layer = TokenEmbedding(VOCABULARY, WIDTH, output_bias, dtype=policy)
    layer.build()
    logits = layer.project(ops.ones((2, 3, WIDTH), "float32"))
    assert keras.backend.standardize_dtype(logits.dtype) == layer.compute_dtype


def test_an_embedding_that_was_saved_without_mask_zero_still_makes_no_mask():
    config = TokenEmbedding(VOCABULARY, WIDTH).get_config()
    assert TokenEmbedding.from_config(config).mask_zero
    del config["mask_zero"]
    layer = TokenEmbedding.from_config(config)
    assert not layer.mask_zero and layer.get_config() == {**config, "mask_zero": False}
    assert layer.compute_mask(ops.zeros((2, 5), "int32")) is None


IDS = np.array([[3, 5, 22], [7, 0, 0]])


@pytest.mark.parametrize("id", [-1, VOCABULARY, 2**32 + 5])
def test_an_id_outside_the_vocabulary_is_refused(id):
    layer, _ = built()
    ids = np.where(IDS == 22, id, IDS)
    calls = [ids, ids.tolist()]
    if abs(id) < 2**31:  # JAX' own limit.
        calls.append(ops.convert_to_tensor(ids))
    for ids in calls:
        with pytest.raises(ValueError, match=f"`inputs` must name ids of .* 22. Received: {id}."):
            layer(ids)


@pytest.mark.parametrize(
    ("dtype", "policy"), [("int8", "float32"), ("uint8", "mixed_bfloat16"), ("int32", "float32")]
)
def test_a_compiled_call_gives_nan_for_an_id_outside_the_vocabulary(compiled, dtype, policy):
    layer, table = built(101, dtype=policy)
    ids = np.array([[3, 101, 100], [7, 127, 0]]).astype(dtype)
    if dtype == "int32":
        ids[0, 1] = -1
    expected = np.take(table, ids, axis=0, mode="clip") * math.sqrt(WIDTH)
    expected[[0, 1], [1, 1]] = np.nan
    outputs = compiled(layer.call)(ops.convert_to_tensor(ids))
    np.testing.assert_allclose(float64(outputs), expected, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bool"])
def test_ids_that_are_no_integers_are_refused(compiled, dtype):
    layer, _ = built()
    for call in (layer, compiled(layer)):
        with pytest.raises(ValueError, match=f"`inputs` must be ids.*Received: .* dtype {dtype}."):
            call(ops.cast(IDS, dtype))
    with pytest.raises(ValueError, match=f"`inputs` must be ids.*Received: .* dtype {dtype}."):
        TokenEmbedding(VOCABULARY, WIDTH)(keras.Input((None,), dtype=dtype))


@keras.saving.register_keras_serializable(package="tests")
class Own(keras.Model):
    """A model that Keras builds by a call with floats when it loads a file."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = TokenEmbedding(VOCABULARY, WIDTH)
        self.dense = keras.layers.Dense(3)

    def call(self, ids):
        return self.embedding(ids[:, :1])[..., :3] + self.dense(self.embedding(ids))


def test_a_model_of_ones_own_is_loaded_from_its_file(tmp_path):
    model = Own()
    expected = float64(model(IDS))
    model.save(tmp_path / "own.keras")
    loaded = keras.saving.load_model(tmp_path / "own.keras")
    np.testing.assert_array_equal(float64(loaded(IDS)), expected)
    with pytest.raises(ValueError, match="`inputs` must be ids, which are integers"):
        loaded(IDS + 0.5)
    graph = keras.Sequential([loaded.embedding])  # of a layer that has read ids since
    with pytest.raises(ValueError, match="`inputs` must be ids, which are integers"):
        graph.predict(IDS + 0.5, verbose=0)


# https://github.com/python/cpython/issues/127847
@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2),
    reason="Python before 3.12.9 and 3.13.2 does not seek in zip files as Keras' editor asks it to",
)
def test_keras_compares_the_file_of_a_model_with_a_model(tmp_path):
    def model(vocabulary):
        ids = keras.Input((None,), dtype="int32")
        embedding = TokenEmbedding(
            vocabulary, WIDTH, output_bias=True, dtype="bfloat16", name="table"
        )
        return keras.Model(ids, embedding(ids))

    saved = model(VOCABULARY)
    saved.save(tmp_path / "model.keras")
    editor = keras.saving.KerasFileEditor(str(tmp_path / "model.keras"))
    assert editor.compare(saved)["status"] == "success"
    compared = editor.compare(model(VOCABULARY + 1))
    assert (compared["status"], compared["error_count"]) == ("error", 2)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(float64(loaded(IDS)), float64(saved(IDS)))


class Store(dict):
    """What Keras gives a layer to write to: its arrays are NumPy's."""

    def __setitem__(self, name, value):
        super().__setitem__(name, keras.ops.convert_to_numpy(value))


def test_a_table_is_one_array_where_a_layer_of_keras_has_it(tmp_path):
    count, width = 32_000, 160  # more numbers than a block that is read at a time
    for layer in TokenEmbedding(count, width), keras.layers.Embedding(count, width):
        model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
        model.save_weights(tmp_path / "model.weights.h5")
        with h5py.File(tmp_path / "model.weights.h5") as file:
            names: list[str] = []
            file.visit(names.append)
            (values,) = (file[name][:] for name in names if isinstance(file[name], h5py.Dataset))
        np.testing.assert_array_equal(values, float64(layer.embeddings))


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [(1, "float32"), (7, "bfloat16"), (VOCABULARY, "bfloat16"), (VOCABULARY + 1, "float32")],
)
def test_a_large_table_is_stored_in_blocks_of_rows(monkeypatch, rows, dtype):
    monkeypatch.setattr(large_variables, "_MIN_SPLIT", 1)
    monkeypatch.setattr(large_variables, "_BLOCK_NUMBERS", rows * WIDTH)
    saved, loaded = (
        TokenEmbedding(VOCABULARY, WIDTH, output_bias=True, dtype=dtype) for _ in range(2)
    )
    for layer in (saved, loaded):
        layer.build()
    saved.output_bias.assign(np.arange(VOCABULARY))
    saved.save_own_variables(store := Store())
    assert len([name for name in store if name.split(".")[0] == "0"]) == -(-VOCABULARY // rows)
    assert max(len(values) for name, values in store.items() if name[0] == "0") <= rows
    loaded.load_own_variables(store)
    for variable, expected in zip(loaded.weights, saved.weights, strict=True):
        np.testing.assert_array_equal(float64(variable), float64(expected))


@pytest.mark.parametrize(
    "shape", [(VOCABULARY - 1, WIDTH), (VOCABULARY + 1, WIDTH), (VOCABULARY, 1)]
)
def test_a_table_of_another_shape_is_refused(shape):
    layer = TokenEmbedding(VOCABULARY, WIDTH)
    layer.build()
    with pytest.raises(ValueError, match=rf"must have the shape \({VOCABULARY}, {WIDTH}\)"):
        layer.load_own_variables({"0": np.zeros(shape, "float32")})


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_bias_that_only_the_file_or_only_the_layer_has_is_refused(has_bias):
    layer = TokenEmbedding(VOCABULARY, WIDTH, output_bias=has_bias)
    layer.build()
    store = {"0": np.zeros((VOCABULARY, WIDTH), "float32")}
    store |= {} if has_bias else {"1": np.zeros(VOCABULARY, "float32")}
    with pytest.raises(ValueError, match="Only one of both has \\['1'\\]"):
        layer.load_own_variables(store)


@pytest.mark.tensorflow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tensorflow_takes_over_the_memory_of_a_table(dtype):
    for rows in range(1, 9):  # The system gives memory of any alignment.
        array = large_variables._shareable((rows, WIDTH), dtype)
        assert array.ctypes.data % 64 == 0
        tensor = large_variables._tensor_of(array)
        array[:] = rows
        np.testing.assert_array_equal(float64(tensor), rows)


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_or_more_values_than_variables_are_refused(count):
    layer, table = built(output_bias=True)
    with pytest.raises(ValueError, match=r"argument 2 is (shorter|longer)"):
        large_variables.assign_each(layer.weights, [table, np.zeros(VOCABULARY), table][:count])


def test_released_weights_are_zeros():
    layer, table = built()
    layer.trainable = False  # With LoRA most weights are frozen.
    large_variables.release_weights(layer)
    np.testing.assert_array_equal(float64(layer.embeddings), np.zeros_like(table))


def test_an_initializer_gives_the_values_that_it_gives_keras():
    for initializer in ("ones", keras.initializers.RandomUniform(seed=3)):
        layer, table = built(embeddings_initializer=initializer)
        theirs = keras.layers.Embedding(VOCABULARY, WIDTH, embeddings_initializer=initializer)
        theirs.build()
        np.testing.assert_array_equal(table, float64(theirs.embeddings))
        copy = TokenEmbedding.from_config(layer.get_config())
        copy.build()
        np.testing.assert_array_equal(float64(copy.embeddings), table)


def theirs_of(layer):
    """Keras' layer with the same table."""
    theirs = keras.layers.ReversibleEmbedding(VOCABULARY, WIDTH)
    theirs.build()
    theirs.set_weights(layer.get_weights()[:1])
    return theirs


def with_lora(layer, rng):
    layer.enable_lora(2, lora_alpha=3)
    for weight in (layer.lora_embeddings_a, layer.lora_embeddings_b):
        weight.assign(rng.normal(size=weight.shape))


CHANGES = {
    "none": lambda layer, rng: None,
    "lora": with_lora,
    "int8": lambda layer, rng: layer.quantize("int8"),
    "int4": lambda layer, rng: layer.quantize("int4"),
}


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_table_gives_what_keras_own_gives_and_both_directions_agree(rng, change):
    layer, table = built()
    theirs = theirs_of(layer)
    for changed in (layer, theirs):
        CHANGES[change](changed, np.random.default_rng(5))
    expected = float64(theirs(IDS))
    np.testing.assert_allclose(float64(layer(IDS)), expected * math.sqrt(WIDTH), rtol=1e-5)
    rows = float64(theirs(np.arange(VOCABULARY)[None]))[0]
    np.testing.assert_allclose(float64(layer.table()), rows, rtol=1e-5)
    assert (np.abs(rows - table).max() > 1e-5) == (change != "none")
    hidden = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
    np.testing.assert_allclose(float64(layer.project(hidden)), hidden @ rows.T, atol=1e-5)
    # Their quantized product also rounds its inputs, to 127 steps of the largest one.
    steps = np.abs(hidden).max(axis=-1, keepdims=True) / 127 * (change in ("int8", "int4"))
    bound = 0.51 * steps * np.abs(rows).sum(axis=1) + 1e-5
    logits = float64(theirs(hidden, reverse=True))
    assert (np.abs(float64(layer.project(hidden)) - logits) < bound).all()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_a_quantized_table_with_lora_has_it_in_both_directions(rng, mode):
    layer, _ = built()
    layer.quantize(mode)
    rows = float64(layer.table())
    with_lora(layer, rng)
    assert {weight.path for weight in layer.trainable_weights} == {
        layer.lora_embeddings_a.path,
        layer.lora_embeddings_b.path,
    }
    small = [float64(weight) for weight in (layer.lora_embeddings_a, layer.lora_embeddings_b)]
    rows += 3 / 2 * small[0] @ small[1]
    np.testing.assert_allclose(float64(layer(IDS)), rows[IDS] * math.sqrt(WIDTH), atol=1e-5)
    hidden = rng.normal(size=(1, LENGTH, WIDTH)).astype("float32")
    np.testing.assert_allclose(float64(layer.project(hidden)), hidden @ rows.T, atol=1e-4)


def test_training_with_lora_keeps_the_table(rng):
    layer, table = built()
    layer.enable_lora(2)
    np.testing.assert_array_equal(float64(layer.table()), table)  # The second matrix is zero.
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(layer(ids)))
    model.compile("adam", "mse")
    model.fit(IDS, np.ones((2, WIDTH)), epochs=2, verbose=0)
    np.testing.assert_array_equal(float64(layer._embeddings), table)
    assert float64(layer.lora_embeddings_b).any()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize(
    ("rows", "changes"),
    [(3, ("lora",)), (VOCABULARY, ("int8",)), (3, ("int4",)), (3, ("int8", "lora"))],
)
def test_a_file_has_the_changed_table_in_blocks_of_rows(monkeypatch, tmp_path, rng, changes, rows):
    monkeypatch.setattr(large_variables, "_MIN_SPLIT", 1)
    monkeypatch.setattr(large_variables, "_BLOCK_NUMBERS", rows * WIDTH)
    ids = keras.Input((None,), dtype="int32")
    layer = TokenEmbedding(VOCABULARY, WIDTH, output_bias=True, name="table")
    model = keras.Model(ids, layer.project(layer(ids)))
    layer.output_bias.assign(np.arange(VOCABULARY))
    for change in changes:
        CHANGES[change](layer, rng)
    expected, table = float64(model(IDS)), float64(layer.table())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    copy = loaded.get_layer("table")
    assert copy.quantization_mode == layer.quantization_mode and not copy.lora_enabled
    # A table of int8 is rounded again with LoRA's product.
    is_exact = changes != ("int8", "lora")
    steps = np.abs(table).max(axis=1, keepdims=True) / 127
    difference = np.abs(float64(copy.table()) - table) / steps
    assert difference.max() < (1e-3 if is_exact else 0.6)
    if is_exact:
        np.testing.assert_allclose(float64(loaded(IDS)), expected, rtol=1e-4, atol=1e-4)
    copy.save_own_variables(store := Store())
    blocks = [name for name in store if name.split(".")[0] == "0"]
    assert len(blocks) == -(-VOCABULARY // (rows * WIDTH // copy._embeddings.shape[1]))


def test_weights_are_loaded_into_a_table_with_lora_that_goes_on_learning(rng):
    saved, loaded = built()[0], built()[0]
    for layer in (saved, loaded):
        with_lora(layer, rng)
    saved.save_own_variables(store := Store())
    loaded.load_own_variables(store)
    np.testing.assert_allclose(float64(loaded.table()), float64(saved.table()), rtol=1e-5)
    assert float64(loaded.lora_embeddings_a).any()  # Else no gradient would reach the second.


@pytest.mark.parametrize("name", ["lora_rank", "lora_alpha", "weights"])
def test_arguments_of_keras_layer_that_need_a_built_table_are_named(name):
    with pytest.raises(ValueError, match=f"`enable_lora` and `set_weights` .* Received: {name}."):
        TokenEmbedding(VOCABULARY, WIDTH, **{name: 2})


class LanguageModel(keras.Model):
    input_dtype = (
        "int32"  # Keras calls a subclassed model with tensors of this dtype for an export.
    )

    def __init__(self):
        super().__init__()
        self.embedding, self.block = TokenEmbedding(11, 6), DecoderBlock(5, 2)

    def call(self, ids):
        return self.embedding.project(self.block(self.embedding(ids)))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_subclassed_model_of_ids_is_exported_for_any_length(tmp_path):
    import tensorflow as tf

    model, ids = LanguageModel(), np.array([[3, 5, 7]])
    expected = model(ids)
    signature = [keras.InputSpec("int32", (None, None), name="ids")]
    model.export(tmp_path, input_signature=signature, verbose=False)
    loaded = tf.saved_model.load(tmp_path)
    rows = np.array([[3, 5, 7, 0, 0], [3, 5, 7, 0, 0]], "int32")
    np.testing.assert_allclose(loaded.serve(rows)[1, :3], expected[0], atol=1e-5)
