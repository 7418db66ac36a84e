"""The README of an export of several languages: their tokens, and an example that names them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_transformer.text.languages import Languages, language_name
from keras_transformer.text.tags import language_in_tag
from keras_transformer.text.vocabulary import SPACE

_TEXT = "A text."
_LISTED = 12  # directions
_PLACES = {
    "source_prefix": "A source begins with the token of {} language.",
    "source_suffix": "A source ends with the token of {} language.",
    "target_prefix": "A translation is forced to begin with the token of {} language; "
    "its text is without the token.",
}
_OF_SIDE = {"source": "its own", "target": "the target"}


class Example(NamedTuple):
    """Example of a source in the first direction of an export.

    Attributes:
        text: The source, with the token of a language if it is a tag in the text.
        source_prefix: Pieces before the text's pieces.
        source_suffix: Pieces after the end of the source.
        target_prefix: Pieces that a translation is forced to begin with.
        inputs: Codes of languages by the names of the inputs of a program that takes codes.
    """

    text: str = _TEXT
    source_prefix: tuple[str, ...] = ()
    source_suffix: tuple[str, ...] = ()
    target_prefix: tuple[str, ...] = ()
    inputs: Mapping[str, str] = {}

    @property
    def text_of_inputs(self) -> str:
        """The source for a program that takes the codes instead of a tag."""
        return _TEXT if self.inputs else self.text


def example_of(manifest: Mapping[str, Any]) -> Example:
    """Returns the example for a manifest."""
    languages = Languages.from_dict(manifest.get("language_tokens", {}))
    if not languages.tokens:
        return Example()
    direction = languages.tokens_of(*languages.directions[0])
    codes = dict(zip(("source_language", "target_language"), direction.codes, strict=True))
    inputs = {name: codes[name] or "" for name in languages.inputs}
    prefix, text = direction.source_prefix, _TEXT
    if prefix and language_in_tag(prefix[0]):
        prefix, text = (), f"{prefix[0]} {_TEXT}"
    pieces = (prefix, direction.source_suffix, direction.target_prefix)
    return Example(text, *(tuple(map(_piece, tokens)) for tokens in pieces), inputs)


def _piece(token):
    """Returns the piece of a token in a SentencePiece model, in which a tag follows a space."""
    return SPACE + token if language_in_tag(token) else token


def language_section(manifest: Mapping[str, Any]) -> str:
    """Returns the section of a README about the tokens of languages, nothing without tokens."""
    languages = Languages.from_dict(manifest.get("language_tokens", {}))
    if not languages.tokens:
        return ""
    sentences = [
        text.format(_OF_SIDE[side])
        for text, side in zip(_PLACES.values(), languages.sides, strict=True)
        if side
    ]
    pairs = [f"{source or 'any'}-{target}" for source, target in languages.directions]
    if len(pairs) > _LISTED:
        pairs[_LISTED - 1 :] = [f"{len(pairs) - _LISTED + 1} more"]
    sentences.append(f"Directions: {', '.join(pairs)}.")
    rows = [
        f"| {language_name(code)} | `{code}` | `{token}` |"
        for code, token in languages.tokens.items()
    ]
    table = "\n".join(["| language | code | token |", "|---|---|---|", *rows])
    return "\n## Languages\n\n" + " ".join(sentences) + f"\n\n{table}\n"
