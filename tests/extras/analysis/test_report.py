"""What a report of a run holds."""

import csv
import json
import sys

import numpy as np
import pytest
from device_plans import ONE_GRAPH
from small_corpus import PAIRS, recipe_values

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.base.errors import InputError
from keras_transformer.base.ids import BOS_ID
from keras_transformer.engine import ModelEngine
from keras_transformer.extras.analysis.attention import attention, word_alignment
from keras_transformer.extras.analysis.heads import head_table
from keras_transformer.extras.analysis.report import (
    Inspection,
    describe_run,
    inspect_run,
    measure_heads,
    position_pictures,
    write_report,
)
from keras_transformer.runs.model_file import save_model
from keras_transformer.text.languages import Languages
from keras_transformer.training import Recipe, RunFolder

SIDES = tuple(zip(*PAIRS, strict=True))
PICTURES = {
    *(f"attention_{kind}.png" for kind in ("encoder", "decoder", "cross")),
    *(f"positions{name}.png" for name in ("", "_clock", "_similarity", "_extrapolation")),
    "alignment.png",
    "heads.png",
}


@pytest.fixture(scope="module")
def engine():
    tokenizer = Tokenizer.train_from_texts([text for side in SIDES for text in side], 150)
    config = TransformerConfig(150, 16, 2, 13, num_encoder_layers=1, num_decoder_layers=2)
    limits = {"max_source_length": 48, "max_target_length": 32}
    return ModelEngine(Transformer(config), tokenizer, **limits, **ONE_GRAPH)


@pytest.fixture(scope="module")
def inspection(engine):
    return Inspection(engine, *PAIRS[0])


def test_rows_are_the_tokens_that_are_written_and_columns_those_that_are_read(inspection):
    with pytest.raises(InputError, match="nothing to look at in an empty text"):
        Inspection(inspection.engine, " ", "Hunde")
    translation, weights = inspection.translation, inspection.attention
    assert translation.tokens[-1] == translation.source_tokens[-1] == "</s>"
    assert weights.cross.shape == (2, 2, len(translation.tokens), len(translation.source_tokens))
    assert weights.decoder[0, 0, 0, 1:].max() == 0  # The first step has read the beginning alone.
    # As an alignment from the engine's own pass, which knows nothing of this module.
    (scored,) = inspection.engine.score([PAIRS[0][0]], [PAIRS[0][1]], alignment=True)
    np.testing.assert_allclose(scored.alignment, weights.cross[-1].mean(0), atol=1e-4)


TOKENS = {code: f">>{code}<<" for code in ("de", "en", "fr")}


def test_a_sentence_of_a_model_of_several_languages_has_their_tokens(engine, tmp_path, monkeypatch):
    places = {"source_prefix": "target", "source_suffix": "source", "target_prefix": "target"}
    before, after, forced = [">>de<<"], [">>en<<"], [">>de<<"]
    texts = [text for side in SIDES for text in side]
    tokenizer = Tokenizer.train_from_texts(texts, 150, languages=TOKENS.values())
    languages = Languages(TOKENS, **places)
    limits = {"max_source_length": 48, "max_target_length": 32}
    several = ModelEngine(engine.model, tokenizer, **limits, **ONE_GRAPH, languages=languages)
    with pytest.raises(InputError, match="_language` must be one of"):
        Inspection(several, *PAIRS[0])
    seen = Inspection(several, *PAIRS[0], source_language="en-GB", target_language="de")
    sides = [tokenizer.tokenize(text, add_eos=True) for text in PAIRS[0]]
    own = [tokenizer.pieces_of(ids) for ids in sides]
    shown = [[token.replace("\u2581>>", ">>") for token in side] for side in seen.tokens]
    assert shown == [[*before, *own[0], *after], [*forced, *own[1]]]
    assert list(seen.translation.tokens) == own[1]
    ids = [[tokenizer.id_of(token) for token in tokens] for tokens in (before, after, forced)]
    read = [[*ids[0], *sides[0], *ids[1]], [BOS_ID, *ids[2], *sides[1]][:-1]]
    weights = attention(engine.model, *read)
    np.testing.assert_array_equal(seen.attention.cross, weights.cross)
    # Words are aligned without the tokens of languages.
    rows = slice(len(forced), None), slice(len(before), len(before) + len(sides[0]))
    mean = weights.cross[-1].mean(0)[rows]
    assert seen.alignment().links() == word_alignment(mean, *own).links()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # Pictures take seconds.
    with pytest.warns(UserWarning, match="matplotlib"):
        report = write_report(tmp_path, seen, 8, pairs=SIDES)
    assert sum(report["roles"].values()) == 2 + 4 + 4
    # Heads are measured with the tokens, too, and a text may begin with one itself.
    table = measure_heads(several, SIDES, seen.direction)
    pairs_of_ids = [
        ([*ids[0], *source, *ids[1]], [*ids[2], *target])
        for source, target in zip(
            *(tokenizer.tokenize(side, add_eos=True) for side in SIDES), strict=True
        )
        if len(source) <= 48 - len(before) - len(after) and len(target) <= 32
    ]
    counts = np.bincount(np.concatenate(tokenizer.tokenize(SIDES[0], add_eos=True)), minlength=150)
    expected = head_table(engine.model, pairs_of_ids[:64], counts, batch_size=64)
    assert [head.name for head in table] == [head.name for head in expected]
    importance = [head.importance for head in table], [head.importance for head in expected]
    np.testing.assert_allclose(*importance, rtol=1e-5)


