import json
import re
import sys

import numpy as np
import pytest
from small_corpus import recipe_values

from keras_transformer.cli import run
from keras_transformer.export.ctranslate2_folder import export_ctranslate2
from keras_transformer.training import Recipe, RunFolder
from keras_transformer.training.run_folder import save_model

pytestmark = pytest.mark.tensorflow

# At most 13 and 17 tokens, in either vocabulary.
SOURCES = ["a man", "two dogs", "läuft"]
TARGETS = ["ON A BENCH", "A GIRL", "IN KÖLN."]


@pytest.fixture
def needs_ctranslate2():
    return pytest.importorskip("ctranslate2", reason="comes with the extra [peers]")


@pytest.fixture
def exported(tmp_path, make_engine, tokenizer, other_tokenizer, capsys):
    """`exported(joint)`: the folder that the command made of a run, the report, the engine."""

    def exported(joint):
        engine = (
            make_engine(normalize_first=True)
            if joint
            else make_engine(other_tokenizer, tie_embeddings="decoder")
        )
        folder = RunFolder(tmp_path / "run")
        tokenizers = (tokenizer, tokenizer if joint else other_tokenizer)
        folder.create(Recipe.from_dict(recipe_values(tmp_path)), tokenizers, {})
        save_model(engine.model, folder.model_file)
        arguments = ["--model", str(folder.path), "--output", str(tmp_path / "new")]
        code = run(["export", "--format", "ctranslate2", *arguments])
        captured = capsys.readouterr()
        return code, tmp_path / "new", captured, engine

    return exported


@pytest.mark.parametrize("joint", [True, False])
def test_the_folder_scores_texts_as_the_run_does_and_needs_nothing_else(
    exported, joint, needs_ctranslate2, monkeypatch, capsys
):
    code, folder, captured, engine = exported(joint)
    assert code == 0, captured.err
    report = json.loads(captured.out)
    assert report["output"] == str(folder)
    assert report["bytes"] == {path.name: path.stat().st_size for path in folder.iterdir()}
    names = (
        ["tokenizer.model"] * 2 if joint else ["source_tokenizer.model", "target_tokenizer.model"]
    )
    assert {"model.bin", "config.json", "export.json", "README.md", *names} <= set(report["bytes"])

    # As its README says, and in its folder alone.
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    found = {}
    exec(code, found)
    assert capsys.readouterr().out.startswith("['")
    scored = found["translator"].score_batch(
        found["source"].encode(SOURCES, out_type=str), found["target"].encode(TARGETS, out_type=str)
    )
    expected = engine.score(SOURCES, TARGETS)
    for ours, theirs in zip(expected, scored, strict=True):
        np.testing.assert_allclose(
            theirs.log_probs, ours.token_log_probabilities, rtol=1e-4, atol=1e-4
        )


def test_an_earlier_export_is_replaced_only_when_that_is_asked_for(
    tmp_path, engine, needs_ctranslate2
):
    output = tmp_path / "new"
    export_ctranslate2(engine, output)
    with pytest.raises(ValueError, match="must not exist"):
        export_ctranslate2(engine, output)
    (output / "old").write_text("old")
    export_ctranslate2(engine, output, overwrite=True)
    assert not (output / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_without_the_extra_one_line_names_it_and_nothing_is_left(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    code, folder, captured, _ = exported(True)
    assert (code, captured.out) == (2, "")
    *_, last = captured.err.splitlines()
    assert last == (
        'keras-transformer: CTranslate2 is needed: pip install "keras_transformer[peers]".'
    )
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
