import gzip
import html
import json
import tracemalloc
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer.base.errors import InputError
from keras_transformer.cli import main as cli
from keras_transformer.data import read_pairs
from keras_transformer.extras.corpora.translation_memory import TranslationMemory
from keras_transformer.training import Recipe
from keras_transformer.training.recipe_texts import RecipeTexts

LONG = "x" * 100_000
HEAD = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"]) | st.just(" "))
VARIANTS = st.tuples(st.sampled_from(["en", "EN-us", "en_GB", "de", "de-AT", "fr", "den"]), TEXTS)


def memory(units, source_language="en", attribute="xml:lang"):
    """The text of a memory, whose units are lists of codes and of segments in XML."""
    variants = (
        "".join(f'<tuv {attribute}="{code}">\n<seg>{text}</seg></tuv>' for code, text in unit)
        for unit in units
    )
    body = "".join(f"<tu><note>no text</note>{unit}</tu>\n" for unit in variants)
    return (
        f'{HEAD}<tmx version="1.4"><header srclang="{source_language}"/><body>{body}</body></tmx>'
    )


@pytest.fixture
def read(tmp_path):
    """A function that returns the pairs of a memory's text."""

    def pairs(text, languages="en-de", inline_tags="drop"):
        (tmp_path / "a.tmx").write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return list(TranslationMemory(tmp_path / "a.tmx", languages, inline_tags))

    return pairs


@pytest.mark.parametrize(
    ("languages", "unit", "pairs"),
    [
        ("eng-deu", ["en-US", "de-AT"], 1),
        ("en-iw", ["en", "he-IL"], 1),
        ("en,zh-Hant", ["en", "zh-HK", "zh-TW", "zh-CN"], 2),
        # Another language, script or region.
        ("en-no", ["en", "nn-NO"], 0),
        ("en-zh", ["en", "zh-TW"], 0),
        ("en-GB,de", ["en-US", "de"], 0),
    ],
)
def test_a_language_is_found_by_each_of_its_codes(read, languages, unit, pairs):
    text = memory([[(code, code) for code in unit], [("en", "a")]])
    if pairs:
        assert read(text, languages) == [(unit[0], code) for code in unit[1 : 1 + pairs]]
    else:
        with pytest.raises(InputError, match="expected units with a text in"):
            read(text, languages)


@settings(max_examples=40)
@given(units=st.lists(st.lists(VARIANTS), min_size=1), order=st.permutations(["en", "de"]))
def test_the_pairs_are_those_of_a_tree_of_the_whole_file(tmp_path_factory, units, order):
    units = [*units, [("en", "a"), ("de", "b")]]
    text = memory([[(code, html.escape(text)) for code, text in unit] for unit in units])
    path = tmp_path_factory.mktemp("tmx") / "a.tmx.gz"
    path.write_bytes(gzip.compress(text.encode("utf-8")))
    expected = []
    for unit in ElementTree.fromstring(text).iter("tu"):
        sides = {"en": [], "de": []}
        for variant in unit.iter("tuv"):
            code = variant.get("{http://www.w3.org/XML/1998/namespace}lang").lower()
            if code[:2] in sides and len(code) != 3:
                sides[code[:2]].append((code, (variant.findtext("seg") or "").strip()))
        sources, targets = (sides[code] for code in order)
        exact = [text for code, text in sources if code == order[0]]
        source = (exact or [text for _, text in sources] or [None])[0]
        expected += [(source, target) for _, target in targets if source is not None]
    assert list(TranslationMemory(path, "-".join(order))) == expected


def test_of_several_sources_the_memorys_source_language_is_taken_and_every_target(read):
    unit = [("EN-us", "color"), ("en-GB", "colour"), ("de", "Farbe"), ("de-AT", "Farb")]
    pairs = [("colour", "Farbe"), ("colour", "Farb")]
    assert read(memory([unit], "en-GB")) == pairs
    assert read(memory([unit], "en-US"), "en,de-AT") == [("color", "Farb")]
    assert read(memory([unit], "*all*", attribute="lang"))[0] == ("color", "Farbe")
    units = memory([unit], "en-US").replace("<tu>", '<tu srclang="en-GB">')
    assert read(units) == pairs


