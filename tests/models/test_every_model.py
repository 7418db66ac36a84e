"""Every kind of model does what a Keras user tries first: summary, predict, save, export."""

import functools

import keras
import numpy as np
import pytest
from reference import float64

from keras_transformer import layers
from keras_transformer.layers.half_precision import HalfPrecisionWeights
from keras_transformer.models import config, model_of

VOCABULARY, WIDTH, LABELS = 23, 12, 3
SIZES = dict(model_dim=WIDTH, num_heads=3, intermediate_dim=13)
LAYERS = dict(num_encoder_layers=1, num_decoder_layers=1)
TURNS = dict(turn_layers=1, turn_id=4, combine_positions="concatenate")
CONFIGURATIONS = {
    "transformer": config.TransformerConfig(VOCABULARY, **SIZES, **LAYERS),
    "turns": config.TransformerConfig(
        VOCABULARY, **SIZES, **LAYERS, **TURNS, tie_embeddings="none"
    ),
    "recurrent": config.RecurrentConfig(
        VOCABULARY, WIDTH, attention="luong", num_decoder_layers=2, tie_embeddings="none"
    ),
    "classifier": config.ClassifierConfig(
        VOCABULARY, **SIZES, target_vocabulary_size=LABELS, word_dropout=0.1
    ),
    "language_model": config.LanguageModelConfig(VOCABULARY, **SIZES, num_decoder_layers=1),
}
EVERY_KIND = pytest.mark.parametrize("kind", CONFIGURATIONS)
NAMES = {"classifier": ["source_ids"], "language_model": ["target_ids"]}
SOURCE_IDS = np.array([[3, 5, 4, 7, 2, 0, 0], [11, 2, 0, 0, 0, 0, 0]], "int32")
TARGET_IDS = np.array([[1, 13, 17, 19, 5], [1, 21, 0, 0, 0]], "int32")


@functools.cache
def make(kind):
    """Returns a model with random weights, which no test changes."""
    model, rng = model_of(CONFIGURATIONS[kind]), np.random.default_rng(7)
    model.set_weights(
        [w.path.endswith("gamma") + 0.3 * rng.normal(size=w.shape) for w in model.weights]
    )
    # For `predict`, of which one kind shows that graphs have the same inputs.
    model.jit_compile = keras.backend.backend() == "jax"
    model.run_eagerly = kind != "transformer" and not model.jit_compile
    return model


def inputs_of(kind):
    """The inputs by their names, at two other batch sizes and lengths, too."""
    ids = {"source_ids": SOURCE_IDS, "target_ids": TARGET_IDS}
    whole = {name: ids[name] for name in NAMES.get(kind, ids)}
    return whole, {name: ids[:1, :2] for name, ids in whole.items()}


def outputs(model, inputs):
    return float64(model(inputs))


@pytest.mark.slow(after=1)
@pytest.mark.tensorflow
@EVERY_KIND
def test_keras_exports_a_loaded_model_that_was_never_called(kind, tmp_path):
    import tensorflow as tf

    model = make(kind)
    model.save(tmp_path / "model.keras")
    keras.saving.load_model(tmp_path / "model.keras").export(tmp_path / "loaded", verbose=False)
    artifact = tf.saved_model.load(str(tmp_path / "loaded"))
    signature = artifact.signatures["serving_default"]
    for inputs in inputs_of(kind):
        expected = outputs(model, inputs)
        argument = inputs if len(inputs) > 1 else next(iter(inputs.values()))
        np.testing.assert_allclose(float64(artifact.serve(argument)), expected, atol=1e-5)
        by_name = signature(**{name: tf.constant(ids) for name, ids in inputs.items()})
        np.testing.assert_allclose(float64(by_name["output_0"]), expected, atol=1e-5)


@pytest.mark.slow(after=1)
@pytest.mark.tensorflow
@EVERY_KIND
def test_keras_exports_to_litert(kind, tmp_path):
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="comes with the extra [litert]"
    )
    model, examples, options = make(kind), inputs_of(kind), {}
    if kind == "recurrent":
        # LiteRT has the loop over time of Keras' recurrent layers for fixed shapes only.
        examples = examples[:1]
        shapes = {name: ids.shape for name, ids in examples[0].items()}
        specs = [keras.InputSpec("int32", shape, name=name) for name, shape in shapes.items()]
        options["input_signature"] = [dict(zip(shapes, specs, strict=True))]
    try:
        model.export(tmp_path / "model.tflite", format="litert", verbose=False, **options)
    except ValueError as error:
        if "Unrecognized format" not in str(error):
            raise
        pytest.skip(f"Keras {keras.__version__} does not export to LiteRT")
    run = litert.Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    assert sorted(run.get_input_details()) == NAMES.get(kind, ["source_ids", "target_ids"])
    for inputs in examples:
        (output,) = run(**inputs).values()
        np.testing.assert_allclose(output, outputs(model, inputs), atol=1e-5)


