"""Options of the export of a SavedModel; imports no Keras."""

import pydantic

from keras_transformer.base.options import option, options_class
from keras_transformer.decoding.search_options import StoppingSearchOptions
from keras_transformer.export.options import FormatOptions
from keras_transformer.export.signature import SIGNATURES


@options_class
class SavedModelOptions(FormatOptions, StoppingSearchOptions):
    """Options of `saved_model`; the search is fixed in the export."""

    signatures: tuple[str, ...] = option(
        tuple(SIGNATURES),
        f"Signatures in addition to serving_default: {', '.join([*SIGNATURES][1:])}.",
    )

    @pydantic.field_validator("signatures")
    @classmethod
    def _check_signatures(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in SIGNATURES:
                rule = f"`signatures` must be among {', '.join(SIGNATURES)}."
                raise ValueError(f"{rule} Received: {name!r}.")
        return tuple(name for name in SIGNATURES if name in {"serving_default", *names})
