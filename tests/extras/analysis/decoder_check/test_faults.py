"""A faulty decoder fails the check that its fault concerns, and the report names the cause.

The faults are those that people report of their own models: each trains, and raises no error.
"""

import keras
import numpy as np
import pytest
from keras import ops
from keras.layers import GRU

from keras_transformer.extras.analysis import check_decoder
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)

VOCABULARY, WIDTH, HEADS = 23, 12, 3
SMALL, PAIR = np.ones((3, 7), "int32"), [np.ones((3, length), "int32") for length in (5, 7)]
LEFT = {"padding_side": "left"}

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")  # A lost mask is a fault.


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)


class Apply(keras.layers.Layer):
    """Applies a function, and loses the masks of its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, *inputs):
        return self.function(*inputs)


def apply(function, *inputs):
    return Apply(function)(*inputs)


def embedded(ids, mask_zero=True):
    """Embeds ids with Keras' layer, and adds positions."""
    normal = keras.initializers.RandomNormal(stddev=1.0)
    embedding = keras.layers.Embedding(VOCABULARY, WIDTH, normal, mask_zero=mask_zero)
    return SinusoidalPositionalEncoding()(embedding(ids))


def attention(query, keys, **options):
    """One of Keras' layers."""
    return keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(query, keys, **options)


def causal(hidden):
    return attention(hidden, hidden, use_causal_mask=True)


def ids_of(*names, length=None):
    return [keras.Input((length,), dtype="int32", name=name) for name in names]


def language_model(attend, mask_zero=True):
    """A decoder of one attention: `attend(hidden, ids)`."""
    (ids,) = ids_of("ids")
    hidden = embedded(ids, mask_zero)
    hidden = keras.layers.LayerNormalization()(keras.layers.Add()([hidden, attend(hidden, ids)]))
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))


def translator(encode=None, cross=None, mask_zero=True):
    """An encoder-decoder: `encode(hidden, ids)`, `cross(hidden, encoded, source_ids)`."""
    source_ids, target_ids = ids_of("source_ids", "target_ids")
    encode = encode or (lambda hidden, ids: EncoderBlock(13, HEADS)(hidden))
    encoded = encode(embedded(source_ids, mask_zero), source_ids)
    hidden = DecoderBlock(13, HEADS)(embedded(target_ids, mask_zero))
    cross = cross or (lambda hidden, encoded, ids: attention(hidden, encoded))
    hidden = keras.layers.Add()([hidden, cross(hidden, encoded, source_ids)])
    return keras.Model([source_ids, target_ids], keras.layers.Dense(VOCABULARY)(hidden))


def shifting(places):
    """A decoder that shifts its ids to the right."""

    def make():
        (ids,) = ids_of("ids")
        shifted = apply(lambda x: ops.roll(x, places, axis=1), ids)
        hidden = DecoderBlock(13, HEADS)(embedded(shifted))
        return keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))

    return make


def triangle(ids, diagonal=0):
    length = ops.shape(ids)[1]
    return ops.tril(ops.ones((1, length, length), "bool"), diagonal)


def tokens(ids, pad_id=0):
    return ops.expand_dims(ops.not_equal(ids, pad_id), 1)


def masked_by(mask):
    """Attention to all with the mask `mask(ids)`."""
    return lambda x, ids: attention(x, x, attention_mask=apply(mask, ids))


def masked(mask):
    return lambda: language_model(masked_by(mask))


def of_hidden(layer):
    return lambda: language_model(lambda x, ids: layer(x))


def after_attention(change):
    """A decoder that calls `change` with what a right attention returns."""
    return of_hidden(lambda x: change(causal(x)))


def added(ids):
    return -1e9 * (1.0 - ops.cast(triangle(ids), "float32"))


def no_threes(ids):
    return ops.not_equal(ids, 3)


def convolved(hidden):
    return keras.layers.Conv1D(WIDTH, 3, padding="same")(hidden)


class CausalAtInferenceOnly(keras.layers.MultiHeadAttention):
    """Chooses another branch when dropout is active, and forgets the mask there."""

    def call(self, query, value, key=None, training=None):
        return super().call(query, value, key, training=training, use_causal_mask=not training)


class AlwaysTraining(keras.layers.Layer):
    """A layer that is called with `training=True` at inference, too."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs, training=True)


class CallsCounted(keras.layers.Layer):
    """Adds the number of its calls."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign_add(1.0)
        return inputs * self.calls


