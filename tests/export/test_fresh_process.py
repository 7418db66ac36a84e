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


@pytest.mark.slow
@pytest.mark.tensorflow
def test_both_loaders_answer_without_keras(report, served, tmp_path):
    batches = [[], ["a man"], ["", "two dogs", "\u3000", " "]]
    request, answer = tmp_path / "request.json", tmp_path / "answer.json"
    request.write_text(json.dumps({"batches": batches, "rewrite_graph": True}))
    command = [sys.executable, "-P", PROGRAM, report.folder, request, answer]
    subprocess.run(command, check=True, capture_output=True)
    answers = json.loads(answer.read_text())
    assert answers["imported"] == []
    for loader in ("session", "module"):
        assert answers[loader]["uninitialized"] == []
        for batch, result in zip(batches, answers[loader]["results"], strict=True):
            translations, scores = served(batch)
            assert result["translation"] == translations
            assert result["score"] == pytest.approx(scores, rel=1e-4)
