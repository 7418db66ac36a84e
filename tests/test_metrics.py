"""TokenLoss, TokenAccuracy and Perplexity by hand, over several batches."""

import keras
import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer import Perplexity, SmoothedCrossEntropy, TokenAccuracy, TokenLoss

VOCABULARY = 7
# Four non-padding tokens in the first batch, one in the second.
BATCHES = [np.array([[3, 5, 1], [6, 0, 0]]), np.array([[2, 0, 0]])]


def logits_for(ids):
    """Logits whose largest entry stands at `ids`."""
    return np.eye(VOCABULARY, dtype="float32")[ids]


def test_accuracy_is_right_tokens_over_all_tokens_not_a_mean_of_batches():
    metric = TokenAccuracy()
    metric.update_state(BATCHES[0], logits_for([[3, 5, 2], [6, 0, 4]]))  # 3 of 4
    assert float(metric.result()) == 3 / 4
    metric.update_state(BATCHES[1], logits_for([[4, 0, 0]]))  # 0 of 1
    assert float(metric.result()) == pytest.approx(3 / 5)


def test_of_equal_logits_the_first_counts_and_none_of_a_row_with_nan():
    rows = [[1.0, 2.0, 2.0, 0.0], [1.0, 2.0, 2.0, 0.0], [1.0, 3.0, np.nan, 0.0], [-np.inf] * 4]
    metric = TokenAccuracy(ignore_id=-1)
    for labels, right in ([[1, 2, 1, 0]], [1, 0, 0, 1]), ([[3, 1, 2, 3]], [0, 1, 0, 0]):
        metric.reset_state()
        metric.update_state(np.array(labels), np.array([rows], "float32"))
        assert float(metric.result()) == sum(right) / 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_perplexity_is_the_exponential_of_the_mean_over_all_tokens(rng, dtype):
    metric = Perplexity()
    shapes = [(*labels.shape, VOCABULARY) for labels in BATCHES]
    logits = [ops.cast(rng.normal(size=shape), dtype) for shape in shapes]
    for labels, batch in zip(BATCHES, logits, strict=True):
        metric.update_state(labels, batch)
    labels = np.concatenate([x.ravel() for x in BATCHES])
    rows = np.concatenate([reference.float64(x).reshape(-1, VOCABULARY) for x in logits])
    expected = reference.perplexity(labels, rows)
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


class Batches(keras.utils.PyDataset):
    """Batches of several shapes, in their order."""

    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def test_the_loss_in_the_logs_does_not_depend_on_how_sentences_are_batched(rng):
    # Batches of 2 and 8 rows with 16 tokens each: by rows the second would weigh four times
    # the first.
    labels = rng.integers(1, VOCABULARY, size=32)
    logits = rng.normal(scale=3.0, size=(32, VOCABULARY)).astype("float32")
    batches = [(logits[:16].reshape(2, 8, -1), labels[:16].reshape(2, 8))]
    batches += [(logits[16:].reshape(8, 2, -1), labels[16:].reshape(8, 2))]
    same = keras.layers.Dense(VOCABULARY, kernel_initializer="identity")
    model = keras.Sequential([keras.Input((None, VOCABULARY)), same])
    model.compile(
        keras.optimizers.SGD(0.0),
        loss=SmoothedCrossEntropy(0.1),
        metrics=[TokenLoss(0.1), Perplexity()],
    )
    expected = reference.smoothed_loss(labels, logits, 0.1)
    evaluated = model.evaluate(Batches(batches), verbose=0, return_dict=True)
    options = {"shuffle": False, "validation_data": Batches(batches), "verbose": 0}
    fitted = model.fit(Batches(batches), **options).history
    np.testing.assert_allclose(evaluated["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(fitted["loss"], [expected], rtol=1e-5)
    np.testing.assert_allclose(fitted["val_loss"], [expected], rtol=1e-5)
    log_perplexity = np.log(reference.perplexity(labels, logits))
    np.testing.assert_allclose(np.log(evaluated["perplexity"]), log_perplexity, rtol=1e-5)


@pytest.mark.parametrize(
    ("metric_class", "empty"), [(TokenLoss, 0.0), (TokenAccuracy, 0.0), (Perplexity, 1.0)]
)
def test_padding_never_counts_and_reset_forgets(metric_class, empty):
    metric = metric_class()
    metric.update_state(np.zeros((2, 3), int), np.ones((2, 3, VOCABULARY), "float32"))
    assert float(metric.result()) == empty
    metric.update_state(BATCHES[0], logits_for(BATCHES[0]))
    assert float(metric.result()) != empty
    metric.reset_state()
    assert float(metric.result()) == empty


@pytest.mark.parametrize("metric_class", [TokenLoss, TokenAccuracy, Perplexity])
def test_the_ignored_id_is_the_given_one(rng, metric_class):
    logits = rng.normal(size=(2, 3, VOCABULARY)).astype("float32")
    ignoring, alone = metric_class(ignore_id=5), metric_class(ignore_id=-1)
    ignoring.update_state(BATCHES[0], logits)
    keep = BATCHES[0].ravel() != 5
    alone.update_state(BATCHES[0].ravel()[keep][None], logits.reshape(-1, VOCABULARY)[keep][None])
    assert float(ignoring.result()) == pytest.approx(float(alone.result()), rel=1e-6)


@pytest.mark.parametrize("weights", [np.array([1.0, 3.0]), np.array([[1.0] * 3, [3.0] * 3])])
def test_sample_weights_weigh_sentences_or_tokens(weights):
    metric = TokenAccuracy()
    # Three tokens of weight 1, two of them right; one of weight 3, right: 5 of 6.
    metric.update_state(BATCHES[0], logits_for([[3, 5, 2], [6, 0, 0]]), sample_weight=weights)
    assert float(metric.result()) == pytest.approx(5 / 6)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_float16"])
def test_thousands_of_tokens_and_large_ids_are_counted_exactly(policy):
    keras.config.set_dtype_policy(policy)
    labels = np.full((1, 4999), 4097)
    labels[0, :1000] = 2049
    logits = np.zeros((1, 4999, 4099), "float16")
    logits[..., 4097] = 1.0
    metric = TokenAccuracy()
    for _ in range(2):
        metric.update_state(labels, ops.convert_to_tensor(logits))
    assert float(metric.result()) == pytest.approx(3999 / 4999, rel=1e-6)


@pytest.mark.parametrize("metric_class", [TokenLoss, TokenAccuracy, Perplexity])
def test_serialization_keeps_every_argument(metric_class):
    metric = metric_class(ignore_id=5, name="figure")
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(copy) is metric_class
    assert (copy.ignore_id, copy.name) == (5, "figure")
