"""Options of the export for browsers; imports no Keras."""

from keras_transformer.base.options import option, options_class
from keras_transformer.decoding.search_options import StoppingSearchOptions
from keras_transformer.export.litert.export_options import OfLengths
from keras_transformer.export.options import WithShortlist


@options_class
class WebOptions(OfLengths, WithShortlist, StoppingSearchOptions):
    """Options of `web`; the search is fixed in the export."""

    npm: str | None = option(
        None,
        "Folder where npm installed LiteRT.js, or its `node_modules`; by default the working "
        "directory or one above.",
    )
