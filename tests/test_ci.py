"""Workflows of GitHub against pyproject.toml: versions, systems, least permissions, pinned actions."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tracekit._version import __version__, requirement

ROOT = Path(__file__).parent.parent
ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"^(\./\w+|[\w.-]+/[\w./-]+@[0-9a-f]{40})$")
"""An action of this repository, or one by its commit: tags can be moved."""

yaml = pytest.importorskip("yaml")


def read(file):
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def steps(file):
    return [step for job in read(file)["jobs"].values() for step in job.get("steps", ())]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_may_only_read_and_pins_its_actions(file):
    flow = read(file)
    assert flow["permissions"] == {"contents": "read"}
    used = [step["uses"] for step in steps(file) if "uses" in step]
    assert [action for action in used if not PINNED.match(action)] == []
    checkouts = [
        step for step in steps(file) if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert all("timeout-minutes" in job or file.stem == "gate" for job in flow["jobs"].values())


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_no_script_is_made_of_words_from_outside(file):
    scripts = [step["run"] for step in steps(file) if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


def test_the_action_gates_files_that_look_like_options_as_files():
    action = yaml.safe_load((ROOT / "ci" / "action.yml").read_text(encoding="utf-8"))
    (script,) = [step["run"] for step in action["runs"]["steps"] if step.get("id") == "gate"]
    candidates = [line for line in script.splitlines() if "$CANDIDATE" in line]
    assert candidates
    assert [line for line in candidates if " -- $CANDIDATE" not in line] == []
    assert "set -f" in script.splitlines()[0]


@pytest.mark.parametrize("name", ["action.yml", "gitlab.yml"])
def test_every_python_of_the_gate_is_isolated(name):
    text = (ROOT / "ci" / name).read_text(encoding="utf-8")
    calls = re.findall(r"^[^#\n]*?((?:python|tracekit gate)[ ].*)$", text, re.MULTILINE)
    assert len(calls) >= 2
    assert [
        call for call in calls if "python -I -m " not in call and "python -I -c " not in call
    ] == []


class GateJob:
    """The steps of a gate, run in a workspace as GitHub or GitLab would."""

    def __init__(self, workspace):
        self.workspace = workspace
        self.variables = {}
        """What steps wrote to GITHUB_ENV: inherited by later ones."""

    def run(self, script, *, shell="bash -e {0}", **variables):
        """Run the script of a step; return what it did."""
        outside = self.workspace.parent
        (outside / "step.sh").write_text(script, encoding="utf-8")
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "GITHUB_OUTPUT": str(outside / "output"),
            "GITHUB_STEP_SUMMARY": str(outside / "summary"),
            **self.variables,
            **variables,
        }
        command = [word.format(outside / "step.sh") for word in shell.split()]
        return subprocess.run(
            command,
            cwd=self.workspace,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def hostile_job(tmp_path):
    """A job whose workspace has a module for everything that a gate imports, and variables that run code."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    code = "import os; open('stolen', 'a').write(os.environ.get('GITHUB_TOKEN', 'ran'))"
    for name in (
        "json",
        "pip",
        "tracekit",
        "multiprocessing",
        "msgspec",
        "urllib",
        "sitecustomize",
    ):
        (workspace / f"{name}.py").write_text(code, encoding="utf-8")
    (workspace / "profile.sh").write_text('echo "$GITHUB_TOKEN" >> stolen\n', encoding="utf-8")
    job = GateJob(workspace)
    job.variables = {
        "BASH_ENV": str(workspace / "profile.sh"),
        "ENV": str(workspace / "profile.sh"),
        "BASH_FUNC_python%%": "() { echo $GITHUB_TOKEN >> stolen; }",
        "PYTHONPATH": str(workspace),
        "PYTHONSTARTUP": str(workspace / "json.py"),
    }
    return job


def test_no_code_of_the_workspace_runs_in_the_action(hostile_job):
    inputs = {
        "VERSION": "--version",
        "CANDIDATE": "missing.json",
        "BASELINE": "missing.json",
        "REQUIRE": "",
        "INCONCLUSIVE": "",
        "NAME": "hostile",
        "ARTIFACT": "",
        "FOLDER": "tracekit-gate-hostile",
        "CODE": "2",
        "EXPECT": "2",
    }
    for step in read(ROOT / "ci" / "action.yml")["runs"]["steps"]:
        if "run" in step:
            own = {name: value for name, value in step["env"].items() if "${{" not in value}
            hostile_job.run(
                step["run"], shell=step["shell"], **inputs, **own, GITHUB_TOKEN="s3cret"
            )
    assert "verdict=error" in (hostile_job.workspace.parent / "output").read_text(encoding="utf-8")
    assert not (hostile_job.workspace / "stolen").exists()


