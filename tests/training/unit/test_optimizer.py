"""Steps, losses and averages of a compiled model."""

import keras
import numpy as np
import pytest
from reference import perplexity, smoothed_loss

from keras_transformer.data import EncodedPairs, LabelledDataset
from keras_transformer.models import Classifier
from keras_transformer.models.config import ClassifierConfig
from keras_transformer.training import compile_model
from keras_transformer.training import optimizer as module
from keras_transformer.training.callbacks import AveragedValidation
from keras_transformer.training.recipe_sections import TrainingSection


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
