"""The action's own script, run as GitHub runs it, on the pairs that the sample workflow gates."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def action_script():
    """Cut the gate's script out of ci/action.yml: the last `run: |` block."""
    text = (ROOT / "ci" / "action.yml").read_text()
    return textwrap.dedent(text.rsplit("run: |\n", 1)[1])


@pytest.mark.parametrize(
    ("candidate", "expect", "require", "code", "verdict"),
    [
        ("straggler", "1", "", 0, "regressed"),
        ("slow.json", "0", "", 1, "regressed"),
        pytest.param("same.json", "1", "", 1, "pass", marks=pytest.mark.nightly),
        ("slow.json", "0", "step_ms < +50%\nbubble_fraction < 0.9\n", 0, "pass"),
        ("nowhere", "0", "", 2, "error"),
    ],
)
def test_the_composite_action(tmp_path, save, scaled, candidate, expect, require, code, verdict):  # noqa: PLR0917
    save("same.json")
    save("slow.json", scaled(1.1))
    traces = ROOT / "sample_traces" / "steps"
    real = (traces / candidate).is_dir()
    output, summary = tmp_path / "output", tmp_path / "summary"
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", str(tmp_path)),
        "GITHUB_ACTIONS": "true",
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
        "CANDIDATE": str(traces / candidate) if real else candidate,
        "BASELINE": str(traces / "a") if real else "same.json",
        "REQUIRE": require,
        "INCONCLUSIVE": "",
        "EXPECT": expect,
    }
    run = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", action_script()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == code, run.stdout + run.stderr
    assert output.read_text() == f"verdict={verdict}\n"
    assert "tracekit gate" in summary.read_text()
    if candidate == "straggler":
        assert "::error title=regressed%3A label_ms.forward::" in run.stdout


def test_a_candidate_that_looks_like_an_option_is_a_file(tmp_path, save):
    save("same.json")
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", str(tmp_path)),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "CANDIDATE": "--update-baseline same.json",
        "BASELINE": "new.json",
        "REQUIRE": "",
        "INCONCLUSIVE": "",
        "EXPECT": "0",
    }
    run = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", action_script()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 2, run.stdout + run.stderr
    assert not (tmp_path / "new.json").exists()


def test_the_sample_workflow_gates_both_pairs():
    text = (ROOT / ".github" / "workflows" / "gate.yml").read_text()
    for words in (
        "candidate: sample_traces/steps/b",
        "candidate: sample_traces/steps/straggler",
        'expect: "1"',
    ):
        assert words in text
    for folder in ("a", "b", "straggler"):
        assert list((ROOT / "sample_traces" / "steps" / folder).glob("*.json.gz"))
