"""Trainings that share one compiled model: to trace its steps takes longer than to run them."""

from keras_transformer.training.preparing import Prepared
from keras_transformer.training.run import Run


def prepared_of(recipe, tokenizers=(None, None), **fields):
    """Returns a `Prepared` of a new run, without texts except those that are given."""
    texts = dict.fromkeys(("datasets", "reports", "digests"), {})
    texts |= {"validation": [], "validation_names": [], "languages": None, **fields}
    return Prepared(recipe, tokenizers, is_resumed=False, **texts)


class SharedModel:
    """The compiled model of several trainings, into which each training's start is read.

    Attributes:
        model: Model of the first training; None before it.
    """

    def __init__(self):
        self.model = None

    def run_class(self):
        """Returns the `run_class` of these trainings, whose models and optimizers are alike."""
        share = self.share

        class SharingRun(Run):
            def model_and_start(self):
                model, start = super().model_and_start()
                return share(model), start

        return SharingRun

    def share(self, model):
        """Returns the first training's model, with the state of `model`."""
        if self.model is None:
            self.model = model
        elif model is not self.model:
            if not model.optimizer.built:
                model.optimizer.build(model.trainable_variables)
            for mine, read in zip(state(self.model), state(model), strict=True):
                mine.assign(read)
        return self.model


def state(model):
    """Returns the variables of a compiled model and of its optimizer."""
    return [*model.variables, *model.optimizer.variables]
