"""`.ci/run` with programs that only write down how they were called."""

import pathlib
import re
import shutil
import subprocess
import time
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
REAL = "awk bash basename cat dirname env git grep ln mkdir mktemp rm sed sort tail tar timeout"
REAL = REAL.split()
CALLED = "apt-get diff npm python3 unshare".split()
TOOL = """#!/usr/bin/env bash
name="$(basename "$0")"
call="$CALLS/$EPOCHREALTIME-$$" # Two processes call programs at the same time.
{ printf '>>> %s %s\\n' "$name" "$*"; env; } >"$call"
case "$name $*" in
  python*" -m venv "* | "uv venv "*)
    mkdir -p "${!#}/bin"
    for program in python pip uv pytest keras-transformer ruff mypy hadolint twine; do
      ln -sf "$TOOL" "${!#}/bin/$program"
    done ;;
  "python -c import sys;"*) printf '3.12\\n' ;;
  "uv "*"--prerelease allow"*" .[test]") [[ -z "${NO_WHEEL:-}" ]] ;;
esac
"""


@pytest.fixture
def run(tmp_path):
    """`run(*parts, **environment)`: what `.ci/run` writes and called; `run.bin` is its PATH."""
    (tmp_path / "tree" / ".ci").mkdir(parents=True)
    for name in (".ci/run", ".gitignore", "README.md", "setup.py"):
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "--message=a"]
    for command in (["git", "init", "--quiet"], ["git", "add", "."], commit):
        subprocess.run(command, cwd=tmp_path / "tree", check=True)
    tool = tmp_path / "tool"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in REAL:
        (folder / name).symlink_to(shutil.which(name))
    for name in CALLED:
        (folder / name).symlink_to(tool)

    def run(*parts, status=0, **environment):
        calls = tmp_path / "calls"
        shutil.rmtree(calls, ignore_errors=True)
        calls.mkdir()
        base = {"PATH": str(folder), "HOME": str(tmp_path), "TOOL": str(tool), "CALLS": str(calls)}
        command = [str(tmp_path / "tree" / ".ci" / "run"), *parts]
        done = subprocess.run(command, env={**base, **environment}, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        said = done.stdout + done.stderr * bool(status)
        return said, "".join(call.read_text() for call in sorted(calls.iterdir()))

    run.bin, run.tool, run.tree = folder, tool, tmp_path / "tree"
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


def test_commands_run_in_a_copy_without_ignored_files_and_the_callers_files_stay(run):
    """Changed and new files are in the copy; what a build, a test and a tool have left is not."""
    names = "docs/_build/a docs/.jupyter_cache/a build/a dist/a a.egg-info/a .hypothesis/a runs/a"
    for name in (*names.split(), "benchmarks/new.py"):
        (run.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (run.tree / name).write_text(name)
    (run.tree / "setup.py").write_text("changed")
    run.tool.write_text(TOOL + 'pwd >>"$call"; find . -type f >>"$call"; cat setup.py >>"$call"\n')
    (run.bin / "find").symlink_to(shutil.which("find"))
    files = [path for path in run.tree.rglob("*") if path.is_file() and ".git" not in path.parts]
    before = {path: (path.read_text(), path.stat().st_mtime_ns) for path in files}
    _, calls = run("docs")
    assert {path: (path.read_text(), path.stat().st_mtime_ns) for path in files} == before
    folders = re.findall("^/.*$", calls, flags=re.MULTILINE)
    assert folders and str(run.tree) not in folders and "changed" in calls
    held = {*re.findall(r"^\./(.*)$", calls, flags=re.MULTILINE)}
    assert {".ci/run", "README.md", "benchmarks/new.py"} <= held and not held & {*names.split()}


def test_faults_are_tried_in_the_files_that_a_week_has_changed(run):
    (run.tree / "keras_transformer").mkdir()
    (run.tree / "keras_transformer" / "new.py").write_text("")
    assert "mutate.py --faults setup.py\n" in run("faults")[1]  # A new file is no commit's yet.
    assert "mutate.py" not in run()[1]


FAULTS = tomllib.loads((ROOT / ".ci" / "faults.toml").read_text("utf-8"))["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["test"].rpartition("::")[2])
def test_a_fault_changes_one_place_and_names_tests_that_are_there(fault):
    assert (ROOT / fault["file"]).read_text("utf-8").count(fault["old"]) == 1
    assert fault["old"] not in fault["new"]
    for test in fault["test"].split():
        file, _, name = test.partition("::")
        function = name.rpartition("::")[2].partition("[")[0]
        assert not function or f"def {function}(" in (ROOT / file).read_text("utf-8")


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
        environment = rf">>> uv venv --quiet --clear --python \S+ \S+/{folder}\n"
        install = (
            rf">>> uv pip install --quiet --python \S+/{folder}/bin/python --{option} \.\[test\]\n"
        )
        assert len(re.findall(environment, calls)) == len(re.findall(install, calls)) == 1
    assert len(re.findall(">>> pytest -q -n 2 -m core\n", calls)) == 1
    tests = r">>> pytest -q -n 2 tests/layers tests/(?!models).*"
    assert ["test_importing.py" in name for name in re.findall(tests, calls)] == [
        *(True, False, True)
    ]
    named = {path for call in re.findall(">>> pytest (.*)", calls) for path in call.split()}
    missing = {path for path in named if path.startswith("tests/") and not (ROOT / path).exists()}
    assert not missing and "tests/layers" in named

    said, calls = run(NO_WHEEL="true")
    assert "ci: skipped: Python 3.14 and TensorFlow's release candidate: a package has" in said
    assert "/3.14/bin/pytest" not in calls


def test_jax_and_other_versions_compute_as_on_a_processor_with_avx2_and_no_more(run):
    (run.bin / "python3.13").symlink_to(run.tool)
    calls = run()[1].split(">>> ")
    tests = [call for call in calls if call.startswith("pytest ")]
    with_avx2 = {call for call in tests if "XLA_FLAGS=--xla_cpu_max_isa=AVX2\n" in call}
    others = {call for call in tests if re.search(r"KERAS_BACKEND=jax\n|/core/bin", call)}
    assert with_avx2 == others and len(others) == 4 and len(tests) > 4


def test_slow_tests_end_in_time_for_the_wheel_where_all_parts_run(run):
    def slow_steps(*parts):
        calls = run(*parts)[1].split(">>> ")
        return [call for call in calls if call.startswith("pytest ") and " --slow -m" in call]

    for call in slow_steps():
        end_at = float(re.search("^TESTS_END_AT=(.*)$", call, re.MULTILINE)[1])
        assert 3600 < end_at - time.time() < 5000 - 120
    assert "TESTS_MAY_LACK=a corpus" in slow_steps()[0] and ",time\n" in slow_steps()[0]
    (quick, *_) = (call for call in run()[1].split(">>> ") if call.startswith("pytest -n 2\n"))
    assert "TESTS_END_AT" not in quick and ",time\n" not in quick
    alone = slow_steps("slow")
    assert len(alone) == 2 and all("TESTS_END_AT=inf\n" in call for call in alone)
    assert not any(",time\n" in call for call in alone)


def test_every_extra_is_installed_alone(run):
    _, calls = run()
    installed = re.findall(
        r">>> uv pip install --quiet --python \S+/(?:core|extra)/bin/python \.\[(.*)\]", calls
    )
    extras = re.findall(
        r'^        "([\w-]+)": [A-Z]',
        (ROOT / "setup.py").read_text().partition("extras_require")[2],
        re.MULTILINE,
    )
    # The environment of the README's test command has `test` and then `docs`. `peers` is for
    # benchmarks, and brings gigabytes of CUDA.
    assert {*installed, "test", "docs", "peers"} == set(extras)


PARTS = ["quick", "docs", "versions", "slow", "package"]  # of the whole: not `faults`


def test_the_parts_together_run_what_the_whole_runs_and_each_installs_what_it_needs(run):
    def steps(said):
        headings = re.findall(r"^=== (.*?)(?: \(at \d+ s\))? ===$", said, flags=re.MULTILINE)
        return [name for name in headings if not name.startswith(("new environment", "all steps"))]

    whole = steps(run()[0])
    assert "slow tests" in whole and whole[-1].startswith("wheel: demo")
    by_part = {part: steps(run(part)[0]) for part in PARTS}
    assert {step for part in by_part.values() for step in part} == {*whole, "install"}
    assert [part for part in PARTS if "install" not in by_part[part]] == ["quick"]
    own = {part: {*by_part[part]} - {"install"} for part in PARTS}
    skipped = set.intersection(*own.values())  # What no part has, such as a browser.
    assert all(own[part] - skipped for part in PARTS)
    both = steps(run("docs", "slow")[0])
    assert {*both} == {*by_part["docs"], *by_part["slow"]}


def test_a_part_that_is_none_is_named_before_anything_is_done(run):
    said, calls = run("quick", "lowest", status=2)
    assert (
        'ci: no part is called "lowest". Choose from: quick docs versions slow package faults'
        in said
    )
    assert calls == ""
