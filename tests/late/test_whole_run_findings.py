"""Findings from dumps and logs beside the traces."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import polars as pl
from msgspec.structs import replace

from tests.recorders import ddp_dumps, write_dumps
from tracekit.analysis.combine.stragglers import Stragglers
from tracekit.documents.findings import Finding
from tracekit.findings.context import Context
from tracekit.late import findings as late_findings
from tracekit.late import late
from tracekit.late.findings import _recorded_places, whole_run_findings
from tracekit.report.findings import with_sentences
from tracekit.run.analyze import analyze

ROOT = Path(__file__).parents[2]
PROFILED = ROOT / "tests/data/late-profiler"
MS = 1_000_000


@cache
def analysis_of_traces():
    return analyze(PROFILED, schedule="none")


def findings(run, *, stragglers=None):
    import dataclasses

    analysis = dataclasses.replace(analysis_of_traces(), whole_run=run)
    if stragglers is not None:
        analysis = dataclasses.replace(analysis, stragglers=stragglers)
    return list(with_sentences(whole_run_findings(Context(analysis))))


def test_at_most_eight_operations_show_where_ranks_are_late():
    """Ten steps in which rank 1 is late."""
    operations = pl.DataFrame(
        {
            "rank": 1,
            "step": range(10),
            "start_ns": range(0, 1000, 100),
            "end_ns": range(50, 1050, 100),
            "bytes": 64,
            "received": 64,
            "what": "all_reduce",
        }
    )
    context = SimpleNamespace(analysis=SimpleNamespace(tables={"operations": operations}))
    at = SimpleNamespace(bytes=64)
    fact = SimpleNamespace(ranks=(1,), profiled_steps=tuple(range(10)), at=at)
    assert [place.step for place in _recorded_places(context, fact)] == list(range(8))


def test_a_hang_is_a_finding():
    (finding,) = findings(late(ROOT / "sample_traces/always-on/hang"))
    assert (finding.code, finding.case, finding.ranks) == ("hang", "missing", (2,))
    assert finding.text.startswith("rank 2 did not join all_reduce of 4.0 kB (number 137")


def test_a_hang_that_is_not_certain_is_none():
    run = late(ROOT / "sample_traces/always-on/hang")
    document = replace(run.document, hang=replace(run.hang, certain=False))
    assert findings(dataclasses.replace(run, document=document)) == []


def test_a_late_host_of_the_whole_run_is_a_finding_with_the_recorded_steps():
    run = late([ROOT / "sample_traces/always-on/late", PROFILED])
    (finding,) = findings(run)
    assert (finding.code, finding.case, finding.ranks) == ("late_host", "whole_run", (1,))
    assert abs(finding.cost_ns - 10 * MS) < MS  # 30 ms in every third step
    assert finding.saves_ns == finding.cost_ns
    assert finding.saves_range_ns == (0, finding.cost_ns)
    assert "every 3 steps since step 3 (steps 21, 24 are in the trace)" in finding.text
    assert [(location.rank, location.step) for location in finding.where] == [(1, 21), (1, 24)]


def test_a_rank_that_a_finding_of_the_traces_names_is_left_to_it(monkeypatch):
    run = late(ROOT / "sample_traces/always-on/late")
    named = Finding(code="late_host", cost_ns=1, share=0.1, ranks=(1,), saves_ns=None)
    monkeypatch.setattr(late_findings, "rank_findings", lambda context: iter([named]))
    assert findings(run) == []
    monkeypatch.setattr(
        late_findings,
        "rank_findings",
        lambda context: iter([replace(named, saves_ns=0)]),
    )
    assert len(findings(run)) == 1  # what saves nothing is not shown


def test_a_link_that_became_slow_is_a_finding(tmp_path):
    dumps = ddp_dumps(2, 40, transfer_ms=lambda step: 5.0 if step < 25 else 9.0, sizes=(2_000_000,))
    (finding,) = findings(late(write_dumps(tmp_path, dumps)))
    assert (finding.code, finding.case) == ("slow_link", "degraded")
    assert "takes 9.00 ms instead of 5.00 ms since step 25" in finding.text


def test_lateness_whose_cause_is_open_says_so(tmp_path):
    dumps = ddp_dumps(4, 20, gpu_late_ms=lambda rank, step: 10.0 * (rank == 3))
    (finding,) = findings(late(write_dumps(tmp_path, dumps)), stragglers=Stragglers())
    assert (finding.code, finding.case) == ("slow_rank", "whole_run_open")
    assert "clocks do not tell why" in finding.text
