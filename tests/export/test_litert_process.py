"""The program that runs LiteRT files on their own: as a process, and its two kinds of files."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import types

import pytest

from keras_transformer.export import litert_process
from keras_transformer.export.litert_process import Ids, Text, tokenizer_operations

pytestmark = pytest.mark.tensorflow

PROGRAM = litert_process.__file__

# Stand-ins that the process finds first. A token is a number; a signature gives the ids that it
# was given in reverse, and its own length as the score.
TOKENIZER = """
class SentencePieceProcessor:
    def __init__(self, path):
        self.name = open(path).read()

    def encode(self, texts):
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids):
        return f"{self.name}: {ids}"
"""
INTERPRETER = """
import importlib
import numpy as np

class Interpreter:
    def __init__(self, path, num_threads):
        for name in ("tensorflow", "keras", "tensorflow_text", "keras_transformer"):
            try:
                importlib.import_module(name)
            except ImportError:
                continue
            raise RuntimeError(f"{name} can be imported")

    def get_signature_runner(self, name):
        search, length = name.split("_")

        def run(source_ids):
            assert source_ids.dtype == "int32" and source_ids.shape[1] == int(length)
            ids, scores = source_ids[:, ::-1], np.full(len(source_ids), float(length))
            if search == "beam":  # The second hypothesis is another one.
                ids, scores = np.stack([ids, ids + 100], 1), np.stack([scores, -scores], 1)
            return {"ids": ids, "score": scores}

        return run
"""


def run(folder, batches):
    """Runs the program; gives the finished process and where its answer lies."""
    request, answer = folder / "request.json", folder / "answer.json"
    request.write_text(json.dumps({"batches": batches, "lengths": LENGTHS}))
    done = subprocess.run(
        [sys.executable, "-P", PROGRAM, str(folder), str(request), str(answer)],
        env={**os.environ, "PYTHONPATH": str(folder / "packages")},
        capture_output=True,
        text=True,
    )
    return done, answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An export from ids to ids that the stand-ins run."""
    folder = tmp_path_factory.mktemp("ids")
    interpreter = folder / "packages" / "ai_edge_litert" / "interpreter.py"
    interpreter.parent.mkdir(parents=True)
    (interpreter.parent / "__init__.py").touch()
    interpreter.write_text(INTERPRETER)
    (folder / "packages" / "sentencepiece.py").write_text(TOKENIZER)
    for side in ("source", "target"):
        (folder / f"{side}.model").write_text(side)
    manifest = {
        "searches": ["greedy", "beam"],
        "source_lengths": [3, 5],
        "source_tokenizer": "source.model",
        "target_tokenizer": "target.model",
    }
    (folder / "export.json").write_text(json.dumps(manifest))
    return folder


BATCHES = [["7 11", "  ", "13"], [], ["7 11 13", "17"], ["7 11 13 17 19 23"], ["7"]]
LENGTHS = [None, None, None, 5, 5]


@pytest.fixture(scope="module")
def answer(folder):
    done, answer = run(folder, BATCHES)
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text())


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_each_batch_is_answered_with_the_best_translations_of_the_shortest_signature(
    answer, search
):
    assert list(answer) == ["ids"] and list(answer["ids"]["searches"]) == ["greedy", "beam"]
    found = answer["ids"]["searches"][search]
    assert found["results"] == [
        # In reverse, without padding; the end, 2, counts for a source. A blank has nothing.
        {
            "translation": ["target: [11, 7]", "target: []", "target: [13]"],
            "score": [3.0, 3.0, 3.0],
            "ids": [[2, 11, 7], [], [2, 13]],
        },
        {"translation": [], "score": [], "ids": []},
        {
            "translation": ["target: [13, 11, 7]", "target: [17]"],
            "score": [5.0, 5.0],
            "ids": [[2, 13, 11, 7], [2, 17]],
        },
        # Cut at five, the end included.
        {"translation": ["target: [17, 13, 11, 7]"], "score": [5.0], "ids": [[2, 17, 13, 11, 7]]},
        # Three places would do, five were asked for.
        {"translation": ["target: [7]"], "score": [5.0], "ids": [[2, 7]]},
    ]
    assert len(found["call_seconds"]) == len(BATCHES) and min(found["call_seconds"]) >= 0
    assert answer["ids"]["load_seconds"] >= 0


def test_what_does_not_load_ends_the_process_without_an_answer(folder, tmp_path):
    (tmp_path / "packages").symlink_to(folder / "packages")
    (tmp_path / "export.json").write_text((folder / "export.json").read_text())
    done, answer = run(tmp_path, BATCHES)
    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr.splitlines()[-1] and "source.model" in done.stderr
    assert not answer.exists()


def test_it_imports_litert_numpy_and_sentencepiece_alone():
    with open(PROGRAM, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    packages = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert packages == {"ai_edge_litert", "numpy", "sentencepiece"}


def test_both_files_translate_as_the_live_model(litert_report, engine):
    folder = litert_report.folder
    texts = ["a man", "", "two dogs", " \t", "läuft 12", "a girl runs", "你好"]
    models = {
        "ids": Ids(folder, litert_report.manifest),
        "text": Text(folder, tokenizer_operations()),
    }
    for search, beam_size in (("greedy", 1), ("beam", 3)):
        live = engine.translate(texts, beam_size, 0.8)
        for kind, model in models.items():
            found, scores, ids = model.translate(texts, search, None)
            assert found == [each.text for each in live]
            assert scores == pytest.approx([each.score for each in live], abs=1e-4)
            if kind == "ids":
                assert ids == [list(each.ids) for each in live]


@pytest.mark.parametrize("missing", ["tensorflow", "tensorflow_text"])
def test_without_tensorflow_text_there_are_no_operations_for_texts(monkeypatch, missing):
    found = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, litert_process._REGISTRAR, raising=False)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(ImportError, match="needs the operations of tensorflow-text"):
        tokenizer_operations()


def test_operations_that_are_loaded_are_not_loaded_again(monkeypatch):
    registrar = types.SimpleNamespace(
        AddFastSentencepieceTokenize="one", AddFastSentencepieceDetokenize="other"
    )
    monkeypatch.setitem(sys.modules, litert_process._REGISTRAR, registrar)
    assert tokenizer_operations() == ["one", "other"]
