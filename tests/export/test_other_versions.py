"""What one environment writes, another with other versions opens, and translates equally.

    OTHER_PYTHON=/path/of/python pytest -s tests/export/test_other_versions.py

The interpreter is that of an environment with the dependencies of this package. The test prints a
row of the table in docs/start/install.md for each artifact.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "artifacts_program.py"
ARTIFACTS = ("run", "saved_model", "litert", "ctranslate2")
VERSIONS = "import keras, tensorflow; print(tensorflow.__version__, keras.__version__)"

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def in_environment(python, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("XLA_FLAGS", None)  # The flags of these tests are not known to each version.
    ended = subprocess.run(
        [python, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.fixture(scope="module")
def pythons():
    """Interpreters of the two environments, by the versions of TensorFlow and Keras."""
    other = os.environ.get("OTHER_PYTHON")
    if not other:
        pytest.skip("needs another environment: OTHER_PYTHON names its Python")
    return {in_environment(path, "-c", VERSIONS).strip(): path for path in (sys.executable, other)}


@pytest.fixture(scope="module")
def texts(pythons, tmp_path_factory):
    """`texts[writer, reader]`: the texts of each artifact."""
    folder = tmp_path_factory.mktemp("versions")
    texts = {}
    for i, (writer, writing) in enumerate(pythons.items()):
        (folder / str(i)).mkdir()
        in_environment(writing, PROGRAM, "write", folder / str(i))
        for reader, reading in pythons.items():
            result = folder / "texts.json"
            in_environment(reading, PROGRAM, "read", folder / str(i), result)
            texts[writer, reader] = json.loads(result.read_text(encoding="utf-8"))
    return texts


@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_an_artifact_of_one_environment_gives_the_same_texts_in_the_other(artifact, pythons, texts):
    assert len(pythons) == 2, "Both environments have the same versions."
    for writer, reader in [tuple(pythons), tuple(reversed(pythons))]:
        expected, received = texts[writer, writer][artifact], texts[writer, reader][artifact]
        row = f"| {artifact} | {writer} | {reader} |"
        if isinstance(received, str):  # A SavedModel needs a package that one of them lacks.
            assert artifact == "saved_model" and "tensorflow-text" in received
            print(f"{row} {received} |")
            continue
        assert len(set(expected)) > 50  # The model tells the texts apart.
        equal = sum(ours == theirs for ours, theirs in zip(received, expected, strict=True))
        print(f"{row} {equal} of {len(expected)} |")
        assert received == expected
