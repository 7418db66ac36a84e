"""What is imported is declared, and what is told to install is this distribution."""

import ast
import importlib.metadata
import pathlib
import re
import runpy
import sys
import tomllib

import setuptools
import yaml

from keras_transformer.base.errors import DISTRIBUTION

ROOT = pathlib.Path(__file__).parents[1]
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROGRAMS = ("keras_transformer", "benchmarks", "export", "training", "tests")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_every_package_that_is_imported_is_declared():
    paths = [path for top in PROGRAMS for path in (ROOT / top).rglob("*.py")]
    ours = {*PROGRAMS, *(path.stem for path in paths)}
    distributions = importlib.metadata.packages_distributions()
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    setup += (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # setuptools
    names = re.findall(r'"([\w-]+)(?:\[[\w,]+\])?>=[\d.]+[",]', setup)
    declared, missing = {name.lower().replace("_", "-") for name in names}, set()
    for path in paths:
        for name in set(imported(path)) - ours - sys.stdlib_module_names:
            # What is not installed here has the name that is imported.
            of_name = {dist.lower().replace("_", "-") for dist in distributions.get(name, [name])}
            if not of_name & declared:
                missing.add((path.relative_to(ROOT).as_posix(), name))
    assert missing == set()


def test_the_bounds_of_security_are_those_of_setup():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    bounds = {}
    for name, bound in re.findall(r'"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)', setup):
        bounds.setdefault(name.lower(), set()).add(bound)
    table = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("## Lower bounds")[2]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 12
    for names, _, shown in rows:
        for name, bound in zip(names.split(","), shown.split(","), strict=False):
            first = bound.split()[0]
            expected = {first} if first != "none" else None
            assert bounds.get(name.strip().lower()) == expected, name


def test_nobody_is_told_to_install_a_name_that_a_stranger_may_register():
    assert METADATA["name"] == DISTRIBUTION != "keras-transformer"
    of_a_stranger = re.compile(
        r"pip install [^\n&]*keras[-_]transformer(?![\w-]*\*?\.whl|\.git|/)|"
        r"pip install [^\n&]*\{?DISTRIBUTION"
    )
    paths = [
        ROOT / name
        for name in (".ci/run", "README.md", "CONTRIBUTING.md", "setup.py", "pyproject.toml")
    ]
    for top in ("keras_transformer", "benchmarks", "export", "training", "docs"):
        paths += [
            path for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".md", ".yaml")
        ]
    assert len(paths) > 100
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    assert [path for path, text in texts.items() if of_a_stranger.search(text)] == []


def fields_of_setup(monkeypatch):
    fields = {}
    monkeypatch.setattr(setuptools, "setup", lambda **given: fields.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    return fields


def test_the_metadata_names_authors_types_and_one_repository(monkeypatch):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert METADATA["authors"] == citation["authors"]
    assert "Typing :: Typed" in METADATA["classifiers"]
    assert (ROOT / "keras_transformer" / "py.typed").exists()
    pythons = [name for name in METADATA["classifiers"] if re.search(r"Python :: 3\.", name)]
    lowest = pythons[0].rpartition(" ")[2]
    assert METADATA["requires-python"] == f">={lowest}"
    repository, *pages = fields_of_setup(monkeypatch)["project_urls"].values()
    assert pages and all(page.startswith(f"{repository}/") for page in pages)
    files = [page.partition("/blob/main/")[2] for page in pages]
    assert all((ROOT / name).is_file() for name in files if name)


def test_what_pyproject_leaves_to_setup_is_there_and_nothing_else(monkeypatch):
    names = {
        "project_urls": "urls",
        "long_description": "readme",
        "long_description_content_type": "readme",
        "install_requires": "dependencies",
        "extras_require": "optional-dependencies",
    }
    declared = {names[field] for field in fields_of_setup(monkeypatch)}
    assert {*METADATA["dynamic"]} == {"version"} | declared
    assert not METADATA.keys() & declared
