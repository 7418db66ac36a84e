"""Steps, losses and averages of a compiled model."""

import keras
import numpy as np
import pytest
from reference import perplexity, smoothed_loss

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.data import EncodedPairs, LabelledDataset, ParallelDataset
from keras_transformer.models import Classifier
from keras_transformer.models.config import ClassifierConfig
from keras_transformer.training import compile_model
from keras_transformer.training import optimizer as module
from keras_transformer.training.callbacks import AveragedValidation
from keras_transformer.training.recipe import TrainingSection


@pytest.fixture
def pairs():
    """Five pairs of up to nine ids."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(4, 30, size).tolist() for size in (3, 9, 5, 2, 8)]
    return EncodedPairs.from_lists([[*row, 2] for row in rows], rows)


@pytest.fixture
def labelled(rng):
    """Five texts of up to nine ids with one of three labels."""
    sources = rng.integers(4, 30, 27), [0, 3, 12, 17, 19, 27]
    return EncodedPairs(*map(np.array, (*sources, [0, 1, 2, 0, 1], range(6))))


def compiled_classifier(**options):
    """A model that is traced in half the time of a `Transformer`."""
    sizes = dict(model_dim=16, num_heads=2, intermediate_dim=24, dropout=0.0)
    model = Classifier(ClassifierConfig(30, target_vocabulary_size=3, **sizes))
    compile_model(model, TrainingSection(jit_compile=False, **options))
    return model


def compiled_model(**options):
    sizes = dict(model_dim=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    model = Transformer(TransformerConfig(30, intermediate_dim=24, dropout=0.0, **sizes))
    compile_model(model, TrainingSection(jit_compile=False, **options))
    return model


def test_a_training_that_ends_in_its_warmup_is_told_values_that_fit():
    def advice(steps, **options):
        return module.warmup_advice(TrainingSection(**options), steps)

    assert advice(480, epochs=60, warmup_steps=1000) == (
        "The training has only 480 optimizer steps in all, but training.warmup_steps=1000: the "
        "learning rate will not reach its peak. Values that fit: training.epochs=250, or "
        "training.warmup_steps=null."
    )
    assert advice(2000, epochs=250, warmup_steps=1000) is advice(480, warmup_steps=480) is None
    assert TrainingSection().with_schedule(480).warmup_steps == 48


@pytest.mark.tensorflow
def test_accumulated_batches_are_one_step_of_all_their_tokens(pairs):
    (inputs, _), *_ = ParallelDataset(pairs, shapes=[(6, 10)], shuffle=False).batches(0)
    outputs = []
    for steps, shape in ((1, (6, 10)), (3, (2, 10))):
        keras.utils.set_random_seed(1)
        model = compiled_model(accumulation_steps=steps)
        # Not Adam, whose steps do not depend on the gradient's length.
        several = model.optimizer.gradient_accumulation_steps
        optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=several)
        model.compile(optimizer=optimizer, loss=model.loss, jit_compile=False)
        arguments = {"shuffle": False, "accumulation_steps": steps}
        dataset = ParallelDataset(pairs, shapes=[shape], **arguments)
        before = model(inputs)
        model.fit(dataset.to_tf_dataset(), epochs=5, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 5
        outputs.append(keras.ops.convert_to_numpy(model(inputs)))
        assert np.abs(outputs[-1] - before).max() > 0.1
    np.testing.assert_allclose(*outputs, atol=1e-4)


def test_a_given_learning_rate_is_the_peak_of_the_schedule():
    optimizer = compiled_model(learning_rate=0.002, warmup_steps=10).optimizer
    for step, expected in ((1, 0.0002), (5, 0.001), (10, 0.002), (40, 0.001)):
        optimizer._iterations.assign(step - 1)
        assert float(optimizer.learning_rate) == pytest.approx(expected, rel=1e-5)


def test_the_learning_rate_counts_steps_of_the_optimizer():
    # The batches 0 to 29 are ten steps of three batches: the end of the warm-up. Width 16: the
    # paper's peak is 1 / sqrt(16 · 4000) = 1 / 253.
    optimizer = compiled_model(accumulation_steps=3, warmup_steps=10).optimizer
    for batch, expected in ((0, 0.1), (29, 1.0), (30, (10 / 11) ** 0.5), (32, (10 / 11) ** 0.5)):
        optimizer._iterations.assign(batch)
        assert float(optimizer.learning_rate) == pytest.approx(64_000**-0.5 * expected, rel=1e-5)


@pytest.mark.slow(after=1)
@pytest.mark.tensorflow
@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_the_average_takes_the_weights_of_each_optimizer_step_once(labelled, accumulation_steps):
    momentum, several = 0.75, {"accumulation_steps": accumulation_steps}
    rate = {"warmup_steps": 3, "learning_rate": 0.07}
    model = compiled_classifier(ema_momentum=momentum, **rate, **several)
    optimizer_steps, moved, wrong = [0], [], []

    class Check(keras.callbacks.Callback):
        """Compares the averages after each batch with those of all optimizer steps so far."""

        def on_train_batch_end(self, batch, logs=None):
            weights = [w.astype("float64") for w in self.model.get_weights()]
            if optimizer_steps[-1] != int(self.model.optimizer.iterations):
                optimizer_steps.append(int(self.model.optimizer.iterations))
                before = self.expected if len(optimizer_steps) > 2 else weights
                mixed = zip(before, weights, strict=True)
                self.expected = [momentum * old + (1 - momentum) * new for old, new in mixed]
                moved.append(max(np.abs(b - w).max() for b, w in zip(before, weights, strict=True)))
            if len(optimizer_steps) > 1:
                with module.averaged_weights(self.model):
                    both = zip(self.model.get_weights(), self.expected, strict=True)
                    wrong.append(max(np.abs(one - other).max() for one, other in both))

    batches = LabelledDataset(labelled, shapes=[(2, 9)], shuffle=False, **several).to_tf_dataset()
    model.fit(batches, epochs=4, shuffle=False, verbose=0, callbacks=[Check()])
    assert optimizer_steps == list(range(12 // accumulation_steps + 1))
    assert max(moved) > 1e-2 and max(wrong) < 1e-6


@pytest.mark.tensorflow
def test_a_classifiers_loss_and_metrics_range_over_its_labels_alone(labelled):
    model = compiled_classifier(label_smoothing=0.2)
    dataset = LabelledDataset(labelled, shapes=[(4, 9)], shuffle=False)
    metrics = model.evaluate(dataset.to_tf_dataset(), return_dict=True, verbose=0)
    logits = np.concatenate([model.predict_on_batch(ids) for ids, _ in dataset.batches(0)])
    labels = np.concatenate([labels for _, labels in dataset.batches(0)])
    assert logits.shape == (8, 1, 3) and (labels == -1).sum() == 3
    assert metrics["loss"] == pytest.approx(smoothed_loss(labels, logits, 0.2, ignore_id=-1), 1e-5)
    expected = perplexity(labels, logits, ignore_id=-1)
    assert metrics["perplexity"] == pytest.approx(expected, 1e-5)
    right = (logits.argmax(2) == labels)[labels >= 0]
    assert metrics["token_accuracy"] == pytest.approx(right.mean())


@pytest.mark.parametrize("scaled", [False, True])
def test_averages_take_the_place_of_weights_and_give_it_back_bit_for_bit(scaled):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, use_bias=False)])
    optimizer = keras.optimizers.SGD(use_ema=True)
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)
    model.optimizer.build(model.trainable_variables)
    # The sum of both rounds one of them away, whichever is added and subtracted again.
    weights, averages = np.full((3, 2), 0.1, "float32"), np.full((3, 2), 3e8, "float32")
    model.set_weights([weights])
    optimizer._model_variables_moving_average[0].assign(averages)
    with module.averaged_weights(model):
        np.testing.assert_array_equal(model.get_weights()[0], averages)
    np.testing.assert_array_equal(model.get_weights()[0], weights)
    np.testing.assert_array_equal(optimizer._model_variables_moving_average[0], averages)
    validation = AveragedValidation()
    validation.set_model(model)
    validation.on_test_begin()
    np.testing.assert_array_equal(model.get_weights()[0], averages)
    validation.on_test_end()
    np.testing.assert_array_equal(model.get_weights()[0], weights)


@pytest.mark.parametrize("accumulation_steps", [None, 2])
def test_the_norm_is_that_of_the_gradient_before_it_is_clipped(accumulation_steps):
    weights = [keras.Variable([1.0, 2.0]), keras.Variable([[0.0]])]
    options = {"global_clipnorm": 0.1, "gradient_accumulation_steps": accumulation_steps}
    optimizer = module.AdamWithGradientNorm(**options)
    optimizer.build(weights)
    for gradients in ([[3.0, 0.0], [[4.0]]], [[1.0, 0.0], [[8.0]]]):
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], weights)
    # sqrt(1 + 64), or of the mean (2, 0, 6).
    expected = 65 if accumulation_steps is None else 40
    assert float(optimizer.gradient_norm) == pytest.approx(expected**0.5)