# A segment, its text without inline tags, and with them (None: not tested).
SEGMENTS = [
    ('<bpt i="1">&lt;b></bpt>A &amp; b<ept i="1">&lt;/b></ept>', "A & b", "<b>A &amp; b</b>"),
    ('<bpt i="1">{\\b</bpt>A<ept i="1">}</ept>', "A", '<g id="1">A</g>'),
    ('A<ph x="2">&lt;br/></ph>b <it x="3">%s <sub>s</sub></it>', "A b", 'A<br/>b <x id="3"/>'),
    ('A <hi x="1">b<ut>\\f</ut></hi>\n   c\td', "A b c d", 'A <g id="1">b<x id=""/></g> c d'),
    ("a &lt; b\u2028c", "a < b c", "a &lt; b c"),
    ('<ph>&lt;a title="x>y"></ph>a', "a", '<a title="x>y">a'),
    ("a <!-- b --><?c?><![CDATA[<b>&nbsp;]]>", "a <b>&nbsp;", "a &lt;b&gt;&amp;nbsp;"),
    ("a  b", "a  b", "a  b"),
    # Dropped codes neither join words nor leave two spaces.
    ("One line<ph>&lt;br/&gt;</ph>two lines", "One line two lines", None),
    ("One.<ph>&lt;/p&gt;&lt;p&gt;</ph>Two.", "One. Two.", None),
    ("One line<ph>&lt;w:br/&gt;</ph>two", "One line two", None),
    ("One<bpt i='1'>&lt;br&gt;</bpt>two<ept i='1'/>", "One two", None),
    ("Name<ph>&#9;</ph>Value", "Name Value", None),
    ("Name<ph>&#13;&#10;</ph>Value", "Name Value", None),
    ("Name<ph>&#xB;</ph>Value", "Name Value", None),
    ("Name<ph>&amp;nbsp;</ph>Value<ph>&amp;#160;</ph> x", "Name Value x", None),
    (r"N<ph>\n</ph>V<ph>\r\n</ph> x<ut>\line </ut>y<ut>{\b </ut>z", "N V x yz", None),
    ('a<ph type="lb"/>b<x id="1" ctype="x-tab"/>c<br/>d', "a b c d", None),
    ("See <ph/> here", "See here", None),
    ("<ph/> See <ph/> <it/> <x/> here <ut/>", "See here", None),
    ("A <bpt i='1'/> cat <ept i='1'/> sat", "A cat sat", None),
    ("A <hi> cat </hi> sat", "A cat sat", None),
    ("un<bpt i='1'>&lt;b></bpt>believ<ept i='1'>&lt;/b></ept>able", "unbelievable", None),
    ("Line <ph>&lt;br/&gt;</ph> two", "Line two", None),
    ("R<ph>&amp;amp;</ph>D", "R&D", None),
    # Kept tags have their numbers and their ends.
    ('A <g id="1">cat</g>', "A cat", 'A <g id="1">cat</g>'),
    ('<pc id="1">a</pc><mrk mid="2">s</mrk>', "as", '<g id="1">a</g><g id="2">s</g>'),
    ('a<x id="2"/>b<bx id="3"/>c<ex id="3"/>', None, 'a<x id="2"/>b<g id="3">c</g>'),
    ('<bx id="4" rid="1"/>c<ex id="5" rid="1"/>', "c", '<g id="4">c</g>'),
    ('<sc id="4"/>c<ec startRef="4"/>', "c", '<g id="4">c</g>'),
    ('A <bpt i="1">&lt;b></bpt>cat<ept i="1"/>', "A cat", "A <b>cat</b>"),
    ('<bpt i="1"/>cat<ept i="1">&lt;/b></ept>', "cat", '<g id="1">cat</g>'),
    ('<bpt i="1">&lt;b></bpt>cat<ept i="1">&lt;/i></ept>', "cat", '<g id="1">cat</g>'),
    (
        '<bpt i="1">&lt;b>&lt;i x="1"></bpt>c<ept i="1">&lt;/i>&lt;/b></ept>',
        *("c", '<b><i x="1">c</i></b>'),
    ),
    ('<bpt i="1">&lt;b>&lt;i></bpt>c<ept i="1"/>', "c", "<b><i>c</i></b>"),
    ('a<bpt i="1">&lt;b></bpt>c', "ac", 'a<x id="1"/>c'),
    ('a<ept i="1">&lt;/b></ept>c', "ac", 'a<x id="1"/>c'),
    (
        '<bpt i="1"/>a<bpt i="2"/>b<ept i="1"/>c<ept i="2"/>',
        *("abc", '<g id="1">a<x id="2"/>b</g>c<x id="2"/>'),
    ),
    (
        '<hi x="1">a<bpt i="2"/>b</hi>c<ept i="2"/>',
        *("abc", '<g id="1">a<x id="2"/>b</g>c<x id="2"/>'),
    ),
    (
        '<bpt i="1"/><bpt i="2"/>a<ept i="2"/><ept i="1"/>',
        *("a", '<g id="1"><g id="2">a</g></g>'),
    ),
    ('<b class="a&amp;b">w</b><br/>z', "w z", '<b class="a&amp;b">w</b><br/>z'),
    ('a<ph x="&quot;>"/>', "a", 'a<x id="&quot;&gt;"/>'),
    # Codes of several fields stay text, and others do not.
    ("a <ph>({0}, %d%%)</ph> b<ph>{\\i</ph> <bpt i='1'>{}</bpt>c", "a ({0}, %d%%) b c", None),
]


