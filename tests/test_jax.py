"""What only JAX does: with another backend those tests run in a process of their own."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from jax_processes import jax_environment

TESTS = pathlib.Path(__file__).parent
MARK = "\n@pytest.mark.jax"
FILES = [str(path) for path in TESTS.rglob("test_*.py") if MARK in path.read_text("utf-8")]


@pytest.mark.slow
@pytest.mark.tensorflow
def test_what_only_jax_does_passes_there():
    pytest.importorskip("jax", reason="comes with the extra [jax]")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "jax", "-p", "no:cacheprovider", *FILES]
    environment = {**os.environ, **jax_environment(*sys.path)}
    ended = subprocess.run(
        command, cwd=TESTS.parent, capture_output=True, text=True, env=environment
    )
    assert ended.returncode == 0, ended.stdout[-2000:]
    # None of them is left out there, too.
    assert re.search(r"^[1-9]\d* passed, \d+ deselected in ", ended.stdout, re.MULTILINE)
