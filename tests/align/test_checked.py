"""Recordings whose waits and clocks were worked out independently from the files.

All of one host, so offsets are 0.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from tests.mutate import answer
from tests.perturbations import read_run

pytestmark = pytest.mark.slow

CHECKED = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "checked"
MS = 1_000_000


@cache
def analysed(name):
    if not (CHECKED / name).is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    return answer(read_run(CHECKED / name))


def codes(analysis):
    return {notice.code for notice in analysis.notices}


def test_a_kernel_without_args_is_matched_by_its_hosts_record():
    """Rank 5 of eight has one of 96 exchanges without args.

    All of them are known from all sides.
    """
    analysis = analysed("meg-kimi")
    operations = analysis.tables["operations"]
    exchanges = operations.filter(pl.col("what").str.starts_with("all_to_all"))
    assert exchanges.group_by("rank").len()["len"].unique().to_list() == [96]
    assert exchanges["what"].unique().to_list() == ["all_to_allv"]
    assert not operations["open"].any()
    assert not {"uneven-operations", "wait-unknown"} & codes(analysis)
    assert not analysis.walked_path.unknown_labels


def test_ranks_that_take_turns_on_one_gpu_keep_their_clocks():
    """Four ranks recorded 96 collectives of the same sizes.

    No collective contradicts equal clocks.
    """
    analysis = analysed("ep")
    assert set(analysis.clocks.offset_ns.values()) == {0}
    assert "uneven-operations" not in codes(analysis)
    assert len(analysis.tables["matched"]) == 4 * 96


def test_each_kernel_waits_once_however_many_messages_it_carries():
    analysis = analysed("meg-1f1b")
    first = analysis.stragglers[0]
    assert (first.rank, first.label) == (1, "pp_comm")
    assert first.caused_ns / MS == pytest.approx(114.0, abs=0.05)


def test_few_collectives_of_each_pair_tie_its_clocks_by_their_ends():
    """Twenty collectives of four pairs of ranks, four or six of each pair, end within 0.35 ms of each other."""
    analysis = analysed("titan-fsdp-pp")
    uncertainty_ns = analysis.clocks.pair_uncertainty_ns
    assert max(uncertainty_ns[rank, rank + 1] for rank in (0, 2, 4, 6)) < MS
    late = next(row for row in analysis.stragglers if row.label == "pp_comm")
    assert late.candidates == [3]
