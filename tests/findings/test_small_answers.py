"""What findings ask of a recording, answered by contexts with a few figures in them."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tracekit.findings import host
from tracekit.findings.context import Context
from tracekit.findings.recorded import has_host_calls
from tracekit.findings.recording import WaitingUnknown
from tracekit.findings.synchronisations import who_waits
from tracekit.schema import Source


def source(**facts):
    return Source("rank0.json", "kineto", 0, "name", **facts)


@pytest.mark.parametrize(
    ("counts", "has_calls"),
    [({"runtime": 1}, True), ({"driver": 1}, True), ({"kernel": 9}, False), ({}, False)],
)
def test_one_call_shows_that_calls_were_recorded(counts, has_calls):
    assert has_host_calls(source(counts=counts)) is has_calls


@pytest.mark.parametrize(
    ("op", "call", "case"),
    [
        (None, "cudaStreamSynchronize", "explicit"),
        ("aten::mm", "cudaStreamSynchronize", ""),  # an operator asks, not the program
        (None, "cudaMemcpyAsync", ""),
        (None, None, ""),
    ],
)
def test_a_program_that_synchronises_does_so_outside_of_operators(op, call, case):
    assert who_waits(None, op, call, count=1) == case


def test_of_65_ranks_without_a_trace_64_are_named():
    result = SimpleNamespace(rank=0, whole=SimpleNamespace(budget=SimpleNamespace(span_ns=100)))
    budget = SimpleNamespace(exposed_ns={"dp_comm": 10})
    analysis = SimpleNamespace(
        total=SimpleNamespace(wait_ns={"dp_comm": None}, budget=budget),
        sources=[source(world_size=66)],
        world_size=66,
        rank_results=[result],
        notices=(),
        tables={"operations": pl.DataFrame({"group": ["0"]})},
    )
    context = SimpleNamespace(
        analysis=analysis, step=SimpleNamespace(budget_ns=budget), share=lambda ns: ns / 100
    )
    (finding,) = WaitingUnknown.find(context)
    assert (finding.case, finding.ranks) == ("ranks", tuple(range(1, 65)))


@pytest.mark.parametrize(
    ("step_kinds", "idle_ns", "share"),
    [(("decode",), 100, 0.3), ((), 100, None), (("decode",), 0, None)],
)
def test_idle_time_between_steps_is_a_share_where_a_server_has_steps(step_kinds, idle_ns, share):
    """Steps from 0 to 50 and from 80 on: 30 of 100 ns lie between them."""
    timed = SimpleNamespace(budget=SimpleNamespace(idle_ns=idle_ns))
    steps = pl.DataFrame({"rank": [0, 0], "start_ns": [0, 80], "end_ns": [50, 150]})
    analysis = SimpleNamespace(
        rank_results=[SimpleNamespace(timed_steps=[timed])],
        step_kinds=step_kinds,
        tables={"steps": steps},
    )
    assert Context.between_steps_share.func(SimpleNamespace(analysis=analysis)) == share


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "workers"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "no_workers"),
        (None, "no_workers"),
    ],
)
def test_the_loaders_name_tells_whether_workers_load(name, case):
    row = {"name": name, "op": None, "count": 1}
    assert host.kind_of_activity(None, "data_loading", row, ()).case == case
