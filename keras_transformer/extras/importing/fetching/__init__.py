"""Models by name: archives, URLs, the Hugging Face hub and published lists become folders."""

from keras_transformer.extras.importing.fetching.names import check_name, list_models, local_model
from keras_transformer.extras.importing.local_folder import LocalModel

__all__ = ["LocalModel", "check_name", "list_models", "local_model"]