@pytest.mark.parametrize(("segment", "dropped", "kept"), SEGMENTS)
def test_formatting_inside_a_sentence_is_dropped_or_stays_as_tags(read, segment, dropped, kept):
    text = memory([[("en", segment), ("de", "x")]])
    assert dropped is None or read(text) == [(dropped, "x")]
    assert kept is None or read(text, inline_tags="keep") == [(kept, "x")]
    if kept is not None and "title" not in kept:
        ElementTree.fromstring(f"<s>{kept}</s>")


FIELDS = ["%s", "{0}", "{name}", "${name}", "{{n}}", "%1$s", "%(n)s", "{}", "a@b.org"]


@pytest.mark.parametrize("inline_tags", ["drop", "keep"])
def test_a_code_that_is_a_field_stays_text(read, inline_tags):
    for field in [*FIELDS, "https://a.org/b"]:
        codes = f'<ph x="1">{field}</ph>', f"<it>{field}</it>", f"<ut>{field}</ut>"
        segments = [f"Open {code} now" for code in (*codes, f'<x id="1" equiv-text="{field}"/>')]
        text = memory([[("en", segment), ("de", f"Öffne {field}")] for segment in segments])
        expected = [(f"Open {field} now", f"Öffne {field}")] * 4
        assert read(text, inline_tags=inline_tags) == expected


BAD = ["&#x1F;", "&#31;", "&#0;", "\x0b", "\x1f", "\0", "\ufffe", "&#xFFFF;", "&#xD83D;&#xDE00;"]


@pytest.mark.parametrize("bad", [*BAD, "&#x110000;", "\ud83d"])
def test_only_the_unit_with_a_character_that_xml_forbids_is_skipped_and_counted(read, bad):
    units = [[("en", f"a{number}"), ("de", "b"), ("fr", bad)] for number in range(9)]
    units[3][0] = "en", f"x{bad}y"
    units[5][1] = "de", bad
    units[6][0] = "en", f"a6<ph>{bad}</ph>"
    with pytest.warns(UserWarning, match="a.tmx: skipped units with a .* XML forbids: 2."):
        pairs = read(memory(units).encode("utf-8", "surrogatepass"))
    assert pairs == [(f"a{number}", "b") for number in (0, 1, 2, 4, 6, 7, 8)]


def test_forbidden_characters_are_found_across_blocks_and_ignored_outside_of_sentences(read):
    text = memory([[("en", "a"), ("de", "b")], [("en", "&#x0001F;&#x41;"), ("de", "b")]])
    start, end = text.replace("<body>", "<note>\1.</note><body>").split(".</note>")
    begin = len(start) + len(f".</note>{end}".partition("&#x0001F;")[0])
    # The reference moves over the border of the first block that is read, 64 KiB.
    for size in range(65_536 - begin - 11, 65_536 - begin + 2):
        with pytest.warns(UserWarning, match="forbids: 1"):
            assert read(f"{start}{'.' * size}.</note>{end}") == [("a", "b")]


