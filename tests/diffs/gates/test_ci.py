"""The steps of the action and the jobs of GitLab, run as their runners run them, with stand-ins of `gh` and `glab`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from tests.kept import analysis_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
STEPS = ROOT / "sample_traces" / "steps"
PAGE = "https://github.com/owner/name/actions/runs/1/artifacts/2"

yaml = pytest.importorskip("yaml")


def read_yaml(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


class Runner:
    """Runs the steps of ci/action.yml in an empty folder: scripts in bash, the upload made up."""

    def __init__(self, folder, inputs, environment):
        self.folder = folder
        self.action = read_yaml("ci/action.yml")
        defaults = {name: entry.get("default", "") for name, entry in self.action["inputs"].items()}
        self.values = {
            "github.token": "secret",
            "github.workflow": "perf",
            "github.job": "gate",
            "github.repository": "owner/name",
            "github.event.pull_request.number": "7",
            **{f"inputs.{name}": text for name, text in {**defaults, **inputs}.items()},
        }
        self.environment = environment
        self.said = ""
        self.code = 0

    def fill(self, text):
        """Replace ``${{ name }}`` by its value; a name that nothing set is empty."""
        filled = re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda m: self.values.get(m[1], ""), str(text))
        return self.fill(filled) if filled != str(text) else filled

    def holds(self, condition):
        """Return whether the condition of a step holds: comparisons with a word, joined by &&."""
        for part in condition.split(" && "):
            if part == "always()":
                continue
            name, operator, word = re.fullmatch(r"([\w.-]+) (==|!=) '(.*)'", part).groups()
            if (self.values.get(name, "") == word) != (operator == "=="):
                return False
        return True

    def run(self):
        """Run every step whose condition holds; a step that fails ends the job unless it may."""
        for number, step in enumerate(self.action["runs"]["steps"]):
            condition = step.get("if", "")
            if self.code and "always()" not in condition:
                continue
            if condition and not self.holds(condition):
                continue
            code = self.run_step(number, step)
            if code and not step.get("continue-on-error"):
                self.code = code
        return self.code

    def run_step(self, number, step):
        if "uses" in step:
            assert step["uses"].startswith("actions/upload-artifact@")
            assert (self.folder / self.fill(step["with"]["path"])).is_dir()
            self.values["steps.upload.outputs.artifact-url"] = PAGE
            return 0
        output = self.folder / f".output{number}"
        own = {name: self.fill(text) for name, text in step.get("env", {}).items()}
        run = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={**self.environment, **own, "GITHUB_OUTPUT": str(output)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.said += run.stdout + run.stderr
        for line in output.read_text().splitlines() if output.exists() else ():
            key, _, text = line.partition("=")
            self.values[f"steps.{step['id']}.outputs.{key}"] = text
        return run.returncode


FORGE = """#!/usr/bin/env python3
# Stand-in of gh and glab: the comments of one pull request are in a file.
import json, os, subprocess, sys

place, words = os.environ["FORGE"], sys.argv[2:]
comments = json.load(open(place))
url = next(word for word in words if word.startswith(("repos/", "projects/")))
body = next((word.removeprefix("body=") for word in words if word.startswith("body=")), None)
method = words[words.index("--method") + 1] if "--method" in words else "GET"
if "GH_TOKEN" not in os.environ and "GITLAB_TOKEN" not in os.environ or method in os.environ.get("REFUSED", ""):
    sys.exit("HTTP 403")
if method == "GET":
    assert url == "repos/owner/name/issues/7/comments?per_page=100"
    chosen = [os.environ["JQ"], "-r", words[words.index("--jq") + 1]]
    subprocess.run(chosen, input=json.dumps(comments), text=True, check=True)
elif method == "POST":
    assert url in ("repos/owner/name/issues/7/comments", "projects/12/merge_requests/7/notes")
    comments.append({"id": 1000 + len(comments), "user": {"login": "github-actions[bot]"}, "body": body})
else:
    assert url.startswith("repos/owner/name/issues/comments/")
    comments[int(url.rpartition("/")[2]) - 1000]["body"] = body
