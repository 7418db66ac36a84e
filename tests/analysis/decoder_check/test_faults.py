"""A faulty decoder fails the check that its fault concerns, and the report names the cause.

The faults are those that people report of their own models: each trains, and raises no error.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.analysis import check_decoder
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    SinusoidalPositionalEncoding,
    TokenEmbedding,
)

VOCABULARY, WIDTH, HEADS = 23, 12, 3
PACKAGE = "tests_of_decoder_check"


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)


@keras.saving.register_keras_serializable(PACKAGE)
class Apply(keras.layers.Layer):
    """Applies a function of this file, by its name."""

    def __init__(self, name_of_function, **kwargs):
        super().__init__(**kwargs)
        self.name_of_function = name_of_function

    def call(self, *inputs):
        return FUNCTIONS[self.name_of_function](*inputs)

    def get_config(self):
        return {**super().get_config(), "name_of_function": self.name_of_function}


def lower_triangle(ids, diagonal):
    length = ops.shape(ids)[1]
    return ops.tril(ops.ones((1, length, length), "bool"), diagonal)


def mixed_heads(hidden):
    """Splits heads and joins them in another order, which mixes sentences."""
    batch, length, width = ops.shape(hidden)
    heads = ops.reshape(hidden, (batch, length, HEADS, width // HEADS))
    heads = ops.transpose(heads, (2, 0, 1, 3))  # --> [heads, batch, length, key_dim]
    return ops.reshape(heads, (batch, length, width))  # needs another transpose


def attention_with_infinity(hidden, ids):
    """Hides with -inf, also all keys of a query at padding on the left."""
    mask = ops.logical_and(lower_triangle(ids, 0), ops.expand_dims(ops.not_equal(ids, 0), 1))
    scores = ops.matmul(hidden, ops.swapaxes(hidden, 1, 2))
    return ops.matmul(ops.softmax(ops.where(mask, scores, -float("inf"))), hidden)


FUNCTIONS = {
    "attention_with_infinity": attention_with_infinity,
    "causal": lambda ids: lower_triangle(ids, 0),
    "off_by_one": lambda ids: lower_triangle(ids, 1),
    "inverted_causal": lambda ids: ops.logical_not(lower_triangle(ids, 0)),
    "added": lambda ids: -1e9 * (1.0 - ops.cast(lower_triangle(ids, 0), "float32")),
    "token_keys": lambda ids: ops.expand_dims(ops.not_equal(ids, 0), 1),
    "inverted_keys": lambda ids: ops.expand_dims(ops.equal(ids, 0), 1),
    "other_pad_id": lambda ids: ops.not_equal(ids, 3),
    "shift_left": lambda ids: ops.concatenate([ids[:, 1:], ids[:, :1]], axis=1),
    "shift_right": lambda ids: ops.concatenate([ops.ones_like(ids[:, :1]), ids[:, :-1]], axis=1),
    "centre_of_batch": lambda hidden: hidden - ops.mean(hidden, axis=0, keepdims=True),
    "mixed_heads": mixed_heads,
    "masks_of_others": lambda ids: ops.roll(ops.not_equal(ids, 0), 1, axis=0),
}


def apply(name, *inputs):
    return Apply(name)(*inputs)


def embedded(ids, mask_zero=True):
    """Embeds ids with Keras' layer, and adds positions."""
    normal = keras.initializers.RandomNormal(stddev=1.0)
    embedding = keras.layers.Embedding(VOCABULARY, WIDTH, normal, mask_zero=mask_zero)
    return SinusoidalPositionalEncoding()(embedding(ids))


def keras_attention(**options):
    return keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, **options)


