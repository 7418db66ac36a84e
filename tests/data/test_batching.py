import pytest

from keras_transformer.data import choose_shapes
from keras_transformer.data.batching import epoch_rates, plan_batches
from keras_transformer.errors import InputError

NO_SHAPES = [([3, 11], 10, 8, "batch_tokens=10, longest example=11"), ([3], 0, 8, "batch_tokens=0")]
NO_SHAPES += [([3], 7, 0, "max_shapes=0"), ([], 7, 8, "at least one")]
NO_SHAPES += [([0, 3], 7, 8, "must be positive")]


@pytest.mark.parametrize("lengths, batch_tokens, max_shapes, message", NO_SHAPES)
def test_arguments_without_shapes_are_refused(lengths, batch_tokens, max_shapes, message):
    with pytest.raises(InputError, match=message):
        choose_shapes(lengths, batch_tokens, max_shapes)


@pytest.mark.parametrize("shapes", [[], [(3, 5), (5, 3)], [(0, 9)], [9], None])
def test_shapes_that_are_none_or_too_short_are_refused(shapes):
    with pytest.raises(InputError, match="must be pairs"):
        plan_batches([2], shapes)
    with pytest.raises(InputError, match="longest shape=7, longest example=8"):
        plan_batches([8], [(5, 3), (2, 7)])


def test_without_a_temperature_rates_are_weights_and_equal_weights_none():
    assert epoch_rates({"a": 10, "b": 40}, {"a": 1, "b": 1}) is None
    assert epoch_rates({"a": 10, "b": 40}, {"a": 2.0, "b": 0.5}) == [2.0, 0.5]
