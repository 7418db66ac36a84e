"""Placeholders stand for what both sides of a pair have, and give it back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.noise import Noise, PairNoise
from keras_transformer.data.placeholders import with_placeholders
from keras_transformer.extras.corpora.rules import PairRules
from keras_transformer.text.patterns import ITEM
from keras_transformer.text.symbols import Placeholders

EIGHT = Placeholders(8)
PAIRS = [
    ("Please visit https://example.org.", "请访问https://example.org。"),
    ("See www.example.org, please.", "www.example.org를 보세요."),
    ("More (at https://example.org/a_(b)).", "詳細（https://example.org/a_(b)）。"),
    ('It is at "https://example.org".', "Es steht unter „https://example.org“."),
    ("Write to me@example.org.", "请写信给me@example.org。"),
    ("Write to me@example.org.", "เขียนถึงme@example.orgครับ"),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_with_one_address_has_it_for_placeholders_cleaning_and_noise(pair):
    source, target = with_placeholders(*pair, EIGHT)
    (symbol,) = re.findall(r"<ph_\d>", source)
    assert re.findall(r"<ph_\d>", target) == [symbol] and "example" not in source + target
    assert PairRules(without=["encoding"]).broken(*pair) is None
    address = ITEM.findall(pair[0])[0]
    for noise in ("upper_case", "title_case", "typos", "no_punctuation"):
        for seed in range(5):
            (changed,) = PairNoise(Noise(**{noise: 1.0})).texts([pair], seed)
            assert all(address in side for side in changed), changed
    (changed,) = PairNoise(Noise(upper_case=1.0)).texts([pair], 0)
    assert changed[0].split(address) == pair[0].upper().split(address.upper())


def test_items_of_a_pair_are_equal_despite_differences_that_nobody_sees():
    # `ß` and an `ä` of two characters, a word with a soft hyphen, and other apostrophes.
    pair = "{größe} {a\u0308} {it's}", "{it’s} {ä} {grö\u00adße}"
    one, other = with_placeholders(*pair, EIGHT)
    assert one.split() == other.split()[::-1] and "{" not in one


def test_the_numbers_of_a_pair_are_the_same_in_every_process():
    pair = with_placeholders("See {a} and {b}.", "Siehe {b} und {a}.", Placeholders(7))
    # The source's checksum, as the program gzip writes it, is 2,786,148,833.
    assert pair == ("See <ph_7> and <ph_1>.", "Siehe <ph_1> und <ph_7>.")


ITEMS = ["{a}", "{b}", "%10$s", "a@b.co.uk", "https://a.org/b", "<b>"]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@given(
    items=st.lists(st.sampled_from(ITEMS), max_size=9),
    more=st.lists(st.sampled_from(ITEMS), max_size=2),
    word=st.sampled_from(["a", "b", "c"]),
    order=st.randoms(use_true_random=False),
)
def test_placeholders_stand_for_different_items_and_give_the_pair_back(
    size, items, more, word, order
):
    shuffled = [*items, *more]
    order.shuffle(shuffled)
    source, target = f"{word} {' '.join(items)}", f"{word} {' '.join(shuffled)}"
    changed = with_placeholders(source, target, Placeholders(size))
    names = [re.findall(r"<ph_\d+>", side) for side in changed]
    assert sorted(names[0]) == sorted(names[1]) and len({*names[0]}) == len(names[0])
    assert {*names[0]} <= {f"<ph_{number}>" for number in range(1, size + 1)}
    equal = [item for item in items if items.count(item) == shuffled.count(item)]
    assert len(names[0]) == min(size, len(equal))
    originals = dict(zip(changed[0].split(), source.split(), strict=True))
    for name, item in zip(changed[1].split(), target.split(), strict=True):
        assert not name.startswith("<ph_") or originals[name] == item


@pytest.mark.parametrize("number", ["1", "1.000.000", "1,5", "2026-11-28", "17:00:59", "1/2"])
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_number_is_one_item_with_all_its_signs_and_in_any_width(number, is_wide):
    wide = "".join(chr(ord(sign) + 0xFEE0) if sign.isdigit() else sign for sign in number)
    pair = f"In {number} steps.", f"In {wide if is_wide else number} Schritten."
    changed = with_placeholders(*pair, Placeholders(1, numbers=True))
    assert changed == ("In <ph_1> steps.", "In <ph_1> Schritten.")
    assert with_placeholders(*pair, Placeholders(1)) == pair
