"""What a recording lacks: only what really is missing."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit import analyze
from tracekit.errors import Notice
from tracekit.findings.recording import recording_findings
from tracekit.schema import ProcessGroup, Source


def context(
    *, wait_ns=None, ranks=(0, 1), idle_ranks=(), world_size=2, notices=(), group="g", header=()
):
    """A run with 30 of 100 ns exposed; *header* are the groups that its files list."""
    results = [
        SimpleNamespace(
            rank=rank,
            whole=SimpleNamespace(budget=SimpleNamespace(span_ns=0 if rank in idle_ranks else 9)),
        )
        for rank in ranks
    ]
    sources = tuple(
        Source(f"rank{rank}", "kineto", rank, "name", world_size=world_size, groups=header)
        for rank in ranks
    )
    exposed = SimpleNamespace(exposed_ns={"dp_comm": 30})
    return SimpleNamespace(
        analysis=SimpleNamespace(
            total=SimpleNamespace(wait_ns={"dp_comm": wait_ns}, budget=exposed),
            rank_results=results,
            world_size=world_size,
            sources=sources,
            notices=notices,
            tables={"operations": pl.DataFrame({"group": [group]}, schema={"group": pl.String})},
        ),
        step=SimpleNamespace(budget=exposed),
        share=lambda ns: ns / 100,
    )


UNNAMED = Notice("wait-unknown", values={"case": "unnamed"})


@pytest.mark.parametrize(
    ("case", "run"),
    [
        ("ranks", {"ranks": (0,), "world_size": 3}),
        ("gpu_work", {"idle_ranks": (1,)}),
        ("one_rank", {"ranks": (0,), "world_size": None}),
        ("peers", {"notices": (UNNAMED,)}),
        ("groups", {"group": None}),
        ("sides", {"group": None, "header": (ProcessGroup("0", "default_pg", (0, 1)),)}),
        ("sides", {}),
    ],
)
def test_unknown_waits_are_explained_by_what_is_missing(case, run):
    (finding,) = recording_findings(context(**run))
    assert (finding.case, finding.cost_ns, finding.saves_ns) == (case, 30, None)


def test_missing_ranks_are_named():
    (finding,) = recording_findings(context(ranks=(0,), world_size=3))
    assert finding.ranks == (1, 2)
    assert finding.text == (
        "dp_comm is exposed for 0 µs; how much of that is waiting is not known: only 1 of 3 ranks are here"
    )


def test_a_rank_whose_trace_has_no_gpu_work_is_not_missing():
    (finding,) = recording_findings(context(idle_ranks=(1,)))
    assert finding.ranks == (1,)
    assert finding.text.endswith("rank 1 has no GPU work in its trace")


def test_known_waits_lack_nothing():
    assert not list(recording_findings(context(wait_ns=4)))


def test_one_rank_of_four_lacks_the_others_and_all_four_lack_nothing(samples):
    alone = analyze(samples / "1f1b", ranks=[1])
    assert [finding.case for finding in alone.findings if finding.code == "recording"] == ["ranks"]
    assert not any(
        finding.code == "recording" for finding in analysis_of(samples / "1f1b").findings
    )
