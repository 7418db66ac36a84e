"""The parts that need no GPU."""

import json

import pytest

from benchmarks import gpu
from benchmarks.gpu import Results, outcomes, step_flops
from keras_transformer import TransformerConfig
from keras_transformer.errors import InputError


@pytest.mark.tensorflow
def test_another_backend_is_a_users_mistake(tmp_path, capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--small", "--output", str(tmp_path)])
    assert "needs the JAX backend" in capsys.readouterr().err.splitlines()[-1]
    assert not any(tmp_path.iterdir())


def test_operations_of_a_step_are_those_of_its_products():
    config = TransformerConfig(5, 2, 1, 3, num_encoder_layers=1, num_decoder_layers=2)
    # For one position of each side, with one key: four projections 2x2, the feed-forward 2x3 and
    # 3x2, a score and a sum of 2 each: 16 + 12 + 4. A decoder block has two attentions:
    # 32 + 12 + 8. Logits: 10. Each multiplication has its addition, and the backward pass takes two
    # forward passes.
    assert step_flops(config, rows=1, length=1) == 6 * (32 + 2 * 52 + 10)
    # With seven keys scores and sums are seven times as many.
    positions = 3 * 7
    assert step_flops(config, rows=3, length=7) == 6 * positions * (28 + 28 + 2 * (44 + 56) + 10)


def test_figures_are_in_the_file_at_once_and_keep_those_before(tmp_path):
    results = Results(tmp_path)
    results.add("decoding", rows=[1])
    results.add("training", rate=7)
    results.add("decoding", rows=[1, 2], error=None)
    figures = {"decoding": {"rows": [1, 2], "error": None}, "training": {"rate": 7}}
    assert json.loads((tmp_path / "gpu.json").read_text()) == figures


def test_a_part_that_fails_or_takes_too_long_leaves_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "SECONDS", {"training": 0.3, "decoding": 60})
    results = Results(tmp_path)
    results.add("training", rate=7)
    gpu._run(results, "training", ["timeit", "-n1", "-r1", "import time; time.sleep(60)"])
    gpu._run(results, "decoding", ["no_such_module"])
    training, decoding = results.read().values()
    assert training.pop("process_seconds") < 30
    assert training == {"rate": 7, "error": "stopped after 0.3 s: no output"}
    assert decoding["error"].startswith("exit code 1: ")
    assert decoding["error"].endswith("No module named no_such_module")


@pytest.mark.parametrize("python", ["3.12", "three"])
def test_wheels_of_two_versions_are_not_mixed(python, tmp_path):
    (tmp_path / "keras-1.whl").touch()
    with pytest.raises(InputError, match="without wheels" if python == "3.12" else "'three'"):
        gpu.wheels(tmp_path, python=python)


def test_outcomes_of_tests_that_were_stopped_are_counted():
    text = """\
[gw0] [  1%] PASSED tests/a.py::test_one[x y]
tests/a.py::test_two
[gw11] [ 50%] FAILED tests/a.py::test_two
[gw1] [100%] SKIPPED tests/b.py::test_three
[gw1] [100%] ERROR tests/b.py::test_four
FAILED tests/a.py::test_two - assert False
[gw1] [100%] PASSED tests/b.py::test_four
tests/c.py::test_five"""
    failed = ["tests/a.py::test_two", "tests/b.py::test_four"]
    assert outcomes(text) == {"passed": 2, "skipped": 1, "failed": failed}
    assert outcomes("no tests") == {"passed": 0, "skipped": 0, "failed": []}
