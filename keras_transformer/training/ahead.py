"""Compiles the programs of a training together, before its first step; on JAX only."""

import itertools
from typing import Any

import keras

from keras_transformer.engine.ahead import Ahead, Program
from keras_transformer.errors import show
from keras_transformer.training.callbacks import RunCallback


class ProgramsAhead(RunCallback):
    """Begins to compile all programs when `fit` begins; each step waits for its own.

    The shape of the first step comes first. The functions that it gives the model are those that
    Keras would make, and wait before they call.
    """

    def on_train_begin(self, logs=None):
        if self.run.ahead is not None:  # another `fit` of the same training
            return
        import jax

        self.run.ahead = ahead = Ahead(show)
        model, run = self.model, self.run
        # The variables of a step's state, in Keras' order.
        variables = model.trainable_variables, model.non_trainable_variables
        train = *variables, model.optimizer.variables, model.metrics_variables
        test = *variables, model.metrics_variables
        parts = {
            "train": ("a training step", train, model.train_step, run.start.step),
            "validation": ("a validation step", test, model.test_step, 0),
        }
        functions = {}
        for part, (noun, groups, step, start) in parts.items():
            compiled_step = jax.jit(step, donate_argnums=0)
            state = tuple([variable.value for variable in group] for group in groups)
            for batch in _one_of_each_shape(run.datasets[part], run.start.epoch, start):
                program = compiled_step.lower(state, _data(batch))
                ahead.add(Program(_name(noun, batch), program.compile))
            functions[part] = _waiting(compiled_step, ahead, noun)
        model.train_function, model.test_function = functions["train"], functions["validation"]
        for program in run.programs_of_an_epoch():
            ahead.add(program)


def _one_of_each_shape(dataset, epoch, start):
    """Yields a batch of each shape, in the order in which the epoch's steps need them."""
    shapes = dataset.step_shapes(epoch, start)
    for shape in dict.fromkeys([*shapes, *dataset.shapes]):
        if shape in shapes:
            yield next(dataset.batches(epoch, start + shapes.index(shape)))


def _waiting(step: Any, ahead: Ahead, noun: str) -> Any:
    """Returns a function of a state and an iterator, as Keras calls it."""
    seen = set()

    def run(state, iterator):
        data = _data(next(iterator))
        if (name := _name(noun, data)) not in seen:
            ahead.wait(name)
            seen.add(name)
        return step(state, data)

    return run


def _data(batch):
    """Returns a batch in one structure, because a program belongs to a structure."""
    inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
    inputs = tuple(inputs) if isinstance(inputs, (list, tuple)) else inputs
    return (inputs, labels) if weights is None else (inputs, labels, weights)


def _name(noun, batch):
    rows, columns = next(itertools.chain(keras.tree.flatten(batch))).shape
    return f"{noun} of {rows} sentences of up to {columns} tokens"
