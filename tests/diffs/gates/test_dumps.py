"""The gate on dumps and logs of a whole run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.recorders import ddp_dumps, dump, entry, write_dumps
from tracekit import analyze
from tracekit.diffs import gate
from tracekit.diffs.baseline import write_baseline
from tracekit.diffs.load_runs import Side, read_side
from tracekit.errors import InputError
from tracekit.late import late
from tracekit.late.run import late_beside_traces
from tracekit.late.write import write_late

ROOT = Path(__file__).parents[3]
SAMPLES = ROOT / "sample_traces/always-on"
PROFILED = ROOT / "tests/data/late-profiler"


@pytest.fixture
def dumps(tmp_path):
    """Twelve steps of 60 ms, of which rank 2 is 10 ms late in each."""
    late_ms = lambda rank, step: 10.0 * (rank == 2)  # noqa: E731
    return write_dumps(tmp_path / "dumps", ddp_dumps(4, 12, late_ms=late_ms))


def test_the_figures_are_those_that_were_planted(dumps):
    (run,) = read_side([dumps], what="candidate").runs
    assert run.values("run_late_ms") == pytest.approx((10.0,))
    # 50 of compute, 10 late, two transfers of 5.
    assert run.values("run_step_ms") == pytest.approx((70.0,), rel=1e-4)
    assert run.values("run_late_fraction") == pytest.approx((10.0 / 70.0,), rel=1e-3)
    assert run.values("run_hangs") == (0.0,)
    assert run.values("run_slow_link_ms") == (0.0,)
    assert run.recorded_steps == 12


@pytest.mark.parametrize(
    ("requirement", "verdict"),
    [
        ("run_late_ms < 8", "regressed"),
        ("run_late_ms < 12", "pass"),
        ("run_late_fraction < 0.1", "regressed"),
        ("run_hangs < 1", "pass"),
        ("exposed_ms.dp_comm < 5", "inconclusive"),  # dumps do not tell: no pass
    ],
)
def test_limits_are_judged(dumps, requirement, verdict):
    assert gate(dumps, require=[requirement]).verdict == verdict


def test_a_hang_breaks_its_limit():
    assert gate(SAMPLES / "hang", require=["run_hangs < 1"]).verdict == "regressed"


def test_dumps_beside_traces_are_judged_with_them(tmp_path):
    for path in [*(SAMPLES / "late").glob("*"), *PROFILED.glob("*")]:
        shutil.copy(path, tmp_path)
    requirements = ["run_late_ms < 8", "run_hangs < 1", "step_ms < 1000"]
    verdicts = {
        check.metric: check.verdict for check in gate(tmp_path, require=requirements).checks
    }
    assert verdicts == {"run_late_ms": "regressed", "run_hangs": "pass", "step_ms": "pass"}


def test_dumps_that_cannot_be_used_leave_the_figures_of_the_traces(tmp_path):
    for path in PROFILED.glob("*"):
        shutil.copy(path, tmp_path)
    shutil.copy(SAMPLES / "late/fr_rank0.pickle", tmp_path / "dump.pickle")
    assert gate(tmp_path, require=["step_ms < 1000"]).verdict == "pass"
    assert gate(tmp_path, require=["run_hangs < 1"]).verdict == "inconclusive"


def test_a_hang_that_is_not_certain_is_inconclusive(tmp_path):
    done = [entry(1, at_ms=0, took_ms=1.0), entry(2, at_ms=10, took_ms=1.0)]
    waiting = [*done, entry(3, at_ms=195, state="started")]
    folder = write_dumps(tmp_path / "dumps", [dump(waiting), dump(done)])
    assert gate(folder, require=["run_hangs < 1"]).verdict == "inconclusive"


def test_two_ranks_late_in_one_step_cost_it_once(tmp_path):
    def late_ms(rank, step):
        return (10.0 if rank == 1 else 6.0) * (rank in (1, 2) and step % (rank + 1) == 0)

    run = late(write_dumps(tmp_path, ddp_dumps(6, 24, late_ms=late_ms)))
    document = run.to_document()
    assert [fact.ranks for fact in document.late] == [(1,), (2,)]
    # Rank 1 in 12 steps; rank 2 alone in those of its 8 steps that are odd.
    assert document.lost_ns == pytest.approx((12 * 10 + 4 * 6) * 1e6)


def test_the_saved_answer_is_judged_as_the_dumps_are(dumps, tmp_path):
    write_late(late(dumps), tmp_path / "late.json")
    assert gate(tmp_path / "late.json", require=["run_late_ms < 8"]).verdict == "regressed"


def test_a_baseline_of_whole_runs_is_compared(dumps, tmp_path):
    quiet = write_dumps(tmp_path / "quiet", ddp_dumps(4, 12))
    baseline = tmp_path / "base.json"
    write_baseline(baseline, read_side([quiet], what="baseline").runs * 3)
    candidates = Side(read_side([dumps], what="candidate").runs * 3, {})
    result = gate(candidates, baseline, require=["run_step_ms < +5%"])
    assert result.checks[0].before == pytest.approx(60.0, rel=1e-4)
    assert result.checks[0].after == pytest.approx(70.0, rel=1e-4)
    assert result.verdict == "regressed"


def test_a_baseline_of_dumps_counts_their_steps(command, dumps):
    code, out, _ = command("gate", dumps, "--update-baseline", "--baseline", "base.json")
    assert code == 0
    assert out.startswith("wrote base.json: 1 run, 12 steps")
    _, out, _ = command("gate", dumps, "--baseline", "base.json")
    assert out.count("(12 steps)") == 2
    assert "(0 steps)" not in out


def test_damaged_json_is_one_line(tmp_path):
    file = tmp_path / "late.json"
    file.write_text('{"format": "tracekit.late/1", "late": 3}')
    with pytest.raises(InputError, match=r"late\.json"):
        gate(file, require=["run_late_ms < 8"])


def test_dumps_that_are_gone_when_they_are_read_are_none(tmp_path):
    traces = shutil.copytree(PROFILED, tmp_path / "run")
    dump = shutil.copy(SAMPLES / "late" / "fr_rank0.pickle", traces)
    analysis = analyze(traces)
    assert late_beside_traces(traces, analysis) is not None
    Path(dump).unlink()
    assert late_beside_traces(traces, analysis) is None
