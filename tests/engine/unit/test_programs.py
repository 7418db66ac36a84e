"""Compiling: traced once, and the weights are not constants of the program."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.engine.programs import Compiled


def test_changed_weights_are_seen_without_tracing_again():
    model = keras.Sequential([keras.layers.Input((None,)), keras.layers.Embedding(11, 3)])
    traced = []

    def function(ids):
        traced.append(ids.shape)
        return {"doubled": 2.0 * model(ids), "ids": (ids,)}

    run, ids = Compiled(model, function), np.array([[1, 5, 7], [0, 2, 10]], "int32")
    for value in (3.0, 7.0):
        model.set_weights([np.full((11, 3), value)])
        result = run(ids)
        np.testing.assert_array_equal(result["doubled"], np.full((2, 3, 3), 2 * value))
        np.testing.assert_array_equal(result["ids"][0], ids)
    assert len(traced) == 1


def test_a_backend_that_has_no_compiler_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(RuntimeError, match="'torch'"):
        Compiled(None, lambda ids: ids)


def counted(function):
    """A `Compiled` without a model, and a list of the static shapes that it was traced with."""
    traced = []

    def run(*arguments):
        traced.append(tuple(arguments[0].shape))
        return function(*arguments)

    return Compiled(None, run), traced


@pytest.mark.tensorflow
def test_a_batch_of_one_is_traced_as_such_and_all_others_together():
    run, traced = counted(lambda values: values + 1)
    for shape in ((1, 3), (2, 3), (5, 7), (1, 9)):
        run(np.ones(shape, "int32"))
    assert traced == [(1, None), (None, None)]


def test_a_keyword_argument_is_static_and_has_a_program_and_kept_tensors_of_its_own():
    outer = lambda factor: (ops.convert_to_tensor(10.0 * factor),)  # noqa: E731
    line = lambda values, offset, factor: factor * values + offset  # noqa: E731
    run = Compiled(None, line, outer_arguments=outer)
    for factor in (2, 3, 2):
        result = run(np.ones(3, "float32"), factor=factor)
        np.testing.assert_array_equal(result, np.full(3, 11.0 * factor))
    assert run.compilations == 2
