"""A run that was trained on JAX is a run like any other."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from small_corpus import recipe_values, write_corpus

from keras_transformer.training import Recipe, RunFolder, train

pytestmark = pytest.mark.tensorflow

_TRAIN = """
import json, sys
class NoTensorFlow:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text"):
            raise ImportError(name)
sys.meta_path.insert(0, NoTensorFlow())
from keras_transformer.training import Recipe, RunFolder, callbacks, train
recipe, save = Recipe.from_dict(json.loads(sys.argv[1])), callbacks.save_checkpoint
class Stopped(Exception):
    pass
def save_and_stop(model, file):
    save(model, file)
    if file.name.startswith("step"):
        raise Stopped
callbacks.save_checkpoint = save_and_stop
try:
    train(recipe, sys.argv[2], resume=True)
except Stopped:
    assert len(RunFolder(sys.argv[2]).step_files()) == 1
callbacks.save_checkpoint = save
train(recipe, sys.argv[2], resume=True)
assert "tensorflow" not in sys.modules
"""


def test_a_run_goes_on_on_jax_also_within_an_epoch_and_without_tensorflow(tmp_path):
    pytest.importorskip("jax")
    options = dict(r_drop=1.0, accumulation_steps=2, ema_momentum=0.5, max_shapes=2)
    options |= dict(learning_rate_scale=60.0, jit_compile=False, sample_translations=1)
    values = recipe_values(write_corpus(tmp_path / "corpus"), epochs=1, **options)
    one = train(Recipe.from_dict(values), tmp_path / "tensorflow")
    other = RunFolder(shutil.copytree(one.path, tmp_path / "jax"))
    before = one.model().get_weights()
    values["training"].update(epochs=3, checkpoint_every_minutes=1e-9)
    command = [sys.executable, "-c", _TRAIN, json.dumps(values), str(other.path)]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr[-2000:]
    train(Recipe.from_dict(values), one.path, resume=True)
    for row, same in zip(one.history(), other.history(), strict=True):
        for key in ("loss", "val_loss", "val_perplexity", "learning_rate"):
            assert row[key] == pytest.approx(same[key], rel=1e-4), key
    assert other.samples().count("epoch ") == 3
    weights = one.model().get_weights(), other.model().get_weights()
    assert not np.allclose(weights[0][0], before[0], atol=0.01)
    for mine, same in zip(*weights, strict=True):
        np.testing.assert_allclose(mine, same, atol=2e-3)
