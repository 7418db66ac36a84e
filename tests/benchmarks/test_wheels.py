"""Gathering without Keras and JAX."""

import subprocess
import sys

import pytest

from benchmarks import wheels
from keras_transformer.errors import InputError


@pytest.mark.parametrize("python", ["3.12", "three"])
def test_wheels_of_two_versions_are_not_mixed(python, tmp_path):
    (tmp_path / "keras-1.whl").touch()
    with pytest.raises(InputError, match="without wheels" if python == "3.12" else "'three'"):
        wheels.wheels(tmp_path, python=python)


@pytest.mark.slow
def test_an_environment_without_keras_and_jax_can_gather():
    hidden = "import sys; sys.modules.update(dict.fromkeys(('keras', 'jax', 'tensorflow')))"
    program = f"{hidden}; from benchmarks import wheels; wheels.main(['--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m benchmarks.wheels ")