class OfKerasAttention(keras.Model):
    """A subclassed encoder-decoder whose `Add` gets no mask after Keras' attention."""

    def __init__(self):
        super().__init__()
        self.embedding = TokenEmbedding(VOCABULARY, WIDTH)
        self.attention = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.add, self.decoder = keras.layers.Add(), DecoderBlock(13, HEADS)

    def call(self, inputs):
        source, target = map(self.embedding, inputs)
        return self.decoder(target, self.add([source, self.attention(source, source)]))


def mixed_heads(hidden):
    """Splits heads and joins them in another order, which mixes sentences."""
    batch, length, width = ops.shape(hidden)
    heads = ops.reshape(hidden, (batch, length, HEADS, width // HEADS))
    heads = ops.transpose(heads, (2, 0, 1, 3))  # --> [heads, batch, length, key_dim]
    return ops.reshape(heads, (batch, length, width))  # needs another transpose


def attended_with_infinity(hidden, ids):
    """Hides with -inf, also all keys of a query at padding on the left."""
    scores = ops.matmul(hidden, ops.swapaxes(hidden, 1, 2))
    mask = ops.logical_and(triangle(ids), tokens(ids))
    return ops.matmul(ops.softmax(ops.where(mask, scores, -float("inf"))), hidden)


def without_positions():
    (ids,) = ids_of("ids")
    hidden = apply(attended_with_infinity, TokenEmbedding(VOCABULARY, WIDTH)(ids), ids)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))


def causal_to_16(ids):
    """A causal mask that was made for 16 positions, and shows all later rows."""
    places = ops.arange(ops.shape(ids)[1])
    earlier = ops.expand_dims(places, 0) <= ops.expand_dims(places, 1)
    return ops.expand_dims(ops.logical_or(earlier, ops.expand_dims(places >= 16, 1)), 0)


def of_fixed_length(side):
    """An encoder-decoder for 20 tokens; the cross-attention has the mask of a side's ids."""
    ids = ids_of("source_ids", "target_ids", length=20)
    source, target = (TokenEmbedding(VOCABULARY, WIDTH)(one) for one in ids)
    encoded = apply(ops.copy, EncoderBlock(13, HEADS)(source))  # without its mask
    options = {"attention_mask": apply(tokens, ids[side])}
    hidden = MultiHeadAttention(HEADS, 4)(DecoderBlock(13, HEADS)(target), encoded, **options)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))


def with_value_mask(mask):
    """A cross-attention with the mask `mask(source_ids)` of the encoder's outputs."""
    return lambda hidden, encoded, ids: MultiHeadAttention(HEADS, 4)(
        hidden, apply(ops.copy, encoded), value_mask=apply(mask, ids)
    )


def numbered_rows(hidden):
    """Adds positions of rows. A shift of all features would be lost in the normalization."""
    rows = ops.reshape(ops.arange(ops.shape(hidden)[0], dtype="float32"), (-1, 1, 1))
    return hidden + rows * ops.cos(ops.arange(WIDTH, dtype="float32"))


def centred(axis):
    return keras.layers.Lambda(lambda x: x - ops.mean(x, axis=axis, keepdims=True))


