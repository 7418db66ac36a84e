"""The program `export/litert_pause.py`."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).parents[2] / "export" / "litert_pause.py"

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
        reason="needs Linux and two cores",
    ),
]


def run(*arguments):
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_it_times_calls_with_threads_free_and_held(litert_report):
    done = run("--exported", litert_report.folder / "model_ids.tflite", "--rounds", 2)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == [
        "pause",
        "others, pause",
        "others, pause, threads on two cores",
    ]
    assert all(each["ms"] > 0 and each["switches"] >= 0 for each in report.values())
    # A call, not the pause or the work before it: a busy machine may slow some.
    assert min(each["ms"] for each in report.values()) < 50


def test_no_rounds_are_refused():
    done = run("--exported", "model_ids.tflite", "--rounds", 0)
    assert done.returncode == 2
    assert "one round" in done.stderr.splitlines()[-1]
