"""Arguments of calls with several texts: lists of strings, and a value for each text."""

import contextlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import INT32, received

LANGUAGE_OPTIONS = ("source_language", "target_language")
"""Options that name the languages of a text."""


def values_of_texts(value: Any) -> Any:
    """Returns a tuple of values for each text: of a list, an array, a column or an iterator.

    One value for all texts stays as it is, and so does a set, whose order is nothing.
    """
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers, and columns of tables
        value = value.tolist()
    is_one = isinstance(value, (str, bytes, Mapping, set, frozenset))
    return value if is_one or not isinstance(value, Iterable) else tuple(value)


def repeated(name: str, value: Any, count: int) -> list:
    """Returns a list of `count` values, from one value or from a tuple of `count` values."""
    if not isinstance(value, tuple):
        return [value] * count
    if len(value) != count:
        rule = f"There must be one `{name}`, or one for each text."
        raise InputError(f"{rule} Received: {len(value)} for {count} texts.")
    return list(value)


def seed_of_part(seed: Any, number: int) -> Any:
    """Returns the seed of a part of a text, so that the samples of equal parts differ.

    Args:
        seed: Seed of the text, None for the default. An invalid seed stays, to be refused.
        number: Number of the part, from 0. The first part has the seed of the text.
    """
    seed = 0 if seed is None else seed
    is_seed = isinstance(seed, int) and -INT32 <= seed < INT32
    return zlib.crc32(f"{seed} {number}".encode()) - INT32 if is_seed and number else seed


def checked_list(name: str, values: Any) -> list:
    """Returns a list of any collection or iterator; raises `InputError` for a string or a dict.

    A column of a table has no indices from 0 on, and an iterator can be read only once.
    """
    rule = f"`{name}` must be a list of strings."
    if isinstance(values, (str, bytes)):
        raise InputError(f"{rule} Received: one string.")
    with contextlib.suppress(TypeError):
        if not isinstance(values, Mapping):
            return list(values)
    raise InputError(f"{rule} Received: {received(values)}.")


def checked_texts(name: str, texts: Any) -> list[str]:
    """Returns `checked_list` of valid Unicode; raises an `InputError` for other elements."""
    texts = checked_list(name, texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            rule = f"`{name}` must be a list of strings."
            raise InputError(f"{rule} Received: one {type(text).__name__} in it.", index)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            place = f"half a surrogate pair at character {error.start + 1}"
            rule = f"`{name}` must be valid Unicode."
            raise InputError(f"{rule} Received: {place}.", index) from None
    return texts


def checked_phrases(phrases: Sequence[Sequence[str]], count: int) -> list[list[str]]:
    """Returns the phrases of each of `count` texts; raises `InputError` for other values."""
    phrases = checked_list("phrases", phrases)
    if len(phrases) != count:
        received = f"{len(phrases)} lists and {count} texts"
        raise InputError(f"There must be a list of phrases for each text. Received: {received}.")
    return [checked_texts("phrases", phrases_of_text) for phrases_of_text in phrases]
