"""Options of the export formats, declared once; imports no Keras.

Error messages and `--help` are generated from the declaration.
"""

import os
from typing import Annotated, Any, Literal

import pydantic

from keras_transformer.decoding.search_options import SearchOptions, StoppingSearchOptions
from keras_transformer.export.signature import SIGNATURES
from keras_transformer.options import INT32, option, options_base, options_class

QUANTIZATIONS = ("none", "float16", "int8")
_Length = Annotated[int, pydantic.Field(strict=True, ge=2, lt=INT32)]


@options_base
class _Format:
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
class _WithShortlist(_Format):
    shortlist: bool = option(
        False,
        "Search among the candidates of the run's shortlist; true by default for an imported model "
        "that has one, except in a SavedModel.",
    )


@options_class
class SavedModelOptions(_WithShortlist, StoppingSearchOptions):
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


@options_base
class _Quantized(_Format):
    quantize: Literal[QUANTIZATIONS] = option(  # type: ignore[valid-type]
        "none", "Storage of the weights; none is float32.", strict=None
    )


@options_class
class MarianOptions(_Format, SearchOptions):
    """Options of `marian`; the search is the decoder's default."""


@options_class
class HuggingFaceOptions(_Format, StoppingSearchOptions):
    """Options of `hugging_face`; the search is the model's default."""


@options_class
class CTranslate2Options(_Quantized, _WithShortlist, StoppingSearchOptions):
    """Options of `ctranslate2`; the search is the engine's default."""


@options_class
class ArgosOptions(_Quantized):
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


@options_base
class _OfLengths(_Quantized):
    source_lengths: tuple[_Length, ...] | None = option(
        None,
        "Numbers of source tokens, EOS included, of the signatures from ids; the largest is the "
        "maximum length of a text. By default 16, 32, 64 and 128; in a browser 32 and 96, "
        "with a shortlist 12, 16, 20, 24, 32, 48 and 96. "
        "Models with more than 200 million parameters have only 128.",
        "integers of at least 2, or null",
        min_length=1,
    )


@options_class
class LiteRTOptions(_OfLengths, _WithShortlist, StoppingSearchOptions):
    """Options of `tflite`; the search is fixed in the export."""

    n_best: int | None = option(
        None, "Number of hypotheses that beam search returns; all by default.", ge=1, lt=INT32
    )


@options_class
class WebOptions(_OfLengths, _WithShortlist, StoppingSearchOptions):
    """Options of `web`; the search is fixed in the export."""

    npm: str | None = option(
        None,
        "Folder where npm installed LiteRT.js, or its `node_modules`; by default the working "
        "directory or one above.",
    )
