"""TransformerSchedule: equation 3 of the paper, and its way through a saved optimizer."""

import json

import keras
import numpy as np
import pytest
import reference
from keras import ops

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


def test_numbers_of_numpy_and_lists_of_steps_are_taken(compiled):
    sizes = np.int64(53), np.int32(11), np.float32(0.5), np.int16(2)
    schedule = TransformerSchedule(*sizes)
    config = json.loads(json.dumps(schedule.get_config()))
    assert config == dict(model_dim=53, warmup_steps=11, scale=0.5, accumulation_steps=2)
    steps = [1, 1, 2, 2, 3]
    expected = [reference.schedule(step, 53, 11, 0.5) for step in steps]
    for batches in (list(range(5)), tuple(range(5)), np.arange(5)):
        np.testing.assert_allclose(schedule(batches), expected, rtol=1e-6)
    rates = compiled(schedule)(ops.arange(5))
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_serialization_keeps_every_argument():
    options = dict(model_dim=53, warmup_steps=11, scale=0.5, accumulation_steps=2)
    schedule = TransformerSchedule(**options)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert copy.get_config() == options
    assert rate(copy, 7) == rate(schedule, 7)
