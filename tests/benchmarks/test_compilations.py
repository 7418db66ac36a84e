"""Counts programs with the shapes and rows of a GPU, on JAX' CPU, in new processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jax_processes import jax_environment

from benchmarks import compilations
from keras_transformer.compilation_cache import VARIABLE

ROOT = Path(compilations.__file__).parents[1]
SEARCH, TEST, TRAIN = STEPS = "jit(run)", "jit(test_step)", "jit(train_step)"
pytestmark = pytest.mark.slow

# With the tests' XLA_FLAGS a program compiles in a fifth of the time, but a step or a search still
# takes five times as long as any of the small ones.
MAIN = """
from benchmarks import compilations
compilations.SECONDS = 0.08
compilations.main()
"""


@pytest.fixture
def compiled(tmp_path):
    """`compiled(command, *options, cache)`: what a command compiles.

    With a cache it compiles as long as on a user's machine, which is told of each long compilation.
    """
    pytest.importorskip("jax", reason="comes with the extra [jax]")
    compilations.write_corpus(tmp_path, None, 600, held_out=100)
    names = {"TF_XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= jax_environment(ROOT)

    def call(command, *options, cache="off"):
        module = [sys.executable, "-c", MAIN, "one-command", command]
        flags = {} if cache == "off" else {"XLA_FLAGS": ""}
        done = subprocess.run(
            [*module, str(tmp_path), "--device", "gpu", "--small", *options],
            env={**environment, **flags, VARIABLE: str(cache)},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return call


def steps_of(report):
    """Names of the programs that a step or a search is, sorted."""
    return sorted(name for name, _ in report["programs"] if name in STEPS)


def test_commands_compile_few_programs_with_the_plan_of_a_gpu(compiled):
    most = {"train": 6, "evaluate": 3, "translate": 3, "export": 3}
    reports = {name: compiled(name) for name in most}
    too_many = {name: reports[name] for name in most if reports[name]["count"] > most[name]}
    assert not too_many
    # Two shapes of training, one of validation, one of all sentences' translations.
    assert steps_of(reports["train"]) == [SEARCH, TEST, TRAIN, TRAIN]


def test_programs_that_a_process_has_compiled_are_read_by_the_next(compiled, tmp_path):
    report = compiled("train", cache=tmp_path / "cache")
    assert report["read"] == 0 and steps_of(report) == [SEARCH, TEST, TRAIN, TRAIN]
    again = compiled("train", "--output", "again", cache=tmp_path / "cache")
    assert again["read"] == again["programs_in_all"] > 4