def test_tags_of_an_imported_model_are_its_languages(engine, tmp_path):
    folder, recipe = RunFolder(tmp_path / "run"), recipe_values(tmp_path / "no")
    tokenizer = Tokenizer.train_from_texts(
        [text for side in SIDES for text in side], 150, languages=[">>epo<<", ">>deu<<"]
    )
    folder.create(recipe, (tokenizer, tokenizer), {})
    save_model(engine.model, folder.model_file)
    assert describe_run(folder.path)["languages"]["tokens"] == {"eo": ">>epo<<", "de": ">>deu<<"}


def test_a_run_describes_its_model(engine, tmp_path):
    folder, recipe = RunFolder(tmp_path / "run"), Recipe.from_dict(recipe_values(tmp_path / "no"))
    languages = Languages(directions=(("en", "de"),))
    tokenizers = engine.source_tokenizer, engine.target_tokenizer
    folder.create(recipe.to_dict(), tokenizers, {}, languages)
    save_model(engine.model, folder.model_file)
    described = describe_run(folder.path)
    assert (described["languages"], described["origin"]) == ({"directions": (("en", "de"),)}, None)
    folder.languages_file.unlink()
    origin = {"name": "a/b", "revision": "1.0", "licence": "mit", "files": {"x": "0"}}
    folder.write_sections({**recipe.to_dict(), "origin": origin})
    described = describe_run(folder.path)
    assert described["parameters"] == sum(w.size for w in engine.model.get_weights())
    assert described["bytes"] == folder.model_file.stat().st_size
    assert (described["kind"], described["model"]["model_dim"]) == ("transformer", 16)
    sizes = described["source_vocabulary_size"], described["target_vocabulary_size"]
    assert sizes == (150, 150)
    assert (described["languages"], described["licence"]) == (None, "mit")
    assert described["origin"] == {"name": "a/b", "revision": "1.0"}
    limits = described["max_source_length"], described["max_target_length"]
    assert limits == (recipe.decoding.max_source_length, recipe.decoding.max_target_length)
    json.dumps(described)