FUTURE, OTHERS, PADDING = "future tokens", "other sentences", "padding of ids"
TRAINING, REPEATED, SOURCE = "future tokens in training", "repeated calls", "padding of source_ids"
NO_CAUSAL_MASK = "is called without a causal mask."
IDS_OF_20 = {"inputs": np.ones((2, 20), "int32")}
# A fault: the model, the check that fails, words of the cause ("not …": words of a wrong cause),
# and options of `check_decoder`.
FAULTS = {
    # Quick ones first.
    "no causal mask": (masked(lambda ids: tokens(ids, -1)), FUTURE, NO_CAUSAL_MASK),
    "only padding is hidden": (masked(tokens), FUTURE, NO_CAUSAL_MASK),
    "mask off by one": (masked(lambda ids: triangle(ids, 1)), FUTURE, "off by one"),
    "inverted mask": (masked(lambda ids: ops.logical_not(triangle(ids))), FUTURE, "inverted"),
    "mask to be added to scores": (masked(added), FUTURE, "A mask is inverted"),
    "mask that ends at 16": (
        *(masked(causal_to_16), FUTURE, "ends at position 16", "not padding", "not off by one"),
        IDS_OF_20,
    ),
    "Keras' attention without its option": (
        *(of_hidden(lambda x: attention(x, x)), FUTURE, NO_CAUSAL_MASK),
        "Give `use_causal_mask=True`",
    ),
    "no causal mask when dropout is active": (
        of_hidden(lambda x: CausalAtInferenceOnly(HEADS, 4, dropout=0.1)(x, x)),
        *(TRAINING, "when dropout is active"),
    ),
    "shifted ids": (shifting(-1), FUTURE, "The ids are shifted to the left"),
    "both directions": (
        of_hidden(lambda x: keras.layers.Bidirectional(GRU(6, return_sequences=True))(x)),
        *(FUTURE, "reads the sequence from its end"),
    ),
    "normalization over positions": (
        after_attention(lambda x: keras.layers.GroupNormalization(groups=1)(x)),
        *(FUTURE, "has statistics over all positions"),
    ),
    "statistics over positions": (
        *(after_attention(centred(1)), FUTURE, "(Lambda) reads later positions itself"),
        *("statistics over positions", "not causal mask"),
    ),
    "convolution that reads ahead": (of_hidden(convolved), FUTURE, 'padding="causal"'),
    "batch normalization in training mode": (
        after_attention(lambda x: AlwaysTraining(keras.layers.BatchNormalization())(x)),
        *(OTHERS, "Statistics over the batch"),
    ),
    "mean over the batch": (after_attention(centred(0)), OTHERS, "Statistics over the batch"),
    "positions of rows": (
        after_attention(lambda x: apply(numbered_rows, x)),
        *(OTHERS, "`shape[0]`", "(Apply) differs first", "not transpose"),
    ),
    "noise with a fixed seed": (
        after_attention(lambda x: apply(lambda x: keras.random.dropout(x, 0.2, seed=1337), x)),
        *(OTHERS, "noise with a fixed seed", "(Apply) differs first", "not transpose"),
    ),
    "dropout at inference": (
        after_attention(lambda x: AlwaysTraining(keras.layers.Dropout(0.2))(x)),
        *(REPEATED, "Dropout or noise is active at inference"),
    ),
    "a layer counts its calls": (
        after_attention(lambda x: CallsCounted()(x)), REPEATED, "keeps a state from one call"
    ),
    "positions count padding on the left": (
        after_attention(lambda x: x),
        *(PADDING, "Positions count the padding on the left: the first token must have position 0"),
        LEFT,
    ),
    "no padding mask on the left": (
        lambda: language_model(lambda x, ids: causal(x), mask_zero=False),
        *(PADDING, "gets no padding mask", LEFT),
    ),
    "query with nothing to attend to": (without_positions, PADDING, "nothing to attend to", LEFT),
    # Encoder-decoders.
    "an operation loses the padding mask": (
        lambda: translator(lambda x, ids: EncoderBlock(13, HEADS)(ops.gelu(x))),
        *(SOURCE, "gets no padding mask: an operation before it lost the mask"),
    ),
    "inverted padding mask": (
        lambda: translator(masked_by(lambda ids: ops.logical_not(tokens(ids))), mask_zero=False),
        *(SOURCE, "A mask is inverted"),
    ),
    "cross-attention without a padding mask": (
        lambda: translator(masked_by(tokens), mask_zero=False), SOURCE, "gets no padding mask"
    ),
    "masks of other sentences": (
        lambda: translator(cross=with_value_mask(lambda ids: ops.roll(ids != 0, 1, axis=0))),
        *(SOURCE, "mask of another sentence"),
    ),
    "mask of the target in the cross-attention": (
        *(lambda: of_fixed_length(1), SOURCE, "shows the padding of source_ids"),
        *("mask of another sequence", "not gets no padding mask", "not inverted"),
        {"inputs": None},
    ),
    "another id is masked": (
        lambda: translator(
            lambda x, ids: EncoderBlock(13, HEADS)(x, padding_mask=apply(no_threes, ids)),
            *(with_value_mask(no_threes), False),
        ),
        *(SOURCE, "takes id 3 as padding, and not 0"),
    ),
    "convolution over padding": (
        lambda: translator(lambda x, ids: convolved(x)),
        *(SOURCE, "(Conv1D) reads padding next to tokens", "not attention"),
    ),
    "statistics over padding": (
        lambda: translator(lambda x, ids: centred(1)(x)),
        *(SOURCE, "(Lambda) reads padding itself", "not attention"),
    ),
    "Keras' attention removes the mask": (
        *(OfKerasAttention, SOURCE),
        "(MultiHeadAttention) removes the Keras masks of its inputs",
    ),
    "a reshape mixes sentences": (
        lambda: translator(cross=lambda x, encoded, _: apply(mixed_heads, attention(x, encoded))),
        *(OTHERS, "a reshape or transpose mixes"),
    ),
}  # fmt: skip


@pytest.mark.slow(after=22)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_its_cause_is_named(fault):
    make, failing, *words = FAULTS[fault]
    options, model = words.pop() if isinstance(words[-1], dict) else {}, make()
    is_pair = isinstance(model, OfKerasAttention) or len(model.inputs) > 1
    options = {"inputs": PAIR if is_pair else SMALL, **options}
    check = check_decoder(model, reload=False, **options)[failing]
    assert check.result == "failed" and check.difference > 0 and check.place is not None
    for word in words:
        assert (word.removeprefix("not ") in check.cause) is not word.startswith("not "), check


