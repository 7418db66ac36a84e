import gzip
import html
import json
import tracemalloc
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import PAIRS, recipe_values, write_corpus

from keras_transformer.cli import main as cli
from keras_transformer.data import TranslationMemory, read_pairs
from keras_transformer.errors import InputError
from keras_transformer.training import Recipe
from keras_transformer.training.corpus import Corpus

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
    assert read(memory([unit], "en-US"), "en-de-AT".replace("-", ",", 1)) == [("color", "Farb")]
    assert read(memory([unit], "*all*", attribute="lang"))[0] == ("color", "Farbe")
    units = memory([unit], "en-US").replace("<tu>", '<tu srclang="en-GB">')
    assert read(units) == pairs


@pytest.mark.parametrize(
    ("segment", "dropped", "kept"),
    [
        ('<bpt i="1">&lt;b></bpt>A &amp; b<ept i="1">&lt;/b></ept>', "A & b", "<b>A &amp; b</b>"),
        ('<bpt i="1">{\\b</bpt>A<ept i="1">}</ept>', "A", '<g id="1">A</g>'),
        ('A<ph x="2">&lt;br/></ph>b <it x="3">%s <sub>s</sub></it>', "Ab", 'A<br/>b <x id="3"/>'),
        ('A <hi x="1">b<ut>\\f</ut></hi>\n   c\td', "A b c d", 'A <g id="1">b<x id=""/></g> c d'),
        ("a &lt; b\u2028c", "a < b c", "a &lt; b c"),
    ],
)
def test_formatting_inside_a_sentence_is_dropped_or_stays_as_tags(read, segment, dropped, kept):
    text = memory([[("en", segment), ("de", "x")]])
    assert [read(text)[0][0], read(text, inline_tags="keep")[0][0]] == [dropped, kept]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "windows-1252", "utf-8-sig"])
def test_a_memory_is_read_in_the_encoding_that_it_names(read, encoding):
    text = memory([[("en", "é"), ("de", "ü")]])
    if not encoding.endswith("sig"):
        text = text.replace('"1.0"?', f'"1.0" encoding="{encoding}"?')
    assert read(text.encode(encoding)) == [("é", "ü")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "<tmx><body>", "line 3: expected well-formed XML. Received: no element found at"),
        (b"<tmx>\n\xff</tmx>", "line 2: expected well-formed XML. Received: not well-formed"),
        ("<tmx>\n<tu></tmx>", "line 2: expected well-formed XML. Received: mismatched tag at"),
        ("<xliff/>", "line 1: expected a translation memory, <tmx>. Received: <xliff>."),
        ('<!DOCTYPE tmx [\n<!ENTITY a "b">]><tmx/>', "line 2: expected no entities, which could"),
        ('<!DOCTYPE tmx [<!ENTITY a SYSTEM "/etc/passwd">]><tmx/>', "no entities, .*: &a;."),
        (HEAD + "<tmx>&eacute;</tmx>", "line 3: expected no entities, .* Received: &eacute;."),
        ("<tmx><tu>\n<tuv/></tu></tmx>", "line 2: expected <tuv> with its language, xml:lang."),
        ('<?xml version="1.0" encoding="shift_jis"?><tmx/>', "expected an encoding such as UTF-8."),
        (memory([[("en", "a" * 2**20 + "b")]]), "line 4: expected a sentence of at most 1,048,576"),
        (memory([[("en", "a"), ("fr", "b")]]), "a text in en and one in de. Received: units in"),
        ("<tmx/>", "Received: units in no language."),
    ],
)
def test_a_wrong_file_is_one_line_that_names_its_line(read, text, message):
    with pytest.raises(InputError, match=message) as error:
        read(text)
    assert "\n" not in str(error.value) and "a.tmx" in str(error.value)


@pytest.mark.parametrize("languages", ["en", "en-en-GB", "en,EN_gb", "en-", ""])
def test_languages_are_two_codes_that_differ(languages):
    with pytest.raises(InputError, match="`languages` must be two codes"):
        TranslationMemory("a.tmx", languages)


