"""Real captures: two runs of the same code pass, a straggler does not; and the plugin on them."""

from __future__ import annotations

import gzip
from importlib.metadata import entry_points

import pytest

from tests.kept import analysis_of
from tracekit.diffs import diff, gate, read_side
from tracekit.diffs.load_runs import side_of
from tracekit.run.ingest import ingest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def recorded(samples):
    return {
        name: side_of(analysis_of(samples / "steps" / name), what=name)
        for name in ("a", "b", "straggler")
    }


def test_the_same_code_regresses_neither_way(recorded):
    assert gate(recorded["b"], recorded["a"]).verdict == "pass"
    assert gate(recorded["a"], recorded["b"]).verdict == "pass"


def test_a_stage_that_works_twice_is_caught_and_named(recorded):
    result = gate(recorded["straggler"], recorded["a"])
    assert result.exit_code == 1
    worst = [c.metric for c in result.checks if c.verdict == "regressed"]
    assert "label_ms.forward" in worst
    data = result.to_dict()
    assert data["moved"]["kernels"][0]["label"] == "forward"
    # Only the second stage does more: its rank computes longer, the other does not.
    ranks = {r["rank"]: r for r in diff(recorded["a"], recorded["straggler"]).to_dict()["ranks"]}
    assert set(ranks) == {0, 1}
    by_rank = gate(
        recorded["straggler"],
        recorded["a"],
        require=["label_ms.forward@0 < +5%", "label_ms.forward@1 < +5%"],
    )
    assert [c.verdict for c in by_rank.checks] == ["pass", "regressed"]


def values_of(side):
    """Return the samples of a run by the name of their metric."""
    (run,) = side.runs
    return {name: run.values(name) for name in run.metric_names}


def test_a_saved_analysis_gives_the_samples_of_its_run(recorded, samples, tmp_path):
    saved = tmp_path / "a.json"
    saved.write_text(analysis_of(samples / "steps/a").to_json())
    assert values_of(read_side([saved], what="x")) == values_of(recorded["a"])


@pytest.mark.nightly
def test_traces_and_stores_are_alike(recorded, samples, tmp_path):
    ingest(samples / "steps/a", tmp_path / "store")
    expected = values_of(recorded["a"])
    for path in (samples / "steps/a", tmp_path / "store"):
        assert values_of(read_side([path], what="x")) == expected


def test_one_step_is_not_enough(samples):
    one = analysis_of(samples / "reload")
    result = gate(one, one)
    assert (result.verdict, result.exit_code) == ("inconclusive", 3)
    assert "at least 5 are needed" in result.checks[0].reason


@pytest.mark.parametrize("share", [0.86, 0.93])
def test_a_run_that_was_cut_is_inconclusive_also_against_limits(samples, tmp_path, share):
    for file in sorted((samples / "1f1b").glob("rank*.gz")):
        text = gzip.decompress(file.read_bytes())
        cut = text[: int(len(text) * share)] if file.name.startswith("rank1") else text
        (tmp_path / file.name).write_bytes(gzip.compress(cut, 1))
    result = gate(
        tmp_path, analysis_of(samples / "1f1b"), require=["step_ms < 1000", "step_ms < +50%"]
    )
    assert result.exit_code == 3
    assert {check.verdict for check in result.checks} == {"inconclusive"}
    assert all("was not read whole: " in check.reason for check in result.checks)


def test_the_plugin(pytester, save):
    saved = save("a.json")
    slow = save("slow.json", [120.0] * 3)
    hardly = save("hardly.json", [104.0] * 3)
    pytester.makepyfile(f"""
        import pytest

        SAVED = {str(saved)!r}
        SLOW = {str(slow)!r}
        HARDLY = {str(hardly)!r}

        def test_holds(tracekit):
            run = tracekit.analyze(SAVED)
            assert run["step_ms"] == pytest.approx(100.0)
            assert run["overlap.pp_comm"] == pytest.approx(0.2)
            assert len(run.steps("step_ms")) == 8
            run.check("step_ms < 120", "bubble_fraction < 0.5")
            tracekit.gate(SAVED, baseline=SAVED)

        def test_breaks(tracekit):
            tracekit.analyze(SAVED).check("step_ms < 20")

        def test_cannot_say(tracekit):
            tracekit.gate(SAVED, baseline=SAVED, require=["label_count.forward < +1"])

        def test_cannot_say_but_twice_the_limit(tracekit):
            tracekit.gate(SLOW, baseline=SAVED, require=["step_ms < +3%"])

        def test_cannot_say_and_below_twice_the_limit(tracekit):
            tracekit.gate(HARDLY, baseline=SAVED, require=["step_ms < +3%"])

        def test_unknown(tracekit):
            with pytest.raises(KeyError, match="does not have it"):
                tracekit.analyze(SAVED)["overlap.ep_dispatch"]
    """)
    installed = any(point.name == "tracekit" for point in entry_points(group="pytest11"))
    # An install older than the entry point.
    named = [] if installed else ["-p", "tracekit.pytest_plugin"]
    result = pytester.runpytest_subprocess(*named, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, failed=2, skipped=2)
    result.stdout.fnmatch_lines(
        ["*regressed: step_ms*", "*broken by more than twice: step_ms < +3%*"]
    )
