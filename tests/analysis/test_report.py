"""Pictures draw the arrays that they are given; the report holds all of it."""

import csv
import json
import sys

import numpy as np
import pytest
from device_plans import ONE_GRAPH
from small_corpus import PAIRS, recipe_values

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from keras_transformer.analysis import plots, positions
from keras_transformer.analysis.attention import (
    Attention,
    WordAlignment,
    attention,
    word_alignment,
)
from keras_transformer.analysis.heads import Head, head_table
from keras_transformer.analysis.report import (
    Inspection,
    describe_run,
    inspect_run,
    measure_heads,
    position_pictures,
    write_report,
)
from keras_transformer.engine import ModelEngine
from keras_transformer.errors import InputError
from keras_transformer.ids import BOS_ID
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


@pytest.mark.parametrize(
    ("places", "before", "after", "forced"),
    [
        ({"source_prefix": "target"}, [">>de<<"], [], []),
        (
            {"source_suffix": "source", "target_prefix": "target"},
            [],
            [">>en<<"],
            [">>de<<"],
        ),
    ],
)
def test_a_sentence_of_a_model_of_several_languages_has_their_tokens(
    engine, tmp_path, monkeypatch, places, before, after, forced
):
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
    folder.write_start(recipe, (tokenizer, tokenizer), {})
    save_model(engine.model, folder.model_file)
    assert describe_run(folder.path)["languages"]["tokens"] == {"eo": ">>epo<<", "de": ">>deu<<"}


def test_a_run_describes_its_model(engine, tmp_path):
    folder, recipe = RunFolder(tmp_path / "run"), Recipe.from_dict(recipe_values(tmp_path / "no"))
    languages = Languages(directions=(("en", "de"),))
    tokenizers = engine.source_tokenizer, engine.target_tokenizer
    folder.write_start(recipe.to_dict(), tokenizers, {}, languages)
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
    config = TransformerConfig(150, 16, 2, 13, 1, 2, decoder="ssru", positions="none")
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
        UserWarning, match=r"pip install .*matplotlib>=.* the page and the tables are written"
    ):
        report = write_report(tmp_path, inspection, 8)
    names = "attention.html alignment.txt attention.npz report.json"
    assert set(report["files"]) == set(names.split())


def model_with(**fields):
    sizes = dict(model_dim=8, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    return Transformer(TransformerConfig(11, intermediate_dim=8, **sizes, **fields))


def images(figure):
    return [np.asarray(image.get_array()) for axis in figure.axes for image in axis.images]


def test_attention_is_drawn_by_layer_and_head_also_of_tokens_with_dollars(rng):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    weights = rng.uniform(size=(2, 3, 5, 7))
    figure = plots.plot_attention(weights, ["$a_$"] * 5, ["b"] * 7, "t")
    np.testing.assert_array_equal(images(figure), weights.reshape(6, 5, 7))
    assert plots.png(figure).startswith(b"\x89PNG")


def test_each_kind_of_attention_is_a_figure(rng):
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    weights = rng.uniform(size=(2, 3, 5, 5))
    figures = plots.plot_pair(Attention(weights, weights, weights), "abcde", "vwxyz")
    titles = {kind: figure.get_suptitle() for kind, figure in figures.items()}
    assert titles == {"encoder": "encoder", "decoder": "decoder", "cross": "decoder to source"}


def test_each_link_of_words_is_a_dot():
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    figure = plots.plot_alignment(WordAlignment(np.eye(3, 5)[[1, 2, 0]], [*"abcde"], [*"xyz"]))
    width, height = figure.get_size_inches()
    assert width > height  # of five source words and three target words
    dots = [(*line.get_xdata(), *line.get_ydata()) for line in figure.axes[0].lines]
    assert sorted(dots) == [(0, 2), (1, 0), (2, 1)]


ENCODING = positions.sinusoids(24, 8)


def test_positions_are_drawn_as_vectors_products_and_a_rotation():
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    vectors = images(plots.plot_encoding({"fixed": ENCODING}))[0]
    np.testing.assert_array_equal(vectors, ENCODING)
    products, _, rotation = images(plots.plot_similarity(ENCODING, offset=3))
    np.testing.assert_allclose(products, ENCODING @ ENCODING.T)
    np.testing.assert_allclose(rotation, positions.rotation(8, 3))


def test_hands_of_clocks_point_to_the_sine_and_the_cosine_of_a_position():
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    figure = plots.plot_clock_hands(ENCODING, positions=5, pairs=2)
    _, hands = figure.axes[0].collections  # After the circles.
    # Of both pairs, at position 3.
    for hand, angle in zip(hands.get_segments()[3::5], (3, 0.3), strict=True):
        np.testing.assert_allclose(np.diff(hand, axis=0), [[np.sin(angle), np.cos(angle)]])
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["pair 0\nonce in 6", "pair 1\nonce in 63"]  # 2 pi and 20 pi positions


def test_measures_of_heads_are_drawn_by_layer_and_head():
    pytest.importorskip("matplotlib", reason="comes with the extra [plots]")
    numbers = [0.5, 1.0, 0.25, float("nan"), 0.75]
    heads = [Head(f"encoder.{i}.{j}", "other", *numbers, i + j) for i in range(2) for j in range(3)]
    importance, confidence, *_ = images(plots.plot_heads(heads))
    np.testing.assert_array_equal(importance, [[0, 1, 2], [1, 2, 3]])
    np.testing.assert_array_equal(confidence, np.full((2, 3), 0.5))


@pytest.mark.usefixtures("one_graph")
def test_heads_are_measured_on_the_runs_samples_without_its_corpus(engine, tmp_path, monkeypatch):
    folder, recipe = RunFolder(tmp_path / "run"), Recipe.from_dict(recipe_values(tmp_path / "no"))
    folder.create(recipe, (engine.source_tokenizer, engine.target_tokenizer), {})
    save_model(engine.model, folder.model_file)
    source, blank = tmp_path / "source.txt", tmp_path / "target.txt"
    source.write_text("A dog.\n")
    blank.write_text("\n")
    with pytest.raises(InputError, match="`corpus` needs a pair of .* blank side. Received: .*txt"):
        inspect_run(folder.path, "A dog.", tmp_path / "report", "Hund", corpus=(source, blank))
    reports = []

    def write_report(folder, inspection, trained, **inputs):
        reports.append((trained, inputs.get("pairs")))
        return {}

    monkeypatch.setattr("keras_transformer.analysis.report.write_report", write_report)
    inspect_run(folder.path, "A dog.", tmp_path / "report")
    folder.write_sample_pairs(PAIRS[:5])
    folder.write_sections({**recipe.to_dict(), "origin": {"name": "a/b", "licence": "mit"}})
    report = inspect_run(folder.path, "A dog.", tmp_path / "other")
    assert report["origin"] == "a/b, licence mit"
    assert reports[0] == (recipe.data.max_length, None)
    assert list(zip(*reports[1][1], strict=True)) == PAIRS[:5]
