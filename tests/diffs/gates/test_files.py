"""Baseline files, calibration, settings and waivers, through the real command."""

from __future__ import annotations

import json

import pytest

from tracekit.diffs import Run, Side, gate, make_samples
from tracekit.diffs.baseline import write_baseline
from tracekit.documents.diff import Facts

pytestmark = pytest.mark.usefixtures("measured_once")


def test_a_baseline_file_is_small_sorted_and_stable(command, save, tmp_path):
    new = save("run.json")
    code, out, _ = command("gate", new, "--update-baseline", "--baseline", "base.json")
    assert code == 0
    assert out.startswith("wrote base.json: 1 run, 8 steps")
    text = (tmp_path / "base.json").read_text()
    data = json.loads(text)
    assert data["format"] == "tracekit.baseline/1"
    assert list(data) == sorted(data)
    assert list(data["runs"][0]["samples"]) == sorted(data["runs"][0]["samples"])
    assert data["runs"][0]["samples"]["step_ms"][:2] == [100.1, 100.6]
    assert len(text) < 10_000
    command("gate", new, "--update-baseline", "--baseline", "base.json")
    assert (tmp_path / "base.json").read_text() == text


def test_a_baseline_file_gates_as_its_run_does(command, save, scaled):
    old = save("old.json")
    command("gate", old, "--update-baseline", "--baseline", "base.json")
    assert command("gate", old, "--baseline", "base.json")[0] == 0
    slow = save("slow.json", scaled(1.05))
    from_file = json.loads(command("gate", slow, "--baseline", "base.json", "--json")[1])
    from_run = json.loads(command("gate", slow, "--baseline", old, "--json")[1])
    assert {c["metric"]: c["verdict"] for c in from_file["checks"]} == {
        c["metric"]: c["verdict"] for c in from_run["checks"]
    }
    assert command("gate", save("big.json", world_size=4), "--baseline", "base.json")[0] == 3


def test_calibrated_noise_lets_what_it_explains_pass(command, save, scaled):
    # Five runs of the same code that differ by ±4 %.
    runs = [save(f"r{i}.json", scaled(f)) for i, f in enumerate((0.96, 0.98, 1.0, 1.02, 1.04))]
    words = ("gate", *runs, "--calibrate", "--baseline", "noisy.json")
    code, out, _ = command(*words, "--accept-noise")
    assert code == 0
    assert "step_ms: runs differ by 3.16" in out
    command("gate", runs[2], "--update-baseline", "--baseline", "plain.json")
    slower = save("new.json", scaled(1.05))
    assert command("gate", slower, "--baseline", "plain.json")[0] == 1
    assert command("gate", slower, "--baseline", "noisy.json")[0] == 0
    assert command("gate", save("far.json", scaled(1.5)), "--baseline", "noisy.json")[0] == 1


def test_a_calibration_that_makes_a_limit_void_is_refused_unless_it_is_confirmed(
    command, save, scaled, tmp_path
):
    # Of three runs that differ by 1 % little is known: 14 deviations could be chance.
    runs = [save(f"r{i}.json", scaled(f)) for i, f in enumerate((0.99, 1.0, 1.01))]
    words = ("gate", *runs, "--calibrate", "--baseline", "base.json")
    code, _, err = command(*words)
    assert code == 2
    assert "step_ms could worsen by 19.9 % unseen, the limit is 2.9 %" in err
    assert "--accept-noise" in err
    assert not (tmp_path / "base.json").exists()
    code, _, err = command(*words, "--require", "step_ms < +8%")
    assert (code, "the limit is 8.0 %" in err) == (2, True)
    assert command(*words, "--require", "step_ms < +10%")[0] == 0
    assert command(*words, "--accept-noise")[0] == 0


def test_a_calibration_is_refused_by_the_limits_of_the_project(command, save, scaled, tmp_path):
    (tmp_path / "tracekit.toml").write_text('[gate]\nrequire = ["bubble_fraction < +0.01"]\n')
    runs = [save(f"r{i}.json", compute=c) for i, c in enumerate((0.6, 0.61, 0.59))]
    code, _, err = command("gate", *runs, "--calibrate", "--baseline", "base.json")
    assert code == 2
    assert "bubble_fraction could worsen by" in err
    assert "points unseen, the limit is 1.0 points" in err


def test_a_limit_inside_calibrated_noise_is_inconclusive(command, save, scaled):
    runs = [save(f"r{i}.json", scaled(f)) for i, f in enumerate((0.96, 0.98, 1.0, 1.02, 1.04))]
    command("gate", *runs, "--calibrate", "--baseline", "noisy.json", "--accept-noise")
    code, out, _ = command(
        "gate",
        save("new.json", scaled(1.05)),
        "--baseline",
        "noisy.json",
        "--require",
        "step_ms < +3%",
    )
    assert code == 3
    assert "within the calibrated noise" in out


