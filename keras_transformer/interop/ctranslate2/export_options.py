"""Options of the export to CTranslate2; imports no Keras."""

from keras_transformer.decoding.search_options import StoppingSearchOptions
from keras_transformer.export.options import Quantized, WithShortlist
from keras_transformer.options import options_class


@options_class
class CTranslate2Options(Quantized, WithShortlist, StoppingSearchOptions):
    """Options of `ctranslate2`; the search is the engine's default."""
