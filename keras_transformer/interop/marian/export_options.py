"""Options of the export to Marian; imports no Keras."""

from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.export.options import FormatOptions
from keras_transformer.options import options_class


@options_class
class MarianOptions(FormatOptions, SearchOptions):
    """Options of `marian`; the search is the decoder's default."""
