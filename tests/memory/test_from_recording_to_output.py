"""Memory from a recording to every output, held against what the allocator itself said while it was recorded."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from msgspec import structs
from rich.console import Console

import tracekit
from tests.kept import analysis_of
from tests.unpack import unpacked
from tracekit.diffs.scalars import scalars
from tracekit.documents.analysis import AllocatorMemory, ChangedStep, Memory, MemoryLine, Peak
from tracekit.documents.coding import to_plain
from tracekit.memory.combine import RunMemory
from tracekit.memory.measures import ChunkMemory
from tracekit.memory.view import memory_table
from tracekit.pipeline.schedules import generate
from tracekit.report.html.charts import PageClock, timeline_data
from tracekit.report.html.page import render_html
from tracekit.report.sections.changed_steps import changes_table
from tracekit.report.sections.schedule import alternatives, what_if_table
from tracekit.report.terminal.table import render_table
from tracekit.run.analyze import analyze
from tracekit.run.ingest import ingest
from tracekit.run.load import load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(samples):
    return analysis_of(samples / "memory", what_if=True)


@pytest.fixture(scope="module")
def truth(samples):
    return json.loads((samples / "memory/truth.json").read_text())


def test_peaks_are_the_allocators_own(run, truth):
    for one, expected in zip(run.memory.ranks, truth["memory"], strict=True):
        measured = one
        assert measured.peak_bytes == expected["peak_bytes"]
        assert measured.by_phase["backward"] == Peak(*[expected["backward_cells_peak_bytes"]] * 2)
        assert measured.by_phase["optimizer"] == Peak(*[expected["optimizer_peak_bytes"]] * 2)
        forward = expected["forward_cells_peak_bytes"]
        if one.rank < 3:
            assert measured.by_phase["forward"] == Peak(forward, forward)
        else:  # the program counted around the cells, and the loss stands behind the last stage's
            assert forward <= measured.by_phase["forward"].at_least < 1.02 * forward
        assert one.capacity_bytes == truth["total_memory_bytes"]


def test_a_chunk_holds_what_a_forward_cell_grew_by(run, truth):
    for one, expected in zip(run.memory.ranks, truth["memory"], strict=True):
        chunks, grown = run.allocations.chunks[one.rank], expected["grown_by_forward_bytes"][0]
        assert chunks.low <= 1.04 * grown
        assert chunks.high >= grown
        assert chunks.high <= 1.07 * grown  # the last stage's, with its loss
        assert (chunks.peak_chunks, one.ideal_chunks) == (4 - one.rank, 4 - one.rank)


def test_without_a_named_schedule_no_chunk_is_told(samples):
    memory = (
        analyze(samples / "memory/rank0.pt.trace.json.gz", schedule="none").to_document().memory
    )
    (rank,) = memory.ranks
    assert rank.peak_bytes == 1527521280
    assert (rank.chunk_bytes, rank.chunks, rank.base_bytes, rank.ideal_chunks) == (None,) * 4


def test_the_json_says_so(run):
    memory = run.to_dict()["memory"]
    first = memory["ranks"][0]
    assert memory["peak_bytes"] == first["peak_bytes"] == max(first["line"]["allocated"])
    assert first["chunk_bytes"] == [134383616, 134383616]
    assert run.tables["memory"].columns == ["rank", "at_ns", "allocated", "reserved"]


def test_another_schedule_needs_what_it_was_seen_to_need(run):
    """GPipe of the same model, recorded beside it, held 1,989,396,992 bytes on its fullest rank."""
    rows = {row.name: row for row in run.comparison.what_if if row.change == "schedule"}
    low, high = rows["gpipe"].peak_bytes
    assert low <= 1_989_396_992 <= high < 1.1 * 1_989_396_992
    assert rows["1f1b"].peak_bytes == (run.memory.peak_bytes, run.memory.peak_bytes)
    assert rows["dualpipe"].peak_bytes[1] is None  # twice the weights
    assert rows["gpipe"].fits is True
    assert rows["dualpipe"].fits is None


def held(capacity, *, base=100, chunk=10, chunks=4, optimizer=None):
    phases = {} if optimizer is None else {"optimizer": Peak(optimizer, optimizer)}
    peak = base + chunk * chunks
    rank = AllocatorMemory(
        rank=0,
        device=0,
        capacity_bytes=capacity,
        peak_bytes=peak,
        reserved_bytes=peak + 5,
        first_bytes=base,
        by_phase=phases,
        base_bytes=base,
        chunk_bytes=(chunk, chunk),
        chunks=chunks,
        ideal_chunks=chunks,
        line=MemoryLine([], [], []),
    )
    return RunMemory(Memory(peak, [rank]), {0: ChunkMemory(chunk, chunk, base, 0, 0, chunks)})


@pytest.mark.parametrize(
    ("capacity", "fits"),
    [(179, False), (180, None), (184, None), (185, True), (None, None)],
    ids=str,
)  # GPipe holds 8 chunks of 10 over 100; the allocator reserves 5 more than tensors hold
def test_what_does_not_fit_is_marked(run, capacity, fits):
    rows = held(capacity).with_needs(run.comparison).what_if
    (gpipe,) = (row for row in rows if row.name == "gpipe")
    assert (gpipe.peak_bytes, gpipe.fits) == ((180, 180), fits)


def test_the_optimizer_is_the_least_that_any_schedule_needs(run):
    rows = held(150, optimizer=200).with_needs(run.comparison).what_if
    assert {row.fits for row in rows if row.peak_activations is not None and not row.ran} == {False}


def test_without_a_known_chunk_nothing_is_said_of_other_schedules(run):
    memory = held(100)
    unknown = structs.replace(memory.chunks[0], low=None, high=None)
    bare = structs.replace(memory, chunks={0: unknown})
    plain = structs.replace(
        run.comparison,
        what_if=tuple(
            structs.replace(r, peak_bytes=None, fits=None) for r in run.comparison.what_if
        ),
    )
    assert all(row.peak_bytes is None for row in bare.with_needs(plain).what_if)


@pytest.mark.parametrize(
    ("name", "count", "needs"),
    [
        ("1f1b", 16, (140, False)),
        ("1f1b", 2, (120, True)),
        ("1f1b", 8, (140, False)),
        ("gpipe", 16, (260, False)),
    ],
    ids=str,
)  # 1F1B on 4 ranks holds at most 4 chunks of 10 over 100, GPipe one for every micro-batch
def test_other_numbers_of_micro_batches_need_what_they_hold(run, name, count, needs):
    head = run.comparison.head
    match = structs.replace(head.match, schedule=generate(name, pp=4, microbatches=8))
    comparison = structs.replace(run.comparison, head=structs.replace(head, match=match))
    peak, fits = needs
    assert held(139).needed_with_microbatches(comparison, count) == ((peak, peak), fits)


def test_a_change_that_does_not_fit_is_named(run):
    step = ChangedStep(
        "microbatches 64", ("microbatches 64",), 1, peak_bytes=(10**9, 2 * 10**9), fits=False
    )
    (note,) = (n for n in changes_table(replace(run, changed_steps=(step,))).notes if "GB" in n)
    assert note == "microbatches 64: the fullest rank needs 1.00 – 2.00 GB, which does not fit"


def test_the_terminal_names_what_does_not_fit(run):
    full = replace(run, comparison=held(150).with_needs(run.comparison), allocations=held(150))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render_table(what_if_table(alternatives(full.comparison)), 200))
    assert re.search(r"gpipe (< )?\S+ does not fit", captured.get())


def test_the_page_holds_a_line_for_every_rank_on_its_lanes_axis(run):
    data = to_plain(timeline_data(run, PageClock(run)))
    assert [entry["rank"] for entry in data["ranks"]] == [
        memory.rank for memory in run.memory.ranks
    ]
    for entry, memory in zip(data["ranks"], run.memory.ranks, strict=True):
        line = unpacked(entry["memory"])
        assert (np.diff(line["time"]) >= 0).all()
        assert line["time"][-1] * 1000 <= data["end_ns"]
        assert line["allocated"].max() * 1024 <= memory.peak_bytes
        assert (line["reserved"].max() - 1) * 1024 <= data["memory_top"] * 1e9
    assert 'id="memory"' in render_html(run)


def test_the_gate_holds_a_limit_on_memory_and_rates(run):
    limits = ["peak_gb < 1.6", "phase_gb.backward < 1.6", "tflop_s.total > 100"]
    assert tracekit.gate(run, require=limits).exit_code == 0
    assert tracekit.gate(run, require=["peak_gb < 1.5"]).exit_code == 1
    assert scalars(run)["tracekit/peak_gb"] == pytest.approx(1.52752128)


def test_a_store_brings_memory_back(samples, tmp_path):
    traces = [samples / f"memory/rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
    ingest([str(path) for path in traces], tmp_path / "store")
    fresh, kept = load(traces), load(tmp_path / "store")
    assert kept.memory.equals(fresh.memory)
    assert kept.memory.height == fresh.rank(0).memory.height + fresh.rank(1).memory.height > 0
    for file in (tmp_path / "store").glob("rank=*/memory.parquet"):
        file.write_bytes(b"not parquet")
    with pytest.raises(Exception, match=r"memory\.parquet: is damaged"):
        load(tmp_path / "store")


def test_a_run_without_memory_events_says_nothing(samples):
    analysis = analysis_of(samples / "reload")
    assert analysis.memory is None
    assert analysis.to_dict()["memory"] is None
    assert memory_table(analysis) is None
    assert "memory" not in analysis.tables
    assert isinstance(load(samples / "reload", ranks=[0]).memory, pl.DataFrame)
