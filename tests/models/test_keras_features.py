"""What Keras offers for its own layers works on a Transformer: it is made of them."""

import keras
import numpy as np
import pytest
from keras import ops
from model_oracles import outputs_of
from reference import float64

from keras_transformer import Transformer, TransformerConfig

HEADS, WIDTH, INNER, VOCABULARY = 3, 33, 13, 29
SOURCE_IDS = np.array([[3, 5, 7, 2, 0, 0, 0], [11, 2, 0, 0, 0, 0, 0]])
TARGET_IDS = np.array([[1, 13, 17, 19, 5], [1, 23, 4, 6, 9]])
BOTH = (SOURCE_IDS, TARGET_IDS)


def config(**fields):
    sizes = dict(model_dim=WIDTH, num_heads=HEADS, intermediate_dim=INNER)
    layers = dict(num_encoder_layers=1, num_decoder_layers=2)
    return TransformerConfig(VOCABULARY, **{**sizes, **layers, **fields})


@pytest.fixture
def model(randomize):
    return randomize(Transformer(config(num_decoder_layers=1, tie_embeddings="none")))


def projections(model):
    kinds = (keras.layers.Dense, keras.layers.EinsumDense)
    return [layer for layer in model._flatten_layers() if isinstance(layer, kinds)]


def check_steps(model, logits):
    """Steps through the cache give `logits`."""
    step, cache = model.step_function(model.step_weights()), model.start_decoding(SOURCE_IDS, 3)
    for t in range(3):
        ids = ops.convert_to_tensor(TARGET_IDS[:, t : t + 1], "int32")
        step_logits, cache = step(ids, cache)
        np.testing.assert_allclose(float64(step_logits)[:, 0], logits[:, t], atol=2e-5)


def test_lora_trains_two_thin_matrices_and_decodes_with_them(model, rng):
    before = float64(model(BOTH))
    for projection in projections(model):
        projection.enable_lora(2)
    np.testing.assert_allclose(float64(model(BOTH)), before, atol=1e-6)  # The second is zero.
    trained = [w.path for w in model.trainable_weights]
    # Of three attentions four kernels each, of two feed-forwards two, one for the logits.
    kernels = 3 * 4 + 2 * 2 + 1
    assert sum("lora_kernel" in path for path in trained) == 2 * kernels
    assert not any(path.endswith("/kernel") for path in trained)
    for weight in model.trainable_weights:
        if "lora_kernel" in weight.path:
            weight.assign(0.3 * rng.normal(size=weight.shape))
    after = float64(model(BOTH))
    assert np.abs(after - before).max() > 0.1
    check_steps(model, after)


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.usefixtures("uncollected")
def test_int8_stays_near_decodes_alike_and_is_saved(model, tmp_path):
    before = float64(model(BOTH))
    model.quantize("int8")
    after = float64(model(BOTH))
    quantized = [*projections(model), model.source_embedding, model.target_embedding]
    assert all(layer.quantization_mode == "int8" for layer in quantized)
    assert 0 < np.abs(after - before).max() < 0.1 * np.abs(before).max()
    check_steps(model, after)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    loaded_layers = [*projections(loaded), loaded.source_embedding, loaded.target_embedding]
    assert all(layer.quantization_mode == "int8" for layer in loaded_layers)
    np.testing.assert_allclose(float64(loaded(BOTH)), after, atol=1e-6)


def test_a_map_gives_a_layer_another_policy(randomize):
    policies = keras.dtype_policies.DTypePolicyMap("float32")
    policies["half/decoder/block_0/feed_forward/inner"] = "mixed_bfloat16"
    policies["half/decoder/block_1/self_attention/query"] = "mixed_bfloat16"
    whole = randomize(Transformer(config(), name="whole"))
    half = Transformer(config(), name="half", dtype=policies)
    half.set_weights(whole.get_weights())
    paths = {layer.path for layer in projections(half) if layer.compute_dtype == "bfloat16"}
    assert paths == set(policies)
    before, after = float64(whole(BOTH)), float64(half(BOTH))
    assert 1e-6 < np.abs(after - before).max() < 0.05 * np.abs(before).max()
    check_steps(half, after)


@pytest.mark.jax  # Keras lays weights out with JAX
def test_a_layout_map_places_the_weights_by_their_paths():
    mesh = keras.distribution.DeviceMesh((1, 1), ("batch", "model"), devices=["cpu:0"])
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*self_attention/(query|key|value)/kernel"] = (None, "model", None)
    parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    with parallel.scope():
        model = Transformer(config())
        model(BOTH)
    # One device alone: the layouts that Keras finds, not the places.
    layout_of = parallel.get_variable_layout
    placed = {w.path for w in model.weights if "model" in layout_of(w).axes}
    assert placed == {
        f"{model.name}/{block}/self_attention/{name}/kernel"
        for block in ("encoder/block_0", "decoder/block_0", "decoder/block_1")
        for name in ("query", "key", "value")
    }


# Where files have always held what lies at a path of a weight.
IN_THE_FILE = {"query": "projections/projection", "key": "projections/projection_1"}
IN_THE_FILE |= {"value": "projections/projection_2", "attention_output": "projections/projection_3"}
IN_THE_FILE |= {"inner": "projections/dense", "outer": "projections/dense_1"}
NUMBERS = {"kernel": "0", "gamma": "0", "embeddings": "0", "bias": "1", "beta": "1"}


def test_a_file_written_before_the_projections_were_keras_own_is_read(rng, tmp_path):
    import h5py

    fresh = Transformer(config(), name="t")
    values = {}
    with h5py.File(tmp_path / "old.weights.h5", "w") as file:
        for weight in fresh.weights:
            parts = weight.path.split("/")[1:]
            *path, name = parts
            if "seed" in weight.path:
                continue
            values["/".join(parts)] = value = 0.3 * rng.normal(size=weight.shape)
            path = [IN_THE_FILE.get(part, part) for part in path]
            if path[0] in ("encoder", "decoder"):
                index = int(path[1].removeprefix("block_"))
                kind = f"{path[0]}_block" + (f"_{index}" if index else "")
                path = [path[0], "blocks", kind, *path[2:]]
            file["/".join([*path, "vars", NUMBERS[name]])] = value.astype("float32")
    # As `model.keras` of a run names its model; no field was there that is not there now.
    loaded = Transformer.from_config({"name": "t", "config": config().to_dict()})
    loaded.load_weights(tmp_path / "old.weights.h5")
    expected = outputs_of(values, loaded.config, SOURCE_IDS, TARGET_IDS)
    np.testing.assert_allclose(float64(loaded(BOTH)), expected, atol=1e-4)