@pytest.mark.parametrize(
    "head",
    [HEAD, "", '<?xml version="1.0" standalone="yes"?>', "<!DOCTYPE tmx [<!ELEMENT tmx ANY>]>"]
    + ['<!DOCTYPE tmx [<!ENTITY nbsp "&#160;">]>'],
)
def test_names_of_htmls_characters_are_read(read, head):
    text = memory([[("en", "a&nbsp;b&eacute;"), ("de", "&hearts;&amp;")]]).removeprefix(HEAD)
    assert read(head + text) == [("a\xa0bé", "♥&")]


@pytest.mark.parametrize("head", ["", " \n", '\ufeff<?xml version="1.0"\n?>\n'])
def test_a_declaration_of_xml_within_a_sentence_is_text(read, head):
    declaration = '<?xml version="1.0" encoding="x"?>'
    unit = [("en", f"<![CDATA[a {declaration} b]]>"), ("de", "c")]
    text = head + memory([unit]).removeprefix(HEAD)
    assert read(text) == [(f"a {declaration} b", "c")]


def test_names_of_old_versions_and_with_prefixes_are_read(read):
    unit = '<TU><TUV LANG="EN"><SEG>A <HI>b</HI></SEG></TUV><TUV LANG="DE"><SEG>B</SEG></TUV></TU>'
    old = f'<TMX version="1.1"><HEADER SRCLANG="EN"/><BODY>{unit}</BODY></TMX>'
    assert read(old) == [("A b", "B")]
    text = memory([[("en", "A <ph>%s</ph>"), ("de", "B")]]).removeprefix(HEAD)
    for name in ("tmx", "header", "body", "tu", "tuv", "seg", "ph", "note"):
        text = text.replace(f"<{name}", f"<t:{name}").replace(f"</{name}>", f"</t:{name}>")
    assert read(text.replace("<t:tmx", '<t:tmx xmlns:t="urn:t"', 1)) == [("A %s", "B")]


# The encoding of the bytes, and the one that the file names; bytes decide if it is wrong.
ENCODINGS = [(name, name) for name in ("utf-8", "utf-16", "windows-1252")]
ENCODINGS += [("utf-8-sig", None), ("utf-8-sig", "windows-1252"), ("utf-8", "UCS-2")]
ENCODINGS += [(f"utf-{size}-{order}", "utf-16") for size in (16, 32) for order in ("le", "be")]
ENCODINGS += [("utf-16", "utf-8"), ("utf-16-le", None), ("utf-16-be", "utf-8"), ("utf-8", "utf-16")]
ENCODINGS += [("utf-32", "utf-8")]
# Encodings of several bytes are read across blocks.
ENCODINGS += [("gbk", name) for name in ("GBK", "gb2312", "GB18030")]
ENCODINGS += [("shift_jis", name) for name in ("Shift_JIS", "x-sjis", "windows-31j")]
ENCODINGS += [("big5", "Big5"), ("euc_jp", "EUC-JP"), ("iso2022_jp", "ISO-2022-JP")]


