"""The page's modules in node, without a browser and without a model."""

import json
import pathlib
import shutil
import subprocess

import pytest

import keras_transformer.web

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="needs node"),
]

STATIC = pathlib.Path(keras_transformer.web.__file__).parent / "static"
# What `engine.js` imports, of which these tests need nothing.
STUBS = {"litert/index": ("loadAndCompile", "loadLiteRt", "supportsFeature", "Tensor")}
STUBS |= {"shortlist": ("Shortlist",), "tokenizer": ("SentencePiece",)}


@pytest.fixture
def in_node(tmp_path):
    """`in_node(program)`: what a program beside the page's modules writes, as JSON."""
    for name in ("engine.js", "translator.js"):
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
const texts = [...starts.map((start) => `${start}a b c d. E f g.`), ">>de<<  <bt> a b. C d."];
texts.push("<bt>", " >>de<< ", "<bt> a b c d e. F.");
console.log(JSON.stringify(texts.map((text) => engine.split(text))));
"""


def test_each_part_of_a_text_has_its_language_and_its_tag(in_node):
    expected = [["<bt> a b c d. ", "<bt> E f g."]] * 2
    expected += [[">>de<< a b c d. ", ">>de<< E f g."]] * 3
    # A language is not named by <de>.
    expected += [["<fr> a b c d. ", "E f g."], ["<de> a b c d. ", "E f g."]]
    expected += [[">>de<< <bt> a b. ", ">>de<< <bt> C d."], [], []]
    expected += [["<bt> a b c ", "<bt> d e. ", "<bt> F."]]  # The tag counts.
    assert in_node(SPLITTING) == expected


# A worker whose translation of a part is the part and its languages; the second text is blank.
JOINING = """
import { load } from "./translator.js";
const methods = {
  about: () => ({ beam_size: 3, batch_sizes: [1, 2] }),
  split: (texts) => texts.map((text) => text.split(" ").filter(Boolean)),
  translate: (parts, beamSize, languages) => parts.map((part, index) => {
    const { source, target } = languages[index];
    return { text: part + source + target };
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
const translations = await translator.translate(["A. B.", "", "C. D. E."], {
  source: "en",
  target: ["de", "pl", "fr"],
  onProgress: (done, count) => counts.push([...done.map(({ parts }) => parts.length), count]),
});
console.log(JSON.stringify([translations.map(({ text }) => text), counts]));
"""


def test_each_part_has_the_language_of_its_text_and_its_place_in_it(in_node):
    texts, counts = in_node(JOINING)
    assert texts == ["A.ende B.ende", "", "C.enfr D.enfr E.enfr"]
    # Of each text, and of all texts, after each batch of two.
    assert counts == [[2, 0, 0, 5], [2, 0, 2, 5], [2, 0, 3, 5]]


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
