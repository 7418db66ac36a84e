"""Options of the export for Argos Translate; imports no Keras."""

from keras_transformer.base.options import option, options_class
from keras_transformer.export.options import Quantized


@options_class
class ArgosOptions(Quantized):
    """Options of `argos`, which needs one direction; Argos Translate has a search of its own."""

    package_version: str = option(
        "1.0",
        "Version of the package; Argos Translate updates an older one.",
        "numbers with dots between, such as 1.0",
        pattern=r"^[0-9]+(\.[0-9]+)*$",
    )
    sentence_splitter: str | None = option(
        None,
        "Folder named minisbd, stanza or spacy, with the model that splits texts into sentences; "
        "by default Argos Translate downloads one.",
    )
