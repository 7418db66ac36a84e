"""TransformerSchedule: equation 3 of the paper, and its way through a saved optimizer."""

import keras
import numpy as np
import pytest
import reference

from keras_transformer import TransformerSchedule


def rate(schedule, step):
    """The rate of a step that is counted from 1; Keras counts from 0."""
    return float(schedule(step - 1))


@pytest.mark.parametrize("step", [1, 2, 10, 11, 12, 100, 12345])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_equals_the_formula_with_steps_counted_from_one(step, scale):
    schedule = TransformerSchedule(53, warmup_steps=11, scale=scale)
    expected = reference.schedule(step, 53, 11, scale)
    assert rate(schedule, step) == pytest.approx(expected, rel=1e-6)


def test_four_points_by_hand():
    schedule = TransformerSchedule(model_dim=256, warmup_steps=100)
    # 256^-0.5 = 1/16, 100^-1.5 = 1/1000; at the peak 100^-0.5 = 1/10; later 400^-0.5 = 1/20.
    assert rate(schedule, 1) == pytest.approx(1 / 16 / 1000, rel=1e-6)
    assert rate(schedule, 50) == pytest.approx(1 / 16 / 20, rel=1e-6)
    assert rate(schedule, 100) == pytest.approx(1 / 16 / 10, rel=1e-6)
    assert rate(schedule, 400) == pytest.approx(1 / 16 / 20, rel=1e-6)


def test_batches_that_are_accumulated_have_the_rate_of_their_step():
    plain, accumulated = (TransformerSchedule(53, 11, 2.0, steps) for steps in (1, 3))
    # 2**24 + 1 is no float32.
    for step in (0, 5, 30, 2**24 + 1):
        for batch in range(3):
            assert float(accumulated(3 * step + batch)) == float(plain(step))


@pytest.mark.parametrize("name", ["model_dim", "warmup_steps", "scale", "accumulation_steps"])
@pytest.mark.parametrize("value", [0, -1, "7", True])
def test_a_bad_argument_is_named(name, value):
    with pytest.raises(ValueError) as caught:
        TransformerSchedule(**{"model_dim": 53, name: value})
    assert f"Received: {name}={value!r}." in str(caught.value)


def test_serialization_keeps_every_argument():
    options = dict(model_dim=53, warmup_steps=11, scale=0.5, accumulation_steps=2)
    schedule = TransformerSchedule(**options)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert copy.get_config() == options
    assert rate(copy, 7) == rate(schedule, 7)


def test_the_rate_goes_on_after_saving_and_loading_a_compiled_model(tmp_path, rng):
    inputs = rng.normal(size=(3, 5)).astype("float32")
    targets = rng.normal(size=(3, 7)).astype("float32")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7)])
    schedule = TransformerSchedule(53, warmup_steps=11, scale=2.0)
    model.compile(keras.optimizers.Adam(schedule), "mse", jit_compile=False)
    model.fit(inputs, targets, epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")

    loaded = keras.saving.load_model(tmp_path / "model.keras")

    assert int(loaded.optimizer.iterations) == 3
    expected = reference.schedule(4, 53, 11, 2.0)
    assert float(loaded.optimizer.learning_rate) == pytest.approx(expected, rel=1e-6)
    for trained in (model, loaded):
        trained.fit(inputs, targets, epochs=2, verbose=0)
    for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-7)
    expected = reference.schedule(6, 53, 11, 2.0)
    assert float(loaded.optimizer.learning_rate) == pytest.approx(expected, rel=1e-6)
