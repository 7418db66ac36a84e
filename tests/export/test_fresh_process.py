import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.export import saved_model

PROGRAM = Path(saved_model.__file__).with_name("fresh_process.py")


def test_it_imports_tensorflow_and_the_standard_library_alone():
    tree = ast.parse(PROGRAM.read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name.split(".")[0] for node in imports for alias in node.names}
    assert names - set(sys.stdlib_module_names) == {"tensorflow"}


@pytest.fixture
def ask(tmp_path):
    """`ask(folder, calls, **request)`: the answers."""

    def ask(folder, calls, **other):
        request, answer = tmp_path / "request.json", tmp_path / "answer.json"
        content = {"folder": str(folder), "calls": calls, "rewrite_graph": True, **other}
        request.write_text(json.dumps(content))
        command = [sys.executable, "-P", PROGRAM, request, answer]
        subprocess.run(command, check=True, capture_output=True)
        return json.loads(answer.read_text())

    return ask


@pytest.mark.slow
@pytest.mark.tensorflow
def test_both_loaders_answer_without_keras(report, served, ask):
    batches = [[], ["a man"], ["", "two dogs", "\u3000", " "]]
    calls = [{"signature": "serving_default", "inputs": {"text": batch}} for batch in batches]
    answers = ask(report.folder, calls, load_operations=True, custom_ops=["SentencepieceOp", "No"])
    assert (answers["imported"], answers["known_ops"]) == ([], ["SentencepieceOp"])
    for loader in ("session", "module"):
        assert answers[loader]["uninitialized"] == []
        for batch, result in zip(batches, answers[loader]["results"], strict=True):
            translations, scores = served(batch)
            assert result["translation"] == translations
            assert result["score"] == pytest.approx(scores, rel=1e-4)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_without_the_operations_ids_are_answered_and_texts_are_not(report, engine, ask):
    ids = engine.source_tokenizer.tokenize(["two dogs"], add_eos=True)
    calls = [{"signature": "serving_default", "inputs": {"source_ids": ids}}]
    without = dict(load_operations=False, custom_ops=["SentencepieceOp"])
    answers = ask(Path(report.folder) / "ids", calls, **without)
    (expected,) = engine.translate(["two dogs"], beam_size=3, length_penalty=0.8)
    assert answers["known_ops"] == []
    for loader in ("session", "module"):
        assert answers[loader]["results"][0]["ids"] == [list(expected.ids)]
    with pytest.raises(subprocess.CalledProcessError) as error:
        ask(report.folder, calls, **without)
    assert b"SentencepieceOp" in error.value.stderr
