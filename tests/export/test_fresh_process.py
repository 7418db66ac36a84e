"""The programs that run where neither Keras, this package nor, for two, TensorFlow is."""

import ast
import importlib.machinery
import json
import os
import subprocess
import sys
import types

import pytest

from keras_transformer import Tokenizer
from keras_transformer.export import fresh_process
from keras_transformer.export.fresh_process import PROGRAMS, tokenizer_operations

PROGRAM = fresh_process.__file__

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


def run(folder, program="litert"):
    """Runs a program; gives the finished process and where its answer lies."""
    request, answer = folder / "request.json", folder / "answer.json"
    given = {"folder": str(folder), "batches": BATCHES, "lengths": LENGTHS}
    request.write_text(json.dumps(given))
    done = subprocess.run(
        [sys.executable, "-P", PROGRAM, program, str(request), str(answer)],
        env={**os.environ, "PYTHONPATH": str(folder / "packages")},
        stdin=subprocess.DEVNULL,
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
    done, answer = run(folder)
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text())


@pytest.mark.parametrize("program", ["keras_transformer", "export"])
def test_each_unknown_word_is_one_id_to_the_file_of_ids(
    tmp_path, monkeypatch, load_program, program
):
    sentences = ["two dogs sit", "a man sits in the park"] * 9
    tokenizer = Tokenizer.train_from_texts(sentences, 14, whole_words=True)
    tokenizer.save(tmp_path / "tokenizer.model")
    given = []

    class Interpreter:
        def __init__(self, path, num_threads):
            pass

        def get_signature_runner(self, name):
            def run(source_ids):
                given.extend(source_ids.tolist())
                return {"ids": source_ids, "score": source_ids[:, 0]}

            return run

    interpreter = types.ModuleType("ai_edge_litert.interpreter")
    interpreter.Interpreter = Interpreter
    monkeypatch.setitem(sys.modules, "ai_edge_litert", types.ModuleType("ai_edge_litert"))
    monkeypatch.setitem(sys.modules, interpreter.__name__, interpreter)
    sides = dict.fromkeys(("source_tokenizer", "target_tokenizer"), "tokenizer.model")
    manifest = {**sides, "source_lengths": [7], "whole_words": True}
    (tmp_path / "export.json").write_text(json.dumps(manifest))
    texts = ["two dogsled dogs", "a gnu gnus in"]
    if program == "export":
        example = load_program("export/litert/translate.py")
        example.translate(example.load(tmp_path), texts)
    else:
        fresh_process.litert_ids(str(tmp_path), manifest)(texts, "greedy", None)
    two, dogs, a = (tokenizer.tokenize(word)[0] for word in ("two", "dogs", "a"))
    expected = [[two, 3, dogs, 2, 0, 0, 0], [a, 3, 3, tokenizer.tokenize("in")[0], 2, 0, 0]]
    assert given == expected and 3 not in (two, dogs, a)


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
    done, answer = run(tmp_path)
    assert done.returncode == 1
    assert "FileNotFoundError" in done.stderr.splitlines()[-1] and "source.model" in done.stderr
    assert not answer.exists()


def test_it_imports_the_standard_library_and_what_the_programs_call():
    with open(PROGRAM, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    names = {
        (alias.name if isinstance(node, ast.Import) else node.module).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    packages = {"ai_edge_litert", "ctranslate2", "numpy", "sentencepiece", "tensorflow"}
    assert names - set(sys.stdlib_module_names) == packages
    ours = {"keras", "tf_keras", "keras_transformer"}
    assert {name: set(hidden) - ours for name, (_, hidden) in PROGRAMS.items()} == {
        "saved_model": set(),
        "litert": {"tensorflow", "tensorflow_text"},
        "litert_classifier": {"tensorflow", "tensorflow_text"},
        "ctranslate2": {"tensorflow", "tensorflow_text"},
        "conversion": set(),
    }


def test_what_is_imported_all_the_same_is_named(tmp_path, monkeypatch):
    def intrude():
        sys.modules["keras.src.losses"] = types.ModuleType("keras.src.losses")

    for name in [each for each in sys.modules if each.split(".")[0] == "keras"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "keras.src.losses", None)
    monkeypatch.setitem(PROGRAMS, "litert", (intrude, ("keras",)))
    monkeypatch.setitem(sys.modules, "keras", None)
    (tmp_path / "request").write_text("{}")
    with pytest.raises(SystemExit, match="^keras imported while it ran$"):
        fresh_process.main("litert", tmp_path / "request", tmp_path / "answer")
    assert not (tmp_path / "answer").exists()


@pytest.mark.parametrize("missing", ["tensorflow", "tensorflow_text"])
def test_without_tensorflow_text_there_are_no_operations_for_texts(monkeypatch, missing):
    found = importlib.machinery.PathFinder.find_spec
    monkeypatch.delitem(sys.modules, fresh_process._REGISTRAR, raising=False)
    monkeypatch.setattr(
        importlib.machinery.PathFinder,
        "find_spec",
        lambda name: None if name == missing else found(name),
    )
    with pytest.raises(ImportError, match="needs the operations of tensorflow-text"):
        tokenizer_operations()


def test_operations_that_are_loaded_are_not_loaded_again(monkeypatch):
    registrar = types.SimpleNamespace(
        AddFastSentencepieceTokenize="one", AddFastSentencepieceDetokenize="other"
    )
    monkeypatch.setitem(sys.modules, fresh_process._REGISTRAR, registrar)
    assert tokenizer_operations() == ["one", "other"]