@pytest.mark.parametrize(("encoding", "name"), ENCODINGS)
def test_a_memory_is_read_in_its_encoding(read, encoding, name):
    units = [[("en", "é"), ("de", "ü")]]
    if encoding.partition("-")[0] not in ("utf", "windows"):
        texts = (f"{'.' * (number % 7)}文字 \\" for number in range(3000))
        units = [[("en", text), ("de", "日本")] for text in texts]
    declaration = "" if name is None else f' encoding="{name}"'
    text = memory(units).replace('"1.0"?', f'"1.0"{declaration}?')
    expected = [(source, target) for (_, source), (_, target) in units]
    assert read(text.encode(encoding)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "<tmx><body>", "line 3: expected well-formed XML. Received: no element found at"),
        (b"<tmx>\n\xff</tmx>", "line 2: expected well-formed XML. Received: not well-formed"),
        ("<tmx>\n<tu></tmx>", "line 2: expected well-formed XML. Received: mismatched tag at"),
        ("<xliff/>", "line 1: expected a translation memory, <tmx>. Received: <xliff>."),
        ('<?xml version="1.0"\n?>\n<xliff/>', "line 3: expected a translation memory, <tmx>."),
        ('<!DOCTYPE tmx [\n<!ENTITY a "b">]><tmx/>', "line 2: expected no entities, which could"),
        ('<!DOCTYPE tmx [<!ENTITY a SYSTEM "/etc/passwd">]><tmx/>', "no entities, .*: &a;."),
        (HEAD + "<tmx>&company;</tmx>", "line 3: expected no entities, .* Received: &company;."),
        ('<!DOCTYPE tmx [<!ENTITY nbsp "&#160;&#160;">]><tmx/>', "no entities, .*: &nbsp;."),
        ('<!DOCTYPE tmx [<!ENTITY % a SYSTEM "b">%a;]><tmx/>', "no entities, .*: &a;."),
        ("<tmx><tu>\n<tuv/></tu></tmx>", "line 2: expected <tuv> with its language, xml:lang."),
        ('<?xml version="1.0" encoding="x-a"?><tmx/>', "line 1: expected an encoding .* `iconv"),
        ('<?xml version="1.0" encoding="hex"?><tmx/>', "expected an encoding such as UTF-8."),
        ('<?xml version="1.0" encoding="idna"?><tmx/>', "as UTF-8. Received: 'idna'."),
        ('<?xml version="1.0" encoding="punycode"?><tmx/>', "as UTF-8. Received: 'punycode'."),
        (b"<tmx>\n\n\xe9</tmx>", "line 3: .* Received: not well-formed utf-8, byte 0xe9. .*iconv"),
        ("<tmx>\n<tu><tu/></tu></tmx>", "line 2: expected <tu> outside .* <tu> inside <tu>."),
        ('<tmx><tu><tuv lang="a"><tu/></tuv></tu></tmx>', "Received: <tu> inside <tuv>."),
        ('<tmx><tu><tuv lang="a"><seg><tu/>', "Received: <tu> inside <seg>."),
        ('<tmx><tu><tuv lang="a"><seg>a<seg/>', "<seg> inside <tuv>. Received: <seg> inside <seg>"),
        (
            '<tmx><tu><tuv lang="a"><tuv lang="b"/>',
            "<tuv> inside <tu>. Received: <tuv> inside <tuv>",
        ),
        ("<tmx><tu><seg>a</seg></tu></tmx>", "Received: <seg> inside <tu>."),
        ('<tmx><tuv lang="a"/></tmx>', "Received: <tuv> outside of units."),
        (f"<tmx><!--{'a' * 2**23}", "expected tags and comments of at most 4,194,304 bytes"),
        (f"<{LONG}/>", "expected a translation memory, <tmx>. Received: <x{40}>."),
        (memory([[(LONG, "one"), ("de", "eins")]]), "expected units with a text in en"),
        (f"<!DOCTYPE tmx [<!ENTITY {LONG} 'a'>]><tmx/>", "expected no entities"),
        (memory([[("en", "a" * 2**20 + "b")]]), "line 4: expected a sentence of at most 1,048,576"),
        # Few bytes that would need much memory: elements, and variants without a text.
        (HEAD + "<tmx>\n" + "<a>" * 256, "line 4: expected elements at most 256 deep"),
        (memory([[("en", "<hi>" * 252)]]), "line 4: expected elements at most 256 deep"),
        (memory([[("en", f"<ph>{'<a>' * 252}")]]), "line 4: expected elements at most 256 deep"),
        (memory([[("en", "<x/>" * 10_486)]]), "line 4: expected a sentence of at most 1,048,576"),
        (memory([[("en", "")] * 16_777]), "line 16747: expected a unit of at most 16,777,216"),
        (memory([[("en", "a"), ("fr", "b")]]), "a text in en and one in de. Received: units in"),
        ("<tmx/>", "Received: units in no language."),
    ],
)
def test_a_wrong_file_is_one_line_that_names_its_line(read, text, message):
    with pytest.raises(InputError, match=message) as error:
        read(text)
    shown = str(error.value).partition("a.tmx")[2]
    assert shown and "\n" not in shown and len(shown) < 300


