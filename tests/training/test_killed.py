"""Trainings that are killed end as those that are not.

KILLS=20 pytest tests/training/test_killed.py -k moment
EPOCHS=12 pytest tests/training/test_killed.py -k hosts
"""

import os
import random
import time

import pytest
from killed_trainings import (
    LONGEST_SECONDS,
    ONE_HOST,
    SEVERAL_HOSTS,
    THREADS,
    begin,
    begin_hosts,
    finish,
    kill_host,
    largest_difference,
    losses,
    run_content,
    wait,
    write_inputs,
)

from keras_transformer.training import Recipe, train

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def test_a_training_killed_at_any_moment_and_resumed_is_the_uninterrupted_one(tmp_path):
    """Six epochs with averaged weights, early stopping and checkpoints between steps."""
    rng, recipe_file = random.Random(1), write_inputs(tmp_path / "inputs", 600, 100, ONE_HOST)
    recipe = Recipe.load(recipe_file)
    expected = run_content(train(recipe, tmp_path / "uninterrupted").path)
    for number in range(int(os.environ.get("KILLS", 1))):
        run = tmp_path / f"killed-{number}"
        process = begin(recipe_file, run, **THREADS)
        # Within an epoch, where there are also checkpoints of steps, or before the first one.
        moments = "checkpoints/epoch-0001.keras", "checkpoints/epoch-0002.keras", "recipe.yaml"
        wait([process], (run / moments[number % 3]).exists)
        time.sleep(rng.uniform(0, 0.5))
        assert process.poll() is None
        process.kill()
        process.wait()
        content = run_content(train(recipe, run, resume=True).path)
        assert [name for name in expected if content[name] != expected[name]] == []


def test_two_hosts_train_as_one_and_end_when_one_of_them_does(tmp_path):
    pytest.importorskip("jax")
    epochs = int(os.environ.get("EPOCHS", 1))
    few = {"select_by": "loss", "sample_translations": 0} if epochs == 1 else {}
    training = {**SEVERAL_HOSTS, "epochs": epochs, **few}
    recipe = write_inputs(tmp_path / "inputs", 60 if epochs == 1 else 430, 50, training)
    one = begin_hosts(recipe, tmp_path / "one", 1)
    # Of one epoch the survivor could end by itself before it knows.
    more = ["--set", "training.epochs=1000"] if epochs == 1 else []
    survived = kill_host(recipe, tmp_path / "killed", 1, *more)
    finish(*one)
    finish(*begin_hosts(recipe, tmp_path / "two", 2))
    if epochs > 1:  # One host whose batch is in halves on two devices has the sums of two hosts.
        finish(*begin_hosts(recipe, tmp_path / "halves", 1, devices=2))
        assert losses(tmp_path / "halves") == losses(tmp_path / "two")
    # JAX may abort the process once it has said why.
    assert survived["exit_code"] not in (0, None) and len(survived["said"]) == 1
    assert survived["seconds"] < LONGEST_SECONDS
    if epochs > 1:
        finish(*begin_hosts(recipe, tmp_path / "killed", 2))
    expected = losses(tmp_path / "one")
    for name in ("two", "killed"):
        assert largest_difference(expected, losses(tmp_path / name)[:epochs]) <= 1e-6
