"""Every verdict and exit code, through the real command."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


def verdicts(out):
    return {c["requirement"] or c["metric"]: c["verdict"] for c in json.loads(out)["checks"]}


def test_equal_runs_pass(command, save, scaled):
    code, out, _ = command("gate", save("new.json", scaled(1.0)), "--baseline", save("old.json"))
    assert code == 0
    assert out.startswith("before: ")
    assert "\npass: " in out


def test_the_same_files_on_both_sides_are_called_so(command, save, scaled, tmp_path):
    old = save("old.json")
    (tmp_path / "copy.json").write_bytes(old.read_bytes())
    code, out, _ = command("gate", "copy.json", "--baseline", old)
    assert (code, "\npass: before and after are the same files" in out) == (0, True)
    assert "Before and after are the same files" in command("diff", old, "copy.json")[1]
    assert json.loads(command("gate", old, "--baseline", old, "--json")[1])["same_recording"]
    again = save("again.json", scaled(1.0))
    assert "same files" not in command("gate", again, "--baseline", old)[1]
    assert "same files" not in command("diff", old, again)[1]


def test_a_slowdown_is_regressed(command, save, scaled):
    code, out, _ = command("gate", save("new.json", scaled(1.05)), "--baseline", save("old.json"))
    assert code == 1
    assert "\nregressed: step_ms" in out
    assert "100.0 ms  105.0 ms" in out
    assert "+5.0 %" in out


def test_a_speedup_is_improved_and_passes(command, save, scaled):
    code, out, _ = command(
        "gate", save("new.json", scaled(0.9)), "--baseline", save("old.json"), "--json"
    )
    assert code == 0
    assert verdicts(out)["step_ms"] == "improved"


def test_a_change_below_the_floor_passes(command, save, scaled):
    # Every step is 1 % slower and the samples agree; 1 % is below what counts.
    code, _, _ = command("gate", save("new.json", scaled(1.01)), "--baseline", save("old.json"))
    assert code == 0


def test_a_change_past_the_floor_is_no_pass_even_if_it_may_be_noise(command, save):
    wild = (90.0, 140.0, 80.0, 130.0, 95.0, 120.0, 85.0, 110.0)
    code, out, _ = command(
        "gate",
        save("new.json", (135, 85, 125, 90, 120, 100, 140, 80)),
        "--baseline",
        save("old.json", wild),
        "--json",
    )
    step = next(c for c in json.loads(out)["checks"] if c["metric"] == "step_ms")
    assert step["change"] > step["floor"]
    assert (code, step["verdict"]) == (3, "inconclusive")
    assert "noise" in step["reason"]


def test_lost_overlap_and_a_grown_bubble_are_named(command, save, scaled):
    old = save("old.json", pp=0.25, hidden=0.5)
    code, out, _ = command(
        "gate", save("new.json", scaled(1.0), pp=0.25, hidden=0.2), "--baseline", old, "--json"
    )
    assert code == 1
    assert verdicts(out)["overlap.pp_comm"] == "regressed"
    assert verdicts(out)["step_ms"] == "pass"
    code, out, _ = command(
        "gate", save("new.json", scaled(1.0), compute=0.5, hidden=0.5), "--baseline", old, "--json"
    )
    assert code == 1
    assert verdicts(out)["bubble_fraction"] == "regressed"


def test_few_steps_are_inconclusive(command, save):
    words = ("gate", save("new.json", [100.0] * 3), "--baseline", save("old.json"))
    code, out, _ = command(*words)
    assert code == 3
    assert "8 steps before, 3 after; at least 5 are needed" in out
    assert command(*words, "--inconclusive", "pass")[0] == 0
    assert command(*words, "--inconclusive", "fail")[0] == 1


@pytest.mark.parametrize(
    ("other", "reason", "aspect"),
    [
        ({"world_size": 4}, "world size differs: 2 before, 4 after", "world_size"),
        ({"schedule": "gpipe"}, "schedule differs: 1f1b before, gpipe after", "schedule"),
        ({"gpu": "A100"}, "GPU differs: H200 before, A100 after", "gpu"),
        (
            {"shapes": ("mm [[4,4],[4,4]]",)},
            "model shapes differ: 1 only before (mm [[8,8],[8,8]])",
            "shapes",
        ),
    ],
)
def test_runs_that_cannot_be_compared_are_inconclusive(command, save, other, reason, aspect):
    words = ("gate", save("new.json", **other), "--baseline", save("old.json"))
    code, out, _ = command(*words)
    assert code == 3
    assert f"not comparable: {reason}" in out
    assert command(*words, "--allow", aspect)[0] == 0


def test_an_inexact_schedule_is_no_obstacle(command, save, make, tmp_path):
    guess = make(schedule="gpipe")
    guess["schedule"]["exact"] = False
    (tmp_path / "new.json").write_text(json.dumps(guess))
    assert command("gate", "new.json", "--baseline", save("old.json"))[0] == 0


def test_a_rank_that_is_not_there_is_unusable(command, save):
    code, _, err = command(
        "gate", save("new.json"), "--baseline", save("old.json"), "--require", "step_ms@9 < +3%"
    )
    assert code == 2
    assert "step_ms@9: the candidate has no rank 9; it has ranks 0 to 1" in err


def test_several_runs_decide_together(command, save, scaled):
    # Runs of the same code differ by 6 %: one slow run among them proves nothing.
    old = [save(f"old{i}.json", scaled(f)) for i, f in enumerate((0.97, 1.0, 1.03))]
    new = [save(f"new{i}.json", scaled(f)) for i, f in enumerate((0.99, 1.02, 1.06))]
    assert command("gate", *new, "--baseline", *old)[0] == 0
    slow = [save(f"slow{i}.json", scaled(f)) for i, f in enumerate((1.27, 1.3, 1.33))]
    code, out, _ = command("gate", *slow, "--baseline", *old, "--json")
    assert code == 1
    step = json.loads(out)["checks"][0]
    assert step["runs"] == {"before": 3, "after": 3}
    assert step["steps"] == {"before": 24, "after": 24}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("bubble_fraction < 0.2", 0),
        ("bubble_fraction < 0.1", 1),
        ("step_ms < 120", 0),
        ("step_ms@1 < 90", 1),
        ("overlap.pp_comm > 0.1", 0),
        ("overlap.pp_comm > 0.3", 1),
        # Known once a run, and far beyond its floor: one value decides.
        (
            "hidden_ms.pp_comm.forward > 1",
            0,
        ),
    ],
)
def test_limits_need_no_baseline(command, save, text, code):
    assert command("gate", save("new.json"), "--require", text)[0] == code


def test_a_limit_on_one_step_is_decided_only_beyond_the_floor(command, save):
    one = save("one.json", [100.0])
    assert command("gate", one, "--require", "step_ms < 120")[0] == 0
    assert command("gate", one, "--require", "step_ms < 80")[0] == 1
    code, out, _ = command("gate", one, "--require", "step_ms < 101")
    assert code == 3
    assert "only 1 step" in out


def test_a_limit_inside_the_noise_is_inconclusive(command, save):
    wild = save("wild.json", [90.0, 112.0, 95.0, 108.0, 99.0, 103.0, 97.0, 110.0])
    assert command("gate", wild, "--require", "step_ms < 101")[0] == 3


@pytest.mark.parametrize(
    ("text", "factor", "code"),
    [
        ("step_ms < +3%", 1.02, 0),
        ("step_ms < +3%", 1.05, 1),
        ("step_ms < +3ms", 1.02, 0),
        ("step_ms < +3ms", 1.05, 1),
        ("step_ms < -10%", 0.8, 0),
        ("step_ms < -10%", 0.95, 1),
        ("compute_ms < +1%", 1.02, 1),
        ("overlap.pp_comm > -0.02", 1.0, 0),
    ],
)
def test_limits_on_the_change(command, save, scaled, text, factor, code):  # noqa: PLR0917
    assert (
        command(
            "gate",
            save("new.json", scaled(factor)),
            "--baseline",
            save("old.json"),
            "--require",
            text,
        )[0]
        == code
    )


@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ("overlap.ep_dispatch > -0.02", "the candidate has no such metric"),
        ("label_count.forward < +1", "1 run before, 1 after; at least 3 are needed"),
    ],
)
def test_a_metric_that_is_missing_or_has_one_value_a_run_is_inconclusive(
    command, save, requirement, reason
):
    new, old = save("new.json"), save("old.json")
    code, out, _ = command("gate", new, "--baseline", old, "--require", requirement)
    assert code == 3
    assert reason in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--require", "step_ms <"), "a number must follow"),
        (("--require", "step_mz < 3"), "did you mean step_ms"),
        (("--baseline", "nowhere"), "nowhere: there is no such file or folder"),
        (("--baseline", "empty.json"), "empty.json"),
        (("--baseline", "norun.json"), "the baseline is empty"),
        (
            ("--baseline", "nsight.json"),
            "mixed formats: new.json was read by kineto, nsight.json by nsight",
        ),
        (("--baseline", "cut.json"), "cut.json: is not complete JSON"),
        (("--baseline", "other.json"), "format is 'tracekit.schedule/1'"),
        (("--allow", "everything", "--baseline", "new.json"), "allow: there is no everything"),
        (("-o", "x.pdf"), "cannot write .pdf"),
        ((), "there is no baseline to compare with"),
    ],
)
def test_unusable_input_is_one_line_and_exit_2(command, save, tmp_path, words, message):
    save("new.json")
    save("nsight.json", reader="nsight")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "norun.json").write_text(
        '{"format": "tracekit.baseline/1", "facts": {}, "tables": {}, "runs": [], "noise": {}, "tracekit": "0.1.0"}'
    )
    (tmp_path / "cut.json").write_text('{"format": "tracekit.analysis/1", "ranks": [')
    (tmp_path / "other.json").write_text('{"format": "tracekit.schedule/1"}')
    code, out, err = command("gate", "new.json", *words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") <= 3  # one line, and the caret's two


def test_an_empty_folder_is_no_baseline(command, save, tmp_path):
    (tmp_path / "none").mkdir()
    code, _, err = command("gate", save("new.json"), "--baseline", "none")
    assert code == 2
    assert "none" in err


def test_no_candidate(command):
    code, _, err = command("gate", "--baseline", "x.json")
    assert (code, "there is no candidate" in err) == (2, True)


def test_the_order_of_words_does_not_matter(command, save, scaled):
    old, new = save("old.json"), save("new.json", scaled(1.05))
    assert command("gate", "--baseline", old, new)[0] == 1
    assert command("gate", "--require", "step_ms < +3%", new, "--baseline", old)[0] == 1


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.05, 1), (None, 3)])
def test_outputs_are_written_whatever_the_verdict(command, save, scaled, tmp_path, factor, code):  # noqa: PLR0917
    new = save("new.json", scaled(factor) if factor else [100.0])
    got, _, err = command(
        "gate", new, "--baseline", save("old.json"), "-o", "g.json", "-o", "g.xml", "-o", "g.md"
    )
    assert got == code
    assert err.count("wrote g.") == 3
    data = json.loads((tmp_path / "g.json").read_text())
    assert (data["format"], data["exit_code"]) == ("tracekit.gate/1", code)
    suite = ElementTree.parse(tmp_path / "g.xml").getroot()[0]
    assert int(suite.get("tests")) == len(data["checks"])
    assert (int(suite.get("failures")) > 0) == (code == 1)
    assert (int(suite.get("errors")) > 0) == (code == 3)
    assert data["verdict"] in (tmp_path / "g.md").read_text()


def test_outputs_are_written_on_unusable_input_too(command, tmp_path):
    code, out, err = command(
        "gate", "nowhere", "--require", "step_ms < 1", "-o", "g.json", "-o", "g.xml", "-o", "g.md"
    )
    assert (code, out) == (2, "")
    assert json.loads((tmp_path / "g.json").read_text())["verdict"] == "error"
    assert "nowhere" in ElementTree.parse(tmp_path / "g.xml").getroot().find(".//error").get(
        "message"
    )
    assert "unusable input" in (tmp_path / "g.md").read_text()
    assert "error: nowhere" in err


def test_an_output_that_cannot_be_written_leaves_nothing(command, save, tmp_path):
    code, _, err = command(
        "gate", save("new.json"), "--require", "step_ms < 120", "-o", "no/such/g.json"
    )
    assert code == 2
    assert "there is no folder" in err


def test_github_gets_annotations_and_a_summary(command, save, scaled, tmp_path, monkeypatch):
    new, old = save("new.json", scaled(1.05)), save("old.json")
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    command("gate", new, "--baseline", old)  # the fixture clears the variable first
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    code, out, _ = command("gate", new, "--baseline", old)
    assert code == 1
    assert "::error title=regressed%3A step_ms::step_ms 100.0 ms → 105.0 ms (+5.0 %25)" in out
    text = summary.read_text()
    assert text.startswith("before\n## ❌ tracekit gate: regressed: step_ms")
    _, out, err = command("gate", new, "--baseline", old, "--json")
    json.loads(out)  # annotations would break it
    assert "::error" in err


def test_github_is_where_its_variable_is_set(command, save, scaled, monkeypatch):
    new, old = save("new.json", scaled(1.05)), save("old.json")
    for value, told in (("1", True), ("true", True), ("false", False), ("", False)):
        monkeypatch.setenv("GITHUB_ACTIONS", value)
        assert ("::error" in command("gate", new, "--baseline", old)[1]) == told


def test_metrics_are_listed(command):
    code, out, _ = command("gate", "--metrics")
    assert code == 0
    assert "step_ms  [ms, lower is better, default]" in out
    assert (
        "overlap.{communication,copy,ep_dispatch,ep_combine,…}  [ratio, higher is better, default]"
        in out
    )


def test_as_a_process(save, scaled):
    words = ["gate", str(save("new.json", scaled(1.05))), "--baseline", str(save("old.json"))]
    run = subprocess.run(
        [sys.executable, "-c", "from tracekit.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "\nregressed: step_ms" in run.stdout
    assert run.stderr == ""
