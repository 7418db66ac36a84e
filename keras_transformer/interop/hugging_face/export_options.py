"""Options of the export for transformers; imports no Keras."""

from keras_transformer.decoding.search_options import StoppingSearchOptions
from keras_transformer.export.options import FormatOptions
from keras_transformer.options import options_class


@options_class
class HuggingFaceOptions(FormatOptions, StoppingSearchOptions):
    """Options of `hugging_face`; the search is the model's default."""