@pytest.mark.slow
def test_a_right_model_of_fixed_lengths_passes():
    report = check_decoder(of_fixed_length(0), reload=False)
    assert report.ok, str(report)
    for name in ("source_ids", "target_ids"):
        assert report[f"padding of {name}"].result == "passed"


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "result"), [(1.0, "failed"), (3e-5, "skipped")])
def test_attention_that_is_weaker_than_rounding_proves_nothing(factor, result):
    def cross(hidden, encoded, _):
        return keras.layers.Rescaling(factor)(attention(hidden, encoded))

    report = check_decoder(translator(cross=cross, mask_zero=False), reload=False)
    assert report["padding of source_ids"].result == result, str(report)


def test_labels_that_an_output_has_read_are_found(rng):
    rows = rng.integers(4, VOCABULARY, (3, 8)).astype("int32")
    rows[1:, 6:] = 0
    ids, right = rows[:, :-1], language_model(lambda hidden, ids: causal(hidden))
    for model, labels, words in (
        (right, rows[:, 1:], ""),
        (right, ids, "The labels are not shifted"),
        (right, np.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=1), "are not shifted"),
        (right, np.pad(rows[:, 2:], ((0, 0), (0, 1))), "shifted twice"),
        (right, np.full_like(ids, 1), "another vocabulary"),
        # Labels of a model that shifts its ids itself are the ids.
        (shifting(1)(), ids, ""),
        (shifting(1)(), rows[:, 1:], "shifted twice"),
    ):
        check = check_decoder(model, ids, labels=labels, reload=False)["labels"]
        assert check.result == ("failed" if words else "passed"), (words, check)
        assert words in check.cause
        assert check.place == (0, 0) or words != "The labels are not shifted"


class Forgetful(keras.layers.Layer):
    """Multiplies by a number and a weight, of which a file has only a part."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="random_normal")

    def call(self, inputs):
        return inputs * (self.factor + self.scale)

    def get_config(self):
        return super().get_config()  # Keras adds arguments only where this is not overridden.


registered = keras.saving.register_keras_serializable("tests_of_decoder_check")


@registered
class WithoutArgument(Forgetful):
    """Its configuration lacks `factor`."""


@registered
class WithoutWeight(Forgetful):
    """Its file lacks `scale`."""

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


@registered
class NeedsArgument(Forgetful):
    """Its configuration lacks an argument that has no default."""

    def __init__(self, factor, **kwargs):
        super().__init__(factor, **kwargs)


@registered
class WithoutBuild(keras.layers.Layer):
    """Has a layer that is built in the first call, which loading a file does not make."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(WIDTH)

    def call(self, inputs):
        return self.inner(inputs)

    def compute_output_shape(self, shape):
        return shape


LOSSES = [
    (lambda: WithoutArgument(3.0), "`get_config` leaves out an argument"),
    (lambda: WithoutWeight(3.0), "of shape (12,) is not restored"),
    (lambda: NeedsArgument(3.0), "`get_config` does not return the arguments"),
    (lambda: Forgetful(3.0), "decorate it with `register_keras_serializable`"),
    (WithoutBuild, "in its first call: write `build`."),
    (lambda: keras.layers.Lambda(lambda x: 2 * x), "A Lambda layer cannot be loaded safely"),
]


@pytest.mark.parametrize(("layer", "words"), LOSSES)
def test_a_saved_file_that_loses_something_is_found(layer, words):
    (ids,) = ids_of("ids")
    hidden = layer()(keras.layers.Embedding(VOCABULARY, WIDTH)(ids))
    report = check_decoder(keras.Model(ids, causal(hidden)))
    assert [check.name for check in report.failures] == ["saved file"], str(report)
    assert words in report["saved file"].cause


def test_an_export_of_other_weights_or_of_one_shape_is_found():
    model, other = (language_model(lambda hidden, ids: causal(hidden)) for _ in range(2))
    options = {"reload": False}
    assert check_decoder(model, exported=model, **options)["export"].result == "passed"
    check = check_decoder(model, exported=lambda ids: {"output_0": other(ids)}, **options)["export"]
    assert check.result == "failed" and "other weights" in check.cause and check.place == (0, 0)

    def for_one_batch_size(ids):
        return model(ops.reshape(ids, (3, -1)))

    check = check_decoder(model, exported=for_one_batch_size, **options)["export"]
    assert check.result == "failed" and "fixed shapes" in check.cause
    assert "one sentence" in check.message
