"""A run that was trained on JAX is a run like any other."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from jax_processes import jax_environment
from killed_trainings import copied
from shared_training import SharedModel
from small_corpus import recipe_values, write_corpus

from keras_transformer.training import Recipe, RunFolder, train

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

_TRAIN = """
import json, pathlib, sys
from device_plans import one_graph
from killed_trainings import copied
from keras_transformer.training import Recipe, train
run, copy = map(pathlib.Path, sys.argv[2:])
with one_graph(), copied(run, copy, 2, 1):
    train(Recipe.from_dict(json.loads(sys.argv[1])), run, resume=True)
assert "tensorflow" not in sys.modules
"""


def test_a_run_continues_on_jax_within_a_pass_and_from_there_on_tensorflow_again(
    tmp_path, one_graph
):
    pytest.importorskip("jax", reason="comes with the extra [jax]")
    options = dict(accumulation_steps=2, ema_momentum=0.5, max_shapes=2)
    options |= dict(learning_rate=0.75, jit_compile=False, sample_translations=1)
    options |= dict(batch_tokens=128, steps_per_epoch=2, epochs=4)
    values = recipe_values(write_corpus(tmp_path / "corpus"), **options)
    recipe, jax, again = Recipe.from_dict(values), tmp_path / "jax", tmp_path / "again"
    shared = {"training_class": SharedModel().training_class()}
    with copied(tmp_path / "run", jax, 1, 1):
        run = train(recipe, tmp_path / "run", **shared)
    command = [sys.executable, "-c", _TRAIN, json.dumps(values), str(jax), str(again)]
    environment = {**os.environ, **jax_environment(*sys.path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr[-2000:]
    assert RunFolder(jax).history()[0] == RunFolder(again).history()[0]
    assert RunFolder(again).checkpoint_epochs() == [1, 2]
    train(recipe, again, resume=True, **shared)
    rows, weights = run.history(), run.model().get_weights()
    assert rows[-1]["learning_rate"] > 0.01
    for other in map(RunFolder, (jax, again)):
        for row, entry in zip(rows, other.history(), strict=True):
            for key in ("loss", "val_loss", "val_perplexity", "learning_rate"):
                assert entry[key] == pytest.approx(row[key], rel=1e-4), key
        assert other.samples().count("epoch ") == 4
        for mine, same in zip(other.model().get_weights(), weights, strict=True):
            np.testing.assert_allclose(mine, same, atol=1e-2)