json.dump(comments, open(place, "w"))
"""


class Forge:
    """The comments of one pull request."""

    def __init__(self, folder):
        self.place = folder / ".comments.json"
        self.programs = folder / ".programs"
        self.programs.mkdir()
        for name in ("gh", "glab"):
            program = self.programs / name
            program.write_text(FORGE)
            program.chmod(0o755)
        self.place.write_text("[]")

    def add(self, body, user):
        entries = json.loads(self.place.read_text())
        entries.append({"id": 1000 + len(entries), "user": {"login": user}, "body": body})
        self.place.write_text(json.dumps(entries))

    @property
    def bodies(self):
        return [entry["body"] for entry in json.loads(self.place.read_text())]


@pytest.fixture
def forge(tmp_path):
    if shutil.which("jq") is None:
        pytest.skip("needs jq, which is part of gh")
    return Forge(tmp_path)


@pytest.fixture
def environment(tmp_path, forge):
    """The variables of a job on a pull request of GitHub."""
    own = f"{forge.programs}{os.pathsep}{Path(sys.executable).parent}"
    return {
        "PATH": f"{own}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": os.environ.get("HOME", str(tmp_path)),
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(tmp_path / ".summary.md"),
        "FORGE": str(forge.place),
        "JQ": str(shutil.which("jq")),
    }


def visible_text(comment):
    """Return what a reader sees of a comment before unfolding anything."""
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(comment)
    html = re.sub("<details>.*?</details>", "", html, flags=re.DOTALL)
    return re.sub("<[^>]*>", "", html).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("candidate", "given", "code", "verdict", "seen"),
    [
        ("recorded.json", {"expect": "1"}, 0, "regressed", "Rank 1's mlp forward grew by"),
        ("slow.json", {"require": "step_ms < +50%\nbubble_fraction < 0.9\n"}, 0, "pass", "+10.0 %"),
        pytest.param(
            "short.json", {}, 3, "inconclusive", "at least 5 are needed", marks=pytest.mark.nightly
        ),
        ("nowhere", {}, 2, "error", "unusable input: nowhere: there is no such file"),
    ],
)  # fmt: skip
def test_the_action_gates_comments_and_fails_with_the_gates_own_code(  # noqa: PLR0917
    tmp_path, save, scaled, forge, environment, candidate, given, code, verdict, seen
):
    save("same.json")
    save("slow.json", scaled(1.1))
    save("short.json", scaled(1.1)[:3])
    if candidate == "recorded.json":
        for run, name in (("straggler", "recorded.json"), ("a", "same.json")):
            (tmp_path / name).write_text(analysis_of(STEPS / run).to_json(), encoding="utf-8")
    inputs = {
        "candidate": candidate,
        "baseline": "same.json",
        "name": "pretrain on H200",
        "version": "none",
        **given,
    }
    runner = Runner(tmp_path, inputs, environment)
    assert runner.run() == code, runner.said
    assert runner.values["steps.gate.outputs.verdict"] == verdict
    folder = tmp_path / "tracekit-gate-pretrain-on-H200"
    written = {path.name for path in folder.iterdir()}
    pages = set() if verdict == "error" else {"gate.html"}
    assert written == {"gate.json", "gate.xml", "gate.md"} | pages
    (comment,) = forge.bodies
    text = visible_text(comment)
    first = text.strip().splitlines()[0]
    assert re.match(rf"\W+ tracekit gate \(pretrain on H200\): (unusable input|{verdict})", first)
    assert seen in text
    assert f"({PAGE})" in comment
    summary = (tmp_path / ".summary.md").read_text()
    assert (folder / "gate.md").read_text() in summary
    assert PAGE in summary
    if candidate == "recorded.json":
        assert "::error title=regressed%3A label_ms.forward::" in runner.said
        assert "new, 2.62 ms" in text


def run_last_steps(folder, environment, **values):
    """Run the steps after the gate on a report that is there already."""
    (folder / "tracekit-gate").mkdir(exist_ok=True)
    report = values.pop("report", "## pass\n")
    (folder / "tracekit-gate" / "gate.md").write_text(report)
    runner = Runner(folder, {"expect": values.pop("expect", "0"), **values}, environment)
    runner.action["runs"]["steps"] = runner.action["runs"]["steps"][2:]
    runner.values["steps.gate.outputs.folder"] = "tracekit-gate"
    runner.values["steps.gate.outputs.code"] = values.get("code", "0")
    runner.run()
    return runner


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_forks_pull_request_is_told_in_one_line_that_there_is_no_comment(
    tmp_path, forge, environment, method
):
    runner = run_last_steps(tmp_path, {**environment, "REFUSED": method})
    assert runner.code == 0, runner.said
    (line,) = [line for line in runner.said.splitlines() if line != "HTTP 403"]
    assert line.startswith("no comment")
    assert "a fork's pull request" in line
    assert forge.bodies == []


def test_no_comment_is_posted_where_none_is_wanted(tmp_path, forge, environment):
    assert run_last_steps(tmp_path, environment, comment="false").code == 0
    assert forge.bodies == []


def test_a_comment_is_created_once_and_then_written_again(tmp_path, forge, environment):
    forge.add("a remark of a person", "somebody")
    run_last_steps(tmp_path, environment)
    run_last_steps(tmp_path, environment, report="## regressed\n")
    remark, own = forge.bodies
    assert remark == "a remark of a person"
    assert own.splitlines()[2] == "## regressed"


def test_two_gates_have_a_comment_each(tmp_path, forge, environment):
    run_last_steps(tmp_path, environment, name="one")
    run_last_steps(tmp_path, environment, name="two")
    first, second = forge.bodies
    assert first.splitlines()[0] != second.splitlines()[0]


def test_a_comment_with_the_mark_by_somebody_else_is_left_alone(tmp_path, forge, environment):
    run_last_steps(tmp_path, environment)
    (own,) = forge.bodies
    forge.place.write_text("[]")
    forge.add(own, "somebody")
    run_last_steps(tmp_path, environment, report="## regressed\n")
    assert forge.bodies[0] == own
    assert len(forge.bodies) == 2


def test_a_comment_is_not_longer_than_github_takes(tmp_path, forge, environment):
    run_last_steps(tmp_path, environment, report="é" * 60_000)
    (body,) = forge.bodies
    assert 30_000 < len(body.encode()) < 65_536


@pytest.mark.parametrize(
    ("code", "expect", "result"), [("1", "0", 1), ("0", "1", 1), ("1", "1", 0)]
)
def test_the_action_fails_unless_the_expected_code_came(
    tmp_path, environment, code, expect, result
):
    runner = run_last_steps(tmp_path, environment, comment="false", code=code, expect=expect)
    assert runner.code == result


def test_a_candidate_that_looks_like_an_option_is_a_file(tmp_path, save, environment):
    save("same.json")
    inputs = {
        "candidate": "--update-baseline same.json",
        "baseline": "new.json",
        "version": "none",
        "comment": "false",
    }
    runner = Runner(tmp_path, inputs, environment)
    assert runner.run() == 2, runner.said
    assert not (tmp_path / "new.json").exists()


def test_the_jobs_of_gitlab_report_and_note(tmp_path, save, scaled, forge, environment):
    save("same.json")
    save("slow.json", scaled(1.1))
    jobs = read_yaml("ci/gitlab.yml")
    job = jobs[".tracekit-gate"]
    environment = {
        **environment,
        **job["variables"],
        "CANDIDATE": "slow.json",
        "BASELINE": "same.json",
        "REQUIRE": "step_ms < +3%\nbubble_fraction < 0.9",
        "CI_JOB_NAME": "perf",
        "CI_PROJECT_ID": "12",
        "CI_MERGE_REQUEST_IID": "7",
    }
    run = subprocess.run(
        ["sh", "-e", "-c", job["script"][0]],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout + run.stderr
    reports = job["artifacts"]["reports"]
    suite = ElementTree.parse(tmp_path / reports["junit"]).getroot().find("testsuite")
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == (
        "tracekit gate perf", "2", "1",
    )  # fmt: skip
    metrics = (tmp_path / reports["metrics"]).read_text().splitlines()
    name, level = metrics[0].split()
    assert (name, float(level)) == ("tracekit_step_ms", pytest.approx(110, rel=0.01))
    assert all(re.fullmatch(r"[a-z_]+ [\d.e+-]+", line) for line in metrics)
    (script,) = jobs[".tracekit-note"]["script"]
    token = {**environment, "GITLAB_TOKEN": "secret"}
    subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, env=token, check=True)
    (note,) = forge.bodies
    assert "tracekit gate (perf): regressed: step_ms" in visible_text(note)
    assert (tmp_path / "tracekit-gate" / "gate.html").is_file()


def test_the_sample_workflow_gates_both_pairs():
    text = (ROOT / ".github" / "workflows" / "gate.yml").read_text()
    for words in (
        "candidate: sample_traces/steps/a",
        "candidate: sample_traces/steps/straggler",
        'expect: "1"',
    ):
        assert words in text
    for folder in ("a", "b", "straggler"):
        assert list((STEPS / folder).glob("*.json.gz"))
