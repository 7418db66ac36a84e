"""Trainings that are killed end as those that are not.

KILLS=20 pytest tests/training/test_killed.py -k moment
EPOCHS=12 pytest tests/training/test_killed.py -k hosts
"""

import os
import random
import time

import killed_trainings as trainings
import pytest
from shared_training import SharedModel

from keras_transformer.training import Recipe, train

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def test_a_training_killed_at_any_moment_and_resumed_is_the_uninterrupted_one(tmp_path):
    """Eight epochs of three of a pass's four batches, with averages and early stopping."""
    recipe_file = trainings.write_inputs(tmp_path / "inputs", trainings.ONE_HOST)
    rng, recipe = random.Random(1), Recipe.load(recipe_file)
    options = {"training_class": SharedModel().training_class()}
    expected = trainings.run_content(train(recipe, tmp_path / "uninterrupted", **options).path)
    for number in range(int(os.environ.get("KILLS", 1))):
        run = tmp_path / f"killed-{number}"
        process = trainings.begin(recipe_file, run, **trainings.THREADS)
        # Within an epoch, whose end is within a pass, or before the first one.
        moments = "checkpoints/epoch-0001.keras", "checkpoints/epoch-0002.keras", "recipe.yaml"
        trainings.wait([process], (run / moments[number % 3]).exists)
        time.sleep(rng.uniform(0, 0.5))
        assert process.poll() is None
        process.kill()
        process.wait()
        trainings.check_markers(run)
        content = trainings.run_content(train(recipe, run, resume=True, **options).path)
        assert [name for name in expected if content[name] != expected[name]] == []


def test_two_hosts_train_as_one_and_end_when_one_of_them_does(tmp_path):
    pytest.importorskip("jax", reason="comes with the extra [jax]")
    epochs = int(os.environ.get("EPOCHS", 1))
    few = {"select_by": "loss", "sample_translations": 0} if epochs == 1 else {}
    training = {**trainings.SEVERAL_HOSTS, "epochs": epochs, **few}
    recipe = trainings.write_inputs(tmp_path / "inputs", training)
    one = trainings.begin_hosts(recipe, tmp_path / "one", 1)
    # Of one epoch the survivor could end by itself before it knows.
    more = ["--set", "training.epochs=1000"] if epochs == 1 else []
    exit_code, said, seconds = trainings.kill_host(recipe, tmp_path / "killed", *more)
    trainings.finish(*one)
    # JAX may abort the process once it has said why.
    assert exit_code not in (0, None) and len(said) == 1 and seconds < trainings.LONGEST_SECONDS
    # Of one epoch nothing is left to train, and both hosts end.
    trainings.finish(*trainings.begin_hosts(recipe, tmp_path / "killed", 2))
    if epochs > 1:  # One host whose batch is in halves on two devices has the sums of two hosts.
        trainings.finish(*trainings.begin_hosts(recipe, tmp_path / "two", 2))
        trainings.finish(*trainings.begin_hosts(recipe, tmp_path / "halves", 1, devices=2))
        assert trainings.losses(tmp_path / "halves") == trainings.losses(tmp_path / "two")
    for name in ["killed", "two"] if epochs > 1 else ["killed"]:
        assert trainings.largest_difference(tmp_path / "one", tmp_path / name) <= 1e-6
