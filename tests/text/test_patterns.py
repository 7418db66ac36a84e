"""URLs and e-mail addresses are found whole in every script, and nothing else with them; units."""

import itertools
import re
import sys
import time
import unicodedata

import pytest
import regex

from keras_transformer.text.patterns import ITEM, UNIT

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
⟪git+https://a.org/b.git@v1.2⟫ ⟪https://web.archive.org/web/2020/https://a.org⟫ ⟪https://u:p@a.org:80/#x⟫
⟪file:///home/me/a.txt⟫, ⟪wss://a.org/x?y⟫; ⟪ssh://git@a.org:22/b.git⟫. (⟪SFTP://a.org⟫) 请⟪wss://a.org⟫。
⟪com.example.app://open⟫ ⟪ms-settings://a⟫! see⟪https://a.org⟫ voir⟪http://a.org⟫ é⟪ws://a.org⟫
c://x :// a:// +://a wss:// ⟪file:///⟫ x:y//z and//or 1://a
""".replace("/?⟪q", "/?q").strip()


@pytest.mark.parametrize("marked", MARKED.splitlines())
def test_an_address_ends_where_its_sentence_goes_on(marked):
    text = re.sub("[⟪⟫]", "", marked)
    assert ITEM.findall(text) == re.findall("⟪(.*?)⟫", marked)
    assert ITEM.sub("⟪⟫", text) == re.sub("⟪.*?⟫", "⟪⟫", marked)


# Paths, names of the Fediverse and emoji stand in double angle brackets.
OTHERS = r"""
Open ⟪~/.local⟫, ⟪~/.config/a-b/c.toml⟫. (⟪../a/b.txt⟫) "⟪./run.sh⟫" `⟪/usr/bin⟫`
⟪/etc/a.d/⟫; ⟪..\a⟫: ⟪~/a⟫!
⟪C:\Users⟫, ⟪d:\a\b.txt⟫. ⟪C:\⟫ (⟪C:\a⟫ b\c) 打开⟪~/.local⟫文件，⟪/usr/bin⟫。 abc:\x http:\x
and/or, km/h, 1/2/2020 /həˈləʊ/ /s a/b/c ~ ~a ~/ ./ ../ .../x .a ..a
x~/a and//or / // he/she/it \a\b
⟪@bob@host⟫, ⟪@bob@example.org⟫. (⟪@a.b-c@x-y.org⟫) @bob, x@y @@a 我⟪@bob@a.jp⟫ ⟪bob@example.org⟫
⟪:heart:⟫ ⟪:+1:⟫, (⟪:white_check_mark:⟫) 12:30:45 a:b:c :: :a :a b: a:b: ::a:: 好⟪:heart:⟫。
""".strip()


@pytest.mark.parametrize("marked", OTHERS.splitlines())
def test_a_path_a_name_and_an_emoji_are_found_whole(marked):
    text = re.sub("[⟪⟫]", "", marked)
    assert ITEM.findall(text) == re.findall("⟪(.*?)⟫", marked)


# Fields stand in double angle brackets. The rest of each line is text.
FIELDS = r"""
Hi ⟪{name}⟫, ⟪{}⟫ of ⟪{0}⟫, ⟪{user.name}⟫: ⟪{items[0]}⟫ ⟪{x!r:>10}⟫ ⟪{用户名}⟫ {a b} {0
Hi ⟪{{ name }}⟫, ⟪{{name}}⟫ ⟪{{ count | number }}⟫! ⟪{{ 'a.b' | translate }}⟫ ⟪{{- .Values.x -}}⟫
Hi ⟪{{{body}}}⟫, ⟪{{{ body }}}⟫. ⟪{{#if a b}}⟫x⟪{{/if}}⟫ ⟪{{> part}}⟫
⟪{% url 'a' %}⟫ ⟪{%- if x == "y" -%}⟫ ⟪{# note #}⟫ 5 % {# 3 items}
⟪{ $userName }⟫, ⟪{ -brand-name }⟫ ⟪{ "a" }⟫ ⟪{ NUMBER($r, digits: 2) }⟫ ⟪{ -brand(case: "gen") }⟫
⟪{price, number}⟫ ⟪{0, date, short}⟫ ⟪{price,number,::currency/EUR}⟫ {today, date night} {a, b}
⟪${name}⟫ ⟪${ user.name }⟫ ⟪%{count}⟫ ⟪#{price}⟫ ⟪#{price + 1}⟫ ⟪@{name}⟫ ⟪${{ secrets.X }}⟫ # {a b}
⟪{\an8}⟫Hi ⟪{\i1}⟫you⟪{\i0}⟫ ⟪{\pos(640, 105)}⟫ ⟪{\an8\fad(200, 300)\fnArial Black\fs20}⟫
⟪[X7X]⟫, ⟪[X123X]⟫. [X] [7] [XX] [X7] [x7x] a[1]
⟪%d⟫ ⟪%lu⟫ of ⟪%zu⟫, ⟪%-5.2f⟫ ⟪%1$s⟫ 5 % du 100 %d %list
The set {a b c d ...} of {1, 2, 3}. { } {"name": "Tom"} {"a": 1, "b": 2} {He left. She stayed.}
{\bf A bold sentence.} {\em one} {\textbf a} \{x y\} { color: red } {今天天气很好。我们去公园。}
{n, plural, one {# item} other {⟪{n}⟫ items}} {{{{ {{ {
""".strip()


@pytest.mark.parametrize("marked", FIELDS.splitlines())
def test_a_field_is_found_whole_and_prose_in_braces_is_none(marked):
    text = re.sub("[⟪⟫]", "", marked)
    assert ITEM.findall(text) == re.findall("⟪(.*?)⟫", marked)


ENDS = {"{{": "}}", "{{{": "}}}", "{%": "%}", "${": "}", "{a, date, ": "}"}


@pytest.mark.parametrize(("begin", "end"), ENDS.items())
def test_a_field_with_spaces_has_no_line_break_and_is_short(begin, end):
    assert ITEM.findall(f"{begin} a b {end}") == [f"{begin} a b {end}"]
    for content in ("a b\nc", "a " * 150):
        assert ITEM.findall(f"{begin}{content}{end}") == []


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


LONG = r"~/. /a :a @a@ C:\a. ./ ~/a.. :a:a".split()
LONG += "( [a ((a) 'a . www. http:// a(http:// (. 中. 中 -.a@ 例.a中 (a.)".split()


@pytest.mark.parametrize("begin", ["", "http://a", "http://中", "http://a("])
@pytest.mark.parametrize("part", LONG)
def test_a_text_is_read_once_for_its_addresses(begin, part):
    text = begin + part * (1 << 15)
    start = time.process_time()
    ITEM.findall(text)
    # Read again from each of its characters, it would take minutes.
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("don't go", ["don", "'", "t", "go"]),
        ("e\u0301te\u0301 3a", ["e\u0301te\u0301", "3a"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("か\u3099き a犬", ["か\u3099", "き", "a", "犬"]),
        ("-\u0338 \x1c.", ["-\u0338", "."]),
    ],
)
def test_a_unit_is_a_word_or_a_character_with_its_marks(text, units):
    assert regex.findall(UNIT, text, regex.V1) == units
