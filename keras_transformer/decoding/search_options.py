"""Options of decoding, declared once with range, meaning and default; imports no Keras."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import pydantic

from keras_transformer.base.errors import InputError
from keras_transformer.base.options import (
    FLOAT32,
    INT32,
    Int32,
    check_ids,
    option,
    options_base,
    options_class,
)
from keras_transformer.decoding.ranking import RANKINGS, Ranking


class Filter(NamedTuple):
    """A filter of sampling: an input of compiled functions, with a value for each sentence.

    Attributes:
        dtype: Type of the input.
        lowest: Lowest allowed value.
        highest: Highest allowed value.
        nan: What NaN becomes.
    """

    dtype: str
    lowest: float
    highest: float
    nan: float = 0

    def nearest(self, value: float) -> float:
        """Returns the nearest allowed value."""
        return self.nan if value != value else min(max(value, self.lowest), self.highest)


FILTERS = {
    "temperature": Filter("float32", 1e-6, FLOAT32 / 2, nan=1e-6),
    "top_k": Filter("int32", 0, INT32 - 1),
    "top_p": Filter("float32", 1e-9, 1.0, nan=1.0),
}
"""Filters of sampling by the names of their options."""


# Limits of numbers whose products and powers, over all tokens of a translation, float32 holds.
_LARGEST_EXPONENT, _LARGEST_PRICE = 10, 1e6
# Minus infinity bans an id.
_Bias = Annotated[float, pydantic.Field(strict=True, allow_inf_nan=True, lt=_LARGEST_PRICE)]
# Beam sizes of sentences with phrases: powers of two, because each is a program of its own.
_LEAST_BEAM_OF_PHRASES, _LARGEST_BEAM_OF_PHRASES = 4, 32
_MAX_LENGTH_RATIO = "as a multiple of the source's, plus 10 without `length_normalization: marian`"
# Options of at least one ranking, in the order of their first ranking.
_RANKING_NUMBERS = tuple(
    dict.fromkeys(name for ranking in RANKINGS.values() for name in ranking.options)
)
_SCORES = " ".join(f"{name}: {ranking.meaning}." for name, ranking in RANKINGS.items())


def _count(default, meaning, minimum=0):
    return option(default, meaning, ge=minimum, lt=INT32)


def _number(default, meaning, **limits):
    return option(default, meaning, **{"ge": 0, **(limits or {"lt": FLOAT32})})


# Each class below adds options to the class before it. Lists of names are made of their fields.


@options_base
class SearchOptions:
    """Search options that a run and an export of any format have defaults for."""

    beam_size: int = _count(4, "Beam size; 1 is greedy search.", 1)
    length_penalty: float = _number(
        0.6, "Exponent of the GNMT length penalty ((5 + length) / 6)^x.", le=_LARGEST_EXPONENT
    )
    length_normalization: Literal[tuple(RANKINGS)] = option(  # type: ignore[valid-type]
        "gnmt", f"Score of a hypothesis. {_SCORES}", strict=None
    )
    word_penalty: float = _number(
        0.0, "Price of each token with `length_normalization: marian`.", lt=_LARGEST_PRICE
    )
    max_length_ratio: float | None = option(
        None,
        f"Maximum number of tokens of a translation, {_MAX_LENGTH_RATIO}; null: 2.",
        ge=0,
        lt=FLOAT32,
    )


@options_base
class StoppingSearchOptions(SearchOptions):
    """Search options of exports that search with the stop rules of this package."""

    early_stopping: bool = option(
        True,
        "End the beam search of a sentence when as many hypotheses as the beam size have ended. "
        "Otherwise the search continues until no other hypothesis can score higher.",
    )


@options_base
class RunSearchOptions(StoppingSearchOptions):
    """Search options that a run has defaults for."""

    min_length: int = _count(0, "Minimum number of tokens of a translation, including EOS.")
    no_repeat_ngram_size: int = _count(
        0, "Size of n-grams, in tokens, that may occur only once; 0: no limit."
    )
    banned_ids: tuple[Int32, ...] = option(
        (), "Ids that are never chosen.", "a list of integers", strict=None
    )
    shortlist: bool = option(
        False,
        "Choose among the tokens of the run's shortlist for each sentence, which takes less time; "
        "scores are over these tokens.",
    )


@options_class
class DecodingOptions(RunSearchOptions):
    """Options of a search; they may be NumPy's numbers and any sequences.

    Raises:
        InputError: A value is out of range, options contradict each other, or a name is unknown.
    """

    max_length_ratio: float = option(
        2.0,
        f"Maximum number of tokens, {_MAX_LENGTH_RATIO}; infinity: any.",
        "a number of at least 0 and below 2**127, or infinity",
        ge=0,
        allow_inf_nan=True,
    )
    max_length: int | None = _count(
        None,
        "Maximum number of tokens, including EOS; by default the run's `max_target_length`.",
        1,
    )
    min_length_ratio: float = _number(
        0.0, "Minimum number of tokens, as a multiple of the source's."
    )
    allow_unknown: bool = option(False, "Let a translation contain `<unk>`, the unknown token.")
    logit_bias: tuple[tuple[Int32, _Bias], ...] = option(
        (),
        "Numbers that are added to the logits of ids before choosing.",
        f"a dict from ids to numbers below {_LARGEST_PRICE:.0f}",
    )
    n_best: int = _count(
        1, "Number of translations per sentence: at most the beam size, or any with sampling.", 1
    )
    sampling: bool = option(False, "Sample instead of searching; the beam size has no effect then.")
    temperature: float = option(
        1.0, "Divisor of the logits in sampling.", ge=FILTERS["temperature"].lowest, lt=FLOAT32
    )
    top_k: int = _count(0, "Sample from this number of most probable tokens; 0: all.")
    top_p: float = option(
        1.0,
        "Sample from the smallest set of most probable tokens with this probability.",
        ge=FILTERS["top_p"].lowest,
        le=FILTERS["top_p"].highest,
    )
    seed: Int32 | Annotated[tuple[Int32, ...], pydantic.Field(strict=True)] = option(
        0,
        "Seed of the samples. Equal seeds give equal samples in any batch. `Translator.translate` "
        "also takes a seed per sentence.",
        "an integer of at least -2**31 and below 2**31, or a list of them",
        strict=None,
    )

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _to_plain(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Converts other sequences to tuples, and NumPy's numbers to Python's."""
        if info.field_name == "logit_bias" and isinstance(value, Mapping):
            value = tuple(value.items())
        return _plain(value)

    @pydantic.model_validator(mode="after")
    def _check_beams(self) -> "DecodingOptions":
        if not self.sampling and self.n_best > self.beam_size:
            rule = "`n_best` must be at most `beam_size`."
            received = f"n_best={self.n_best}, beam_size={self.beam_size}"
            raise InputError(f"{rule} Received: {received}.")
        if not self.sampling:
            for name in ("seed", *FILTERS):
                if (value := getattr(self, name)) != getattr(DecodingOptions, name):
                    rule = f"`{name}` needs `sampling=True`: a search does not sample."
                    raise InputError(f"{rule} Received: {name}={value!r}.")
        for name in _RANKING_NUMBERS:
            value, default = getattr(self, name), getattr(DecodingOptions, name)
            if value != default and name not in self.ranking_class.options:
                rankings = [key for key, ranking in RANKINGS.items() if name in ranking.options]
                rule = f"`{name}` needs `length_normalization: {' or '.join(rankings)}`."
                raise InputError(f"{rule} Received: {name}={value}.")
        if self.max_length is not None:
            self.check_min_length(self.max_length)
        # Infinity has its own meaning; a number beyond float32 would silently become infinity.
        if FLOAT32 <= self.max_length_ratio < float("inf"):
            rule = "`max_length_ratio` must be below 2**127, or infinity."
            raise InputError(f"{rule} Received: {self.max_length_ratio!r}.")
        return self

    @property
    def beams(self) -> int:
        """Number of hypotheses of a sentence that are extended at once."""
        return self.n_best if self.sampling else self.beam_size

    def with_phrases(self, num_tokens: int) -> "DecodingOptions":
        """Returns the options of a sentence, with a beam that can hold its phrases.

        The beam has a place for each number of phrase tokens, from none to all. A smaller beam has
        only hypotheses that begin with the phrases. See `docs/howto/control_output.md`.

        Args:
            num_tokens: Number of tokens of all phrases.
        """
        beam_size = _LEAST_BEAM_OF_PHRASES
        while beam_size <= num_tokens and beam_size < _LARGEST_BEAM_OF_PHRASES:
            beam_size *= 2
        if self.sampling or not num_tokens or self.beam_size >= beam_size:
            return self
        return dataclasses.replace(self, beam_size=beam_size)

    @property
    def ranking_class(self) -> type[Ranking]:
        """Class of the ranking that `length_normalization` names."""
        return RANKINGS[self.length_normalization]

    @property
    def ranking(self) -> Ranking:
        """Ranking of hypotheses, with Python's numbers."""
        return self.ranking_class.of(self)

    @property
    def length_margin(self) -> int:
        """Number of tokens added to the limit of `max_length_ratio`."""
        return self.ranking_class.length_margin

    @property
    def stops_early(self) -> bool:
        """Stop rule of the search; greedy search and sampling always stop early."""
        return self.early_stopping or self.beam_size == 1 or self.sampling

    def resolve_max_length(self, max_length: int) -> int:
        """Returns the maximum number of tokens of a translation, by default `max_length`."""
        return max_length if self.max_length is None else self.max_length

    def check_min_length(self, max_length: int) -> None:
        """Raises `InputError` for a minimum above the maximum, by default `max_length`."""
        longest = self.resolve_max_length(max_length)
        if self.min_length > longest:
            rule = "`min_length` must be at most `max_length`."
            received = f"min_length={self.min_length}, max_length={longest}"
            raise InputError(f"{rule} Received: {received}.")

    @property
    def program_key(self) -> tuple:
        """Key of options that need separate compiled functions; the others are its arguments."""
        sizes = self.beams, self.n_best, self.no_repeat_ngram_size
        rules = self.stops_early, self.allow_unknown, self.length_normalization
        return self.sampling, *rules, *sizes

    def check_ids(self, vocabulary_size: int) -> None:
        """Raises `InputError` for ids outside the model's target vocabulary."""
        check_ids("banned_ids", self.banned_ids, vocabulary_size)
        check_ids("logit_bias", list(dict(self.logit_bias)), vocabulary_size)


def _plain(value):
    if hasattr(value, "tolist"):
        value = value.tolist()
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return tuple(map(_plain, value)) if is_list else value


def _names(options):
    return tuple(field.name for field in dataclasses.fields(options))


RANKING_OPTIONS = ("length_normalization", *_RANKING_NUMBERS)
"""Options of a `Ranking`."""
RUN_DEFAULTS = _names(RunSearchOptions)
"""Options that a run has defaults for."""


def exported_search_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the search options in an export's options or manifest; null means the default."""
    names = (*_names(StoppingSearchOptions), "shortlist")
    return {name: values[name] for name in names if values.get(name) is not None}


def run_search_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the search options among a run's defaults, without constraints of no effect."""
    always = {name for name in _names(StoppingSearchOptions) if values.get(name) is not None}
    return {name: values[name] for name in RUN_DEFAULTS if name in always or values[name]}


def without_excluded(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults that options allow: another ranking may not have their numbers."""
    name = options.get("length_normalization")
    ranking = RANKINGS.get(name) if isinstance(name, str) else None  # Others are refused later.
    excluded = set() if ranking is None else set(_RANKING_NUMBERS) - set(ranking.options)
    return {name: value for name, value in defaults.items() if name not in excluded}
