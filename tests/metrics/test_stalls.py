"""Stalls of the host, from events of a few operators."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.intervals import union
from tracekit.metrics.alternatives.stalls import without_stalls
from tracekit.metrics.attainable import Share
from tracekit.metrics.host.stalls import find_stalls
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import Speeds

MS = 1_000_000
LAUNCHING = ("aten::add", "aten::mm", "aten::mul", "outer", "around")


def host_events(rows):
    columns = ("kind", "name", "tid", "start_ns", "end_ns")
    return pl.DataFrame(rows, schema=columns, orient="row")


def operators(*, stalled, nested=()):
    """Return six calls of five operators, 10 ms apart; *stalled* take 5 ms once, inside *nested* ones."""
    rows = []
    start = 0
    for number in range(6):
        for name in ("aten::view", "aten::t", "aten::add", "aten::mm", "aten::mul"):
            is_stalled = number == 3 and name in stalled
            end = start + (5 * MS if is_stalled else 1_000)
            rows.append(("cpu_op", name, 1, start, end))
            rows += [("cpu_op", outer, 1, start - 10, end + 10) for outer in nested]
            start += 10 * MS
    return host_events(rows)


@pytest.mark.parametrize(
    ("stalled", "nested", "stalled_ms"),
    [
        (("aten::view", "aten::t", "aten::add"), (), 15),
        (("aten::view", "aten::t"), (), 0),  # too few operators
        (("aten::view", "aten::add", "aten::mul"), (), 0),  # two of them compute
        (("aten::view",), ("outer", "around"), 0),  # one operator, and what is around it
    ],
)
def test_operators_of_several_names_stall_together(stalled, nested, stalled_ms):
    assert (
        find_stalls(operators(stalled=stalled, nested=nested), LAUNCHING).total_ns
        == stalled_ms * MS
    )


def short_operators(tid, start_ms, end_ms, every_us):
    starts = range(round(start_ms * MS), round(end_ms * MS), every_us * 1000)
    return host_events([("cpu_op", "aten::add", tid, start, start + 1_000) for start in starts])


def test_a_thread_that_waits_while_another_works_does_not_stand_still():
    """A second thread records nothing for 5 ms; so does the first, or a third is at work."""
    stalled = operators(stalled=("aten::view", "aten::t", "aten::mm"))
    second = [short_operators(2, 1, 2, 20), short_operators(2, 7, 8, 20)]
    third = short_operators(3, 1.5, 7.5, 500)
    assert find_stalls(pl.concat([stalled, *second]), LAUNCHING).total_ns > 19.9 * MS
    assert find_stalls(pl.concat([stalled, *second, third]), LAUNCHING).total_ns == 15 * MS


def test_time_inside_calls_is_theirs():
    events = operators(stalled=("aten::view", "aten::t", "aten::add"))
    slow = events.filter(pl.col("end_ns") - pl.col("start_ns") > MS)
    calls = slow.with_columns(kind=pl.lit("runtime"), name=pl.lit("cudaMalloc"))
    assert find_stalls(pl.concat([events, calls]), LAUNCHING).total_ns == 0
    assert find_stalls(events).total_ns == 0  # they may compute on the CPU


def rank_work(*events, bandwidth=None):
    """Work of a GPU whose memory moves as many bytes per ns, of which kernels reach the half, all or twice that."""
    works = [("memory", "*"), ("optimizer", "*")]
    speeds = Speeds({}, bandwidth, dict.fromkeys(works, Share(0.5, 1.0, 2.0)))
    frame = pl.DataFrame(list(events), infer_schema_length=None)
    missing = [pl.lit(None, pl.String).alias(name) for name in ("node",) if name not in frame]
    return RankWork(frame.with_columns(missing), pl.DataFrame(), speeds)


def test_a_launch_keeps_the_share_of_its_hosts_time_in_which_it_did_not_stand_still():
    """The host stood still for 30 of the 40 ns before the second launch, and for all before the third."""
    events = [{"row": row, "launch_ns": launch, "ns": 5} for row, launch in enumerate((0, 40, 60))]
    (remedies,) = without_stalls(rank_work(*events), union([10, 40], [40, 60]), "free cpu")
    assert remedies.select("row", "likely_ns").rows() == [(1, 5), (2, 5)]
    assert remedies["host_share"].to_list() == pytest.approx([0.25, 0.001])
