"""The core knows no door: each folder around it may be deleted."""

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
IMPORT_ALL = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
QUICK = ("layers/test_masks.py", "layers/test_blocks.py", "models/test_config.py")
QUICK += ("decoding/test_search_options.py", "decoding/test_selection.py", "decoding/test_beam.py")
QUICK += ("training/test_optimizer.py", "training/test_recipe.py")


@pytest.fixture
def without(tmp_path):
    """`without(folders)`: a copy of the package that lacks some folders."""

    def without(folders):
        copy = tmp_path / "tree" / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for folder in folders:
            shutil.rmtree(copy / folder)
        return copy.parent

    return without


def run(tree, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_core_is_imported_without_the_folder(without, folder):
    run(without([folder]), "-c", IMPORT_ALL, *CORE_MODULES)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_the_cores_quick_tests_pass_without_any_door(without):
    tree = without(sorted(DOORS))
    shutil.copytree(TESTS, tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TESTS.parent / "pyproject.toml", tree)
    shutil.copytree(TESTS.parent / "training", tree / "training")
    run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{name}" for name in QUICK))