def test_the_report_holds_page_tables_and_pictures(inspection, tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    report = write_report(tmp_path, inspection, 8, pairs=SIDES)
    names = {"attention.html", "alignment.txt", "attention.npz", "heads.csv", "report.json"}
    assert set(report["files"]) == {path.name for path in tmp_path.iterdir()} == names | PICTURES
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == report
    assert (tmp_path / "alignment.txt").read_text() == report["alignment"] + "\n"
    assert [link.split("-")[1] for link in report["alignment"].split()] == ["0", "1", "2", "3", "4"]
    with np.load(tmp_path / "attention.npz") as arrays:
        np.testing.assert_array_equal(arrays["cross"], inspection.attention.cross)
    with open(tmp_path / "heads.csv", newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [row["name"] for row in table][:3] == ["encoder.0.0", "encoder.0.1", "decoder.0.0"]
    assert len(table) == 2 + 4 + 4 and sum(float(row["importance"]) for row in table) > 0
    for name in PICTURES:
        content = (tmp_path / name).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) > 3000


def test_a_full_disk_is_an_error_that_names_the_file(inspection, tmp_path, small_disk):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    with small_disk(99), pytest.raises(OSError) as caught:
        write_report(tmp_path, inspection, 8)
    assert caught.value.filename == str(tmp_path / "positions.png")


@pytest.mark.slow
def test_a_decoder_without_attention_has_neither_heads_nor_a_picture(engine, tmp_path):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    config = TransformerConfig(
        150, 16, 2, 13, num_encoder_layers=1, num_decoder_layers=2, decoder="ssru", positions="none"
    )
    recurrent = ModelEngine(Transformer(config), engine.source_tokenizer)
    report = write_report(tmp_path, Inspection(recurrent, *PAIRS[0]), 8, pairs=SIDES)
    drawn = {"attention_encoder.png", "attention_cross.png", "alignment.png", "heads.png"}
    assert set(report["files"]) & PICTURES == drawn
    table = (tmp_path / "heads.csv").read_text().splitlines()[1:]
    assert [row.split(".")[0] for row in table] == ["encoder"] * 2 + ["cross"] * 4


def test_learned_positions_that_are_concatenated_end_where_their_table_does():
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    model = model_with(positions="learned", max_length=11, combine_positions="concatenate")
    figures = position_pictures(model, 4)
    _, learned = figures["positions_extrapolation.png"].axes
    neighbours = learned.lines[0].get_ydata()  # Of 16 positions, each with the next one.
    np.testing.assert_array_equal(np.isnan(neighbours), np.arange(15) >= 10)
    for without in ("rotary", "relative", "none"):  # They have no vectors.
        assert position_pictures(model_with(positions=without), 4) == {}


def test_without_matplotlib_the_page_and_the_tables_are_written(inspection, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.warns(
        UserWarning,
        match=r"\(package matplotlib\): pip install .* the page and the tables are written",
    ):
        report = write_report(tmp_path, inspection, 8)
    names = "attention.html alignment.txt attention.npz report.json"
    assert set(report["files"]) == set(names.split())


def model_with(**fields):
    sizes = dict(model_dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    return Transformer(TransformerConfig(11, intermediate_dim=8, **sizes, **fields))


@pytest.mark.usefixtures("one_graph")
def test_heads_are_measured_on_the_runs_samples_without_its_corpus(engine, tmp_path, monkeypatch):
    folder, recipe = RunFolder(tmp_path / "run"), Recipe.from_dict(recipe_values(tmp_path / "no"))
    folder.create(recipe.to_dict(), (engine.source_tokenizer, engine.target_tokenizer), {})
    save_model(engine.model, folder.model_file)
    source, blank = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("A dog.\n")
    blank.write_text("\n")
    with pytest.raises(InputError, match="`corpus` needs a pair of .* blank side. Received: .*txt"):
        inspect_run(folder.path, "A dog.", tmp_path / "report", "Hund", corpus=(source, blank))
    reports = []

    def write_report(folder, inspection, trained, **inputs):
        reports.append((trained, inputs.get("pairs"), inputs.get("other_model")))
        (folder / "report.json").touch()
        return {}

    monkeypatch.setattr("keras_transformer.extras.analysis.report.write_report", write_report)
    inspect_run(folder.path, "A dog.", tmp_path / "report")
    folder.write_sample_pairs(PAIRS[:5])
    folder.write_sections({**recipe.to_dict(), "origin": {"name": "a/b", "licence": "mit"}})
    report = inspect_run(folder.path, "A dog.", tmp_path / "other")
    assert report["origin"] == "a/b, licence mit"
    assert reports[0] == (recipe.data.max_length, None, None)
    assert list(zip(*reports[1][1], strict=True)) == PAIRS[:5]
    with pytest.raises(InputError, match="other: .*exists"):
        inspect_run(folder.path, "A dog.", tmp_path / "other")
    options = {"overwrite": True, "other_positions": folder.path}
    inspect_run(folder.path, "A dog.", tmp_path / "other", **options)
    weights = (model.get_weights() for model in (reports[2][2], engine.model))
    for weight, expected in zip(*weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
