from keras_transformer.errors import InputError


def test_callers_can_catch_a_users_mistake_as_a_value_error():
    assert issubclass(InputError, ValueError)
