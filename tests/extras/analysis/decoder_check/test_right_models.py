"""Right models pass every check, and stay as they are."""

import contextlib
import random

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import layers
from keras_transformer.base.errors import InputError
from keras_transformer.extras.analysis import check_decoder
from keras_transformer.layers import SSRU, DecoderBlock, EncoderBlock, TokenEmbedding
from keras_transformer.layers.half_precision import HalfPrecisionWeights
from keras_transformer.models import config, model_of

VOCABULARY, WIDTH, HEADS = 23, 12, 3
SIZES = dict(model_dim=WIDTH, num_heads=HEADS, intermediate_dim=13)
STACKS = dict(num_encoder_layers=1, num_decoder_layers=1)


def transformer(dtype="float32", **fields):
    fields = {**SIZES, **STACKS, **fields}
    return model_of(config.TransformerConfig(VOCABULARY, **fields), dtype=dtype)


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
    "ssru block": lambda: decoder_only(
        DecoderBlock(13, HEADS), DecoderBlock(13, HEADS, mixer=SSRU())
    ),
    "Keras' LSTM": lambda: decoder_only(keras.layers.LSTM(WIDTH, return_sequences=True)),
    "causal convolution": of_causal_convolutions,
    "one shape": of_one_shape,
    # Each feature is in one of the models.
    "ssru": lambda: transformer(decoder="ssru", dropout=0.1),
    "rotary": lambda: transformer(
        positions="rotary", normalize_first=True, tie_embeddings="none", sliding_window=3
    ),
    "relative": lambda: transformer(positions="relative", relative_values=True),
    "learned": lambda: transformer(
        positions="learned", max_length=20, target_vocabulary_size=31, tie_embeddings="decoder"
    ),
    "no positions": lambda: transformer(positions="none", num_kv_heads=1),
    "turns": lambda: transformer(turn_layers=1, turn_id=4, tie_embeddings="none"),
    "rotary language model": lambda: language_model(positions="rotary", normalize_first=True),
    "bahdanau": lambda: recurrent(attention="bahdanau"),
    "luong": lambda: recurrent(cell="lstm", attention="luong", input_feeding=True),
    "bfloat16 blocks": lambda: of_blocks(
        "mixed_bfloat16", normalize_first=True, positions="rotary"
    ),
    "bfloat16": lambda: transformer(dtype="mixed_bfloat16"),
    "half precision": lambda: transformer(
        HalfPrecisionWeights(), positions="relative", relative_values=True
    ),
    "half precision, turns": lambda: transformer(
        *[HalfPrecisionWeights()],
        **dict(turn_layers=1, turn_id=4, tie_embeddings="none", positions="learned", max_length=20),
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


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["Keras' attention", "rotary language model"])
def test_relative_positions_do_not_count_padding_on_the_left(name):
    report = check_decoder(MODELS[name](), padding_side="left", reload=False)
    assert report.ok, str(report)


def test_a_decoder_of_keras_hub_passes():
    hub = pytest.importorskip("keras_hub", reason="comes with the extra [peers]")
    ids = [keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")]
    embedding = hub.layers.TokenAndPositionEmbedding(VOCABULARY, 32, WIDTH, mask_zero=True)
    source, target = map(embedding, ids)
    options = {"dropout": 0.1, "normalize_first": True}
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


@contextlib.contextmanager
def unchanged(model):
    """Checks that a model and the states of random numbers stay as they are."""
    layers = list(model._flatten_layers())
    variables = [ops.convert_to_numpy(variable) for variable in model.variables]
    flags = [layer.trainable for layer in layers]
    random.seed(3)
    np.random.seed(3)
    numbers = random.random(), np.random.random()
    random.seed(3)
    np.random.seed(3)
    yield
    assert (random.random(), np.random.random()) == numbers
    assert [layer.trainable for layer in layers] == flags
    assert all("call" not in vars(layer) for layer in layers)
    for variable, value in zip(model.variables, variables, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)


@keras.saving.register_keras_serializable("tests_of_decoder_check")
class TimesTrainings(keras.layers.Layer):
    """Multiplies by a number that each call in training changes, as an average would."""

    def build(self, input_shape):
        self.number = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, inputs, training=None):
        if training:
            self.number.assign_add(1.0)
        return inputs * self.number


@keras.saving.register_keras_serializable("tests_of_decoder_check")
class TrainingNormalization(keras.layers.BatchNormalization):
    """Uses and updates statistics of each batch."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


def test_a_model_stays_as_it_is():
    model = language_model(dropout=0.1)
    model.compile("adam", "mse")
    model.decoder.trainable = False
    with unchanged(model):
        assert check_decoder(model, reload=False).ok
    assert model.compiled
    # What training changes is undone before the next check.
    model = decoder_only(KerasBlock(), TimesTrainings())
    with unchanged(model):
        assert check_decoder(model, reload=False).ok


def test_a_model_that_fails_or_is_refused_stays_as_it_is_too():
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(VOCABULARY, WIDTH)(ids)
    hidden = keras.layers.MultiHeadAttention(HEADS, 4, dropout=0.1)(hidden, hidden)
    hidden = TrainingNormalization()(hidden)
    model = keras.Model(ids, hidden)
    with unchanged(model):
        failures = {check.name for check in check_decoder(model).failures}
    assert {"unchanged weights", "future tokens", "other sentences"} <= failures
    model = keras.Model(ids, [hidden, hidden])
    with unchanged(model), pytest.raises(InputError, match="must return one output"):
        check_decoder(model)
