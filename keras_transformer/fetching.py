"""Public names of `interop.fetching`: models by name become folders."""

from keras_transformer.interop.fetching import LocalModel, check_name, list_models, local_model

__all__ = ["LocalModel", "check_name", "list_models", "local_model"]
