"""Right models pass every check, and stay as they are."""

import random

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import layers
from keras_transformer.analysis import check_decoder
from keras_transformer.errors import InputError
from keras_transformer.layers import SSRU, DecoderBlock, EncoderBlock, TokenEmbedding
from keras_transformer.layers.half_precision import HalfPrecisionWeights
from keras_transformer.models import config, model_of

VOCABULARY, WIDTH, HEADS = 23, 12, 3
SIZES = dict(model_dim=WIDTH, num_heads=HEADS, intermediate_dim=13)
STACKS = dict(num_encoder_layers=1, num_decoder_layers=1)


def transformer(**fields):
    return model_of(config.TransformerConfig(VOCABULARY, **SIZES, **{**STACKS, **fields}))


def half_precision(**fields):
    fields = config.TransformerConfig(VOCABULARY, **SIZES, **{**STACKS, **fields})
    return model_of(fields, dtype=HalfPrecisionWeights())


def language_model(**fields):
    fields = {**SIZES, "num_decoder_layers": 2, **fields}
    return model_of(config.LanguageModelConfig(VOCABULARY, **fields))


def recurrent(**fields):
    return model_of(config.RecurrentConfig(VOCABULARY, WIDTH, **fields))


def of_blocks(dtype="float32", **options):
    """A Functional encoder-decoder of this package's blocks."""
    ids = [keras.Input((None,), dtype="int32", name=name) for name in ("source_ids", "target_ids")]
    embedding = TokenEmbedding(VOCABULARY, WIDTH, dtype=dtype)
    source, target = (layers.SinusoidalPositionalEncoding(dtype=dtype)(embedding(x)) for x in ids)
    encoded = EncoderBlock(13, HEADS, dtype=dtype, **options)(source)
    hidden = DecoderBlock(13, HEADS, dtype=dtype, **options)(target, encoded)
    return keras.Model(dict(zip(("source_ids", "target_ids"), ids, strict=True)), hidden)


def decoder_only(*blocks, dtype="float32"):
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(VOCABULARY, WIDTH, mask_zero=True, dtype=dtype)(ids)
    for block in blocks:
        hidden = block(hidden)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY, dtype=dtype)(hidden))


@keras.saving.register_keras_serializable("tests_of_decoder_check")
class KerasBlock(keras.layers.Layer):
    """Attention and normalization of Keras itself."""

    def __init__(self, **options):
        super().__init__(dtype=options.get("dtype"))
        self.options = options
        self.attention = keras.layers.MultiHeadAttention(HEADS, 4, **options)
        self.norm = keras.layers.LayerNormalization(dtype=options.get("dtype"))
        self.supports_masking = True

    def build(self, shape):
        self.attention.build(shape, shape)
        self.norm.build(shape)

    def call(self, inputs, training=None):
        outputs = self.attention(inputs, inputs, use_causal_mask=True, training=training)
        return self.norm(inputs + outputs)

    def get_config(self):
        return dict(self.options)


def of_keras_recurrent_layers():
    return decoder_only(keras.layers.LSTM(WIDTH, return_sequences=True))


def of_causal_convolutions():
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(VOCABULARY, WIDTH)(ids)
    hidden = keras.layers.Conv1D(WIDTH, 3, padding="causal", activation="relu")(hidden)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))


def of_one_shape():
    ids = keras.Input(batch_shape=(2, 6), dtype="int32")
    hidden = keras.layers.Embedding(VOCABULARY, WIDTH)(ids)
    return keras.Model(ids, KerasBlock()(hidden))


MODELS = {
    # Quick ones first.
    "language model": lambda: language_model(attention_dropout=0.1),
    "Keras' attention": lambda: decoder_only(KerasBlock(), KerasBlock(dropout=0.1)),
    "decoder-only blocks": lambda: decoder_only(DecoderBlock(13, HEADS), DecoderBlock(13, HEADS)),
    "ssru block": lambda: decoder_only(DecoderBlock(13, HEADS, mixer=SSRU())),
    "Keras' LSTM": of_keras_recurrent_layers,
    "causal convolution": of_causal_convolutions,
    "one shape": of_one_shape,
    "bfloat16 of Keras": lambda: decoder_only(
        KerasBlock(dtype="mixed_bfloat16"), dtype="mixed_bfloat16"
    ),
    "ssru": lambda: transformer(decoder="ssru"),
    "preset": lambda: transformer(dropout=0.1),
    "pre-norm": lambda: transformer(normalize_first=True, tie_embeddings="none"),
    "rotary": lambda: transformer(positions="rotary"),
    "relative": lambda: transformer(positions="relative", relative_values=True),
    "learned": lambda: transformer(positions="learned", max_length=20),
    "no positions": lambda: transformer(positions="none", num_kv_heads=1),
    "local attention": lambda: transformer(sliding_window=3),
    "two vocabularies": lambda: transformer(target_vocabulary_size=31, tie_embeddings="decoder"),
    "turns": lambda: transformer(turn_layers=1, turn_id=4, tie_embeddings="none"),
    "rotary language model": lambda: language_model(positions="rotary", normalize_first=True),
    "bahdanau": lambda: recurrent(attention="bahdanau"),
    "luong": lambda: recurrent(cell="lstm", attention="luong", input_feeding=True),
    "functional": of_blocks,
    "functional, pre-norm": lambda: of_blocks(normalize_first=True, positions="rotary"),
    "bfloat16": lambda: of_blocks("mixed_bfloat16"),
    "bfloat16 transformer": lambda: model_of(
        config.TransformerConfig(VOCABULARY, **SIZES, **STACKS), dtype="mixed_bfloat16"
    ),
    "half precision": lambda: half_precision(positions="relative", relative_values=True),
    "half precision, turns": lambda: half_precision(
        turn_layers=1, turn_id=4, tie_embeddings="none", positions="learned", max_length=20
    ),
}


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("name", MODELS)
def test_a_right_model_passes(name):
    report = check_decoder(MODELS[name]())
    assert report.ok, str(report)
    never_skipped = {"future tokens", "future tokens in training", "other sentences", "saved file"}
    assert {check.name for check in report.checks if check.result == "passed"} >= never_skipped


