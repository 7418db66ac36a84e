import pytest

from benchmarks import hosts_test

pytestmark = pytest.mark.tensorflow


@pytest.mark.slow
def test_two_hosts_train_as_one_and_end_when_one_of_them_does(tmp_path):
    pytest.importorskip("jax")
    recipe = hosts_test.write_inputs(tmp_path / "inputs", epochs=1, pairs=60)
    options = ["--set", "training.select_by=loss", "--set", "training.sample_translations=0"]
    one = hosts_test.start(recipe, tmp_path / "one", 1, *options)
    survived = hosts_test.kill_one(
        recipe, tmp_path / "two", 1, *options, "--set", "training.epochs=1000"
    )
    hosts_test.finish(one)
    hosts_test.finish(hosts_test.start(recipe, tmp_path / "both", 2, *options))
    # One host whose batch is in halves on two devices has the sums of two hosts.
    hosts_test.finish(hosts_test.start(recipe, tmp_path / "halves", 1, *options, devices=2))
    assert hosts_test.losses(tmp_path / "halves") == hosts_test.losses(tmp_path / "both")
    # JAX may abort the process once it has said why.
    assert survived["exit_code"] not in (0, None) and len(survived["said"]) == 1
    assert survived["seconds"] < 60
    expected = hosts_test.losses(tmp_path / "one")
    for name in ("both", "two"):
        found = hosts_test.losses(tmp_path / name)
        assert hosts_test.largest_difference(expected, found[:1]) <= 1e-6
