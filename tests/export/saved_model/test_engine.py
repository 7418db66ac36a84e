import hashlib
import json
import math
import shutil
from copy import copy as copy_object
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.engine import SavedModelEngine
from keras_transformer.engine import saved_model as module
from keras_transformer.engine.translation import Translation
from keras_transformer.errors import InputError
from keras_transformer.training.evaluate import evaluate_model

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore:.*tokens and were cut")]


@pytest.fixture
def copy(report, tmp_path):
    """A copy of the export to be damaged."""
    return Path(shutil.copytree(report.folder, tmp_path / "copy"))


@pytest.mark.parametrize("batch_size", [3, 100])
def test_it_translates_as_the_live_engine(engine, exported, texts, batch_size):
    chosen = [*texts[:36], "", "\u3000", "\u200b\x07"]
    expected = engine.translate(chosen, beam_size=3, length_penalty=0.8, long_input="truncate")
    received = exported.translate(chosen, batch_size=batch_size)
    assert [each.text for each in received] == [each.text for each in expected]
    scores = [each.score for each in expected]
    assert [each.score for each in received] == pytest.approx(scores, rel=1e-4)


def test_no_text_gives_no_translation_and_a_blank_one_an_empty_one(exported):
    assert exported.translate([]) == []
    for options in ({}, {"beam_size": 1}, {"alignment": True}, {"sampling": True}):
        assert exported.translate([" \n"], **options) == [Translation("", 0.0)]


SEARCHES = [
    {"beam_size": 3, "n_best": 3},
    {"beam_size": 3, "n_best": 2},
    {"beam_size": 1},
    {"sampling": True, "seed": 5, "temperature": 0.75, "top_k": 7, "top_p": 0.875},
    {"sampling": True, "seed": (3, 5, 7, 11)},
    {"beam_size": 3, "alignment": True},
]


@pytest.mark.parametrize("options", SEARCHES)
def test_other_searches_are_the_live_engines(engine, exported, texts, options):
    chosen = [texts[30], "", texts[7], texts[35]]
    live = {"length_penalty": 0.8, "long_input": "truncate"}
    expected = engine.translate(chosen, **options, **live)
    received = exported.translate(chosen, **options)
    for ours, theirs in zip(expected, received, strict=True):
        assert len(ours.alternatives) == len(theirs.alternatives)
        for one, other in zip(
            (ours, *ours.alternatives), (theirs, *theirs.alternatives), strict=True
        ):
            assert one.text == other.text
            assert other.score == pytest.approx(one.score, rel=1e-4)
            assert other.log_probability == pytest.approx(one.log_probability, rel=1e-4)
        if "alignment" in options and ours.tokens:
            assert theirs.tokens == ours.tokens and theirs.source_tokens == ours.source_tokens
            np.testing.assert_allclose(theirs.alignment, ours.alignment, atol=1e-4)


def test_given_translations_are_scored(engine, exported, texts):
    sources, targets = [texts[3], "", texts[11]], ["a man", texts[2], ""]
    expected = engine.score(sources, targets, length_penalty=0.8)
    for received in (
        exported.score(sources, targets),
        exported.score(sources, targets, batch_size=1, length_penalty=0.8),
    ):
        assert [each.text for each in received] == targets
        for name in ("score", "log_probability"):
            values = [getattr(each, name) for each in expected]
            assert [getattr(each, name) for each in received] == pytest.approx(values, rel=1e-4)
    with pytest.raises(InputError, match="a target for each source. Received: 1 sources and 0"):
        exported.score(["a"], [])
    with pytest.raises(InputError, match="`length_penalty` is fixed at 0.8"):
        exported.score(["a"], ["b"], length_penalty=1.0)


def test_no_perplexity_is_given_of_references_that_the_export_would_cut(
    exported, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.setattr(Translator, "load", lambda path: Translator(exported))
    pairs, options = tmp_path / "pairs.tsv", {"of_references": True}
    pairs.write_text("a man\tthe girl\na girl\ta man #\n", encoding="utf-8")
    assert evaluate_model("any", pairs, **options)["unknown_word_share"] == 0.2
    assert len(tokenizer.tokenize("two dogs " * 9, add_eos=True)) > exported.max_target_length == 17
    pairs.write_text(f"a man\t{'two dogs ' * 9}\n", encoding="utf-8")
    with pytest.raises(
        InputError, match="pairs.tsv, line 1: .*`references` must have at most 17 tokens.* 'two"
    ):
        evaluate_model("any", pairs, **options)


def test_the_translator_reaches_it(report, exported, texts, monkeypatch):
    monkeypatch.setattr(module, "load_saved_model", lambda folder: exported._run)
    translator = Translator.load(report.folder)
    (best,) = translator.translate(texts[:1], n_best=3)
    assert len(best.alternatives) == 2
    (scored,) = translator.score(texts[:1], [best.text])
    assert scored.text == best.text


def test_the_exported_options_may_be_given(exported):
    expected = exported.translate(["a man"])[0]
    built_in = {"sampling": False, "long_input": "truncate", "alignment": False}
    received = exported.translate(["a man"], beam_size=3, length_penalty=0.8, n_best=1, **built_in)[
        0
    ]
    assert (received.text, received.score) == (expected.text, expected.score)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"beam_size": 4},
            "`beam_size` is fixed at 3 in a SavedModel; a run folder takes other values. "
            "Received: beam_size=4.",
        ),
        ({"length_penalty": 0.6}, "`length_penalty` is fixed at 0.8"),
        ({"early_stopping": False}, "`early_stopping` is fixed at True"),
        ({"n_best": 4}, "`n_best` must be at most `beam_size`. Received: n_best=4, beam_size=3."),
        ({"n_best": 2, "beam_size": 1}, "`n_best` must be 1 of greedy search in an export."),
        ({"n_best": 2, "sampling": True}, "`n_best` must be 1 of samples in an export."),
        ({"n_best": 2, "alignment": True}, "`n_best` must be 1 with `alignment` in an export."),
        ({"beam_size": 1, "alignment": True}, "`alignment` needs beam search"),
        ({"sampling": True, "seed": (1, 2)}, "one `seed`, or one for each text. Received: 2 for 1"),
        ({"sampling": True, "temperature": 0}, "`temperature` must be a number of at least"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer. Received: batch_size=0."),
        ({"top_k": 5}, "`top_k` needs `sampling=True`"),
        ({"min_length": 5}, "`min_length` is fixed at 0"),
        ({"target_prefixes": [""]}, "`target_prefixes` is fixed at None"),
        ({"long_input": "split"}, "`long_input` is fixed at 'truncate'"),
        ({"topk": 5}, "There is no option `topk`. Did you mean `top_k`?"),
    ],
)
def test_other_options_are_refused(exported, options, message):
    with pytest.raises(InputError) as error:
        exported.translate(["a man"], **options)
    assert message in str(error.value)


