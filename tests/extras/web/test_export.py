"""The folder for browsers: what is in it, and what is refused."""

import json
import re

import pytest
from translations import check_same

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.export import export_web
from keras_transformer.extras.web.export import PACKAGES, WebExporter, find_packages
from keras_transformer.extras.web.export_options import WebOptions

pytestmark = pytest.mark.tensorflow


@pytest.mark.filterwarnings("ignore:.*tokens and were cut")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_it_translates_and_aligns_as_the_trained_model(web_report, engine, texts, beam_size):
    options = {"beam_size": beam_size, "length_penalty": 0.8, "long_input": "truncate"}
    exported = Translator.load(web_report.folder).engine
    received = exported.translate(texts[:20], alignment=True, **options)
    check_same(engine.translate(texts[:20], alignment=True, **options), received, "ids")


def test_nothing_names_another_place(web_report):
    for path in web_report.folder.glob("*"):
        if path.suffix in (".js", ".html", ".css", ".svg", ".webmanifest"):
            text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
            assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+/", text) == [], path.name
    assert "@litertjs" not in (web_report.folder / "litert" / "index.js").read_text("utf-8")


def test_a_list_has_room_for_the_candidates_of_any_sentence(listed_engine, monkeypatch, tmp_path):
    found = "keras_transformer.extras.web.export.find_packages"
    monkeypatch.setattr(found, lambda npm: (tmp_path, {}))
    options = WebOptions(beam_size=1, source_lengths=[5, 13], shortlist=True)
    sizes = WebExporter().resolve_export_options(listed_engine, options)["list_sizes"]
    most_first = sorted(map(len, listed_engine.shortlist.candidates), reverse=True)
    for length in (5, 13):
        size, needed = sizes.pop(f"1x{length}"), 4 + sum(most_first[:length])
        assert needed <= size < needed + 128 and size % 128 == 0
    assert sizes == {}


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
