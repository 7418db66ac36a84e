import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.tensorflow

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_killed_trainings_end_as_the_unbroken_one(tmp_path):
    # In a process of its own: it forks, which one that has used TensorFlow must not.
    command = [sys.executable, "-m", "benchmarks.kill_test", "--kills", "1"]
    command += ["--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["equal"] and len(report["kills"]) == 1