def test_an_export_with_fewer_signatures_says_what_it_lacks(exported):
    fewer = copy_object(exported)
    fewer._signatures = ("serving_default",)
    (found,) = fewer.translate(["a man"])
    assert found.text == exported.translate(["a man"])[0].text and math.isnan(found.log_probability)
    for options, name in (
        ({"n_best": 2}, "beam"),
        ({"sampling": True}, "sample"),
        ({"alignment": True}, "align"),
    ):
        with pytest.raises(InputError, match=f"needs the signature `{name}`"):
            fewer.translate(["a man"], **options)
    with pytest.raises(InputError, match="`score` needs the signature `score`"):
        fewer.score(["a"], ["b"])
    with pytest.raises(InputError, match="`beam_size` is fixed at 3"):
        fewer.translate(["a man"], beam_size=1)


@pytest.mark.parametrize("received", ["a man", ["a man", None], ["a man", "\ud800"]])
def test_what_is_no_list_of_strings_is_refused(exported, received):
    with pytest.raises(InputError, match="^(Text 2: )?`texts` must be .* Received: .*$"):
        exported.translate(received)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoil(path):
    path.write_bytes(bytes(path.stat().st_size))


def swap_weights(folder):
    """Weights of another model of the same shapes: they load without a complaint."""
    path = next(folder.glob("variables/*.data*"))
    content = bytearray(path.read_bytes())
    content[:4096] = content[4096:8192]
    path.unlink()  # it is a link
    path.write_bytes(content)


DAMAGES = [
    (lambda folder: shutil.rmtree(folder), "no such folder"),
    (lambda folder: (folder / "export.json").unlink(), "without export.json"),
    (lambda folder: cut(folder / "export.json"), "cannot be read"),
    (lambda folder: (folder / "export.json").write_text("[]"), '"format" is another'),
    (lambda folder: (folder / "saved_model.pb").unlink(), "saved_model.pb is missing"),
    (lambda folder: cut(folder / "saved_model.pb"), "saved_model.pb is not the file that was exp"),
    (lambda folder: shutil.rmtree(folder / "variables"), "variables/variables.data.* is missing"),
    (lambda folder: (folder / "variables" / "variables.index").unlink(), "index is missing"),
    (lambda folder: cut(next(folder.glob("variables/*.data*"))), "is not the file that was exp"),
    (swap_weights, "variables/variables.data-00000-of-00001 is not the file that was exported"),
    (lambda folder: spoil(folder / "ids" / "tokenizer.model"), "ids/tokenizer.model is not the"),
    (lambda folder: shutil.rmtree(folder / "assets.extra"), "warmup_requests is missing"),
]


@pytest.mark.parametrize("damage, message", DAMAGES)
def test_a_damaged_folder_is_named_in_one_line(copy, damage, message):
    damage(copy)
    with pytest.raises(InputError, match=message) as error:
        SavedModelEngine(copy)
    assert str(error.value).startswith(f"{copy}: ") and "\n" not in str(error.value)


def rename_operation(folder):
    path = folder / "saved_model.pb"
    path.write_bytes(path.read_bytes().replace(b"SentencepieceOp", b"SentencepieceXX"))


def test_unknown_operations_are_named(copy):
    rename_operation(copy)
    manifest = json.loads((copy / "export.json").read_text())
    content = (copy / "saved_model.pb").read_bytes()
    manifest["files"]["saved_model.pb"] = hashlib.sha256(content).hexdigest()
    (copy / "export.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="Received: unknown operations: SentencepieceXX") as error:
        SavedModelEngine(copy)
    assert str(error.value).startswith(f"{copy}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, value", [("beam_size", "4"), ("files", ["saved_model.pb"]), ("signatures", ["beam"])]
)
def test_a_manifest_of_other_types_is_refused(report, tmp_path, name, value):
    (tmp_path / "export.json").write_text(json.dumps({**report.manifest, name: value}))
    with pytest.raises(InputError, match=f'"{name}" or with another type of it'):
        SavedModelEngine(tmp_path)
