"""Options of a call: which of them an engine takes, and their checked values."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np

from keras_transformer.base.errors import InputError, did_you_mean
from keras_transformer.base.options import received
from keras_transformer.decoding.search_options import DecodingOptions
from keras_transformer.text.per_text import LANGUAGE_OPTIONS

CALL_OPTIONS = ("alignment", "batch_size", "long_input", *LANGUAGE_OPTIONS)
"""Options of `translate` that are not options of its search."""


@dataclasses.dataclass(frozen=True)
class Request:
    """Checked options of a call, with the defaults of the engine.

    Attributes:
        options: Options of the search.
        batch_size: Maximum number of sentences per batch; None for the engine's choice.
        alignment: Whether each translation gets its alignment.
        long_input: Treatment of a text of too many tokens.
        threads: Number of threads, for an engine that takes it per call.
        signature: Name of the search in an export that has several.
    """

    options: DecodingOptions
    batch_size: int | None = None
    alignment: bool = False
    long_input: str = "refuse"
    threads: int | None = None
    signature: str = ""


@dataclasses.dataclass(frozen=True)
class OptionRules:
    """Names of the options that an engine takes; other options have fixed values.

    Attributes:
        translate: Options that `translate` takes; None for all.
        score: Options that `score` takes.
        fixed: Values of options that are not taken, where they are not the defaults.
    """

    translate: Collection[str] | None = None
    score: Collection[str] = ()
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(
        self,
        call: Literal["translate", "score"],
        options: Mapping[str, Any],
        fixed_options: Mapping[str, Any],
        where: str,
        advice: str = "",
    ) -> None:
        """Raises `InputError` for an option that a call does not take, except at its fixed value.

        Args:
            call: Name of the call.
            options: Options by name; None is the default of an option.
            fixed_options: Values of all options, by name, where they are fixed.
            where: Name of the engine in the message, and `advice` after it.
        """
        taken = self.translate if call == "translate" else self.score
        for name, value in options.items():
            if taken is None or name in taken:
                continue
            if name not in fixed_options:
                nearest = did_you_mean(name, fixed_options)
                raise InputError(f"There is no option `{name}`.{nearest}")
            # `!=` would compare the elements of an array.
            if value is not None and not np.array_equal(value, fixed_options[name]):
                raise InputError(
                    f"`{name}` is fixed at {fixed_options[name]!r} in {where}{advice}. "
                    f"Received: {name}={received(value)}."
                )
