"""SmoothedCrossEntropy by hand and against explicit distributions."""

import functools

import keras
import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy, TokenLoss

BATCH, LENGTH, VOCABULARY = 2, 5, 7
LABELS = np.array([[3, 5, 1, 0, 0], [6, 0, 0, 0, 0]])
METRICS = TokenLoss, TokenAccuracy, Perplexity


def updated(metric_class):
    """A metric without state, as a function of labels and logits."""
    metric = metric_class(ignore_id=-1)

    def call(*arguments):
        scope = keras.StatelessScope([(variable, ops.zeros(())) for variable in metric.variables])
        with scope:
            metric.update_state(*arguments)
            return metric.result()

    return call


@pytest.fixture
def logits(rng):
    return (3 * rng.normal(size=(BATCH, LENGTH, VOCABULARY))).astype("float32")


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_smoothing_covers_the_whole_vocabulary(logits, smoothing):
    loss = float(SmoothedCrossEntropy(smoothing)(LABELS, logits))
    expected = reference.smoothed_loss(LABELS, logits, smoothing)
    assert loss == pytest.approx(expected, rel=1e-5)
    dense = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction="none"
    )(keras.utils.to_categorical(LABELS, VOCABULARY), logits)
    assert loss == pytest.approx(float(np.asarray(dense)[LABELS != 0].mean()), rel=1e-5)


