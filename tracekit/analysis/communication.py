"""The ranks' communication looked at together: which operations are one, on one clock, and what follows from that."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from tracekit._util.machine import give_back_memory
from tracekit.align.clocks import Clocks, align
from tracekit.align.matching import MEMBERS, match
from tracekit.analysis.rates import RunRates, run_rates
from tracekit.analysis.tables import RankTables
from tracekit.critical_path.path import CriticalPath, critical_path
from tracekit.errors import Notice
from tracekit.metrics.waits import add_waits
from tracekit.schema import conform

_TEXT = ("label", "pass", "what", "group", "group_ranks", "p2p")


MANY = 32
"""Ranks from which memory is worth giving back in between."""


class Communication(msgspec.Struct, frozen=True, eq=False):
    """What the matched operations of all ranks show; their rows, as many again, are not kept."""

    waited: pl.DataFrame
    """All ranks' operations, rank by rank, with their waits (``metrics.waits``); text is categorical."""
    clocks: Clocks
    rates: RunRates
    critical: CriticalPath
    by_step: bool
    """Whether ranks count steps alike, so that operations of different steps are different ones."""
    notices: tuple[Notice, ...]

    @classmethod
    def of(cls, parts: Sequence[RankTables], *, node: int | None) -> Communication:
        """Return what the ranks' communication shows; *parts* are in order of rank, *node* is ranks per machine."""
        operations = _operations(parts)
        by_step = all(part.steps_marked for part in parts)
        members, notices = _matched(operations, by_step=by_step)
        many = len(parts) >= MANY
        give_back_memory(worth=many)  # looking at millions of rows takes several times what it leaves
        clocks = align(members, [part.source.rank for part in parts])
        critical = critical_path(parts, operations, members, clocks)
        give_back_memory(worth=many)
        rates = run_rates(
            [part.products for part in parts],
            [part.rates for part in parts if part.rates is not None],
            [part.experts for part in parts],
            operations,
            members,
            node=node,
        )
        members = members.select("match", "row", "rank", "start_ns", "transfer_ns", "wait_ns")
        give_back_memory(worth=many)
        return cls(add_waits(operations, members, clocks), clocks, rates, critical, by_step, notices)

    def matched(self) -> pl.DataFrame:
        """Return the matched operations (``MEMBERS``) on the common clock."""
        return conform(
            self.clocks.align(match(self.waited, by_step=self.by_step).members, "start_ns", "end_ns"), MEMBERS
        )


def _matched(operations: pl.DataFrame, *, by_step: bool) -> tuple[pl.DataFrame, tuple[Notice, ...]]:
    matching = match(operations, by_step=by_step)
    return matching.members, matching.notices


def _operations(parts: Sequence[RankTables]) -> pl.DataFrame:
    """Return all ranks' operations below each other, in one piece.

    Text becomes numbers: a run has few words and millions of rows.
    """
    coded = [part.operations.with_columns(pl.col(_TEXT).cast(pl.Categorical)) for part in parts]
    return pl.concat(coded, rechunk=True)
