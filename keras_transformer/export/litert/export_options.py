"""Options of the export to LiteRT; imports no Keras."""

from typing import Annotated

import pydantic

from keras_transformer.base.options import INT32, option, options_base, options_class
from keras_transformer.decoding.search_options import StoppingSearchOptions
from keras_transformer.export.options import Quantized, WithShortlist

_Length = Annotated[int, pydantic.Field(strict=True, ge=2, lt=INT32)]


@options_base
class OfLengths(Quantized):
    """Base class for formats whose signatures have fixed lengths."""

    source_lengths: tuple[_Length, ...] | None = option(
        None,
        "Numbers of source tokens, EOS included, of the signatures from ids; the largest is the "
        "maximum length of a text. By default 16, 32, 64 and 128; in a browser 32 and 96. "
        "With a shortlist 12, 16, 20, 24, 32, 48, 64 and 128; in a browser 12 to 48 and 96. "
        "Models whose weights take 512 MiB or more have only 128.",
        "integers of at least 2, or null",
        min_length=1,
    )


@options_class
class LiteRTOptions(OfLengths, WithShortlist, StoppingSearchOptions):
    """Options of `litert`; the search is fixed in the export."""

    n_best: int | None = option(
        None, "Number of hypotheses that beam search returns; all by default.", ge=1, lt=INT32
    )
