"""Training from a recipe, run folders and evaluation."""

from keras_transformer import quiet_keras  # noqa: F401 (before the modules that import Keras)
from keras_transformer.training.evaluate import evaluate, perplexity
from keras_transformer.training.optimizer import compile_model
from keras_transformer.training.recipe import Recipe
from keras_transformer.training.run import train
from keras_transformer.training.run_folder import RunFolder

__all__ = ["Recipe", "RunFolder", "compile_model", "evaluate", "perplexity", "train"]
