"""Options that export formats share; imports no Keras.

A row of `formats.py` names the class of a format: one of this module, or one in the folder of the
format if it has options of its own. Error messages and `--help` are generated from the
declarations.
"""

import os
from typing import Any, Literal

import pydantic

from keras_transformer.base.options import option, options_base, options_class
from keras_transformer.decoding.search_options import SearchOptions, StoppingSearchOptions

QUANTIZATIONS = ("none", "float16", "int8")


@options_base
class FormatOptions:
    """Base class of all options classes."""

    languages: tuple[str, str] | None = option(
        None,
        "Codes of the source and the target language, en-de or en-GB,pt-BR, for programs and "
        "people that read export.json; by default the run's, if it has one direction.",
        "two codes, or null",
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _to_plain(cls, value: Any) -> Any:
        """Converts other collections to tuples, and paths to text."""
        if isinstance(value, (list, set, frozenset)):
            return tuple(value)
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @pydantic.field_validator("languages", mode="before")
    @classmethod
    def _to_pair(cls, value: Any) -> Any:
        # Late, because the tokenizers' packages take half a second.
        from keras_transformer.text.languages import language_pair

        if isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        return language_pair(value) if isinstance(value, str) else value


@options_base
class WithShortlist(FormatOptions):
    """Base class for formats that search among the candidates of a shortlist."""

    shortlist: bool = option(
        False,
        "Search among the candidates of the run's shortlist; true by default for an imported model "
        "that has one.",
    )


@options_base
class Quantized(FormatOptions):
    """Base class for formats that store quantized weights."""

    quantize: Literal[QUANTIZATIONS] = option(  # type: ignore[valid-type]
        "none", "Storage of the weights; none is float32.", strict=None
    )


@options_class
class RankedOptions(FormatOptions, SearchOptions):
    """Options of a format whose program has stop rules of its own."""


@options_class
class SearchedOptions(FormatOptions, StoppingSearchOptions):
    """Options of a format that searches as this package does."""


@options_class
class QuantizedOptions(Quantized, WithShortlist, StoppingSearchOptions):
    """Options of a format that searches as this package does, with quantized weights."""