def language_model(attend, mask_zero=True):
    """A decoder of one attention: `attend(hidden, ids)`."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    hidden = embedded(ids, mask_zero)
    hidden = keras.layers.LayerNormalization()(
        keras.layers.Add()([hidden, attend(hidden, ids)]),
    )
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))


def translator(encode=None, cross=None, mask_zero=True):
    """An encoder-decoder: `encode(hidden, ids)`, `cross(hidden, encoded, source_ids)`."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    encode = encode or (lambda hidden, ids: EncoderBlock(13, HEADS)(hidden))
    encoded = encode(embedded(source_ids, mask_zero), source_ids)
    hidden = DecoderBlock(13, HEADS)(embedded(target_ids, mask_zero))
    cross = cross or (lambda hidden, encoded, _: keras_attention()(hidden, encoded))
    hidden = keras.layers.Add()([hidden, cross(hidden, encoded, source_ids)])
    return keras.Model([source_ids, target_ids], keras.layers.Dense(VOCABULARY)(hidden))


@keras.saving.register_keras_serializable(PACKAGE)
class CausalAtInferenceOnly(keras.layers.MultiHeadAttention):
    """Chooses another branch when dropout is active, and forgets the mask there."""

    def call(self, query, value, key=None, training=None):
        causal = not (training and self.dropout > 0)
        return super().call(query, value, key, training=training, use_causal_mask=causal)


@keras.saving.register_keras_serializable(PACKAGE)
class AlwaysTraining(keras.layers.Layer):
    """A layer that is called with `training=True` at inference, too."""

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs, training=True)

    def get_config(self):
        layer = keras.saving.serialize_keras_object(self.layer)
        return {**super().get_config(), "layer": layer}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "layer": keras.saving.deserialize_keras_object(config["layer"])})


def lost_by_gelu(hidden, ids):
    return EncoderBlock(13, HEADS)(ops.gelu(hidden))


def foreign_masks(hidden, encoded, source_ids):
    mask = apply("masks_of_others", source_ids)
    return MultiHeadAttention(HEADS, 4)(hidden, apply("unmasked", encoded), value_mask=mask)


FUNCTIONS["unmasked"] = lambda hidden: hidden + 0.0


def encode_with_mask(hidden, ids):
    mask = apply("token_keys", ids)
    return keras_attention()(hidden, hidden, attention_mask=mask)


CAUSAL = {"use_causal_mask": True}


def right():
    """A decoder that masks padding, and counts positions from the start of a row."""
    return language_model(lambda hidden, ids: keras_attention()(hidden, hidden, **CAUSAL))


def without_positions():
    ids = keras.Input((None,), dtype="int32", name="ids")
    hidden = apply("attention_with_infinity", TokenEmbedding(VOCABULARY, WIDTH)(ids), ids)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))


def shifted():
    ids = keras.Input((None,), dtype="int32", name="ids")
    hidden = DecoderBlock(13, HEADS)(embedded(apply("shift_left", ids)))
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))


