"""A run that was trained on JAX is a run like any other."""

import json
import os
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
from keras_transformer.training import Recipe, train
train(Recipe.from_dict(json.loads(sys.argv[1])), sys.argv[2])
assert "tensorflow" not in sys.modules
"""


@pytest.mark.slow
def test_a_run_trained_on_jax_without_tensorflow_is_that_of_tensorflow(tmp_path):
    pytest.importorskip("jax")
    values = recipe_values(write_corpus(tmp_path / "corpus"), epochs=2, sample_translations=1)
    values["model"].update(dropout=0.0, num_encoder_layers=1, num_decoder_layers=1)
    values["training"].update(r_drop=1.0, accumulation_steps=2, ema_momentum=0.5, max_shapes=2)
    command = [sys.executable, "-c", _TRAIN, json.dumps(values), str(tmp_path / "jax")]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr
    other = train(Recipe.from_dict(values), tmp_path / "tensorflow")
    jax = RunFolder.existing(tmp_path / "jax")
    for one, two in zip(jax.history(), other.history(), strict=True):
        for key in ("loss", "val_loss", "val_token_accuracy", "learning_rate"):
            assert one[key] == pytest.approx(two[key], rel=1e-3), key
    assert jax.samples().count("epoch ") == 2
    # It is read, and translates, where TensorFlow is.
    weights = zip(jax.model().get_weights(), other.model().get_weights(), strict=True)
    assert all(np.allclose(one, two, atol=0.02) for one, two in weights)
    assert len(jax.engine().translate(["A man."])) == 1
