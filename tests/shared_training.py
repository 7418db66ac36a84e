"""Small trainings: eager ones, and some that share one compiled model.

To trace the steps of a training takes longer than to run them.
"""

import numpy as np
from fakes import FakeEngine
from small_corpus import recipe_values

from keras_transformer.engine.translation import Translation
from keras_transformer.training import Recipe
from keras_transformer.training.preparing import Prepared
from keras_transformer.training.training import Training


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

    def training_class(self):
        """Returns the class of these trainings, whose models and optimizers are alike."""
        share = self.share

        class SharingTraining(Training):
            def model_and_start(self):
                model, start = super().model_and_start()
                return share(model), start

        return SharingTraining

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


class EagerTraining(Training):
    """A training whose steps are not traced, and whose engine is a fake one.

    Attributes:
        last: The last training that began.
        start: Trainable weights with which it began.
    """

    is_eager = True
    last: "EagerTraining"

    def model_and_start(self):
        model, start = super().model_and_start()
        self.jit_compile, model.run_eagerly = model.jit_compile, self.is_eager
        self.start = [np.array(variable) for variable in model.trainable_variables]
        EagerTraining.last = self
        return model, start

    def make_engine(self):
        def translate(texts, **options):
            """Perfect before the first epoch is saved, and afterwards wrong."""
            answers = {} if self.history else dict(self.validation)
            return [Translation(answers.get(text, text), 0.0) for text in texts]

        return FakeEngine(translate=translate)


class GraphTraining(EagerTraining):
    """A training of graphs: Keras accumulates gradients by another path there."""

    is_eager = False


STEPS = {"steps_per_epoch": 2, "batch_tokens": 128, "max_shapes": 1, "epochs": 2}
STEPS |= {"warmup_steps": 1}


def recipe_of(corpus, has_sources=False, **training):
    """A recipe of a small model on `corpus` of `tests/training`; a language model has few weights.

    Its validation set has five sentences.
    """
    values = recipe_values(corpus, **{**STEPS, **training})
    values["model"] |= {"model_dim": 8, "intermediate_dim": 12, "dropout": 0.25}
    values["data"]["validation"] = {"source": "few.en", "target": "few.de"}
    if not has_sources:
        values["data"] |= {"train": {"source": "train.en"}, "validation": {"source": "few.en"}}
        values["text"]["vocabulary_size"] = 100
        del values["model"]["num_encoder_layers"]
        values["model"]["kind"] = "language_model"
    return Recipe.from_dict(values)


def state(model):
    """Returns the variables of a compiled model and of its optimizer."""
    return [*model.variables, *model.optimizer.variables]