# A fault: the model, the check that fails, words of the cause and options of `check_decoder`.
FAULTS = {
    "the causal mask is missing": (
        lambda: language_model(lambda hidden, ids: keras_attention()(hidden, hidden)),
        "future tokens",
        "is called without a causal mask. Give `use_causal_mask=True`",
    ),
    "the mask hides padding only": (
        lambda: language_model(
            lambda hidden, ids: keras_attention()(
                hidden, hidden, attention_mask=apply("token_keys", ids)
            )
        ),
        "future tokens",
        "without a causal mask",
    ),
    "the causal mask is off by one": (
        lambda: language_model(
            lambda hidden, ids: keras_attention()(
                hidden, hidden, attention_mask=apply("off_by_one", ids)
            )
        ),
        "future tokens",
        "off by one",
    ),
    "the causal mask is inverted": (
        lambda: language_model(
            lambda hidden, ids: keras_attention()(
                hidden, hidden, attention_mask=apply("inverted_causal", ids)
            )
        ),
        "future tokens",
        "A mask is inverted",
    ),
    "a mask to be added to scores is read as bool": (
        lambda: language_model(
            lambda hidden, ids: keras_attention()(
                hidden, hidden, attention_mask=apply("added", ids)
            )
        ),
        "future tokens",
        "A mask is inverted",
    ),
    "the causal mask is dropped when dropout is active": (
        lambda: language_model(
            lambda hidden, ids: CausalAtInferenceOnly(HEADS, 4, dropout=0.1)(hidden, hidden)
        ),
        "future tokens in training",
        "when dropout is active",
    ),
    "positions count the padding on the left": (
        right,
        "padding of ids",
        "Positions count the padding on the left: the first token must have position 0",
        {"padding_side": "left"},
    ),
    "a decoder has no padding mask on the left": (
        lambda: language_model(
            lambda hidden, ids: keras_attention()(apply("unmasked", hidden), hidden, **CAUSAL),
            mask_zero=False,
        ),
        "padding of ids",
        "gets no padding mask",
        {"padding_side": "left"},
    ),
    "a query with nothing to attend to is NaN": (
        without_positions,
        "padding of ids",
        "nothing to attend to",
        {"padding_side": "left"},
    ),
    "the ids are shifted inside the model": (
        shifted,
        "future tokens",
        "The ids are shifted to the left",
    ),
    "batch normalization in training mode": (
        lambda: language_model(
            lambda hidden, ids: AlwaysTraining(keras.layers.BatchNormalization())(
                keras_attention()(hidden, hidden, **CAUSAL)
            )
        ),
        "other sentences",
        "Statistics over the batch",
    ),
    "a mean over the batch": (
        lambda: language_model(
            lambda hidden, ids: apply(
                "centre_of_batch", keras_attention()(hidden, hidden, **CAUSAL)
            )
        ),
        "other sentences",
        "Statistics over the batch",
    ),
    "dropout stays active at inference": (
        lambda: language_model(
            lambda hidden, ids: AlwaysTraining(keras.layers.Dropout(0.2))(
                keras_attention()(hidden, hidden, **CAUSAL)
            )
        ),
        "repeated calls",
        "Dropout or noise is active at inference",
    ),
    "a layer reads both directions": (
        lambda: language_model(
            lambda hidden, ids: keras.layers.Bidirectional(
                keras.layers.GRU(WIDTH // 2, return_sequences=True)
            )(hidden)
        ),
        "future tokens",
        "reads the sequence from its end",
    ),
    "normalization over positions": (
        lambda: language_model(
            lambda hidden, ids: keras.layers.GroupNormalization(groups=1)(
                keras_attention()(hidden, hidden, **CAUSAL)
            )
        ),
        "future tokens",
        "has statistics over all positions",
    ),
    "a convolution reads ahead": (
        lambda: language_model(
            lambda hidden, ids: keras.layers.Conv1D(WIDTH, 3, padding="same")(hidden)
        ),
        "future tokens",
        'padding="causal"',
    ),
    "an operation loses the padding mask": (
        lambda: translator(encode=lost_by_gelu),
        "padding of source_ids",
        "gets no padding mask: an operation before it lost the mask",
    ),
    "the cross-attention has no padding mask": (
        lambda: translator(encode=encode_with_mask, mask_zero=False),
        "padding of source_ids",
        "gets no padding mask",
    ),
    "the padding mask is inverted": (
        lambda: translator(
            encode=lambda hidden, ids: keras_attention()(
                hidden, hidden, attention_mask=apply("inverted_keys", ids)
            ),
            mask_zero=False,
        ),
        "padding of source_ids",
        "A mask is inverted",
    ),
    "the cross-attention uses masks of other sentences": (
        lambda: translator(cross=foreign_masks),
        "padding of source_ids",
        "mask of another sentence",
    ),
    "another id is masked as padding": (
        lambda: translator(
            encode=lambda hidden, ids: EncoderBlock(13, HEADS)(
                hidden, padding_mask=apply("other_pad_id", ids)
            ),
            cross=lambda hidden, encoded, ids: MultiHeadAttention(HEADS, 4)(
                hidden, encoded, value_mask=apply("other_pad_id", ids)
            ),
            mask_zero=False,
        ),
        "padding of source_ids",
        "takes id 3 as padding, and not 0",
    ),
    "a reshape mixes sentences": (
        lambda: translator(
            cross=lambda hidden, encoded, ids: apply(
                "mixed_heads", keras_attention()(hidden, encoded)
            )
        ),
        "other sentences",
        "a reshape or transpose mixes",
    ),
}


@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")
@pytest.mark.slow(after=18)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_its_cause_is_named(fault):
    make, failing, cause, *options = FAULTS[fault]
    report = check_decoder(make(), reload=False, **(options or [{}])[0])
    assert not report.ok
    check = report[failing]
    assert check.result == "failed", str(report)
    assert cause in check.cause, str(report)
    assert check.difference > 0 and check.place is not None


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "result"), [(1.0, "failed"), (3e-5, "skipped")])
def test_attention_that_is_weaker_than_rounding_proves_nothing(factor, result):
    def cross(hidden, encoded, _):
        attended = keras_attention()(hidden, encoded)
        return keras.layers.Rescaling(factor)(attended)

    model = translator(cross=cross, mask_zero=False)
    report = check_decoder(model, reload=False)
    assert report["padding of source_ids"].result == result, str(report)