@pytest.mark.parametrize("name", ["rotary language model", "Keras' attention"])
def test_relative_positions_do_not_count_padding_on_the_left(name):
    report = check_decoder(MODELS[name](), padding_side="left", reload=False)
    assert report.ok, str(report)


@pytest.mark.parametrize("normalize_first", [True, False])
def test_a_decoder_of_keras_hub_passes(normalize_first):
    hub = pytest.importorskip("keras_hub", reason="comes with the extra [peers]")
    ids = [keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")]
    embedding = hub.layers.TokenAndPositionEmbedding(VOCABULARY, 32, WIDTH, mask_zero=True)
    source, target = map(embedding, ids)
    options = {"dropout": 0.1, "normalize_first": normalize_first}
    encoded = hub.layers.TransformerEncoder(13, HEADS, **options)(source)
    hidden = hub.layers.TransformerDecoder(13, HEADS, **options)(target, encoded)
    model = keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))
    report = check_decoder(model, reload=False)
    assert report.ok, str(report)


def test_a_backbone_of_keras_hub_gets_its_padding_mask():
    hub = pytest.importorskip("keras_hub", reason="comes with the extra [peers]")
    model = hub.models.GPT2Backbone(VOCABULARY, 2, HEADS, WIDTH, 13, max_sequence_length=16)
    report = check_decoder(model, reload=False)
    assert report.ok, str(report)
    assert report["padding of token_ids"].result == "passed"


def test_the_model_stays_as_it_is():
    model = transformer(dropout=0.1)
    model.compile("adam", "mse")
    model.encoder.trainable = False
    before = [ops.convert_to_numpy(variable) for variable in model.variables]
    flags = [layer.trainable for layer in model._flatten_layers()]
    random.seed(3)
    np.random.seed(3)
    numbers = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    assert check_decoder(model).ok
    assert (random.random(), np.random.random()) == numbers
    assert [layer.trainable for layer in model._flatten_layers()] == flags
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)
    assert all("call" not in vars(layer) for layer in model._flatten_layers())
    assert model.compiled


@keras.saving.register_keras_serializable("tests_of_decoder_check")
class TimesTrainings(keras.layers.Layer):
    """Multiplies by a number that each call in training changes, as an average would."""

    def build(self, input_shape):
        self.number = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, inputs, training=None):
        if training:
            self.number.assign_add(1.0)
        return inputs * self.number


def test_what_training_changes_is_undone_before_the_next_check():
    model = decoder_only(KerasBlock(), TimesTrainings())
    report = check_decoder(model)
    assert report.ok, report
    assert float(model.layers[-2].number) == 1.0


@keras.saving.register_keras_serializable("tests_of_decoder_check")
class TrainingNormalization(keras.layers.BatchNormalization):
    """Uses and updates statistics of each batch."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


def test_a_model_that_fails_stays_as_it_is_too():
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(VOCABULARY, WIDTH)(ids)
    hidden = keras.layers.MultiHeadAttention(HEADS, 4, dropout=0.1)(hidden, hidden)
    model = keras.Model(ids, TrainingNormalization()(hidden))
    before = [ops.convert_to_numpy(variable) for variable in model.variables]
    report = check_decoder(model)
    assert {"unchanged weights", "future tokens", "other sentences"} <= {
        check.name for check in report.failures
    }
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)
    assert all("call" not in vars(layer) for layer in model._flatten_layers())


def test_a_model_that_is_refused_stays_as_it_is_too():
    ids = keras.Input((None,), dtype="int32")
    hidden = TrainingNormalization()(keras.layers.Embedding(VOCABULARY, WIDTH)(ids))
    model = keras.Model(ids, [hidden, hidden])
    before = [ops.convert_to_numpy(variable) for variable in model.variables]
    with pytest.raises(InputError, match="must return one output"):
        check_decoder(model)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)