def test_an_update_keeps_the_calibration(command, save, scaled, tmp_path):
    runs = [save(f"r{i}.json", scaled(f)) for i, f in enumerate((0.98, 1.0, 1.02))]
    command("gate", *runs, "--calibrate", "--baseline", "base.json", "--accept-noise")
    before = json.loads((tmp_path / "base.json").read_text())
    command("gate", runs[0], "--update-baseline", "--baseline", "base.json")
    after = json.loads((tmp_path / "base.json").read_text())
    assert (
        after["noise"]["step_ms"]
        == before["noise"]["step_ms"]
        == {"deviation": pytest.approx(2.0, abs=0.01), "runs": 3}
    )
    assert len(after["runs"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("a.json", "b.json", "--calibrate", "--baseline", "x.json"),
            "2 runs cannot show how runs differ",
        ),
        (("a.json", "--update-baseline"), "which baseline file should be written?"),
        (
            ("a.json", "--update-baseline", "--baseline", "notes.json"),
            "exists and is not a baseline file",
        ),
        (
            ("a.json", "wide.json", "--update-baseline", "--baseline", "x.json"),
            "cannot make one baseline: world size",
        ),
    ],
)
def test_baselines_that_cannot_be_written(command, save, tmp_path, words, message):
    save("a.json")
    save("b.json")
    save("wide.json", world_size=16)
    (tmp_path / "notes.json").write_text('{"mine": 1}')
    code, _, err = command("gate", *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "x.json").exists()
    assert (tmp_path / "notes.json").read_text() == '{"mine": 1}'


SLOW = 1.68
NOT_NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "1e300", "-5", '"fast"', "null"]


def test_a_run_that_is_slower_by_two_thirds_regresses(command, save, scaled):
    """Without a figure that cannot be: the test below breaks one in the same files."""
    assert command("gate", save("new.json", scaled(SLOW)), "--baseline", save("old.json"))[0] == 1


@pytest.mark.parametrize("word", NOT_NUMBERS)
@pytest.mark.parametrize("side", ["candidate", "baseline", "baseline file"])
def test_a_figure_that_cannot_be_is_unusable_input(command, save, scaled, tmp_path, side, word):  # noqa: PLR0917
    """A step time, and in a baseline file its noise: neither may let a run pass that is 68 % slower."""
    new, old = save("new.json", scaled(SLOW)), save("old.json")
    if side == "baseline file":
        command("gate", old, "--update-baseline", "--baseline", "base.json")
    broken = {"candidate": new, "baseline": old, "baseline file": tmp_path / "base.json"}[side]
    data = json.loads(broken.read_text())
    if side == "baseline file":
        data["runs"][0]["samples"]["step_ms"][3] = "@"
    else:
        data["ranks"][0]["per_step"][3]["span_ns"] = "@"
    broken.write_text(json.dumps(data).replace('"@"', word))
    code, out, err = command(
        "gate", new, "--baseline", tmp_path / "base.json" if side == "baseline file" else old
    )
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert str(broken) in err


@pytest.mark.parametrize(
    ("name", "head"), [("pyproject.toml", "[tool.tracekit.gate]"), ("tracekit.toml", "[gate]")]
)
def test_settings_are_found(command, save, scaled, tmp_path, name, head):  # noqa: PLR0917
    command("gate", save("old.json"), "--update-baseline", "--baseline", "base.json")
    new = save("new.json", scaled(1.05))
    file = tmp_path / name
    file.write_text(f'{head}\nbaseline = "base.json"\n')
    assert command("gate", new)[0] == 1
    file.write_text(f'{head}\nbaseline = "base.json"\nrequire = ["step_ms < +8%"]\n')
    assert command("gate", new)[0] == 0
    file.write_text(f'{head}\nbaseline = "base.json"\nfloors = {{ "*_ms*" = "10%" }}\n')
    assert command("gate", new)[0] == 0
    file.write_text(f'{head}\nbaseline = "base.json"\nmin_steps = 20\ninconclusive = "fail"\n')
    assert command("gate", new)[0] == 1
    file.write_text(f'{head}\nbaseline = "base.json"\nmin_steps = 20\ninconclusive = "pass"\n')
    assert command("gate", new)[0] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alfa = 0.1", "has no setting alfa; did you mean alpha?"),
        ("alpha = 2.0", "gate.alpha: expected float < 0.5"),
        ("min_steps = 1", "gate.min_steps: expected int >= 3"),
        ('inconclusive = "maybe"', "gate.inconclusive: invalid enum value 'maybe'"),
        ("require = 3", "gate.require: expected array, got int"),
        (
            'waivers = [{ metric = "step_ms", until = 2030-01-01 }]',
            "gate.waivers[0]: lacks the key reason",
        ),
        (
            'waivers = [{ metric = "step_ms", reason = "x" }]',
            "gate.waivers[0]: lacks the key until",
        ),
        (
            'waivers = [{ metric = "step_ms", reason = "x", until = "soon" }]',
            "gate.waivers[0].until: invalid",
        ),
        ("alpha = nan", "gate.alpha: expected float > 0.0"),
        ("floors = { step_ms = nan }", "gate.floors[...]: expected float >= 0.0"),
        ("alpha = ", "is not valid TOML"),
        ('floors = { step_ms = "much" }', "'much' is not a number"),
    ],
)
def test_wrong_settings_are_one_line(command, save, tmp_path, text, message):
    (tmp_path / "tracekit.toml").write_text(f"[gate]\n{text}\n")
    code, _, err = command("gate", save("new.json"), "--baseline", save("old.json"))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


