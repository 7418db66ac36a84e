"""Inputs that a model may take, and the report as a table and as values."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.base.errors import InputError
from keras_transformer.decoding import SearchModel
from keras_transformer.extras.analysis import DecoderCheck, DecoderReport, check_decoder
from keras_transformer.layers import DecoderBlock, EncoderBlock, TokenEmbedding

VOCABULARY, WIDTH = 23, 6
FAILED = DecoderCheck(
    "future tokens",
    "failed",
    "Another id at ids[0, 1] changes earlier outputs.",
    "No mask.",
    "ids",
    (0, 0),
    0.25,
)
CHECKS = DecoderCheck("repeated calls", "passed", difference=0.0), FAILED
CHECKS += (DecoderCheck("export", "skipped", "give `exported`"),)


def test_a_report_is_a_table_with_the_causes_of_failures():
    report = DecoderReport(CHECKS)
    assert str(report).splitlines() == [
        "passed   repeated calls  largest difference 0",
        "FAILED   future tokens   largest difference 0.25",
        "         Another id at ids[0, 1] changes earlier outputs.",
        "         Likely cause: No mask.",
        "skipped  export          give `exported`",
        "1 of 3 checks failed",
    ]
    assert not report.ok and report.failures == (FAILED,) and report["future tokens"] is FAILED
    with pytest.raises(AssertionError, match="FAILED   future tokens") as caught:
        report.raise_if_failed()
    assert str(report) in str(caught.value)
    passing = DecoderReport(CHECKS[:1] + CHECKS[2:])
    assert passing.ok and str(passing).endswith("\nNo check failed")
    passing.raise_if_failed()


class SmallTranslator(keras.Model):
    """A subclassed model of a pair or a dict, which computes its masks itself."""

    def __init__(self):
        super().__init__()
        self.embedding = TokenEmbedding(VOCABULARY, WIDTH)
        self.encoder, self.decoder = EncoderBlock(7, 2), DecoderBlock(7, 2)

    def call(self, inputs):
        values = inputs.values() if isinstance(inputs, dict) else inputs
        source_ids, target_ids = values
        encoded = self.encoder(self.embedding(source_ids))
        return self.embedding.project(self.decoder(self.embedding(target_ids), encoded))


PAIR = np.ones((2, 5), "int32"), np.ones((2, 9), "int32")
EXAMPLES = {
    "a dict": {"source_ids": PAIR[0], "target_ids": PAIR[1]},
    "lists of ids": [ids.tolist() for ids in PAIR],
    "tensors": tuple(ops.convert_to_tensor(ids) for ids in PAIR),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_model_that_was_not_built_takes_the_structure_of_an_example(name):
    report = check_decoder(SmallTranslator(), EXAMPLES[name], reload=False)
    assert report.ok, str(report)
    assert report["padding of source_ids"].result == "passed"


def functional(*inputs, mask=None):
    embedding = TokenEmbedding(VOCABULARY, WIDTH)
    hidden = [embedding(ids) for ids in inputs]
    encoded = EncoderBlock(7, 2)(hidden[0])
    options = {} if mask is None else {"decoder_padding_mask": mask}
    return embedding.project(DecoderBlock(7, 2)(hidden[-1], encoded, **options))


@pytest.mark.parametrize("names", [(None, None), ("encoder_inputs", "decoder_inputs")])
def test_inputs_have_the_names_of_a_functional_model(names):
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in names]
    report = check_decoder(keras.Model(inputs, functional(*inputs)), reload=False)
    expected = ("source_ids", "target_ids") if names[0] is None else names
    assert [f"padding of {name}" for name in expected] == [
        check.name for check in report.checks if check.name.startswith("padding")
    ]
    assert report.ok, str(report)


def test_the_target_may_be_named_and_may_come_first():
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in ("written", "read")]
    model = keras.Model(inputs, functional(*inputs[::-1]))
    report = check_decoder(model, target="written", reload=False)
    assert report.ok, str(report)
    with pytest.raises(InputError, match="`target` must be one of written, read. Received: 'x'"):
        check_decoder(model, target="x")
    with pytest.raises(InputError, match=r"must return one output .* for read of shape \(3, 11\)"):
        check_decoder(model)


@keras.saving.register_keras_serializable("tests_of_decoder_check")
class Decoder(keras.layers.Layer):
    """A decoder-only block on embedded ids, which gets its mask by hand."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = TokenEmbedding(VOCABULARY, WIDTH, mask_zero=False)
        self.block = DecoderBlock(7, 2, positions="relative")

    def call(self, token_ids, padding_mask):
        hidden = self.block(self.embedding(token_ids), decoder_padding_mask=padding_mask)
        return self.embedding.project(hidden)


