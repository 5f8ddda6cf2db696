"""Communication kernels removed from recordings one at a time: how much of what is said about waits changes by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.mutate import Ranks, answer
from tests.perturbations import Kernel, communication_kernels, remove_kernel
from tracekit.analysis import Analysis
from tracekit.report.view import view_of

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
    topics: tuple[str, ...]
    """Topics of the lines of the first screen."""
    late_rank: int | None
    """The rank that others wait for longest, if one is named."""
    advice: str

    @classmethod
    def of(cls, analysis: Analysis) -> Statements:
        """Collect the statements of an analysis."""
        rows = analysis.stragglers.rows
        lines = {line.topic: line.text for line in view_of(analysis).answer}
        named = [row for row in rows if not row.uncertain]
        return cls(
            caused_ns={(row.rank, row.label): row.caused_ns for row in rows},
            wait_ns={
                (result.rank, label): ns
                for result in analysis.rank_results
                for label, ns in result.whole.wait_ns.items()
            },
            offsets_ns=analysis.clocks.offset_ns,
            topics=tuple(lines),
            late_rank=named[0].rank if named and named[0] is rows[0] else None,
            advice=lines.get("Next", ""),
        )


def find_changes(before: Statements, after: Statements, kernel: Kernel, ranks: int) -> list[str]:
    """Return what is said differently without *kernel* and is not explained by it.

    A kernel that is missing may take its own duration from the waiting of each rank that met it there.
    """
    explained_ns = kernel.duration_ns + ROUNDING_NS
    changes = []
    for key in sorted(before.wait_ns.keys() | after.wait_ns.keys()):
        old_ns, new_ns = before.wait_ns.get(key, 0), after.wait_ns.get(key, 0)
        if old_ns is None:
            continue
        if new_ns is None:
            changes.append(f"waits of rank {key[0]} in {key[1]} are not known any more")
        elif abs(new_ns - old_ns) > explained_ns:
            changes.append(f"waits of rank {key[0]} in {key[1]}: {in_ms(old_ns)} → {in_ms(new_ns)}")
    for key in sorted(before.caused_ns.keys() | after.caused_ns.keys()):
        change_ns = after.caused_ns.get(key, 0) - before.caused_ns.get(key, 0)
        if abs(change_ns) > explained_ns * (ranks - 1):
            changes.append(
                f"caused by rank {key[0]} in {key[1]}: {in_ms(before.caused_ns.get(key, 0))} {in_ms(change_ns)}"
            )
    if before.offsets_ns != after.offsets_ns:
        changes.append(f"clocks: {before.offsets_ns} → {after.offsets_ns}")
    if before.topics != after.topics:
        changes.append(f"lines: {', '.join(before.topics)} → {', '.join(after.topics)}")
    if after.advice.startswith("Record all ranks") and not before.advice.startswith("Record all ranks"):
        changes.append(f"advice: {after.advice}")
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
    before = Statements.of(answer(ranks))
    for kernel in choose_kernels(ranks, count):
        after = Statements.of(answer(remove_kernel(ranks, kernel, with_launch=with_launch)))
        yield Removal(kernel, find_changes(before, after, kernel, len(ranks)))
