"""Workflows of GitHub against pyproject.toml: versions, systems, least permissions, pinned actions."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tracekit._version import __version__

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


def test_oldest_names_every_dependency():
    command = [sys.executable, str(ROOT / "ci" / "oldest.py")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [line.partition("==")[0] for line in said] == [
        re.match(r"[\w-]+", requirement)[0] for requirement in ABOUT["project"]["dependencies"]
    ]


def test_the_citation_has_the_version_and_the_address():
    cited = read(ROOT / "CITATION.cff")
    assert cited["version"] == __version__
    assert cited["repository-code"] == ABOUT["project"]["urls"]["Source"]


def test_the_changelog_begins_with_the_version_and_the_date_of_the_citation():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (.+)$", changelog, re.MULTILINE)
    released = read(ROOT / "CITATION.cff")["date-released"]
    assert newest[1] == f"{__version__} ({released.isoformat()})"


def test_the_extra_all_is_all_of_them():
    extras = ABOUT["project"]["optional-dependencies"]
    assert extras["all"] == [f"tracekit-ml[{','.join(sorted(set(extras) - {'all'}))}]"]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert [extra for extra in extras if f"| `{extra}` |" not in page] == []