def test_a_large_memory_is_a_stream(tmp_path):
    path = tmp_path / "large.tmx"
    with open(path, "w", encoding="utf-8") as file:
        start, end = memory([[("en", "x"), ("de", "y")]]).split("<tu>", 1)
        file.write(start + f"<tu>{end.split('</body>')[0]}" * 20_000 + "</body></tmx>")
    tracemalloc.start()
    try:
        assert sum(1 for _ in TranslationMemory(path, "en-de")) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 2**20 < path.stat().st_size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("part", ["one", "several"])
def test_a_memory_trains_as_the_two_files_that_it_was_made_from(tmp_path, part):
    values = recipe_values(write_corpus(tmp_path))
    units = [[("en-GB", source), ("de", target)] for source, target in PAIRS]
    (tmp_path / "a.tmx").write_text(memory(units), encoding="utf-8")
    datasets = []
    for files in (values["data"]["train"], {"tmx": "a.tmx", "languages": "en-de"}):
        values["data"]["train"] = files if part == "one" else [{"name": "a", **files}]
        corpus = Corpus(Recipe.from_dict(values))
        datasets.append(corpus.datasets(corpus.tokenizers())[0]["train"].pairs)
    for array in ("source_flat", "source_offsets", "target_flat", "target_offsets"):
        assert (getattr(datasets[0], array) == getattr(datasets[1], array)).all()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tmx": "a.tmx"}, "`tmx` needs `languages`, such as en-de."),
        ({"tmx": "a.tmx", "languages": "en"}, "`languages` must be two codes"),
        ({"tmx": "a", "languages": "en-de", "source": "b"}, "it needs no `source` and no `target`"),
        ({"source": "a", "languages": "en"}, "`languages` must be two codes"),
        ({"source": "a", "inline_tags": "keep"}, "`inline_tags` belongs to a memory"),
    ],
)
def test_a_recipe_names_a_memory_with_its_languages(files, message):
    with pytest.raises(InputError, match=message):
        Recipe.from_dict({"data": {"train": files, "validation": files}})


@pytest.mark.parametrize(("kind", "rule"), [("classifier", "labels"), ("language_model", "one")])
def test_a_model_of_one_text_takes_no_memory(kind, rule):
    files = {"tmx": "a.tmx", "languages": "en-de"}
    values = {"data": {"train": files, "validation": files}, "model": {"kind": kind}}
    with pytest.raises(InputError, match=f"learns from {rule}"):
        Recipe.from_dict(values)


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"<{LONG}/>", "expected a translation memory"),
        (memory([[(LONG, "one"), ("de", "eins")]]), "expected units with a text in en"),
        (f"<!DOCTYPE tmx [<!ENTITY {LONG} 'a'>]><tmx/>", "expected no entities"),
    ],
)
def test_a_message_shows_the_beginning_of_a_value_of_a_memory(tmp_path, text, message):
    (tmp_path / "a.tmx").write_text(text, "utf-8")
    with pytest.raises(InputError, match=message) as caught:
        list(TranslationMemory(tmp_path / "a.tmx", "en-de"))
    assert len(str(caught.value).replace(str(tmp_path), "")) < 300


def test_commands_read_a_memory(tmp_path, capsys):
    (tmp_path / "a.tmx").write_text(
        memory([[("en", "one <hi>two</hi>"), ("de", "eins zwei")]] * 2), "utf-8"
    )
    options = [str(tmp_path / "a.tmx"), "--languages", "en-de"]
    output = ["--output", str(tmp_path / "out"), "--processes", "1"]
    assert cli.run(["clean", *options, "--inline-tags", "keep", *output]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["corpora"][0]["kept"] == 1 and (tmp_path / "out" / "a.tsv").is_file()
    assert read_pairs(tmp_path / "out" / "a.tsv") == (['one <g id="">two</g>'], ["eins zwei"])
    assert cli.run(["glossary", *options, "--min-pairs", "1", "--min-probability", "0"]) == 0
    assert capsys.readouterr().out
    for arguments in (options[:1], ["a.tsv", *options[1:]]):
        assert cli.run(["glossary", *arguments]) == 2
        assert "languages`" in capsys.readouterr().err
