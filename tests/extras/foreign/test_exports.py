"""Exports of imported models: made without an option, they have Marian's search and its texts."""

import pathlib

import pytest
from device_plans import in_one_graph
from marian_toys import with_short_translations
from translations import check_same

from keras_transformer import Translator
from keras_transformer.base.errors import InputError
from keras_transformer.cli.main import run
from keras_transformer.export import export_run
from keras_transformer.extras.importing.importing import import_run

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

TOYS = pathlib.Path(__file__).parents[2] / "data" / "marian"
SOURCES = ["the old child sees a small house", "a cat", "yes, the river moves", "", "the tree"]
SOURCES += ["a happy cat likes the red stone and the tree", "the cats find 1 tree", "the the the"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of the toys by name; `opus` has a beam of 3 and a word penalty."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: with_short_translations(import_run(TOYS / name, folder / name))
        for name in ("opus", "student")
    }


@pytest.mark.usefixtures("unverified", "converted_here")
@pytest.mark.parametrize(("name", "format"), [("student", "saved_model"), ("opus", "litert")])
def test_an_export_gives_the_runs_texts_and_scores(runs, tmp_path, name, format):
    if format == "litert":
        pytest.importorskip("ai_edge_litert", reason="comes with the extra [litert]")
    search, options = {}, {"source_lengths": [48]} if format == "litert" else {}
    if format == "saved_model":
        search, options = {"beam_size": 3, "word_penalty": 0.2}, {"signatures": ["score"]}
    report = export_run(runs[name], tmp_path / "export", format, **search, **options)
    assert report.manifest["length_normalization"] == "marian"
    readme = (tmp_path / "export" / "README.md").read_text(encoding="utf-8")
    assert f"The model was made from {name}, licence not named." in readme
    assert str(TOYS) not in readme
    ours, theirs = in_one_graph(runs[name]), Translator.load(tmp_path / "export")
    expected, translations = ours.translate(SOURCES, **search), theirs.translate(SOURCES)
    assert [t.text for t in translations] == [t.text for t in expected]
    assert [t.score for t in translations] == pytest.approx([t.score for t in expected], 1e-3)
    if name == "opus":
        tagged = [[t.text for t in x.translate(SOURCES, tag="epo")] for x in (ours, theirs)]
        assert tagged[0] == tagged[1] != [t.text for t in expected]
    if format == "saved_model":
        texts = [t.text[:24] for t in expected]
        scored = ours.score(SOURCES, texts, word_penalty=0.2)
        check_same(scored, theirs.score(SOURCES, texts))
    with pytest.raises(InputError, match="`length_normalization` is fixed at 'marian'"):
        theirs.translate(SOURCES, length_normalization="gnmt")


def test_ctranslate2_ranks_as_marian_in_a_beam_of_its_own(runs, tmp_path, capsys, unverified):
    pytest.importorskip("ctranslate2", reason="comes with the extra [ctranslate2]")
    command = ["export", "--model", runs["opus"], "--format", "ctranslate2"]
    assert run([*command, "--output", str(tmp_path / "export")]) == 0
    assert "CTranslate2's beam does not shrink as Marian's does" in capsys.readouterr().err
    ours, theirs = in_one_graph(runs["opus"]), Translator.load(tmp_path / "export")
    check_same(*(translator.translate(SOURCES, beam_size=1) for translator in (ours, theirs)))
    best = theirs.translate(SOURCES, n_best=3)[0]
    for answer in (best, *best.alternatives):
        length = len(answer.ids)
        assert answer.score == pytest.approx((answer.log_probability - 0.2 * length) / length**0.7)
    options = {"length_normalization": "gnmt", "beam_size": 1}
    check_same(*(translator.translate(SOURCES, **options) for translator in (ours, theirs)))
