"""The page's modules in node, without a browser and without a model."""

import itertools
import json
import pathlib
import shutil
import subprocess

import pytest
from page_in_languages import PAGE
from sentence_ends import OF_BROWSERS

import keras_transformer.extras.web
from keras_transformer.text.capitals import in_capitals, in_usual_case, is_in_capitals
from keras_transformer.text.language_codes import primary_language
from keras_transformer.text.sentences import sentence_ends, space_after

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="needs node"),
]

STATIC = pathlib.Path(keras_transformer.extras.web.__file__).parent / "static"
# What `engine.js` imports, of which these tests need nothing.
STUBS = {"litert/index": ("loadAndCompile", "loadLiteRt", "supportsFeature", "Tensor")}
STUBS |= {"shortlist": ("Shortlist",), "tokenizer": ("SentencePiece",)}


@pytest.fixture
def in_node(tmp_path):
    """`in_node(program)`: what a program beside the page's modules writes, as JSON."""
    for name in ("capitals.js", "engine.js", "sentences.js", "translator.js"):
        shutil.copy(STATIC / name, tmp_path)
    for name, exported in STUBS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        lines = [f"export const {value} = null;" for value in exported]
        (tmp_path / f"{name}.js").write_text("\n".join(lines))
    (tmp_path / "package.json").write_text('{"type": "module"}')

    def in_node(program):
        (tmp_path / "main.js").write_text(program)
        done = subprocess.run(["node", "main.js"], cwd=tmp_path, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return in_node


SPLITTING = """
import { Engine } from "./engine.js";
const engine = new Engine();
engine.about = { tags: ["bt", "de"], source_lengths: [6] };
const encode = (text) => text.split(" ").filter(Boolean);
engine.source = { encode, has: (word) => word === ">>de<<" };
const starts = ["<bt> ", " <bt>", ">>de<< ", " >>de<<  ", ">>de<<", "<fr> ", "<de> "];
const texts = [...starts.map((start) => `${start}a b c dd. E f gg.`), ">>de<<  <bt> a bb. C dd."];
texts.push("<bt>", " >>de<< ", "<bt> a b c d ee. F.");
const sources = (text) => engine.split(text).map(({ source }) => source);
console.log(JSON.stringify(texts.map(sources)));
"""


def test_each_part_of_a_text_has_its_language_and_its_tag(in_node):
    expected = [["<bt> a b c dd.", "<bt> E f gg."]] * 2
    expected += [[">>de<< a b c dd.", ">>de<< E f gg."]] * 3
    # A language is not named by <de>.
    expected += [["<fr> a b c dd.", "E f gg."], ["<de> a b c dd.", "E f gg."]]
    expected += [[">>de<< <bt> a bb.", ">>de<< <bt> C dd."], [], []]
    expected += [["<bt> a b c", "<bt> d ee.", "<bt> F."]]  # The tag counts.
    assert in_node(SPLITTING) == expected


# A worker whose translation of a part is the part and its languages.
JOINING = """
import { load } from "./translator.js";
import { hasLetters, sentencesOf, withoutSpace } from "./sentences.js";
const asked = [];
const methods = {
  about: () => ({ beam_size: 3, batch_sizes: [1, 2] }),
  split: (texts) => texts.map((text) => withoutSpace(sentencesOf(text)).map((part) =>
    hasLetters(part.source) ? part : { ...part, text: part.source, words: [] })),
  translate: (parts, beamSize, languages) => parts.map((part, index) => {
    asked.push(part);
    return { text: part + languages[index].target, words: [] };
  }),
};
globalThis.Worker = class {
  postMessage({ id, method, values }) {
    const result = methods[method](...values);
    setTimeout(() => this.onmessage({ data: { id, result } }));
  }
};
const translator = await load();
const counts = [];
const translate = async (texts, target, onProgress) => {
  const translations = await translator.translate(texts, { source: "en", target, onProgress });
  return translations.map(({ text }) => text);
};
const results = [
  await translate(["Aa. Bb.", "", "Cc. Dd. Ee."], ["de", "pl", "fr"], (done, count) =>
    counts.push([...done.map(({ parts }) => parts.length), count])),
  await translate(["Aa. Bb.", "Cc."], ["de", "fr"]),
];
const number = asked.length;
results.push(await translate(["  Aa.\\tBb.  Cc.\\r\\n\\r\\n12:30 \\n", "42", " "], "de"));
console.log(JSON.stringify([results, counts, asked.slice(number)]));
"""


def test_each_part_has_the_language_of_its_text_and_its_place_in_it(in_node):
    (texts, two_languages, spaced), counts, asked = in_node(JOINING)
    assert texts == ["Aa.de Bb.de", "", "Cc.fr Dd.fr Ee.fr"]
    assert two_languages == ["Aa.de Bb.de", "Cc.fr"]
    # Of each text, and of all texts, after each batch of two.
    assert counts == [[2, 0, 0, 5], [2, 0, 2, 5], [2, 0, 3, 5]]
    # All white space stays, and what has no letters.
    assert spaced == ["  Aa.de\tBb.de  Cc.de\r\n\r\n12:30 \n", "42", " "]
    assert asked == ["Aa.", "Bb.", "Cc."]


SENTENCES = """
import { readFileSync } from "node:fs";
import { sentencesOf, spaceAfter } from "./sentences.js";
const { texts, spaces } = JSON.parse(readFileSync("input.json", "utf-8"));
const sentences = texts.map(([language, text]) => sentencesOf(text, language ?? undefined));
console.log(JSON.stringify([sentences, spaces.map(([space, text]) => spaceAfter(space, text))]));
"""
SPACES = ["", " ", "  ", "\n", "\t", "\u00a0", "\u3000"]
TRANSLATIONS = "Ja.|好的。|はい。|ใช่|네.|12:30||OK 好的|Да|ខ្មែរ|བོད་|မြန်မာ|ລາວ".split("|")
CODES = {"English": "en", "German": "de", "Russian": "ru"}
TEXTS = [
    (code, space.join(PAGE[language]))
    for language, code in CODES.items()
    for space in (" ", "  ", "\n", " \r\n\r\n", "\t", "\u00a0")
]
TEXTS += [("zh", "".join(PAGE["Chinese"])), (None, "  One.  Two! \n\n Three?\n")]
TEXTS += [("en", "1. First item.\n2) Second."), ("de", "Herr M. Gold kam."), ("en", "")]
TEXTS += [
    ("en", "  One\ttwo.   \n\n Three   four  \t\n"),
    ("en", " \n "),
    ("xx_Latn!", "One. Two."),
]
TEXTS += [(language, text.replace("|", "")) for language, text in OF_BROWSERS]


def test_sentences_and_spaces_are_those_of_python(in_node, tmp_path):
    spaces = [(space, text) for space in SPACES for text in TRANSLATIONS]
    values = {"texts": TEXTS, "spaces": spaces}
    (tmp_path / "input.json").write_text(json.dumps(values), "utf-8")
    sentences, spaces_of_page = in_node(SENTENCES)
    for (language, text), received in zip(TEXTS, sentences, strict=True):
        ends = sentence_ends(text, primary_language(language))
        expected = [text[start:end] for start, end in itertools.pairwise([0, *ends])]
        assert received == expected, text
    assert spaces_of_page == list(itertools.starmap(space_after, spaces))


CAPITALS = """
import { readFileSync } from "node:fs";
import { inCapitals, inUsualCase, isInCapitals } from "./capitals.js";
import { Engine } from "./engine.js";
const engine = new Engine();
engine.source = { encode: (text) => [text], has: () => false };
engine.about = { source_lengths: [50], keep_case: true, languages: ["en", "tr"] };
const rows = JSON.parse(readFileSync("input.json", "utf-8")).map(([language, text]) =>
  [isInCapitals(text), inUsualCase(text, language), inCapitals(text, language)]);
const texts = ["SHOULD I SEE?", "Should I see?"];
const parts = texts.map((text) => engine.split(text, { target: "tr" })[0]);
console.log(JSON.stringify([rows, parts]));
"""
CASES = [
    (language, text)
    for language, texts in {
        "en": "TWO RABBITS|TWO DOGS|SHOULD I SEE?|SNOWMAN|Two DOGS|A B|12 30|REST API",
        **{"es": "NÚMERO Nº 2", "de": "DIE GROẞE STRASSE|straße", "tr": "İKİ KIZILCIK"},
        **{"el": "ΔΥΟ ΣΚΎΛΟΙ", "ru": "ДВЕ СОБАКИ", "zh": "两只狗 OK|我在 IBM UNICODE 工作。"},
        **{"fr": "« ÇA ARRIVE »", "tr_TR": "ikı", "ar": "أعمل في IBM UNICODE"},
        **{"ko": "IBM UNICODE 에서", "ka": "ის IBM UNICODE", "en_GB": "WHO: COVID-19"},
    }.items()
    for text in texts.split("|")
]
# Unlike in Python, a sentence with a sign of another field keeps its capitals.
OTHERS = ["NOTICE {{ name }} NOW", "NOTICE <B>IT</B> NOW", "50 % OF $NAME TOMORROW"]
OTHERS += ["50%S OF NOTHING", "NOTICE ftp://a.b/c NOW"]
# Fields and addresses keep their case.
ITEMS = ["{i}", "{}", "{user.Name}", "<ph_1>", "%s", "%1$d", "https://A.org/i?b=c", "www.a.Org"]
ITEMS += ["Me.i@a-b.org", "HTTP://A.ORG"]
CASES += [
    (code, text.replace("#", item))
    for item in ITEMS
    for code, text in zip(
        ("en", "tr", "de", "en"),
        ("I NOTICE #, AND I GO", "# İKİ KIZIMIZ", "SCHÖNE # #, JA!", "#"),
        strict=True,
    )
]


def test_capitals_are_those_of_python(in_node, tmp_path):
    (tmp_path / "input.json").write_text(
        json.dumps([*CASES, *(("en", text) for text in OTHERS)]), "utf-8"
    )
    rows, (raised, plain) = in_node(CAPITALS)
    assert [row[0] for row in rows[len(CASES) :]] == [False] * len(OTHERS)
    for (code, text), row in zip(CASES, rows, strict=False):
        language = primary_language(code)
        cases = in_usual_case(text, language), in_capitals(text, language)
        assert row == [is_in_capitals(text), *cases], text
    assert (raised["source"], raised["capitals"]) == ("Should I see?", "tr")
    assert plain["source"] == "Should I see?" and "capitals" not in plain


RULES = """
import { Engine } from "./engine.js";
const engine = new Engine();
const encode = (text) => text.split(" ").filter(Boolean);
engine.source = { encode, has: () => false };
const texts = ["One. Two three!", " 12:30\\n", "", " ", "One two three four five. Six"];
const results = [{}, { split_sentences: true, copy_symbols: true }].map((rules) => {
  engine.about = { source_lengths: [5], ...rules };
  const row = ({ before, source, after, text }) => [before, source, after, text ?? null];
  return texts.map((text) => engine.split(text).map(row));
});
console.log(JSON.stringify(results));
"""


def test_the_export_says_whether_sentences_are_split_and_symbols_copied(in_node):
    plain, split = in_node(RULES)
    long = [["", "One two three", " ", None], ["", "four five.", " ", None], ["", "Six", "", None]]
    assert plain == [
        [["", "One. Two three!", "", None]],
        [[" ", "12:30", "\n", None]],
        [],
        [["", "", " ", ""]],
        long,
    ]
    assert split == [
        [["", "One.", " ", None], ["", "Two three!", "", None]],
        [[" ", "12:30", "\n", "12:30"]],
        [],
        [["", "", " ", ""]],
        long,
    ]


# Batches are in order of length. A translation is the ids of its source, and of its language.
SORTING = """
import { Engine } from "./engine.js";
const engine = new Engine();
const table = { names: ["de", "fr"], target_prefix: [40, 50] };
engine.about = { batch_sizes: [1, 2], source_lengths: [9], language_table: table };
engine.about.language_tokens = { target_prefix: "target", tokens: { de: 0, fr: 1 } };
engine.source = { encode: (text) => [...text].map(Number) };
engine.target = { decode: (ids) => ids.join(" "), words: () => [] };
const batches = [];
engine.search = async (name, batch, forced) => {
  batches.push(batch.map((ids) => ids.length));
  return batch.map((ids, row) => ({ ids: [...forced[row], ...ids], score: ids.length }));
};
const languages = ["de", "fr", "de"].map((target) => ({ target }));
const parts = await engine.translate(["7777", "8", "999"], 1, languages);
const rows = parts.map((part) => [part.source, part.text, part.score, part.languages.target]);
console.log(JSON.stringify([rows, batches]));
"""


def test_texts_that_are_sorted_by_length_come_back_in_their_order(in_node):
    rows, batches = in_node(SORTING)
    assert batches == [[2, 4], [5]]  # with EOS
    assert rows == [
        ["7777", "40 7 7 7 7 2", 5, "de"],
        ["8", "50 8 2", 2, "fr"],
        ["999", "40 9 9 9 2", 4, "de"],
    ]