def test_no_code_of_the_workspace_runs_in_the_gitlab_job(hostile_job):
    job = read(ROOT / "ci" / "gitlab.yml")[".tracekit-gate"]
    # What the runner's own shell reads before the job begins is the project's business.
    for name in ("BASH_ENV", "ENV", "BASH_FUNC_python%%"):
        hostile_job.variables.pop(name)
    lines = [line.replace("install", "--version") for line in job["before_script"]]
    inputs = {"CANDIDATE": "missing.json", "BASELINE": "missing.json", "CI_JOB_NAME": "perf"}
    script = "\n".join([*lines, *job["script"]])
    done = hostile_job.run(
        script,
        shell="sh -e {0}",
        TRACEKIT="",
        CI_JOB_URL="",
        GITLAB_TOKEN="s3cret",
        **inputs,
    )
    assert done.returncode == 2, done.stderr
    assert not (hostile_job.workspace / "stolen").exists()
    assert "s3cret" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["action.yml", "gitlab.yml"])
def test_a_report_in_the_workspace_is_not_taken_for_the_gates(hostile_job, name):
    """What is commented is what the gate wrote, also if it was killed before it wrote anything."""
    outside = hostile_job.workspace.parent / "elsewhere"
    outside.mkdir()
    (outside / "gate.md").write_text("/approve", encoding="utf-8")
    (hostile_job.workspace / "tracekit-gate").symlink_to(outside)
    killed = 'python() { case "$*" in *" gate "*) return 137;; *) cat "$4";; esac; }\n'
    if name == "gitlab.yml":
        script = "\n".join(read(ROOT / "ci" / name)[".tracekit-gate"]["script"])
    else:
        steps = read(ROOT / "ci" / name)["runs"]["steps"]
        script = next(step["run"] for step in steps if step.get("id") == "gate")
    empty = dict.fromkeys(("CANDIDATE", "BASELINE", "REQUIRE", "INCONCLUSIVE", "NAME"), "")
    hostile_job.variables = {**empty, "ARTIFACT": "", "CI_JOB_NAME": "", "CI_JOB_URL": ""}
    done = hostile_job.run(killed + script, shell="bash -e {0}")
    assert "/approve" not in done.stdout
    assert not (hostile_job.workspace / "tracekit-gate").is_symlink()
    assert [file.name for file in outside.iterdir()] == ["gate.md"]


def test_the_compiler_that_is_fetched_has_a_fixed_version():
    text = (ROOT / "build_backend.py").read_text(encoding="utf-8")
    names = re.findall(r"\"(ziglang[^\"]*)\"", text)
    assert names
    assert [name for name in names if not re.fullmatch(r"ziglang==\d+\.\d+\.\d+", name)] == []


def test_the_matrix_has_every_python_that_the_package_names():
    matrix = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"][
        "python"
    ]
    named = [
        c.rpartition(" ")[2] for c in ABOUT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)
    ]
    assert set(named) == set(matrix)


def test_the_matrix_has_every_system_that_the_package_names():
    matrix = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    on = True  # YAML 1.1 reads the key "on" as true
    runners = [*matrix[on], *(entry[on] for entry in matrix["include"])]
    tested = {"MacOS" if runner.startswith("macos") else "POSIX :: Linux" for runner in runners}
    prefix = "Operating System :: "
    assert {
        c.removeprefix(prefix) for c in ABOUT["project"]["classifiers"] if c.startswith(prefix)
    } == tested


def test_wheels_are_built_for_every_system_and_both_processors():
    matrix = read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["wheels"]["strategy"][
        "matrix"
    ]
    assert matrix[True] == ["ubuntu-latest", "ubuntu-24.04-arm", "macos-latest", "macos-15-intel"]