@pytest.mark.tensorflow
def test_a_signature_of_ones_own_replaces_the_default(tmp_path):
    import tensorflow as tf

    model, ids = make("language_model"), keras.InputSpec(shape=(2, 5), dtype="int32", name="ids")
    model.export(tmp_path / "own", verbose=False, input_signature=[ids])
    signature = tf.saved_model.load(str(tmp_path / "own")).signatures["serving_default"]
    (output,) = signature(ids=tf.constant(TARGET_IDS)).values()
    np.testing.assert_allclose(float64(output), outputs(model, TARGET_IDS), atol=1e-5)


@EVERY_KIND
def test_the_summary_shows_the_shape_of_every_layer(kind):
    lines = []
    make(kind).summary(print_fn=lines.append)
    text = "\n".join(lines)
    assert "?" not in text
    assert text.count(f"(None, None, {WIDTH})") >= 3  # an embedding, dropout, a stack


@EVERY_KIND
def test_the_output_shape_is_that_of_the_logits(kind):
    model, (inputs, _) = make(kind), inputs_of(kind)
    by_name = {name: ids.shape for name, ids in inputs.items()}
    expected = outputs(model, inputs).shape
    assert model.compute_output_shape(by_name) == expected
    unknown = model.compute_output_shape(((None, None),) * len(inputs))
    assert unknown == (None, *((1, LABELS) if kind == "classifier" else (None, VOCABULARY)))


@EVERY_KIND
def test_inputs_go_by_name_or_in_order(kind):
    model, (inputs, _) = make(kind), inputs_of(kind)
    in_order = tuple(inputs.values())
    expected = outputs(model, in_order)
    np.testing.assert_array_equal(outputs(model, inputs), expected)
    for arguments in (inputs, list(in_order)):
        np.testing.assert_allclose(model.predict(arguments, verbose=0), expected, atol=1e-5)


@EVERY_KIND
def test_wrong_inputs_are_named(kind):
    model, names = make(kind), NAMES.get(kind, ["source_ids", "target_ids"])
    with pytest.raises(ValueError, match=f"must be \\({', '.join(names)}\\). Received: tuple of 3"):
        model((SOURCE_IDS,) * 3)
    if len(names) > 1:
        for wrong in (SOURCE_IDS, (SOURCE_IDS,)):
            with pytest.raises(ValueError, match=f"must be \\({', '.join(names)}\\)"):
                model(wrong)
    with pytest.raises(ValueError, match=f'must hold "{names[0]}".*Received: keys .*ids'):
        model({"ids": SOURCE_IDS})


@EVERY_KIND
def test_a_clone_and_a_saved_model_compute_what_the_model_computes(kind, tmp_path):
    model, (inputs, _) = make(kind), inputs_of(kind)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model) and loaded.config == model.config
    for copy in (clone, loaded):
        np.testing.assert_array_equal(outputs(copy, inputs), outputs(model, inputs))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    # Keras draws the initial weights of recurrent layers in no narrower dtype.
    [("classifier", "float16"), ("turns", "bfloat16")],
)
def test_weights_of_half_precision_are_computed_in_float32_and_loaded_as_float16(
    kind, dtype, tmp_path
):
    wide, inputs = model_of(CONFIGURATIONS[kind]), inputs_of(kind)[0]
    narrow = model_of(CONFIGURATIONS[kind], dtype=HalfPrecisionWeights(dtype))
    narrow.set_weights([float64(weight) for weight in make(kind).weights])
    wide.set_weights([float64(weight) for weight in narrow.weights])
    narrow.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert {weight.dtype for weight in narrow.weights} == {dtype}
    assert {weight.dtype for weight in loaded.weights} == {"float16"}
    for model in (narrow, loaded):
        assert keras.backend.standardize_dtype(model(inputs).dtype) == "float32"
        np.testing.assert_allclose(outputs(model, inputs), outputs(wide, inputs), atol=1e-4)


def test_every_layer_is_registered_under_the_name_that_files_have():
    for name in layers.__all__:
        if issubclass(layer := getattr(layers, name), keras.layers.Layer):
            assert keras.saving.get_registered_name(layer) == f"keras_transformer>{name}"