def test_labels_that_an_output_has_read_are_found(rng):
    rows = rng.integers(4, VOCABULARY, (3, 8)).astype("int32")
    rows[1:, 6:] = 0
    ids, model, options = rows[:, :-1], right(), {"reload": False}
    assert check_decoder(model, ids, labels=rows[:, 1:], **options)["labels"].result == "passed"
    unshifted = check_decoder(model, ids, labels=ids, **options)["labels"]
    assert unshifted.result == "failed" and "The labels are not shifted" in unshifted.cause
    assert unshifted.place == (0, 0)
    twice = np.pad(rows[:, 2:], ((0, 0), (0, 1)))
    skipping = check_decoder(model, ids, labels=twice, **options)["labels"]
    assert skipping.result == "failed" and "shifted twice" in skipping.cause
    foreign = check_decoder(model, ids, labels=np.full_like(ids, 1), **options)["labels"]
    assert foreign.result == "failed" and "another vocabulary" in foreign.cause


def test_labels_that_are_shifted_the_wrong_way_are_read_too(rng):
    ids = rng.integers(4, VOCABULARY, (3, 7)).astype("int32")
    earlier = np.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    check = check_decoder(right(), ids, labels=earlier, reload=False)["labels"]
    assert check.result == "failed" and "The labels are not shifted" in check.cause


def test_labels_of_a_model_that_shifts_its_ids_are_the_ids(rng):
    ids = keras.Input((None,), dtype="int32", name="ids")
    hidden = DecoderBlock(13, HEADS)(embedded(apply("shift_right", ids)))
    model = keras.Model(ids, keras.layers.Dense(VOCABULARY)(hidden))
    rows = rng.integers(4, VOCABULARY, (3, 8)).astype("int32")
    report = check_decoder(model, rows, labels=rows, reload=False)
    assert report.ok and report["labels"].result == "passed", str(report)
    skipping = check_decoder(model, rows[:, :-1], labels=rows[:, 1:], reload=False)
    assert skipping["labels"].result == "failed" and "shifted twice" in skipping["labels"].cause


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


@keras.saving.register_keras_serializable(PACKAGE)
class WithoutArgument(Forgetful):
    """Its configuration lacks `factor`."""


@keras.saving.register_keras_serializable(PACKAGE)
class WithoutWeight(Forgetful):
    """Its file lacks `scale`."""

    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


@keras.saving.register_keras_serializable(PACKAGE)
class NeedsArgument(Forgetful):
    """Its configuration lacks an argument that has no default."""

    def __init__(self, factor, **kwargs):
        super().__init__(factor, **kwargs)


