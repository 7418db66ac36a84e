"""The folder for browsers: what is in it, and what is refused."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest
from translations import check_same

from keras_transformer import Translator
from keras_transformer.errors import InputError
from keras_transformer.export import export_web
from keras_transformer.web import export as web_export
from keras_transformer.web.export import PACKAGES, find_packages

pytestmark = pytest.mark.tensorflow


@pytest.mark.filterwarnings("ignore:.*tokens and were cut")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_it_translates_and_aligns_as_the_trained_model(web_report, engine, texts, beam_size):
    options = {"beam_size": beam_size, "length_penalty": 0.8, "long_input": "truncate"}
    received = Translator.load(web_report.folder).translate(texts[:20], alignment=True, **options)
    check_same(engine.translate(texts[:20], alignment=True, **options), received, "ids")


def test_nothing_names_another_place(web_report):
    for path in web_report.folder.glob("*"):
        if path.suffix in (".js", ".html", ".css", ".svg", ".webmanifest"):
            text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
            assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+/", text) == [], path.name
    assert "@litertjs" not in (web_report.folder / "litert" / "index.js").read_text("utf-8")


def test_missing_and_other_packages_are_named(tmp_path, engine, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"npm install @litertjs/core@2.5 .*Received: none in"):
        export_web(engine, tmp_path / "out", npm=tmp_path)
    for name in PACKAGES:
        (tmp_path / "node_modules" / name).mkdir(parents=True)
    with pytest.raises(InputError, match="Received: no @litertjs/core in"):
        find_packages()
    for name, version in dict.fromkeys(PACKAGES, "2.4.9").items():
        package = tmp_path / "node_modules" / name / "package.json"
        package.write_text(json.dumps({"version": version}))
    with pytest.raises(InputError, match=r"Received: @litertjs/core 2\.4\.9 in"):
        find_packages(tmp_path)
    assert not (tmp_path / "out").exists()


SPLITTING = """
import { Engine } from "./engine.mjs";
const engine = new Engine();
engine.about = { tags: ["bt", "de"], source_lengths: [6] };
const encode = (text) => text.split(" ").filter(Boolean);
engine.source = { encode, has: (word) => word === ">>de<<" };
const starts = ["<bt> ", " <bt>", ">>de<< ", " >>de<<  ", ">>de<<", "<fr> ", "<de> "];
const texts = [...starts.map((start) => `${start}a b c d. E f g.`), ">>de<<  <bt> a b. C d."];
texts.push("<bt>", " >>de<< ", "<bt> a b c d e. F.");
console.log(JSON.stringify(texts.map((text) => engine.split(text))));
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_each_part_of_a_text_has_its_language_and_its_tag(tmp_path):
    static = pathlib.Path(web_export.__file__).parent / "static"
    stubs = {"litert/index": ("loadAndCompile", "loadLiteRt", "supportsFeature", "Tensor")}
    stubs |= {"shortlist": ("Shortlist",), "tokenizer": ("SentencePiece",)}
    code = (static / "engine.js").read_text("utf-8")
    for name, exported in stubs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        lines = [f"export const {value} = null;" for value in exported]
        (tmp_path / f"{name}.mjs").write_text("\n".join(lines))
        code = code.replace(f"./{name}.js", f"./{name}.mjs")
    (tmp_path / "engine.mjs").write_text(code, "utf-8")
    (tmp_path / "main.mjs").write_text(SPLITTING)
    done = subprocess.run(["node", "main.mjs"], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    expected = [["<bt> a b c d. ", "<bt> E f g."]] * 2
    expected += [[">>de<< a b c d. ", ">>de<< E f g."]] * 3
    # A language is not named by <de>.
    expected += [["<fr> a b c d. ", "E f g."], ["<de> a b c d. ", "E f g."]]
    expected += [[">>de<< <bt> a b. ", ">>de<< <bt> C d."], [], []]
    expected += [["<bt> a b c ", "<bt> d e. ", "<bt> F."]]  # The tag counts.
    assert json.loads(done.stdout) == expected