def test_a_memory_of_many_elements_is_read(read):
    deep = "<hi>" * 251 + "x" + "</hi>" * 251
    units = [[("en", deep), ("de", "<x/>y" * 1000)], [("en", ""), *[("de", "")] * 999]]
    assert read(memory(units)) == [("x", "y" * 1000), *[("", "")] * 999]


@pytest.mark.parametrize("languages", ["en", "en-en-GB", "en,EN_gb", "en-", ""])
def test_languages_are_two_codes_that_differ(languages):
    with pytest.raises(InputError, match="`languages` must be two codes"):
        TranslationMemory("a.tmx", languages)


def test_a_large_memory_is_a_stream(tmp_path):
    path, unit = tmp_path / "large.tmx", memory([[("en", "x" * 900), ("de", "y" * 900)]])
    start, _, end = unit.partition("<tu>")
    with open(path, "w", encoding="utf-8") as file:
        file.write(start + f"<tu>{end.partition('</body>')[0]}" * 1500 + "</body></tmx>")
    tracemalloc.start()
    try:
        assert sum(1 for _ in TranslationMemory(path, "en-de")) == 1500
        assert tracemalloc.get_traced_memory()[1] < 2**20 < path.stat().st_size / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("part", ["one", "several"])
def test_a_memory_trains_as_the_two_files_that_it_was_made_from(tmp_path, part):
    values = recipe_values(write_corpus(tmp_path))
    units = [[("en-GB", source), ("de", target)] for source, target in PAIRS]
    (tmp_path / "a.tmx").write_text(memory(units), encoding="utf-8")
    datasets = []
    for files in (values["data"]["train"], {"source": "a.tmx", "languages": "en-de"}):
        values["data"]["train"] = files if part == "one" else [{"name": "a", **files}]
        corpus = RecipeTexts(Recipe.from_dict(values))
        datasets.append(corpus.datasets(corpus.tokenizers())[0]["train"].pairs)
    for array in ("source_flat", "source_offsets", "target_flat", "target_offsets"):
        assert (getattr(datasets[0], array) == getattr(datasets[1], array)).all()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"source": "a.tmx.gz"}, "a.tmx.gz: a translation memory needs `languages`, such as en-de"),
        ({"source": "a.tmx", "languages": "en"}, "`languages` must be two codes"),
        ({"source": "a.tmx", "languages": "en-de", "target": "b"}, "needs no `target`"),
        ({"source": "a", "languages": "en"}, "`languages` must be two codes"),
        ({"source": "a", "inline_tags": "keep"}, "`inline_tags` belongs to a translation memory"),
    ],
)
def test_a_recipe_names_a_memory_with_its_languages(files, message):
    with pytest.raises(InputError, match=message):
        Recipe.from_dict({"data": {"train": files, "validation": files}})


@pytest.mark.parametrize(("kind", "rule"), [("classifier", "labels"), ("language_model", "one")])
def test_a_model_of_one_text_takes_no_memory(kind, rule):
    files = {"source": "a.tmx", "languages": "en-de"}
    values = {"data": {"train": files, "validation": files}, "model": {"kind": kind}}
    with pytest.raises(InputError, match=f"learns from {rule}"):
        Recipe.from_dict(values)


def test_commands_read_a_memory(tmp_path, capsys):
    (tmp_path / "a.tmx").write_text(
        memory([[("en", "one <hi>two</hi>"), ("de", "eins zwei")]] * 2), "utf-8"
    )
    options = [str(tmp_path / "a.tmx"), "--languages", "en-de"]
    output = ["--output", str(tmp_path / "out"), "--processes", "1"]
    assert cli.run(["clean", "--json", *options, "--inline-tags", "keep", *output]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["corpora"][0]["kept"] == 1 and (tmp_path / "out" / "a.csv").is_file()
    assert read_pairs(tmp_path / "out" / "a.csv") == (['one <g id="">two</g>'], ["eins zwei"])
    assert cli.run(["glossary", *options, "--min-pairs", "1", "--min-probability", "0"]) == 0
    assert capsys.readouterr().out
    for arguments in (options[:1], ["a.tsv", *options[1:]]):
        assert cli.run(["glossary", *arguments]) == 2
        assert "`--languages`" in capsys.readouterr().err
