"""Built-in parallel text: dates as people write them in 26 locales, and their ISO form.

`Freitag, 20. November 2026` → `2026-11-20`. The data needs no download, can be made in any
amount, and has exactly one right answer for each line, so that exact match is a fair score.
"""

import dataclasses
import datetime
import functools
import random

from keras_transformer.errors import InputError

FIRST_DAY = datetime.date(1950, 1, 1)
LAST_DAY = datetime.date(2049, 12, 31)
_NUM_DAYS = LAST_DAY.toordinal() - FIRST_DAY.toordinal() + 1

# Croatian is left out on purpose: its "listopada" is October, Polish "listopada" is November.
_DAY_FIRST_LOCALES = (
    *("en", "en_GB", "de", "nl", "sv", "da", "nb"),
    *("fr", "es", "it", "pt", "ca", "ro"),
    *("pl", "cs", "ru", "uk"),
    *("fi", "el", "tr", "id"),
)
_OWN_ORDER_LOCALES = ("hu", "ja", "ko", "vi", "zh")
LOCALES = _DAY_FIRST_LOCALES + _OWN_ORDER_LOCALES

_NAMED_FORMATS = ("full", "long", "medium")
_SKELETONS = ("yMMMd", "yMMMEd")
_PLAIN_PATTERNS = ("d MMMM y", "EEEE d MMMM y", "EEE d MMM y")

# Far below the texts that exist (over four million), so that drawing new ones stays quick.
_MAX_PAIRS = 1_000_000


@dataclasses.dataclass(frozen=True)
class DateCorpus:
    """Written dates and their ISO forms, in two parts that share neither a text nor a day.

    Attributes:
        train_source: Written dates to learn from, all different.
        train_target: Their ISO forms, line by line.
        held_out_source: Written dates to measure on, each of a day of its own.
        held_out_target: Their ISO forms, line by line.
    """

    train_source: list[str]
    train_target: list[str]
    held_out_source: list[str]
    held_out_target: list[str]


def date_pairs(count, seed=0):
    """Dates written out, and the same dates in ISO form.

    Args:
        count: Number of pairs, at most 1,000,000.
        seed: Seed of the choice; the same seed gives the same pairs.

    Returns:
        `(texts, iso)`, two lists of `count` strings. Days are drawn uniformly from 1950 to
        2049; no text occurs twice, and none could stand for two days.

    Raises:
        InputError: `count` is out of range.

    Example:

    >>> texts, iso = date_pairs(3)
    >>> len(texts), len(iso[0])
    (3, 10)
    """
    _check_count("count", count, _MAX_PAIRS)
    return _write_pairs(range(_NUM_DAYS), count, random.Random(seed))


def date_corpus(num_train=30_000, num_held_out=500, seed=0):
    """Training pairs, and pairs to measure on that the training part gives no hint of.

    The parts are split by day: one day written in another language would leak the answer.

    Args:
        num_train: Number of training pairs, at most 1,000,000.
        num_held_out: Number of held-out pairs, at most 10,000, each of another day.
        seed: Seed of the split and of the texts.

    Returns:
        A `DateCorpus`.

    Raises:
        InputError: A count is out of range.
    """
    _check_count("num_train", num_train, _MAX_PAIRS)
    # At least 26,525 of the 36,525 days stay for training.
    _check_count("num_held_out", num_held_out, 10_000)
    rng = random.Random(seed)
    days = list(range(_NUM_DAYS))
    rng.shuffle(days)
    held_out_days, train_days = days[:num_held_out], days[num_held_out:]
    held_out_source = [_write(_day(index), rng) for index in held_out_days]
    train_source, train_target = _write_pairs(train_days, num_train, rng)
    return DateCorpus(
        train_source=train_source,
        train_target=train_target,
        held_out_source=held_out_source,
        held_out_target=[_day(index).isoformat() for index in held_out_days],
    )


def date_patterns(locale):
    """The CLDR patterns in which `locale` writes a date that can be read in one way only.

    Args:
        locale: One of `LOCALES`.

    Returns:
        A tuple of patterns such as `"EEEE, d. MMMM y"`. All-numeric ones are kept only if
        the year comes first: `04/05/2026` is April in one country and May in the next.
    """
    parsed = _locale(locale)
    patterns = [parsed.date_formats[name].pattern for name in _NAMED_FORMATS]
    patterns += [parsed.datetime_skeletons[name].pattern for name in _SKELETONS]
    if locale in _DAY_FIRST_LOCALES:
        patterns += _PLAIN_PATTERNS
    if locale == "vi":
        # Its short weekdays are numerals ("Th 6"), a fourth number in the date.
        patterns.remove(parsed.datetime_skeletons["yMMMEd"].pattern)
    readable = [pattern for pattern in patterns if "MMM" in pattern or pattern.startswith("y")]
    return tuple(dict.fromkeys(readable))


def write_date(day, locale, pattern):
    """`day` as `locale` writes it in `pattern`, with plain spaces only."""
    # Imported late: the rest of the package works without Babel.
    from babel.dates import format_date

    text = format_date(day, pattern, locale=_locale(locale))
    # Nobody types the no-break spaces that CLDR puts before "г." and its like.
    return text.replace("\u202f", " ").replace("\xa0", " ")


@functools.cache
def _locale(name):
    from babel import Locale

    return Locale.parse(name)


@functools.cache
def _patterns_by_locale():
    return tuple((locale, date_patterns(locale)) for locale in LOCALES)


def _day(index):
    return datetime.date.fromordinal(FIRST_DAY.toordinal() + index)


def _write(day, rng):
    locale, patterns = rng.choice(_patterns_by_locale())
    return write_date(day, locale, rng.choice(patterns))


def _write_pairs(day_indices, count, rng):
    """`count` pairs of different texts, their days drawn from `day_indices`."""
    iso_of_text = {}
    while len(iso_of_text) < count:
        day = _day(rng.choice(day_indices))
        # One text has one day, so that a text drawn again changes nothing.
        iso_of_text[_write(day, rng)] = day.isoformat()
    return list(iso_of_text), list(iso_of_text.values())


def _check_count(name, value, limit):
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise InputError(
            f"`{name}` must be a whole number from 0 to {limit:,}. Received: {name}={value!r}."
        )
