"""Models by name: archives, URLs, the Hugging Face hub and published lists become folders."""

from keras_transformer.interop.fetching.names import check_name, list_models, local_model
from keras_transformer.interop.local_model import LocalModel

__all__ = ["LocalModel", "check_name", "list_models", "local_model"]
