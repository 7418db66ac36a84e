"""Faults that need long sentences, other sentences or vectors of padding, and causes as measured.

A cause that cannot be told from others is one of several in the text. So each fault lists words
that the cause must have, and words of wrong causes that it must not have.
"""

import keras
import numpy as np
import pytest
from keras import ops
from test_cached_steps import LONGEST, PAIR, VOCABULARY, CachedDecoder, Steps, attend
from test_faults import (
    CAUSAL,
    FUNCTIONS,
    HEADS,
    PACKAGE,
    apply,
    keras_attention,
    language_model,
    translator,
)

from keras_transformer.analysis import check_decoder
from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    TokenEmbedding,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)


def causal_to(ids, end):
    """A causal mask that was made for `end` positions, and shows all later rows."""
    length = ops.shape(ids)[1]
    places = ops.arange(length)
    earlier = ops.expand_dims(places, 0) <= ops.expand_dims(places, 1)
    return ops.expand_dims(ops.logical_or(earlier, ops.expand_dims(places >= end, 1)), 0)


FUNCTIONS |= {
    "causal_to_16": lambda ids: causal_to(ids, 16),
    "rows_as_positions": lambda hidden: (
        hidden
        + ops.reshape(ops.cast(ops.arange(ops.shape(hidden)[0]), hidden.dtype) / 3.0, (-1, 1, 1))
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
ENCODE = {
    "convolution": lambda hidden, ids: keras.layers.Conv1D(12, 3, padding="same")(hidden),
    "statistics": lambda hidden, ids: apply("centre_of_sentence", hidden),
}
# A fault: the model, the check that fails, words of the cause, words of other causes.
FAULTS = {
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


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_with_the_cause_that_was_measured(fault):
    make, failing, words, wrong_words, *example = FAULTS[fault]
    report = check_decoder(make(), *example, reload=False)
    assert report[failing].result == "failed", str(report)
    cause = report[failing].cause
    assert all(word in cause for word in words), cause
    assert not any(word in cause for word in wrong_words), cause


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


def test_a_missing_build_is_the_cause_of_a_file_that_cannot_be_loaded():
    layer = WithoutBuild()
    model = language_model(lambda hidden, ids: layer(DecoderBlock(13, HEADS)(hidden)))
    report = check_decoder(model)
    assert [check.name for check in report.failures] == ["saved file"], str(report)
    assert "`build`" in report["saved file"].cause, str(report)
    assert "`__init__`" not in report["saved file"].cause


WINDOW = 8


class Windowed(CachedDecoder):
    """Sees the last 8 tokens; keeps the encoder's outputs of its last call."""

    def attention_mask(self, length):
        places = ops.arange(length)
        distance = ops.expand_dims(places, 1) - ops.expand_dims(places, 0)
        return ops.logical_and(distance >= 0, distance < WINDOW)

    def call(self, inputs):
        source_ids, target_ids = inputs
        hidden = self.embed(target_ids, ops.arange(target_ids.shape[1]))
        queries, keys, values = (layer(hidden) for layer in self.projections[:3])
        hidden = hidden + attend(queries, keys, values, self.attention_mask(target_ids.shape[1]))
        mask = ops.expand_dims(ops.not_equal(source_ids, 0), 1)
        self.last = self.source(source_ids)
        return self.logits(hidden + attend(hidden, *self.last, mask))


class FaultySteps(Steps):
    """Faults that a first sentence, or six tokens, do not show."""

    kept = None

    def start_decoding(self, source_ids, capacity, num_beams=1):
        cache = super().start_decoding(source_ids, capacity, num_beams)
        if self.kept is None:
            self.kept = cache
        if self.fault == "encoder of the first call" and num_beams == 1:
            return {**cache, "source": self.kept["source"]}
        if self.fault == "encoder of the last call" and num_beams == 1:
            return {**cache, "source": [*self.model.last, cache["source"][2]]}
        if self.fault == "not reset" and num_beams == 1 and self.kept["position"] > 0:
            return {**cache, "keys": self.kept["keys"], "values": self.kept["values"]}
        return cache

    def step(self, ids, cache):
        window = {"short window": WINDOW - 1, "window": WINDOW}.get(self.fault, LONGEST)
        places = ops.arange(cache["keys"].shape[1])
        is_old = places <= cache["position"] - window
        if self.fault == "not reset":
            is_old = places < 0
        old = ops.cast(ops.reshape(is_old, (1, -1, 1)), "float32")
        # A key of large negative products with any query would do as well: old keys are hidden.
        hidden_cache = {**cache, "hidden": old}
        logits, new = self.step_of(ids, hidden_cache)
        self.kept = new
        factor = {"factor of logits": 3.0}.get(self.fault, 1.0)
        return logits * factor, new

    def step_of(self, ids, cache):
        position, rows = cache["position"], ops.reshape(ids, (-1, 1))
        hidden = self.model.embed(rows, ops.array([position]))
        hidden = hidden * {"factor of vectors": 2.0}.get(self.fault, 1.0)
        queries, key, value = (layer(hidden) for layer in self.model.projections[:3])
        places = ops.arange(cache["keys"].shape[1])
        is_new = ops.expand_dims(ops.equal(places, position), 1)
        keys = ops.where(is_new, key, cache["keys"])
        values = ops.where(is_new, value, cache["values"])
        is_visible = ops.logical_and(places <= position, cache["hidden"][0, :, 0] == 0)
        if self.fault == "not reset":
            is_visible = ops.any(keys != 0, axis=(0, 2))
        hidden = hidden + attend(queries, keys, values, is_visible)
        logits = self.model.logits(hidden + attend(hidden, *cache["source"]))
        cache = {**cache, "keys": keys, "values": values, "position": position + 1}
        cache.pop("hidden")
        return ops.reshape(logits, (*ids.shape, -1)), cache


STEPS = {
    "": (CachedDecoder, "", True),
    "window": (Windowed, "", True),
    "short window": (Windowed, "mask of the steps hides them", True),
    "not reset": (CachedDecoder, "of earlier sentences is kept", True),
    "encoder of the first call": (CachedDecoder, "of earlier sentences is kept", True),
    "encoder of the last call": (Windowed, "of earlier sentences is kept", True),
    "factor of logits": (CachedDecoder, "times 3: a factor", True),
    "factor of vectors": (CachedDecoder, "Or a factor is in only one of both", True),
    "factor of vectors ": (CachedDecoder, "a factor, a bias", False),
}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("fault", STEPS)
def test_steps_are_compared_for_other_sentences_and_all_tokens(fault):
    model_class, words, has_positions = STEPS[fault]
    model = model_class(fault.strip(), has_positions)
    report = check_decoder(model, PAIR, search_model=FaultySteps(model), reload=False)
    if not words:
        assert report.ok, str(report)
        return
    assert report["cached steps"].result == "failed", str(report)
    assert words in report["cached steps"].cause, str(report)