LOSSES = {
    WithoutArgument: "`get_config` leaves out an argument",
    WithoutWeight: "of shape (12,) is not restored",
    NeedsArgument: "`get_config` does not return the arguments",
    Forgetful: "decorate it with `register_keras_serializable`",
}


@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")
@pytest.mark.parametrize("layer_class", LOSSES)
def test_a_saved_file_that_loses_something_is_found(layer_class):
    model = language_model(lambda hidden, ids: layer_class(3.0)(DecoderBlock(13, HEADS)(hidden)))
    report = check_decoder(model)
    assert [check.name for check in report.failures] == ["saved file"], str(report)
    assert LOSSES[layer_class] in report["saved file"].cause


def test_an_export_of_other_weights_or_of_one_shape_is_found():
    model, other = right(), right()
    options = {"reload": False}
    assert check_decoder(model, exported=model, **options)["export"].result == "passed"
    check = check_decoder(model, exported=lambda ids: {"output_0": other(ids)}, **options)["export"]
    assert check.result == "failed" and "other weights" in check.cause and check.place == (0, 0)

    def for_one_batch_size(ids):
        return model(ops.reshape(ids, (3, -1)))

    check = check_decoder(model, exported=for_one_batch_size, **options)["export"]
    assert check.result == "failed" and "fixed shapes" in check.cause
    assert "one sentence" in check.message


def causal_to(ids, end):
    """A causal mask that was made for `end` positions, and shows all later rows."""
    length = ops.shape(ids)[1]
    places = ops.arange(length)
    earlier = ops.expand_dims(places, 0) <= ops.expand_dims(places, 1)
    return ops.expand_dims(ops.logical_or(earlier, ops.expand_dims(places >= end, 1)), 0)


FUNCTIONS |= {
    "causal_to_16": lambda ids: causal_to(ids, 16),
    # A shift of all features would be lost in the normalization.
    "rows_as_positions": lambda hidden: (
        hidden
        + ops.reshape(ops.arange(ops.shape(hidden)[0], dtype="float32"), (-1, 1, 1))
        * ops.cos(ops.arange(12, dtype="float32"))
    ),
    "centre_of_sentence": lambda hidden: hidden - ops.mean(hidden, axis=1, keepdims=True),
    "fixed_noise": lambda hidden: keras.random.dropout(hidden, 0.2, seed=1337),
}


def causal(hidden, ids):
    return keras_attention()(hidden, hidden, **CAUSAL)


def of_fixed_length(cross):
    """An encoder-decoder for sentences of 20 tokens; `cross(hidden, encoded, target_ids)`."""
    ids = [keras.Input((20,), dtype="int32", name=f"{side}_ids") for side in ("source", "target")]
    encoded = EncoderBlock(13, HEADS)(TokenEmbedding(VOCABULARY, 12)(ids[0]))
    hidden = DecoderBlock(13, HEADS)(TokenEmbedding(VOCABULARY, 12)(ids[1]))
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(cross(hidden, encoded, *ids)))


def of_targets_mask(hidden, encoded, source_ids, target_ids):
    mask = apply("token_keys", target_ids)
    return MultiHeadAttention(HEADS, 4)(hidden, apply("unmasked", encoded), attention_mask=mask)


def of_sources_mask(hidden, encoded, source_ids, target_ids):
    mask = apply("token_keys", source_ids)
    return MultiHeadAttention(HEADS, 4)(hidden, apply("unmasked", encoded), attention_mask=mask)


class OfKerasAttention(keras.Model):
    """A subclassed encoder-decoder whose `Add` gets no mask after Keras' attention."""

    def __init__(self):
        super().__init__()
        self.embedding = TokenEmbedding(VOCABULARY, 12)
        self.attention, self.add = keras_attention(), keras.layers.Add()
        self.decoder = DecoderBlock(13, HEADS)

    def call(self, inputs):
        source, target = map(self.embedding, inputs)
        encoded = self.add([source, self.attention(source, source)])
        return self.decoder(target, encoded)


