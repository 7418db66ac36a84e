"""Which tests run: no test is skipped silently, and slow ones run with `--slow` alone."""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import scheduling

TESTS = pathlib.Path(__file__).parent
SKIPPING = """
import pytest

@pytest.mark.skipif(True, reason="needs nginx: somewhere")
def test_a(): ...

def test_b():
    pytest.importorskip("none_of_this_name", reason="comes with the extra [litert]")

def test_c():
    pytest.skip("not today")

@pytest.mark.xfail
def test_d():
    assert False
"""
COLLECTED = 'import pytest\npytest.importorskip("none_of_this_name")\ndef test_e(): ...\n'
SLOW = """
import pytest

@pytest.fixture
def ask(): ...

def test_a(ask): ...

@pytest.mark.slow
def test_b(): ...

@pytest.mark.slow(after=2)
@pytest.mark.parametrize("case", range(5))
def test_c(case): ...

def test_d(): ...
"""


CONFTEST = f"exec(compile(open({str(TESTS / 'conftest.py')!r}).read(), 'conftest', 'exec'))"
SKIPS = {"test_runs.py": SKIPPING, "test_collected.py": COLLECTED}
SELECTIONS = {(): 3, ("--slow",): 8, ("--slow", "-m", "slow"): 5}
RUNS = {"all": (SKIPS, (), {}), "few": (SKIPS, (), {"TESTS_MAY_LACK": "a corpus,a program"})}
RUNS["late"] = ({"test_runs.py": SLOW}, (), {"TESTS_END_AT": "1"})
RUNS |= {options: ({"test_runs.py": SLOW}, options, {}) for options in SELECTIONS}
# Each run has a process of its own, a fork of one that has loaded the slow libraries.
PROGRAM = """
import json, os, sys
import keras
import keras_transformer.export, keras_transformer.extras.foreign
import pytest

for folder, options, environment in json.loads(sys.argv[1]):
    if not (child := os.fork()):
        file = os.open(f"{folder}/output", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(folder)
        os.environ |= environment
        fixed = ["-q", "-p", "no:cacheprovider", "-n", "0", "--continue-on-collection-errors"]
        status = pytest.main([*fixed, folder, *options])
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The exit code of pytest, and what it prints, of each of `RUNS`, under tests/conftest.py."""
    arguments = []
    for files, options, environment in RUNS.values():
        folder = tmp_path_factory.mktemp("run")
        files = {"conftest.py": CONFTEST, "pytest.ini": "[pytest]\nmarkers = slow\n"} | files
        for name, content in files.items():
            (folder / name).write_text(content)
        arguments.append((str(folder), options, environment))
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TESTS_"))}
    inherited["PYTHONPATH"] = os.pathsep.join([str(TESTS), *sys.path])
    command = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    done = subprocess.run(command, env=inherited, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outputs = [pathlib.Path(folder, "output").read_text() for folder, *_ in arguments]
    return dict(zip(RUNS, zip(map(int, done.stdout.split()), outputs, strict=True), strict=True))


@pytest.mark.slow
def test_a_skip_with_a_reason_that_is_not_listed_fails_and_others_are_counted(runs):
    status, output = runs["all"]
    assert status == 1 and "1 failed, 2 skipped, 1 xfailed, 1 error" in output
    assert "test_c: a skip must be for want of a corpus" in output
    assert "Received: not today" in output and "Received: could not import" in output
    assert "skipped for want of a program: 1\n" in output
    assert "skipped for want of a package: 1\n" in output
    status, output = runs["few"]
    assert "2 failed, 1 skipped, 1 xfailed, 1 error" in output
    assert "Received: comes with the extra [litert]" in output
    status, output = runs["late"]
    assert status == 0 and "skipped for want of time: 3\n" in output


@pytest.mark.slow
@pytest.mark.parametrize("options", SELECTIONS)
def test_a_slow_test_runs_when_asked_and_the_first_cases_of_a_table_always(runs, options):
    status, output = runs[options]
    assert status == 0 and f"{SELECTIONS[options]} passed" in output


def test_the_files_that_come_first_are_there():
    assert [name for name in scheduling.LONGEST if not (TESTS.parent / name).exists()] == []


def reasons():
    """The reasons that tests name in their source, each with its file; '' where none is named."""
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("skip", "skipif", "importorskip") and path.name != "conftest.py":
                values = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
                values += node.args[:1] if node.func.attr == "skip" else []
                if all(isinstance(value, ast.Constant) for value in values):
                    yield path.name, "".join(value.value for value in values)


def test_every_reason_in_the_source_is_listed(request):
    (conftest,) = (
        plugin
        for plugin in request.config.pluginmanager.get_plugins()
        if getattr(plugin, "__file__", None) == str(TESTS / "conftest.py")
    )
    found = dict.fromkeys(reasons())
    assert len(found) > 30
    for name, reason in found:
        assert any(re.search(known, reason) for known in conftest.SKIPS.values()), (name, reason)
