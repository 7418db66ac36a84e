"""Workflows, forms and hooks for people who join the project: their commands and files exist."""

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = {path.stem: path for path in sorted((GITHUB / "workflows").glob("*.yml"))}
FORMS = [GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "feature")]
RUN = (ROOT / ".ci" / "run").read_text("utf-8")
PARTS = re.search(r"^parts=\((.*)\)$", RUN, flags=re.MULTILINE)[1].split()


def read(path):
    return yaml.safe_load(path.read_text("utf-8"))


def runs(job):
    """The commands of a job, once per value of its matrix."""
    values = job.get("strategy", {}).get("matrix", {}).get("part", [""])
    for step in job.get("steps", []):
        for value in values if "run" in step else ():
            yield step["run"].replace("${{ matrix.part }}", value)


def test_the_checks_call_each_part_of_ci_run_and_no_other_command():
    jobs = read(WORKFLOWS["checks"])["jobs"]
    commands = {name: list(runs(job)) for name, job in jobs.items()}
    assert sorted(sum(commands.values(), [])) == sorted(f".ci/run {part}" for part in PARTS)
    weekly = [name for name in commands if "== 'schedule'" in jobs[name]["if"]]
    assert [commands[name] for name in weekly] == [[".ci/run versions"], [".ci/run faults"]]
    assert read(WORKFLOWS["checks"])["on"]["schedule"][0]["cron"].endswith(" * * 1")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100


def test_a_release_is_published_by_trust_after_all_checks_of_the_version_that_is_tagged():
    workflow = read(WORKFLOWS["release"])
    jobs = workflow["jobs"]
    publishing = {
        name: [step.get("uses", "") for step in job.get("steps", [])] for name, job in jobs.items()
    }
    name = next(name for name, uses in publishing.items() if "pypi-publish" in str(uses))
    assert jobs[name]["permissions"] == {"id-token": "write"}
    assert [key for key, job in jobs.items() if "permissions" in job] == [name]
    assert workflow["permissions"] == {"contents": "read"}
    assert (ROOT / jobs["checks"]["uses"]).samefile(WORKFLOWS["checks"])
    assert "workflow_call" in read(WORKFLOWS["checks"])["on"]
    assert {*jobs[name]["needs"]} == jobs.keys() - {name}
    assert not re.search(r"password:|secrets\.", WORKFLOWS["release"].read_text("utf-8"))
    commands = " ".join(runs(jobs["build"]))
    assert "keras_transformer_nmt-${GITHUB_REF_NAME#v}-py3-none-any.whl" in commands
    assert 'repository = \\"$GITHUB_SERVER_URL/$GITHUB_REPOSITORY\\"' in commands


@pytest.mark.parametrize("path", WORKFLOWS.values(), ids=WORKFLOWS)
def test_jobs_end_and_actions_have_versions(path):
    for job in read(path)["jobs"].values():
        steps = job.get("steps", [])
        assert "uses" in job or job["timeout-minutes"] <= 120
        assert all("@" in step["uses"] for step in steps if "uses" in step)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_the_fields_that_github_reads(path):
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    kinds = {"textarea", "input", "dropdown", "checkboxes"}
    assert {field["type"] for field in fields} <= kinds
    assert all(field["attributes"]["label"] for field in fields)
    ids = [field["id"] for field in fields]
    assert len({*ids}) == len(ids)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_a_report_of_a_fault_asks_for_the_recipe_or_the_export_and_the_versions():
    required = [
        field["attributes"]["label"]
        for field in read(FORMS[0])["body"]
        if field.get("validations", {}).get("required")
    ]
    assert "recipe.yaml or export.json" in required and "Versions" in required


def test_the_hooks_are_checks_of_ci_run():
    config = read(ROOT / ".pre-commit-config.yaml")
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert [repository["repo"] for repository in config["repos"]] == ["local"]
    steps = dict(re.findall(r'step "((?:style|types): [^"]+)" (.+)$', RUN, flags=re.MULTILINE))
    assert {hook["name"]: hook["entry"] for hook in hooks} == steps
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in hooks)


def test_the_template_of_pull_requests_has_the_list_of_contributing():
    template = (GITHUB / "pull_request_template.md").read_text("utf-8")
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Propose a change\n")[2]
    listed = re.search(r"(?:^- .*\n)+", section, flags=re.MULTILINE)[0].splitlines()
    assert re.findall(r"^- \[ \] (.*)$", template, flags=re.MULTILINE) == [
        line.removeprefix("- ") for line in listed
    ]
    assert len(listed) > 5


def test_files_that_workflows_forms_and_hooks_name_exist():
    paths = [*WORKFLOWS.values(), *FORMS, GITHUB / "pull_request_template.md"]
    for path in [*paths, ROOT / ".pre-commit-config.yaml"]:
        text = path.read_text("utf-8")
        text = re.sub(r"https?://\S+|dist/\S*|\./(?=\.)", "", text)
        named = re.findall(r"(?<![\w/])\.?[\w-]+(?:/[\w.-]+)*\.(?:md|py|yml|toml)\b|\.ci/run", text)
        assert [name for name in named if not (ROOT / name).exists()] == [], path