def test_oldest_names_every_dependency():
    command = [sys.executable, str(ROOT / "ci" / "oldest.py")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [line.partition("==")[0] for line in output] == [
        re.match(r"[\w-]+", requirement)[0] for requirement in ABOUT["project"]["dependencies"]
    ]


def test_the_citation_has_the_version_and_the_address():
    cited = read(ROOT / "CITATION.cff")
    assert cited["version"] == __version__
    assert cited["repository-code"] == ABOUT["project"]["urls"]["Source"]


def test_the_changelog_begins_with_the_version_and_the_date_of_the_citation():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (?!Unreleased)(.+)$", changelog, re.MULTILINE)
    released = read(ROOT / "CITATION.cff")["date-released"]
    assert newest[1] == f"{__version__} ({released.isoformat()})"


def script(name):
    """Return a script of ``ci`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release():
    return script("release")


@pytest.fixture
def set_version():
    return script("set_version")


def test_a_release_is_tried_on_every_python_that_the_package_names(release):
    assert release.supported_pythons() == ["3.11", "3.12", "3.13", "3.14"]
    assert ABOUT["tool"]["cibuildwheel"]["build"].split() == [
        f"cp{version.replace('.', '')}-*" for version in release.supported_pythons()
    ]


def test_a_python_counts_only_if_it_starts_and_has_the_version(release, tmp_path):
    shim = tmp_path / "python9.9"
    shim.write_text("#!/bin/sh\necho 'no such version' >&2; exit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    right = tmp_path / "other"
    right.write_text("#!/bin/sh\necho 9.9\n", encoding="utf-8")
    right.chmod(0o755)
    assert release.find_python("9.9", [str(shim), str(tmp_path / "missing")]) is None
    assert release.find_python("9.9", [str(shim), str(right)]) == str(right)
    running = "{}.{}".format(*sys.version_info)
    assert release.find_python(running) == sys.executable


def test_a_release_step_that_fails_says_so_in_one_line(release, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "WORK", tmp_path / "build")
    monkeypatch.setenv("PYTHONPATH", "/of/a/checkout")
    code = "import os; print(os.environ.get('PYTHONPATH')); print('no space left'); exit(3)"
    release.run("try it", [sys.executable, "-c", code], folder=tmp_path, exit_code=3)
    with pytest.raises(release.ReleaseError) as failed:
        release.run("try it", [sys.executable, "-c", code], folder=tmp_path)
    assert str(failed.value) == (
        "try it failed (exit code 3, expected 0): no space left (all of it: build/try-it.log)"
    )
    log = (tmp_path / "build" / "try-it.log").read_text(encoding="utf-8")
    assert log == "None\nno space left\n"  # the checkout is not on the path of what is tried


def test_a_release_needs_a_dated_section_of_the_changelog(release, tmp_path, monkeypatch):
    release.check_version(__version__)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 7.0.0\n")
    (tmp_path / "CHANGELOG.md").write_text("## 7.0.0 (unreleased)\n")
    with pytest.raises(release.ReleaseError, match="CHANGELOG"):
        release.check_version("7.0.0")
    (tmp_path / "CHANGELOG.md").write_text("## 7.0.0 (2026-11-18)\n")
    release.check_version("7.0.0")
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 6.0.0\n")
    with pytest.raises(release.ReleaseError, match="CITATION"):
        release.check_version("7.0.0")


def test_what_is_left_ends_with_the_tag_and_a_look(release, monkeypatch):
    monkeypatch.setattr(release, "uncommitted_files", list)
    clean = list(release.what_is_left("7.0.0", []))
    assert "git tag -a v7.0.0" in clean[-2]
    assert not any("Commit" in line or "Not tried" in line for line in clean)
    monkeypatch.setattr(release, "uncommitted_files", lambda: ["a.py", "b.py"])
    unfinished = list(release.what_is_left("7.0.0", ["3.13", "3.14"]))
    assert "Python 3.13, 3.14" in unfinished[0]
    assert "2 files" in unfinished[1]


def test_the_command_is_also_called_like_the_distribution():
    scripts = ABOUT["project"]["scripts"]
    assert scripts[ABOUT["project"]["name"]] == scripts["tracekit"]


def test_the_extra_all_is_all_of_them():
    extras = ABOUT["project"]["optional-dependencies"]
    assert extras["all"] == [f"tracekit-ml[{','.join(sorted(set(extras) - {'all'}))}]"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert [extra for extra in extras if f"| `{extra}` |" not in page] == []


def test_the_action_pins_what_it_uses_and_pastes_nothing_into_scripts():
    steps_of_action = read(ROOT / "ci" / "action.yml")["runs"]["steps"]
    used = [step["uses"] for step in steps_of_action if "uses" in step]
    assert [action for action in used if not PINNED.match(action)] == []
    assert all(action.startswith("actions/") for action in used)
    scripts = [step["run"] for step in steps_of_action if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


def test_files_name_the_installation_of_this_version(set_version):
    """``ci/set_version.py`` writes them; what it would change is out of date."""
    names = {}
    for path in set_version.naming_files():
        text = path.read_text(encoding="utf-8")
        tags = re.findall(r"archive/refs/tags/(v[0-9.]+)\.tar\.gz", text)
        tags += re.findall(r"tracekit/ci@(v[0-9.]+)", text)
        if tags:
            names[path.name] = set(tags)
    assert {"gitlab.yml", "SKILL.md", "install.md", "gate.md", "01-first-look.ipynb"} <= set(names)
    assert {tag for tags in names.values() for tag in tags} == {f"v{__version__}"}
    archive = requirement("sql").partition(" @ ")[2]
    assert archive in (ROOT / "ci" / "gitlab.yml").read_text(encoding="utf-8")


def test_setting_a_version_reaches_every_file(set_version, tmp_path, monkeypatch):
    for path in (
        ROOT / "tracekit" / "_version.py",
        ROOT / "CITATION.cff",
        *set_version.naming_files(),
    ):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    monkeypatch.setattr(set_version, "ROOT", tmp_path)
    changed = {path.name for path in set_version.set_version("9.8.7", is_published=False)}
    assert {
        "_version.py",
        "CITATION.cff",
        "gitlab.yml",
        "install.md",
        "01-first-look.ipynb",
    } <= changed
    assert f"v{__version__}" not in (tmp_path / "ci" / "gitlab.yml").read_text(encoding="utf-8")
    set_version.set_version("9.8.7", is_published=True)
    assert 'TRACEKIT: "tracekit-ml"' in (tmp_path / "ci" / "gitlab.yml").read_text(encoding="utf-8")
    assert 'INSTALLED_FROM = ""' in (tmp_path / "tracekit" / "_version.py").read_text(
        encoding="utf-8"
    )
