"""Synthetic parallel text: dates as people write them in 26 locales, and their ISO form.

`Freitag, 20. November 2026` → `2026-11-20`. The data needs no download, and has any size. Each line
has exactly one correct translation, so that exact match is a fair score.
"""

import datetime
import functools
import random
from typing import NamedTuple

from keras_transformer.base.options import check

FIRST_DAY = datetime.date(1950, 1, 1)
LAST_DAY = datetime.date(2049, 12, 31)
_NUM_DAYS = LAST_DAY.toordinal() - FIRST_DAY.toordinal() + 1

# Croatian is missing on purpose: its "listopada" is October, Polish "listopada" is November.
_DAY_FIRST = "en en_GB de nl sv da nb fr es it pt ca ro pl cs ru uk fi el tr id"
_DAY_FIRST_LOCALES = tuple(_DAY_FIRST.split())
LOCALES = (*_DAY_FIRST_LOCALES, "hu", "ja", "ko", "vi", "zh")

_NAMED_FORMATS = ("full", "long", "medium")
_SKELETONS = ("yMMMd", "yMMMEd")
_PLAIN_PATTERNS = ("d MMMM y", "EEEE d MMMM y", "EEE d MMM y")

# Far below the number of different texts (over four million), so that new texts are found fast.
_MAX_PAIRS = 1_000_000


class DateCorpus(NamedTuple):
    """Written dates and their ISO forms, line by line; the parts share neither a text nor a day."""

    train_source: list[str]
    train_target: list[str]
    held_out_source: list[str]
    held_out_target: list[str]


def date_corpus(num_train: int = 30_000, num_held_out: int = 500, seed: int = 0) -> DateCorpus:
    """Makes training pairs, and held-out pairs of other days.

    A day of both parts, written in another language, would leak the answer. Days are sampled
    uniformly from 1950 to 2049. No training text occurs twice, and none can mean two days.

    Args:
        num_train: Number of training pairs, at most 1,000,000.
        num_held_out: Number of held-out pairs, at most 10,000, all of different days.
        seed: Seed of the split and of the texts.

    Raises:
        InputError: A count is out of range.
    """
    # At least 26,525 of the 36,525 days stay for training.
    limits = (("num_train", num_train, _MAX_PAIRS), ("num_held_out", num_held_out, 10_000))
    for name, value, limit in limits:
        check(name, value, f"a whole number from 0 to {limit:,}", int, 0, limit)
    rng = random.Random(seed)
    days = [datetime.date.fromordinal(FIRST_DAY.toordinal() + i) for i in range(_NUM_DAYS)]
    rng.shuffle(days)
    held_out_days, train_days = days[:num_held_out], days[num_held_out:]
    held_out_source = [_write(day, rng) for day in held_out_days]
    iso_of_text: dict[str, str] = {}
    while len(iso_of_text) < num_train:
        day = rng.choice(train_days)
        # A text has one day, so that the same text again changes nothing.
        iso_of_text[_write(day, rng)] = day.isoformat()
    return DateCorpus(
        train_source=list(iso_of_text),
        train_target=list(iso_of_text.values()),
        held_out_source=held_out_source,
        held_out_target=[day.isoformat() for day in held_out_days],
    )


@functools.cache
def date_patterns(locale: str) -> tuple[str, ...]:
    """Returns the CLDR patterns of one of `LOCALES` for dates that can be read in only one way.

    Patterns with only numbers, unlike `"EEEE, d. MMMM y"`, must begin with the year: `04/05/2026`
    is in April in one country and in May in another.
    """
    parsed = _locale(locale)
    patterns = [parsed.date_formats[name].pattern for name in _NAMED_FORMATS]
    patterns += [parsed.datetime_skeletons[name].pattern for name in _SKELETONS]
    if locale in _DAY_FIRST_LOCALES:
        patterns += _PLAIN_PATTERNS
    if locale == "vi":
        # Short weekdays of Vietnamese are numerals ("Th 6"), a fourth number in the date.
        patterns.remove(parsed.datetime_skeletons["yMMMEd"].pattern)
    readable = [pattern for pattern in patterns if "MMM" in pattern or pattern.startswith("y")]
    return tuple(dict.fromkeys(readable))


def write_date(day: datetime.date, locale: str, pattern: str) -> str:
    """Writes `day` as `locale` does in `pattern`, with only plain spaces."""
    # Imported here, because the rest of the package works without Babel.
    from babel.dates import format_date

    text = format_date(day, pattern, locale=_locale(locale))
    # Nobody types the no-break spaces that CLDR puts before abbreviations such as "г.".
    return text.replace("\u202f", " ").replace("\xa0", " ")


@functools.cache
def _locale(name):
    from babel import Locale

    return Locale.parse(name)


def _write(day, rng):
    locale = rng.choice(LOCALES)
    return write_date(day, locale, rng.choice(date_patterns(locale)))
