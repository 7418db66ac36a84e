import os
import shutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from export_fixtures import SEARCH
from tensorflow.core.protobuf import config_pb2, saved_model_pb2
from translations import check_same

from keras_transformer import Translator
from keras_transformer.base.errors import InputError, declared_requirements
from keras_transformer.export import export_saved_model
from keras_transformer.export.signature import SIGNATURES

pytestmark = pytest.mark.tensorflow

SPACES = "".join(chr(i) for i in range(sys.maxunicode + 1) if chr(i).isspace())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*tokens and were cut")
def test_any_number_of_texts_gives_the_live_translations_compiled(engine, verified_report, texts):
    exported = Translator.load(verified_report.folder).engine
    expected = engine.translate(texts[:193], long_input="truncate", **SEARCH)
    check_same(expected, exported.translate(texts[:193], batch_size=200))
    # Were they all alike, a wrong order could not be seen.
    assert len({translation.text for translation in expected}) > 5


def test_what_python_calls_blank_or_has_no_token_is_answered_with_nothing(served):
    without_tokens = ["\u200b", "\ufeff", "\u200e", "\x07", "\u2581", "\u2581\u200b \x07"]
    texts = ["", *SPACES, SPACES, *without_tokens, "a man", "\x00"]
    translations, scores = served(texts)
    answered = [text for text, score in zip(texts, scores, strict=True) if score != 0.0]
    assert answered == ["a man", "\x00"]
    assert set(translations[:-2]) == {""}
    assert served(["", "\u3000"]) == (["", ""], [0.0, 0.0])


def test_bytes_that_are_no_text_are_answered(served):
    assert len(served([b"\xff\xfe a man", b"\xe4", b"a"])[0]) == 3


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_manifest_and_the_readme_have_the_row_of_each_signature(name, report):
    row, described = SIGNATURES[name], report.manifest["signatures"][name]
    for side, tensors in (("inputs", row.inputs), ("outputs", row.outputs)):
        assert described[side].keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert described[side][key]["dtype"] == tensor.dtype
            assert len(described[side][key]["shape"]) == 1 + len(tensor.shape)
    assert described["meaning"] == row.meaning
    assert f"| {row.meaning} |" in Path(report.folder, "README.md").read_text("utf-8")


def test_the_manifest_says_what_is_in_it(report):
    manifest = report.manifest
    expected = {"beam_size": 3, "length_penalty": 0.8, "early_stopping": True, "n_best": 1}
    expected |= {"max_source_length": 13, "max_target_length": 17}
    expected |= {"source_vocabulary_size": 53, "target_vocabulary_size": 47}
    assert expected.items() <= manifest.items()
    shapes = {"rows": [1, 2, 4, 8], "source_lengths": [13], "target_lengths": [16, 17]}
    assert manifest["shapes"] == shapes
    assert manifest["versions"]["keras"] == keras.__version__
    declared = {requirement.name for requirement in declared_requirements()}
    assert set(manifest["oldest_versions"]) == {"tensorflow", "tensorflow-text"} & declared


def test_the_manifest_describes_each_signature(report):
    signatures = report.manifest["signatures"]
    for name, function in tf.saved_model.load(report.folder).signatures.items():
        _, inputs = function.structured_input_signature
        described = {
            key: {"dtype": spec.dtype.name, "shape": [*spec.shape]} for key, spec in inputs.items()
        }
        assert signatures[name]["inputs"] == described
    assert signatures["serving_default"]["inputs"] == {"text": {"dtype": "string", "shape": [None]}}
    described = {"dtype": "string", "shape": [None, 3]}
    assert signatures["beam"]["outputs"]["translation"] == described


def test_the_manifest_names_the_operations_that_it_needs(report):
    manifest = report.manifest
    operations = ["SentencepieceDetokenizeOp", "SentencepieceOp", "SentencepieceTokenizeOp"]
    assert manifest["custom_ops"] == operations
    assert {"StatelessIf", "While", "StatelessWhile"} & set(manifest["core_ops"])
    assert not set(manifest["core_ops"]) & set(operations)


def test_a_model_does_not_tell_where_it_was_made(report):
    folder = Path(report.folder)
    # The place where it was made is nobody's business, and not needed to load it.
    assert os.fsencode(folder.parent) not in (folder / "saved_model.pb").read_bytes()


def test_nothing_rewrites_its_graph_before_the_first_call(report):
    content = Path(report.folder, "saved_model.pb").read_bytes()
    (graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    nodes = [
        *graph.graph_def.node,
        *(node for function in graph.graph_def.library.function for node in function.node_def),
    ]
    settings = [node.attr["config_proto"].s for node in nodes if "config_proto" in node.attr]
    options = [config_pb2.ConfigProto.FromString(setting).graph_options for setting in settings]
    assert options and all(option.rewrite_options.disable_meta_optimizer for option in options)


@pytest.mark.slow
def test_a_copy_elsewhere_translates_as_its_readme_says(report, served, tmp_path):
    folder = shutil.copytree(report.folder, tmp_path / "elsewhere")
    program = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    options = {"env": {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, "check": True}
    command = [sys.executable, "-c", program.replace("A text.", "a man")]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, **options)
    (translation,), (score,) = served(["a man"])
    *words, received = result.stdout.split()
    assert words == translation.split() and float(received) == pytest.approx(score, rel=1e-4)


@pytest.mark.slow
def test_two_tokenizers_greedy_in_bfloat16_are_exported(make_engine, other_tokenizer, tmp_path):
    fields = {"tie_embeddings": "decoder", "positions": "learned"}
    engine = make_engine(other_tokenizer, dtype="mixed_bfloat16", with_xla=True, **fields)
    options = {"beam_size": 1, "signatures": ["score"]}
    report = export_saved_model(engine, tmp_path / "m", ["a man"], **options)
    sizes = report.manifest["source_vocabulary_size"], report.manifest["target_vocabulary_size"]
    assert sizes == (53, 47)
    assert report.verification["tolerance"]["score"] == 0.05
    assert os.listdir(tmp_path) == ["m"]
    exported = Translator.load(tmp_path / "m").engine
    assert exported.source_tokenizer == engine.source_tokenizer != other_tokenizer
    assert exported.target_tokenizer == other_tokenizer


def test_mistakes_are_told_before_anything_is_written(engine, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="`beam_size` must be a positive integer"):
        export_saved_model(engine, tmp_path / "model", beam_size=0)
    with pytest.raises(InputError, match="`signatures` must be among"):
        export_saved_model(engine, tmp_path / "model", signatures=["bean"])
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.txt").write_text("three years")
    with pytest.raises(InputError, match="not make: thesis.txt"):
        export_saved_model(engine, tmp_path / "there")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(InputError, match="TensorFlow backend"):
        export_saved_model(engine, tmp_path / "model")
    assert os.listdir(tmp_path) == ["there"]


IMPORT = """
import sys
sys.modules["tensorflow"] = sys.modules["tensorflow_text"] = None
from keras_transformer.export import FORMATS, exporter_of
for name in FORMATS:
    exporter_of(name)
"""


@pytest.mark.slow
def test_importing_the_package_imports_no_tensorflow():
    pytest.importorskip("jax", reason="comes with the extra [jax]")
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    subprocess.run([sys.executable, "-c", IMPORT], env=environment, check=True)
