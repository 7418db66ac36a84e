"""Models by name: archives, URLs, the Hugging Face hub and published lists become folders."""

from keras_transformer.interop.fetching.names import (
    LocalModel,
    check_name,
    list_models,
    local_model,
)

__all__ = ["LocalModel", "check_name", "list_models", "local_model"]
