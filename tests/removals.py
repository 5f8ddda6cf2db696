"""Communication kernels removed from recordings one at a time: how much of what is said about waits changes by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from tests.mutate import Ranks, answer
from tests.perturbations import Kernel, communication_kernels, remove_kernel
from tracekit.analysis import Analysis

MIN_FINDING_SHARE = 0.02
"""Share of the step from which a finding must stay."""
ROUNDING_NS = 1_000
"""Difference of two sums of times that is none."""


@dataclass(frozen=True)
class Statements:
    """What an analysis says about waiting."""

    caused_ns: dict[tuple[int, str], int]
    """By rank and label: time that the others waited for it."""
    wait_ns: dict[tuple[int, str], int | None]
    """By rank and label: time that it waited."""
    offsets_ns: dict[int, int]
    findings: dict[tuple[str, tuple[int, ...]], float]
    """Findings by code and ranks: what they cost, as a share of the step."""

    @classmethod
    def of(cls, analysis: Analysis) -> Statements:
        """Collect the statements of an analysis."""
        rows = analysis.stragglers
        return cls(
            caused_ns={(row.rank, row.label): row.caused_ns for row in rows},
            wait_ns={
                (result.rank, label): ns
                for result in analysis.ranks
                for label, ns in result.whole.wait_ns.items()
            },
            offsets_ns=analysis.clocks.offset_ns,
            findings={
                (finding.code, finding.ranks): finding.share for finding in analysis.findings
            },
        )


def time_in_operation(analysis: Analysis, kernel: Kernel) -> dict[int, int]:
    """Return by rank the time of the kernels that took part in the operations of *kernel*, itself included."""
    matched = analysis.tables["matched"].select(
        "match", "rank", "id", ns=pl.col("end_ns") - pl.col("start_ns")
    )
    own_matches = matched.filter(rank=kernel.rank, id=kernel.id)["match"]
    members = matched.filter(pl.col("match").is_in(own_matches.implode())).unique(["rank", "id"])
    times = dict(members.group_by("rank").agg(pl.col("ns").sum()).iter_rows())
    return times | {kernel.rank: kernel.duration_ns}


def find_changes(before: Statements, after: Statements, explained_ns: dict[int, int]) -> list[str]:
    """Return what is said differently without a kernel and is not explained by that.

    Each rank may wait less or more by the time of its own side of the operation that is missing.

    Args:
        before: Statements about the complete recording.
        after: Statements about the recording without the kernel.
        explained_ns: Time of each rank in the operation (``time_in_operation``).

    """
    changes = []
    for rank, label in sorted(before.wait_ns.keys() | after.wait_ns.keys()):
        old_ns, new_ns = before.wait_ns.get((rank, label), 0), after.wait_ns.get((rank, label), 0)
        if old_ns is None:
            continue
        if new_ns is None:
            changes.append(f"waits of rank {rank} in {label} are not known any more")
        elif abs(new_ns - old_ns) > explained_ns.get(rank, 0) + ROUNDING_NS:
            changes.append(f"waits of rank {rank} in {label}: {in_ms(old_ns)} → {in_ms(new_ns)}")
    all_ns = sum(explained_ns.values()) + ROUNDING_NS
    for rank, label in sorted(before.caused_ns.keys() | after.caused_ns.keys()):
        old_ns, new_ns = (
            before.caused_ns.get((rank, label), 0),
            after.caused_ns.get((rank, label), 0),
        )
        if abs(new_ns - old_ns) > all_ns:
            changes.append(f"caused by rank {rank} in {label}: {in_ms(old_ns)} → {in_ms(new_ns)}")
    if before.offsets_ns != after.offsets_ns:
        changes.append(f"clocks: {before.offsets_ns} → {after.offsets_ns}")
    changes += [
        f"finding {code} about ranks {ranks or 'all'} ({share:.1%} of the step) is gone"
        for (code, ranks), share in before.findings.items()
        if share >= MIN_FINDING_SHARE and (code, ranks) not in after.findings
    ]
    if ("recording", ()) in after.findings and ("recording", ()) not in before.findings:
        changes.append("finding recording is new")
    return changes


def in_ms(ns: int) -> str:
    """Return a time in words."""
    return f"{ns / 1e6:.3f} ms"


def choose_kernels(ranks: Ranks, count: int) -> list[Kernel]:
    """Return *count* communication kernels spread over ranks, labels and time, the same ones each time."""
    kernels = communication_kernels(ranks)
    if len(kernels) <= count:
        return kernels
    chosen = np.random.default_rng(len(kernels)).choice(len(kernels), count, replace=False)
    return [kernels[i] for i in sorted(chosen.tolist())]


@dataclass(frozen=True)
class Removal:
    """A kernel that was removed, and what is said differently without it."""

    kernel: Kernel
    changes: list[str]


def try_removals(ranks: Ranks, count: int, *, with_launch: bool = False) -> Iterator[Removal]:
    """Yield kernels that were removed, one at a time."""
    complete = answer(ranks)
    before = Statements.of(complete)
    for kernel in choose_kernels(ranks, count):
        after = Statements.of(answer(remove_kernel(ranks, kernel, with_launch=with_launch)))
        yield Removal(kernel, find_changes(before, after, time_in_operation(complete, kernel)))