EXAMPLE = np.ones((2, 20), "int32")
PAIR = np.ones((2, 7), "int32"), np.ones((2, 11), "int32")
ENCODE = {
    "convolution": lambda hidden, ids: keras.layers.Conv1D(12, 3, padding="same")(hidden),
    "statistics": lambda hidden, ids: apply("centre_of_sentence", hidden),
}
# A fault: the model, the check that fails, words of the cause, and words of wrong causes.
MEASURED = {
    "a mask of the target in the cross-attention": (
        lambda: of_fixed_length(of_targets_mask),
        "padding of source_ids",
        ("shows the padding of source_ids", "mask of another sequence"),
        ("gets no padding mask", "inverted"),
    ),
    "a causal mask that ends at 16": (
        lambda: language_model(
            lambda hidden, ids: keras_attention()(
                hidden, hidden, attention_mask=apply("causal_to_16", ids)
            )
        ),
        "future tokens",
        ("ends at position 16",),
        ("padding", "off by one"),
        EXAMPLE,
    ),
    "positions of rows": (
        lambda: language_model(
            lambda hidden, ids: apply("rows_as_positions", causal(hidden, ids)),
        ),
        "other sentences",
        ("`shape[0]`", "(Apply) differs first"),
        ("transpose",),
    ),
    "noise with a fixed seed": (
        lambda: language_model(lambda hidden, ids: apply("fixed_noise", causal(hidden, ids))),
        "other sentences",
        ("noise with a fixed seed", "(Apply) differs first"),
        ("transpose",),
    ),
    "statistics over positions": (
        lambda: language_model(
            lambda hidden, ids: apply("centre_of_sentence", causal(hidden, ids))
        ),
        "future tokens",
        ("(Apply) reads later positions itself", "statistics over positions"),
        ("causal mask",),
    ),
    "a convolution over padding": (
        lambda: translator(encode=ENCODE["convolution"]),
        "padding of source_ids",
        ("(Conv1D) reads padding next to tokens",),
        ("attention",),
    ),
    "statistics over padding": (
        lambda: translator(encode=ENCODE["statistics"]),
        "padding of source_ids",
        ("(Apply) reads padding itself",),
        ("attention",),
    ),
    "Keras' attention removes the mask": (
        OfKerasAttention,
        "padding of source_ids",
        ("(MultiHeadAttention) removes the Keras masks of its inputs",),
        (),
        PAIR,
    ),
}


@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")
@pytest.mark.slow(after=6)
@pytest.mark.parametrize("fault", MEASURED)
def test_a_fault_is_found_with_the_cause_that_was_measured(fault):
    make, failing, words, wrong_words, *example = MEASURED[fault]
    report = check_decoder(make(), *example, reload=False)
    assert report[failing].result == "failed", str(report)
    cause = report[failing].cause
    assert all(word in cause for word in words), cause
    assert not any(word in cause for word in wrong_words), cause


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_right_model_of_fixed_lengths_passes():
    report = check_decoder(of_fixed_length(of_sources_mask), reload=False)
    assert report.ok, str(report)
    for name in ("source_ids", "target_ids"):
        assert report[f"padding of {name}"].result == "passed"


@keras.saving.register_keras_serializable(PACKAGE)
class WithoutBuild(keras.layers.Layer):
    """Has a layer that is built in the first call, which loading a file does not make."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(12)

    def call(self, inputs):
        return self.inner(inputs)

    def compute_output_shape(self, shape):
        return shape


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_missing_build_is_the_cause_of_a_file_that_cannot_be_loaded():
    layer = WithoutBuild()
    model = language_model(lambda hidden, ids: layer(DecoderBlock(13, HEADS)(hidden)))
    report = check_decoder(model)
    assert [check.name for check in report.failures] == ["saved file"], str(report)
    assert "`build`" in report["saved file"].cause, str(report)
    assert "`__init__`" not in report["saved file"].cause