WAIVER = (
    '[gate]\n[[gate.waivers]]\nmetric = "{metric}"\nreason = "new fused kernel"\nuntil = {until}\n'
)


def test_a_waiver_lets_its_metric_pass_and_shows_in_every_report(command, save, scaled, tmp_path):
    (tmp_path / "tracekit.toml").write_text(WAIVER.format(metric="*_ms*", until="2999-01-01"))
    code, out, _ = command(
        "gate",
        save("new.json", scaled(1.05)),
        "--baseline",
        save("old.json"),
        "-o",
        "g.md",
        "-o",
        "g.xml",
        "-o",
        "g.json",
    )
    assert code == 0
    reports = [out, *((tmp_path / f"g.{kind}").read_text() for kind in ("md", "xml", "json"))]
    assert all("new fused kernel" in text and "2999-01-01" in text for text in reports)
    step = next(c for c in json.loads(reports[3])["checks"] if c["metric"] == "step_ms")
    assert (step["verdict"], step["waiver"]["status"]) == ("regressed", "active")


def test_a_waiver_of_another_metric_waives_nothing(command, save, scaled, tmp_path):
    (tmp_path / "tracekit.toml").write_text(WAIVER.format(metric="label_ms.*", until="2999-01-01"))
    assert command("gate", save("new.json", scaled(1.05)), "--baseline", save("old.json"))[0] == 1


def test_an_expired_waiver_does_not_waive_and_is_shown(
    command, save, scaled, tmp_path, monkeypatch
):
    (tmp_path / "tracekit.toml").write_text(WAIVER.format(metric="*", until="2020-01-01"))
    new, old = save("new.json", scaled(1.05)), save("old.json")
    code, out, _ = command("gate", new, "--baseline", old, "-o", "g.md")
    assert code == 1
    assert "waiver (expired) * until 2020-01-01: new fused kernel" in out
    assert "expired" in (tmp_path / "g.md").read_text()
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "::warning title=waiver of * expired::" in command("gate", new, "--baseline", old)[1]


@pytest.mark.parametrize(
    ("fact", "value"), [("ranks", 0), ("world_size", -1), ("microbatches", 0), ("tokens", -1.0)]
)
def test_a_baseline_with_an_impossible_amount_is_refused(command, save, tmp_path, fact, value):
    command("gate", save("run.json"), "--update-baseline", "--baseline", "base.json")
    data = json.loads((tmp_path / "base.json").read_text())
    data["facts"][fact] = value
    (tmp_path / "base.json").write_text(json.dumps(data))
    code, out, err = command("gate", "run.json", "--baseline", "base.json")
    assert (code, out) == (2, "")
    assert f"$.facts.{fact}" in err


@pytest.mark.parametrize(("free_ms", "verdict"), [(18.0, "regressed"), (15.2, "inconclusive")])
def test_a_baseline_file_knows_the_options_that_its_runs_were_recorded_with(
    tmp_path, free_ms, verdict
):
    """Recorded steps of runs that were recorded differently are not compared; the free steps are."""
    steps = make_samples({"step_ms": [20.0 + 0.01 * step for step in range(8)]})
    slowed = make_samples({"step_ms": [30.0 + 0.01 * step for step in range(8)]})
    plain = Facts(reader="kineto", options="none", free_ms=15.0, free_range_ms=(14.5, 16.0))
    stacks = Facts(
        reader="kineto",
        options="with_stack",
        free_ms=free_ms,
        free_range_ms=(free_ms - 1, free_ms + 1),
    )
    file = tmp_path / "base.json"
    write_baseline(file, [Run("plain", steps, plain)])
    result = gate(Side((Run("stacks", slowed, stacks),), {}), file)
    assert [(check.metric, check.verdict) for check in result.checks] == [("free_step_ms", verdict)]
