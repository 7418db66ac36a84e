"""The built-in dates: one reading for each text, and two parts that share no day."""

import collections
import datetime
import re

import pytest

from keras_transformer.base.errors import InputError
from keras_transformer.cli.dates import LOCALES, date_corpus, date_patterns, write_date

NUMBER = re.compile(r"[0-9]+")


def frame_of(text):
    """The text without its numbers: the words and the punctuation that surround them."""
    return NUMBER.sub("#", text)


def read(text, readings):
    """The day that `text` names, by its frame alone: an independent way back."""
    ((month, roles),) = readings[frame_of(text)]
    fields = dict(zip(roles, map(int, NUMBER.findall(text)), strict=True))
    return datetime.date(fields["year"], fields.get("month", month), fields["day"])


@pytest.fixture(scope="module")
def readings():
    """All frames that can be written, each with its set of (named month, roles of numbers).

    Pattern, month and weekday decide a frame. Seven days from the 20th on of each month of a
    year give all 84 of the latter, and tell day (20 to 26), month (1 to 12) and year apart.
    """
    by_frame = collections.defaultdict(set)
    months, days = range(1, 13), range(20, 27)
    days = [datetime.date(2031, month, day) for month in months for day in days]
    for locale in LOCALES:
        for pattern in date_patterns(locale):
            for day in days:
                text = write_date(day, locale, pattern)
                role_of = {day.year: "year", day.day: "day", day.month: "month"}
                roles = tuple(role_of[int(number)] for number in NUMBER.findall(text))
                assert sorted(roles) in (["day", "year"], ["day", "month", "year"]), text
                named_month = None if "month" in roles else day.month
                by_frame[frame_of(text)].add((named_month, roles))
    return by_frame


def test_each_frame_can_be_read_in_one_way_only(readings):
    # A frame with one reading and the numbers in it make a date: no text has two.
    ambiguous = {frame: ways for frame, ways in readings.items() if len(ways) > 1}
    assert not ambiguous
    # The proof would find an ambiguous locale.
    october = frame_of(write_date(datetime.date(2031, 10, 20), "hr", "d MMMM y"))
    assert readings[october] == {(11, ("day", "year"))}  # November, as Polish has it


KNOWN = [("en", "MMM d, y", "Nov 20, 2026")]
KNOWN += [("de", "EEEE, d. MMMM y", "Freitag, 20. November 2026")]
KNOWN += [("pl", "d MMMM y", "20 listopada 2026"), ("ja", "y年M月d日", "2026年11月20日")]


@pytest.mark.parametrize(("locale", "pattern", "text"), KNOWN)
def test_known_dates_are_written_as_people_write_them(locale, pattern, text):
    assert pattern in date_patterns(locale)
    assert write_date(datetime.date(2026, 11, 20), locale, pattern) == text


def test_lines_are_aligned_and_follow_the_seed_and_no_day_is_in_both_parts(readings):
    corpus, same, other = (date_corpus(8_009, 503, seed=seed) for seed in (5, 5, 6))
    assert corpus == same != other
    train = 8_009, corpus.train_source, corpus.train_target
    parts = train, (503, corpus.held_out_source, corpus.held_out_target)
    for count, sources, targets in parts:
        assert len(set(sources)) == len(sources) == count
        assert [read(text, readings).isoformat() for text in sources] == targets
    held_out_days = set(corpus.held_out_target)
    assert len(held_out_days) == 503 and not held_out_days & set(corpus.train_target)
    characters = set("".join(corpus.train_source))
    assert not {c for c in characters if c.isspace()} - {" "}
    # Small enough that each character can have an id of its own.
    assert len(characters) < 300 and max(map(len, corpus.train_source)) < 50


@pytest.mark.parametrize("count", [-1, 1_000_001, 2.0, True, "7"])
def test_a_count_out_of_range_is_an_error(count):
    with pytest.raises(InputError, match=re.escape(f"num_train={count!r}")):
        date_corpus(count)
    with pytest.raises(InputError, match=re.escape(f"num_held_out={count!r}")):
        date_corpus(num_train=1, num_held_out=count)
