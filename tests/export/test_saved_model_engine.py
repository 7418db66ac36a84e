import json
import math
import shutil
from pathlib import Path

import pytest

from keras_transformer.decoding import Translation
from keras_transformer.errors import InputError
from keras_transformer.export import SavedModelEngine

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore:.*tokens and were cut")]


@pytest.fixture(scope="module")
def exported(report):
    return SavedModelEngine(report.folder)


@pytest.fixture
def copy(report, tmp_path):
    """A copy of the export to be damaged."""
    return Path(shutil.copytree(report.folder, tmp_path / "copy"))


@pytest.mark.parametrize("batch_size", [3, 32, 100])
def test_it_translates_as_the_live_engine(engine, exported, texts, batch_size):
    chosen = [*texts[:36], "", "\u3000"]
    expected = engine.translate(chosen, beam_size=3, length_penalty=0.8, long_input="truncate")
    received = exported.translate(chosen, batch_size=batch_size)
    assert [each.text for each in received] == [each.text for each in expected]
    scores = [each.score for each in expected]
    assert [each.score for each in received] == pytest.approx(scores, rel=1e-4)


def test_no_text_gives_no_translation_and_a_blank_one_an_empty_one(exported):
    assert exported.translate([]) == []
    assert exported.translate([" \n"]) == [Translation("", 0.0)]
    assert math.isnan(exported.translate(["a man"])[0].log_probability)


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
        ({"beam_size": 4}, "`beam_size` is fixed in this export, at 3. Received: beam_size=4."),
        ({"length_penalty": 0.6}, "fixed in this export, at 0.8. Received: length_penalty=0.6."),
        ({"n_best": 2}, "`n_best` is fixed in this export, at 1. Received: n_best=2."),
        ({"batch_size": 0}, "`batch_size` must be a positive integer. Received: batch_size=0."),
        (
            {"top_k": 5},
            "`top_k` is not in this export, which does what top_k=0 does; a run folder has it. "
            "Received: top_k=5.",
        ),
        ({"alignment": True}, "`alignment` is not in this export"),
        ({"target_prefixes": [""]}, "`target_prefixes` is not in this export"),
        ({"long_input": "split"}, "which does what long_input='truncate' does"),
        ({"topk": 5}, "There is no option `topk`. Did you mean `top_k`?"),
    ],
)
def test_other_options_are_refused(exported, options, message):
    with pytest.raises(InputError) as error:
        exported.translate(["a man"], **options)
    assert message in str(error.value)


@pytest.mark.parametrize("received", ["a man", ["a man", None], ["a man", "\ud800"]])
def test_what_is_no_list_of_strings_is_refused(exported, received):
    with pytest.raises(InputError, match="^`texts` must be .* Received: .*$"):
        exported.translate(received)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoil(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (lambda folder: (folder / "export.json").unlink(), "without export.json"),
        (lambda folder: cut(folder / "export.json"), "cannot be read"),
        (lambda folder: (folder / "export.json").write_text("[]"), '"format" is another'),
        (lambda folder: (folder / "saved_model.pb").unlink(), "incomplete or damaged"),
        (lambda folder: cut(folder / "saved_model.pb"), "incomplete or damaged"),
        (lambda folder: shutil.rmtree(folder / "variables"), "incomplete or damaged"),
        (lambda folder: (folder / "variables" / "variables.index").unlink(), "incomplete or damag"),
        (lambda folder: cut(next(folder.glob("variables/*.data*"))), "incomplete or damaged"),
        (lambda folder: spoil(next(folder.glob("variables/*.data*"))), "incomplete or damaged"),
    ],
)
def test_a_damaged_folder_is_named_in_one_line(copy, damage, message):
    damage(copy)
    with pytest.raises(InputError, match=message) as error:
        SavedModelEngine(copy)
    assert str(error.value).startswith(f"{copy}: ") and "\n" not in str(error.value)


def test_a_manifest_without_an_option_is_refused(copy):
    manifest = json.loads((copy / "export.json").read_text())
    del manifest["beam_size"]
    (copy / "export.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match='without "beam_size"'):
        SavedModelEngine(copy)


def test_another_saved_model_is_refused(report, tmp_path):
    import tensorflow as tf

    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, [tf.TensorSpec((), tf.float32, name="x")])
    for signatures in ({}, {"serving_default": module.double}):
        tf.saved_model.save(module, str(tmp_path / "other"), signatures or None)
        shutil.copy(Path(report.folder) / "export.json", tmp_path / "other")
        with pytest.raises(InputError, match="serving_default must take `text`"):
            SavedModelEngine(tmp_path / "other")
