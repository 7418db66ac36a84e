"""The core knows no door: each folder around it may be deleted."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from test_architecture import CORE, DOORS, MODULES, PACKAGE

TESTS = pathlib.Path(__file__).parent
# The folders of a door are doors, too: one for each foreign program, and the downloads.
FOLDERS = sorted(DOORS) + sorted(
    f"interop/{path.name}"
    for path in (PACKAGE / "interop").iterdir()
    if (path / "__init__.py").exists()
)
CORE_MODULES = sorted(
    name for name in MODULES if name.split(".")[1:2] and name.split(".")[1] in CORE
)
# Each folder has a process of its own, a fork of one that has loaded the slow libraries.
IMPORT_ALL = """
import importlib, json, os, sys, traceback
import keras, pydantic, tensorflow, yaml

statuses = {}
for folder, tree in json.loads(sys.argv[1]).items():
    if not (child := os.fork()):
        sys.path.insert(0, tree)
        try:
            for name in sys.argv[2:]:
                importlib.import_module(name)
            assert sys.modules[name].__file__.startswith(tree)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    statuses[folder] = os.waitpid(child, 0)[1]
print(json.dumps(statuses))
"""
QUICK = ("layers/test_masks.py", "layers/test_blocks.py", "models/test_config.py")
QUICK += ("decoding/test_search_options.py", "decoding/test_selection.py", "decoding/test_beam.py")
QUICK += ("training/test_optimizer.py", "training/test_recipe.py")


def copy_without(folders, parent):
    """The parent of a copy of the package that lacks some folders."""
    copy = parent / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in folders:
        shutil.rmtree(copy / folder)
    return parent


def run(tree, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """What a process says that imports the core without each folder, and its statuses."""
    base = tmp_path_factory.mktemp("trees")
    trees = {name: str(copy_without([name], base / name.replace("/", "-"))) for name in FOLDERS}
    done = run(base, "-c", IMPORT_ALL, json.dumps(trees), *CORE_MODULES)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_core_is_imported_without_the_folder(imported, folder):
    statuses, errors = imported
    assert statuses[folder] == 0, errors[-3000:]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_cores_quick_tests_pass_without_any_door(tmp_path):
    tree = copy_without(sorted(DOORS), tmp_path / "tree")
    shutil.copytree(TESTS, tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS.parent / "pyproject.toml", tree)
    shutil.copytree(TESTS.parent / "training", tree / "training")
    assert "--signatures" in run(tree, "-m", "keras_transformer", "export", "--help").stdout
    run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{name}" for name in QUICK))