def test_padding_weighs_nothing(rng, logits):
    loss = SmoothedCrossEntropy()
    expected = float(loss(LABELS, logits))
    junk = np.where((LABELS != 0)[..., None], logits, 1e3).astype("float32")
    assert float(loss(LABELS, junk)) == pytest.approx(expected, rel=1e-6)
    wider_labels = np.pad(LABELS, ((0, 3), (0, 11)))
    wider_logits = np.pad(logits, ((0, 3), (0, 11), (0, 0)))
    assert float(loss(wider_labels, wider_logits)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("shape", [(BATCH,), (BATCH, 1), (BATCH, LENGTH)])
def test_sample_weights_weigh_sentences_or_tokens(rng, logits, shape):
    weight = rng.random(shape)
    loss = float(SmoothedCrossEntropy()(LABELS, logits, sample_weight=weight))
    columns = weight[:, None] if weight.ndim == 1 else weight
    expected = reference.smoothed_loss(
        LABELS, logits, 0.1, sample_weight=np.broadcast_to(columns, LABELS.shape)
    )
    assert loss == pytest.approx(expected, rel=1e-5)


def test_sums_and_counts_of_pieces_add_up_to_the_whole_and_a_sum_is_not_divided(logits):
    loss = SmoothedCrossEntropy()
    pieces = [loss.sum_and_count(LABELS[i : i + 1], logits[i : i + 1]) for i in range(BATCH)]
    total, count = (sum(float(x) for x in column) for column in zip(*pieces, strict=True))
    assert count == (LABELS != 0).sum()
    assert total / count == pytest.approx(float(loss(LABELS, logits)), rel=1e-6)
    whole = SmoothedCrossEntropy(reduction="sum")(LABELS, logits)
    assert float(whole) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_batch_of_padding_alone_costs_nothing_and_moves_nothing(logits, pull_back, dtype):
    labels = np.zeros_like(LABELS)
    loss, pull = pull_back(lambda x: SmoothedCrossEntropy()(labels, ops.cast(x, dtype)), logits)
    assert float(loss) == 0.0
    np.testing.assert_array_equal(pull(1.0), 0.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_softmax_minus_the_target_distribution(logits, pull_back, smoothing):
    _, pull = pull_back(lambda x: SmoothedCrossEntropy(smoothing)(LABELS, x), logits)
    expected = np.zeros(logits.shape)
    for position, label in np.ndenumerate(LABELS):
        if label:
            target = reference.target_distribution(label, VOCABULARY, smoothing)
            expected[position] = reference.softmax(logits[position].astype("float64")) - target
    np.testing.assert_allclose(pull(1.0), expected / (LABELS != 0).sum(), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large_logits_stay_finite(pull_back, dtype):
    logits = np.zeros((1, 2, VOCABULARY), "float32")
    logits[..., 1], logits[..., 2] = 6e4, -6e4
    loss, pull = pull_back(
        lambda x: SmoothedCrossEntropy(0.0)(np.array([[1, 2]]), ops.cast(x, dtype)), logits
    )
    # The likely label costs nothing, the other one the distance of 120,000.
    assert float(loss) == pytest.approx(6e4, rel=1e-3)
    assert np.isfinite(pull(1.0)).all()


class Echo(keras.layers.Layer):
    """Logits that name each input id and no other."""

    def __init__(self, vocabulary, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary = vocabulary

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer=keras.initializers.Constant(50.0))

    def call(self, ids):
        return ops.one_hot(ids, self.vocabulary, dtype=self.compute_dtype) * self.scale


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
def test_labels_are_not_rounded_in_half_precision(policy):
    keras.config.set_dtype_policy(policy)
    ids = np.array([[257, 2049, 4097, 4098, 0]])
    inputs = keras.Input((5,), dtype="int32")
    model = keras.Model(inputs, Echo(4099)(inputs))
    model.compile(keras.optimizers.SGD(0.0), SmoothedCrossEntropy(0.0), metrics=[TokenAccuracy()])
    history = model.fit(ids, ids, verbose=0).history
    # A label rounded to its neighbour would cost 50.
    assert history["loss"] == pytest.approx([0.0], abs=1e-6)
    assert history["token_accuracy"] == [1.0]
    assert model.evaluate(ids, ids, verbose=0, return_dict=True)["loss"] < 1e-6


def test_a_bad_argument_is_named():
    for label_smoothing in (-0.1, 1.0, "0.1"):
        with pytest.raises(ValueError, match=r"`label_smoothing` must be in \[0, 1\)"):
            SmoothedCrossEntropy(label_smoothing)
    with pytest.raises(ValueError, match="Received: reduction='none'"):
        SmoothedCrossEntropy(reduction="none")


def test_serialization_keeps_every_argument(logits):
    loss = SmoothedCrossEntropy(0.2, ignore_id=5, name="cost")
    config = keras.saving.serialize_keras_object(loss)
    copy = keras.saving.deserialize_keras_object(config)
    assert (copy.label_smoothing, copy.ignore_id, copy.name) == (0.2, 5, "cost")
    expected = reference.smoothed_loss(LABELS, logits, 0.2, ignore_id=5)
    for loss in (copy, copy.call):  # Keras' `call` is the same function.
        assert float(loss(LABELS, logits)) == pytest.approx(expected, rel=1e-5)


COUNTERS = {
    "SmoothedCrossEntropy": lambda: SmoothedCrossEntropy(ignore_id=-1),
    **{kind.__name__: functools.partial(updated, kind) for kind in METRICS},
}


REFUSED = [
    (np.where(LABELS == 5, -100, LABELS), "`y_true` must name ids of .* Received: -100."),
    (np.where(LABELS == 5, VOCABULARY, LABELS), "from 0 to 6. Received: 7."),
    (LABELS + 0.5, "`y_true` must be ids, which are integers. Received: .* dtype float64."),
    (LABELS[0], r"`y_true` must have the shape \(2, 5\) for .* of shape \(5,\)."),
    (LABELS[..., None], r"`y_true` must have the shape .* of shape \(2, 5, 1\)."),
    (LABELS[:1], r"`y_true` must have the shape .* of shape \(1, 5\)."),
    (LABELS[:, :1], r"`y_true` must have the shape .* of shape \(2, 1\)."),
]


@pytest.mark.parametrize("name", COUNTERS)
def test_labels_and_sample_weights_that_do_not_fit_the_logits_are_refused(logits, name):
    for labels, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            COUNTERS[name]()(labels, logits)
    for shape in ((LENGTH,), (1,), (BATCH, 2), (BATCH, LENGTH, 1), ()):
        with pytest.raises(ValueError, match=r"`sample_weight` must have the shape \(2,\) or"):
            COUNTERS[name]()(LABELS, logits, np.ones(shape))


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize(("wrong", "dtype"), [(-100, "int8"), (VOCABULARY, "int32"), (127, "int8")])
def test_in_a_compiled_call_a_label_outside_the_vocabulary_gives_nan(
    logits, compiled, name, wrong, dtype
):
    count = COUNTERS[name]()

    @compiled
    def call(labels):
        return count(labels, logits)

    for label, is_number in ((wrong, False), (-1, True)):
        labels = np.where(LABELS == 5, label, LABELS).astype(dtype)
        assert np.isfinite(float(call(ops.convert_to_tensor(labels)))) == is_number