def test_an_input_that_is_a_mask_gets_the_mask_of_the_ids():
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    padding_mask = keras.Input((None,), dtype="bool", name="padding_mask")
    inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
    model = keras.Model(inputs, Decoder()(token_ids, padding_mask))
    for side in ("right", "left"):
        report = check_decoder(model, padding_side=side, reload=False)
        assert report["padding of token_ids"].result == "passed", str(report)


def test_a_function_of_ids_is_checked_without_what_needs_a_model():
    table = np.random.default_rng(7).normal(size=(VOCABULARY, WIDTH)).astype("float32")

    def mean_so_far(ids):
        vectors = ops.take(table, ids, axis=0) * ops.cast(ops.expand_dims(ids != 0, 2), "float32")
        return ops.cumsum(vectors, axis=1)

    report = check_decoder(mean_so_far, vocabulary_size=VOCABULARY)
    assert report.ok, str(report)
    skipped = {check.name for check in report.checks if check.result == "skipped"}
    assert skipped == {
        *("labels", "cached steps", "saved file", "export", "future tokens in training")
    }
    report = check_decoder(lambda ids: mean_so_far(ids)[:, ::-1], vocabulary_size=VOCABULARY)
    assert report["future tokens"].result == "failed"
    assert report["future tokens"].input_name == "ids"


def test_sentences_have_the_id_of_padding_only_at_their_end():
    received = []

    def model(ids):
        received.append(ops.convert_to_numpy(ids) == 7)
        return ops.cumsum(ops.one_hot(ids, VOCABULARY), axis=1)

    check_decoder(model, vocabulary_size=VOCABULARY, pad_id=7)
    assert any(is_padding.any() for is_padding in received)
    for is_padding in received:
        assert (np.diff(is_padding.astype(int), axis=1) >= 0).all()


def test_a_difference_within_the_given_tolerance_is_rounding():
    def model(ids):
        hidden = ops.cumsum(ops.one_hot(ids, VOCABULARY), axis=1)
        return hidden + 1e-3 * ops.roll(hidden, -1, axis=1)

    for tolerance, result in ((None, "failed"), (1e-2, "passed")):
        report = check_decoder(model, vocabulary_size=VOCABULARY, tolerance=tolerance)
        assert report["future tokens"].result == result


def embedding():
    return TokenEmbedding(VOCABULARY, WIDTH)


def test_outputs_that_are_nan_are_named():
    embed = embedding()
    report = check_decoder(lambda ids: ops.log(embed(ids)), vocabulary_size=VOCABULARY)
    assert report["repeated calls"].result == "failed"
    assert "NaN" in report["repeated calls"].message


WRONG = [
    (SmallTranslator, [], {}, "give `inputs`, an example of its inputs. Received: "),
    (SmallTranslator, [np.ones((2, 5), "float32")], {}, "Received: ids of dtype float32"),
    (SmallTranslator, [np.ones(5, "int32")], {}, r"must be ids .* of shape \(5,\)"),
    (lambda: lambda ids: ops.one_hot(ids[:, 0], 23), [], {}, r"\(batch, length, features\)"),
    (embedding, [], {"labels": PAIR[0]}, "`labels` need `inputs`"),
    (embedding, [PAIR[0]], {"labels": PAIR[1]}, r"must be integers of the shape \(2, 5\)"),
    (SearchModel, [], {}, "as `search_model`. Received: SearchModel"),
    (embedding, [], {"padding_side": "top"}, "`padding_side` must be one of right, left"),
]


@pytest.mark.parametrize(("make", "inputs", "options", "message"), WRONG)
def test_wrong_inputs_and_outputs_are_named(make, inputs, options, message):
    with pytest.raises(InputError, match=message):
        check_decoder(make(), *inputs, reload=False, **options)
