"""URLs and e-mail addresses are found whole in every script, and nothing else with them."""

import itertools
import re
import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer import Translation
from keras_transformer.corpora.rules import PairRules
from keras_transformer.data.noise import Noise, PairNoise
from keras_transformer.steps.markup import protect, restore
from keras_transformer.steps.placeholders import ITEM, with_placeholders
from keras_transformer.text.symbols import Placeholders

EIGHT = Placeholders(8)
# Items stand in double angle brackets.
MARKED = """
详情请访问⟪https://example.org⟫。谢谢大家的支持！
(see ⟪https://en.wikipedia.org/wiki/Bank_(geography)⟫) is near
请访问⟪www.example.org⟫网站，或⟪www.example.org/a⟫。
자세한 내용은 ⟪www.example.org⟫에서 확인하세요.
ดูรายละเอียดที่⟪www.example.org⟫ครับ
詳細は⟪https://example.org/a?b=1⟫をご覧ください。
ព័ត៌មាន⟪https://example.org⟫។ ဒီမှာ⟪https://example.org⟫၊ བོད་⟪https://example.org⟫།
„⟪https://example.org⟫“ ‚⟪https://example.org⟫‘ «⟪https://example.org⟫» ‹⟪https://example.org⟫›
“⟪https://example.org⟫” ‘⟪https://example.org⟫’ »⟪https://example.org⟫« ”⟪https://example.org⟫”
「⟪https://example.org⟫」『⟪https://example.org⟫』《⟪https://example.org⟫》【⟪https://example.org⟫】
（⟪https://example.org⟫）〈⟪https://example.org⟫〉［⟪https://example.org⟫］｛⟪https://example.org⟫｝
"⟪https://example.org⟫" '⟪https://example.org⟫' `⟪https://example.org⟫` <⟪https://example.org⟫>
⟪HTTPS://EXAMPLE.ORG/Path⟫. ⟪Http://a.org⟫! ⟪ftp://a.org/x⟫, ⟪FTP://a.org⟫; ⟪ftps://a.org⟫:
(⟪Www.a.org⟫?) ⟪WWW.A.ORG⟫...
联系⟪a@b.org⟫或⟪c.d@e.co.jp⟫。 메일은⟪me@x.kr⟫로. อีเมล⟪a@b.org⟫ครับ „⟪a-b+c@d-e.org⟫“ ⟪a@b.org⟫-
⟪почта@пример.рф⟫, ⟪https://пример.рф/страница⟫. ⟪https://مثال.إختبار⟫، ⟪https://उदाहरण.भारत⟫।
⟪https://例え.jp⟫へ、⟪https://www.例え.jp/a⟫。⟪https://食狮.中国⟫谢谢 ⟪https://食狮.中国/x?y=1⟫。
⟪https://한국.한국⟫에서 ⟪https://도메인.kr⟫에서 ⟪https://โดเมน.ไทย⟫ครับ ⟪www.例え.テスト⟫。
以http://开头的网址。 https://中文 http:// https://。 www. www... awww.cute.org a@b x@.org
⟪https://a.org/x?a[]=1&b[0]=2⟫, [⟪https://a.org⟫] ⟪https://[::1]:8080/x⟫.
⟪https://a.org/{id}/%s⟫ ⟪https://{host}/$X⟫ ⟪https://a.org/((a)b(c))d⟫) ⟪https://a.org⟫(see
[text](⟪https://a.org/x_(y)_z⟫), **⟪https://a.org⟫** _⟪https://a.org/a_b⟫_ ~~⟪https://a.org/~me⟫~~
'⟪https://a.org⟫','⟪https://b.org⟫' ⟪https://a.org⟫,⟪https://b.org⟫;⟪www.c.org⟫|⟪d@e.org⟫|
⟪https://a.org/d'Arc⟫ ⟪https://a.org/Newton–Raphson⟫ ⟪https://a.org⟫—see ⟪https://a.org⟫…
⟪https://a.org⟫!!! ⟪https://a.org⟫?! ⟪https://a.org/?⟪q=1⟫.
git+⟪https://a.org/b.git@v1.2⟫ ⟪https://web.archive.org/web/2020/https://a.org⟫ ⟪https://u:p@a.org:80/#x⟫
""".replace("/?⟪q", "/?q").strip()


@pytest.mark.parametrize("marked", MARKED.splitlines())
def test_an_address_ends_where_its_sentence_goes_on(marked):
    text = re.sub("[⟪⟫]", "", marked)
    assert ITEM.findall(text) == re.findall("⟪(.*?)⟫", marked)
    (protected,) = protect(text, "placeholders", EIGHT)
    numbers = itertools.count(1)
    expected = re.sub("⟪.*?⟫", lambda match: f"<ph_{next(numbers)}>", marked)
    assert protected.text == expected


CLOSED = ["", "()", "(a)", "(a,(b))", "[0]", "{id}", "(a[0]{b})"]
PARTS = set("/-#&%@(){}[")  # of URLs
SIGNS = [c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c)[0] in "PZ"]
SIGNS = [c for c in SIGNS if c not in PARTS and unicodedata.category(c) != "Pc"]
SIGNS += [*"_~<>`|\\\n\t😀", *').  ".  ),  ]]  })  。」'.split()]


@pytest.mark.parametrize("closed", CLOSED)
def test_no_sign_after_an_address_belongs_to_it_and_each_closed_bracket_does(closed):
    assert len(SIGNS) > 800
    for sign, begin in itertools.product(SIGNS, ("https://", "www.")):
        address = f"{begin}example.org/a{closed}"
        assert ITEM.findall(f"x {address}{sign} y") == [address], sign
        assert ITEM.findall(f"犬{address}{sign}犬") == [address], sign


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


def test_an_address_comes_back_where_it_touches_a_word_without_spaces():
    source = "详情请访问https://example.org。谢谢大家的支持！"
    (protected,) = protect(source, "placeholders", EIGHT)
    translation = Translation("Siehe <ph_1>. Danke für alles!", 0.0)
    assert restore(translation, protected).text == "Siehe https://example.org. Danke für alles!"


LONG = "( [a ((a) 'a . www. http:// a(http:// (. 中. 中 -.a@ 例.a中 (a.)".split()


@pytest.mark.parametrize("begin", ["", "http://a", "http://中", "http://a("])
@pytest.mark.parametrize("part", LONG)
def test_a_text_is_read_once_for_its_addresses(begin, part):
    text = begin + part * (1 << 16)
    start = time.process_time()
    ITEM.findall(text)
    # Read again from each of its characters, it would take minutes.
    assert time.process_time() - start < 5


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("size", [1, 4, 11])
def test_placeholders_are_recognized_by_their_symbols(size, numbers):
    placeholders = Placeholders(size, numbers)
    symbols = placeholders.symbols
    assert symbols[-1] == f"<ph_{size}>" and len(symbols) == size + numbers
    assert Placeholders.of_symbols(["<2de>", *symbols[::-1], "<sep>"]) == placeholders


def test_without_placeholders_there_are_no_symbols():
    assert Placeholders().symbols == Placeholders(0, True).symbols == []
    assert Placeholders.of_symbols(["<2de>", "<sep>"]) == Placeholders()


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
