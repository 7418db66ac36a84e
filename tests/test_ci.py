"""`.ci/run` with programs that only write down how they were called."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
REAL = "awk bash basename cat dirname env grep ln mkdir mktemp rm sed sort tail timeout".split()
CALLED = "apt-get npm python3".split()
TOOL = """#!/usr/bin/env bash
name="$(basename "$0")"
{ printf '>>> %s %s\\n' "$name" "$*"; env; } >>"$CALLS"
case "$name $*" in
  python*" -m venv "* | "uv venv "*)
    mkdir -p "${!#}/bin"
    for program in python pip uv pytest keras-transformer ruff mypy hadolint; do
      ln -sf "$TOOL" "${!#}/bin/$program"
    done ;;
  "python -c import sys;"*) printf '3.12\\n' ;;
  "uv "*"--prerelease allow"*" .[test]") [[ -z "${NO_WHEEL:-}" ]] ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """`run(**environment)`: what `.ci/run` writes, and what it called; `run.bin` is its PATH."""
    (tmp_path / "tree" / ".ci").mkdir(parents=True)
    for name in (".ci/run", "README.md", "setup.py"):
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    tool = tmp_path / "tool"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in REAL:
        (folder / name).symlink_to(shutil.which(name))
    for name in CALLED:
        (folder / name).symlink_to(tool)

    def run(**environment):
        calls = tmp_path / "calls"
        calls.write_text("")
        base = {"PATH": str(folder), "HOME": str(tmp_path), "TOOL": str(tool), "CALLS": str(calls)}
        command = [str(tmp_path / "tree" / ".ci" / "run")]
        done = subprocess.run(command, env={**base, **environment}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, calls.read_text()

    run.bin, run.tool = folder, tool
    return run


def test_what_is_not_there_is_neither_installed_nor_left_out_in_silence(run):
    said, calls = run()
    assert "apt-get" not in calls
    assert "ci: skipped: the pages of the server and of the web export in a browser" in said
    assert "ci: skipped: the lowest versions: no python3.11 or python3.12" in said
    assert "ci: skipped: Python 3.13: no python3.13" in said
    assert "release candidate: no python3.14" in said
    assert "ci: skipped: building the container" in said
    assert ">>> hadolint export/container/Dockerfile\n" in calls


def test_a_container_tool_that_runs_builds_the_image(run):
    (run.bin / "podman").symlink_to(run.tool)
    said, calls = run()
    assert ">>> podman build --quiet --file export/container/Dockerfile " in calls
    assert "hadolint" not in calls and "building the container" not in said


def test_a_machine_that_is_cis_own_gets_a_browser_and_no_setting_of_the_callers_comes_through(run):
    names = "RAY_ADDRESS", "XDG_CACHE_HOME", "KERAS_BACKEND", "PYTHONDONTWRITEBYTECODE"
    settings = dict.fromkeys(names, "callers")
    _, calls = run(CI="true", **settings)
    assert ">>> apt-get install --yes --no-install-recommends chromium\n" in calls
    assert "=callers" not in calls


def test_other_pythons_are_tested_with_the_lowest_and_with_coming_versions(run, tmp_path):
    for version in ("3.13", "3.14"):
        (run.bin / f"python{version}").symlink_to(run.tool)
    shim = run.bin / "python3.11"  # One of pyenv's, of a version that is not chosen.
    shim.write_text("#!/usr/bin/env bash\nexit 127\n")
    shim.chmod(0o755)
    python = tmp_path / ".pyenv" / "versions" / "3.11.7" / "bin" / "python3.11"
    python.parent.mkdir(parents=True)
    python.symlink_to(run.tool)
    said, calls = run()
    assert "python3.1" not in said.partition("ci: skipped")[2]
    for folder, option in {
        "lowest": "resolution lowest-direct",
        "3.14": "prerelease allow",
    }.items():
        environment = rf">>> uv venv --quiet --python \S+ \S+/{folder}\n"
        install = (
            rf">>> uv pip install --quiet --{option} --python \S+/{folder}/bin/python \.\[test\]\n"
        )
        assert len(re.findall(environment, calls)) == len(re.findall(install, calls)) == 1
    tests = r">>> pytest -q -n 2 tests/layers tests/text .*"
    assert ["test_importing.py" in name for name in re.findall(tests, calls)] == [
        *(True, False, True)
    ]

    said, calls = run(NO_WHEEL="true")
    assert "ci: skipped: Python 3.14 and TensorFlow's release candidate: a package has" in said
    assert "/3.14/bin/pytest" not in calls


def test_every_extra_is_installed_alone(run):
    _, calls = run()
    installed = re.findall(
        r">>> uv pip install --quiet --python \S+/extra/bin/python \.\[(.*)\]", calls
    )
    extras = re.findall(
        r'^        "([\w-]+)": [A-Z]', (ROOT / "setup.py").read_text(), re.MULTILINE
    )
    # The environment of the README's test command has `test` and then `docs`. `peers` is for
    # benchmarks, and brings gigabytes of CUDA.
    assert {*installed, "test", "docs", "peers"} == set(extras)
