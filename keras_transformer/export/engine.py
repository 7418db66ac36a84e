"""What the engines that read an export share: checks, batches of similar length, results."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from keras_transformer.errors import InputError, did_you_mean
from keras_transformer.inputs import check_texts
from keras_transformer.options import DecodingOptions
from keras_transformer.translation import Translation


def built_in() -> dict[str, Any]:
    """What an export does with options that it does not take."""
    return {**vars(DecodingOptions()), "alignment": False, "target_prefixes": None}


def check_fixed_options(options: dict, built_in: dict) -> None:
    """Raises `InputError` for an option that is unknown or not what the export does."""
    for name, value in options.items():
        if name not in built_in:
            raise InputError(f"There is no option `{name}`.{did_you_mean(name, built_in)}")
        if value != built_in[name]:
            raise InputError(
                f"`{name}` is not in this export, which does what {name}={built_in[name]!r} "
                f"does; a run folder has it. Received: {name}={value!r}."
            )


def check_as_exported(manifest: dict, name: str, value) -> None:
    """Raises `InputError` unless an option is None or what the export was made with."""
    if value is not None and value != manifest[name]:
        raise InputError(
            f"`{name}` is fixed in this export, at {manifest[name]!r}. Received: {name}={value!r}."
        )


def encoded(name: str, texts: Sequence[str]) -> list[bytes]:
    """Texts as UTF-8; `InputError` with the name of their list if one is no valid Unicode."""
    check_texts(name, texts)
    result = []
    for place, text in enumerate(texts):
        try:
            result.append(text.encode("utf-8"))
        except UnicodeEncodeError:
            raise InputError(
                f"`{name}` must be valid Unicode. Received: half a surrogate pair.", place
            ) from None
    return result


def with_alternatives(hypotheses: Sequence[Translation]) -> Translation:
    """The first with the others as its alternatives, which may be fewer than were asked for."""
    best, *others = hypotheses
    others = tuple(each for each in others if each.score > -math.inf)
    return dataclasses.replace(best, alternatives=others)
