"""Nsight exports that lack a communication kernel, with or without its launch: all other matches stay as they are."""

from __future__ import annotations

import os
import shutil
import sqlite3
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from tests.kept import measured_tables
from tracekit.align.matching import match
from tracekit.analysis.combine.communication import with_peers
from tracekit.store.sources import find, read_ref

pytestmark = pytest.mark.slow

CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere"))
RUNS = [Path(__file__).parent.parent.parent / "sample_traces/nsys-1f1b",
        *(CORPUS / "frameworks" / name for name in ("nsys-meg-1f1b", "nsys-meg-1f1b-payloads"))]  # fmt: skip
NCCL_KERNELS = """
    SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL kernel JOIN StringIds name ON name.id = kernel.demangledName
    WHERE name.value LIKE '%nccl%' ORDER BY kernel.start
"""
KERNEL_ROW = "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId = ?"
LAUNCH_ROW = "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId = ?"


def rank_of(path):
    (ref,) = find([str(path)]).refs
    (rank_events,) = read_ref(ref)
    return measured_tables(rank_events)


@cache
def ranks_of(folder):
    return {path: rank_of(path) for path in sorted(folder.glob("rank*.sqlite"))}


def match_sets(ranks):
    """The members of each match: rank, start, and of a message its direction and peer."""
    named, _ = with_peers(ranks, None)
    operations = pl.concat([rank.operations for rank in named])
    members = match(operations, by_step=all(rank.steps_marked for rank in ranks)).members
    groups = members.group_by("match").agg(
        pl.struct("rank", "start_ns", "sends", "peer").alias("member")
    )
    return {
        frozenset(tuple(member.values()) for member in group)
        for group in groups["member"].to_list()
    }


@pytest.mark.parametrize(
    "rows", [(KERNEL_ROW,), (KERNEL_ROW, LAUNCH_ROW)], ids=["kernel", "kernel and launch"]
)
@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_without_one_kernel_all_other_matches_stay(folder, rows, tmp_path):
    if not folder.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    ranks = ranks_of(folder)
    complete = match_sets(ranks.values())
    for number, (path, rank) in [*enumerate(ranks.items())][1::2]:
        copy = tmp_path / path.name
        shutil.copyfile(path, copy)
        with sqlite3.connect(copy) as export:
            kernels = export.execute(NCCL_KERNELS).fetchall()
            kernel = kernels[len(kernels) * number // len(ranks)]
            for row in rows:
                export.execute(row, kernel)
        less = rank_of(copy)
        is_recorded = pl.col("id") >= 0
        removed = set(rank.operations["start_ns"]) - set(
            less.operations.filter(is_recorded)["start_ns"]
        )
        assert len(removed) == 1
        kept = {
            frozenset(m for m in match if (m[0], m[1]) != (number, *removed)) for match in complete
        }
        remaining = match_sets([*(ranks | {path: less}).values()])
        assert remaining == {match for match in kept if len({member[0] for member in match}) > 1}
