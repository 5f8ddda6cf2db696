"""Thresholds of placing a memory snapshot beside a trace, each on both sides."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tests.memory_snapshots import BASE_US, event, snapshot
from tracekit.align.snapshot_clock import SnapshotClock
from tracekit.documents.memory import SnapshotPlace
from tracekit.memory.measures import measure
from tracekit.memory.snapshot_file import parse_memory_snapshot
from tracekit.schema import MEMORY

BASE_NS = BASE_US * 1_000


def choose(monkeypatch, *, uncertainty_ns=0, launches_ns=(), own_events=0):
    """Choose a snapshot whose events last from 0 to 1 ms, on a clock with this uncertainty."""
    clock = SnapshotClock(SnapshotPlace(0, uncertainty_ns, "annotations"), 3, 2)
    monkeypatch.setattr(measure, "place_snapshot", lambda snapshot, rank: clock)
    read = parse_memory_snapshot(
        snapshot([event("alloc", 0, 8, 0), event("alloc", 512, 8, 1_000)]), name="a"
    )
    rank = SimpleNamespace(snapshots=(read,), memory=MEMORY.to_frame().clear(own_events))
    launches = pl.Series([BASE_NS + at_ns for at_ns in launches_ns], dtype=pl.Int64)
    return measure.choose_snapshot(rank, launches)


def notice_codes(monkeypatch, **options):
    _, notices = choose(monkeypatch, **options)
    return [notice.code for notice in notices]


@pytest.mark.parametrize(("uncertainty_ns", "is_said"), [(1_000_000, False), (1_000_001, True)])
def test_a_clock_known_to_less_than_a_millisecond_is_said(monkeypatch, uncertainty_ns, is_said):
    assert (
        "memory-clock-uncertain" in notice_codes(monkeypatch, uncertainty_ns=uncertainty_ns)
    ) is is_said


@pytest.mark.parametrize(("seen", "is_said"), [(90, False), (89, True)])
def test_a_snapshot_that_saw_less_than_nine_tenths_of_the_launches_is_short(
    monkeypatch, seen, is_said
):
    launches = [10_000] * seen + [5_000_000] * (100 - seen)
    assert ("memory-history-short" in notice_codes(monkeypatch, launches_ns=launches)) is is_said


@pytest.mark.parametrize(("own_events", "case"), [(0, "used"), (1, "not_used")])
def test_a_short_snapshot_is_used_if_the_trace_has_no_memory_events(monkeypatch, own_events, case):
    launches = [10_000] + [5_000_000] * 3
    chosen, (notice,) = choose(monkeypatch, launches_ns=launches, own_events=own_events)
    assert (chosen is not None) is (case == "used")
    assert (notice.values["case"], notice.values["share"]) == (case, 0.25)


@pytest.mark.parametrize(("share", "is_said"), [(0.049, False), (0.05, True)])
def test_a_twentieth_of_the_peak_from_before_the_history_is_said(share, is_said):
    contents = SimpleNamespace(figures=SimpleNamespace(source="snapshot"), unknown_share=share)
    assert bool(measure.history_notices(contents)) is is_said
