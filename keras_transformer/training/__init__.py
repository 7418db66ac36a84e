"""Training from a recipe, run folders and evaluation."""

# ruff: noqa: E402 (modules that import Keras follow)
from keras_transformer.base.imports import import_keras

import_keras()

from keras_transformer.engine.scores import evaluate, perplexity
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.training.loop import train
from keras_transformer.training.optimizer import compile_model
from keras_transformer.training.recipe import Recipe

__all__ = ["Recipe", "RunFolder", "compile_model", "evaluate", "perplexity", "train"]
