"""One rank's measures and its waits, put together for each part: its whole window, or each of its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.records import dataclass
from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.tables import Measures, RankTables
from tracekit.intervals import Intervals, Longs, union
from tracekit.metrics.bubbles import Bubble, exposed_waits
from tracekit.metrics.causes import with_peers
from tracekit.metrics.gaps import CAUSES
from tracekit.metrics.lanes import COMPUTE_SET, EXPOSABLE, SETS
from tracekit.metrics.messages import may_be_message, unknown_waits, unseen_messages
from tracekit.schema import COMMUNICATION_LABELS, LABELS

_NEVER_HIDDEN = ("compute", *COMPUTE_SET)
_ORDER = (*SETS, *LABELS)

Rows = Mapping[int, list[tuple[Any, ...]]]
"""A table's rows by part."""

TOGETHER = 128
"""Ranks whose operations are looked at in one go: more take memory, fewer take calls."""


def rank_results(parts: Sequence[RankTables], waited: pl.DataFrame, *, pipeline: bool) -> tuple[RankResult, ...]:
    """Return every rank's result; *waited* are all ranks' operations with their waits.

    *pipeline*: whether the run has one. What is asked of the operations is computed for all ranks at once: a thousand
    ranks have few operations each.
    """
    results: list[RankResult] = []
    for first in range(0, len(parts), TOGETHER):
        some = parts[first : first + TOGETHER]
        theirs = waited
        if len(some) < len(parts):
            theirs = waited.filter(pl.col("rank").is_in([part.source.rank for part in some]))
        waits = _Waits.by_rank(theirs)
        causes = [_causes(some, theirs, window=window) for window in (True, False)]
        for part in some:
            rank = part.source.rank
            because = (causes[0].get(rank, {}), causes[1].get(rank, {}))
            results.append(_rank_result(part, waits.get(rank, _NOTHING), because, pipeline=pipeline))
    return tuple(results)


def _rank_result(part: RankTables, waits: _Waits, because: tuple[Rows, Rows], *, pipeline: bool) -> RankResult:
    steps = part.steps["step"].to_list() or [None]
    known = {
        "idle_known": part.idle_known,
        "pipeline": pipeline,
        "unseen": unseen_messages(part.messages_issued, int(waits.message.sum())),
    }
    together = replace(waits, part=np.zeros_like(waits.part))
    whole = _measured(part.window, together, [None], because[0], together.exposed(part.window.covered), **known)
    causes = part.window.causes.row(0, named=True) if len(part.window.causes) else {}
    hollow = waits.exposed(part.by_step.covered)
    return RankResult(
        rank=part.source.rank,
        steps=tuple(step for step in steps if step is not None),
        whole=whole[0],
        per_step=tuple(
            replace(scope, partial=partial)
            for scope, partial in zip(
                _measured(part.by_step, waits, steps, because[1], hollow, **known),
                part.steps["partial"].to_list() or [False],
                strict=True,
            )
        ),
        phases=tuple(_phases(part, hollow, steps, known=not (waits.unknown.any() or known["unseen"]))),
        instead=tuple(part.instead.to_dicts()),
        inside_launch_ns=part.inside_launch_ns,
        idle_causes={name.removesuffix("_ns"): causes.get(name, 0) for name in CAUSES},
    )


@dataclass(frozen=True, eq=False)
class _Waits:
    """One rank's operations: when they began, how long they waited and whether that is known, and what they are."""

    start: Longs
    wait: Longs
    known: npt.NDArray[np.bool_]
    part: Longs
    label: Longs
    unknown: npt.NDArray[np.bool_]
    """Which leave the bubble open."""
    message: npt.NDArray[np.bool_]

    @classmethod
    def by_rank(cls, waited: pl.DataFrame) -> dict[int, _Waits]:
        """Return the operations of each rank that has any."""
        label = pl.col("label").cast(pl.Enum(LABELS)).to_physical().cast(pl.Int64)
        table = waited.select(
            "rank",
            "start_ns",
            pl.col("wait_ns").fill_null(0),
            known=pl.col("wait_ns").is_not_null(),
            part=pl.col("part").cast(pl.Int64),
            label=label,
            unknown=unknown_waits().fill_null(False),
            message=may_be_message().fill_null(False),
        )
        rank, *columns = (table[name].to_numpy() for name in table.columns)
        order = np.argsort(rank, kind="stable")
        first = np.flatnonzero(np.diff(rank[order], prepend=-1)).tolist()
        return {
            int(rank[order[a]]): cls(*(column[order[a:b]] for column in columns))
            for a, b in pairwise([*first, len(rank)])
        }

    def exposed(self, covered: Intervals) -> Intervals:
        """Return the waiting of the pipeline's messages that compute does not hide: each waits at its beginning."""
        rows = self.label == LABELS.index("pp_comm")
        return exposed_waits(self.start[rows], self.wait[rows], self.part[rows], covered)

    def by_label(self, parts: int) -> list[dict[str, int | None]]:
        """Return, for each part, the time some operation of each label waited; None where any wait is unknown."""
        waits: list[dict[str, int | None]] = [{} for _ in range(parts)]
        for label in COMMUNICATION_LABELS:
            rows = self.label == LABELS.index(label)
            if not rows.any():
                continue
            known = rows & self.known
            total = union(self.start[known], (self.start + self.wait)[known], self.part[known]).totals_ns(parts)
            unknown = set(self.part[rows & ~self.known].tolist())
            for part in np.unique(self.part[rows]).tolist():
                waits[part][label] = None if part in unknown else int(total[part])
        return waits


_NOTHING = _Waits(*(np.zeros(0, dtype) for dtype in (np.int64, np.int64, bool, np.int64, np.int64, bool, bool)))


def _causes(parts: Sequence[RankTables], waited: pl.DataFrame, *, window: bool) -> Mapping[int, Rows]:
    """Return why time was exposed, by rank and part: in the whole window, or in each step."""
    tables = [(part.window if window else part.by_step).exposed for part in parts]
    ranks = np.repeat([part.source.rank for part in parts], [table.height for table in tables])
    pieces = pl.concat(tables).with_columns(pl.Series("rank", ranks, waited.schema["rank"]))
    found: dict[int, dict[int, list[tuple[Any, ...]]]] = defaultdict(lambda: defaultdict(list))
    table = with_peers(pieces, waited, each=("rank",))
    columns = (table[name].to_list() for name in ("rank", "part", "label", "cause", "ns"))
    for rank, part, *row in zip(*columns, strict=True):
        found[rank][part].append(tuple(row))
    return found


def _measured(
    measures: Measures,
    waits: _Waits,
    steps: Sequence[int | None],
    because: Rows,
    hollow: Intervals,
    *,
    idle_known: bool,
    pipeline: bool = True,
    unseen: bool = False,
) -> list[Measured]:
    """Return the figures of every part; *steps* numbers them, *hollow* is the exposed waiting.

    *unseen*: the host issued sends or receives, and nothing on the GPU is known to be one.
    """
    labels = _by_part(measures.labels, "label", "ns", "count", "hidden_ns")
    matrix = _by_part(measures.hidden, "detail", "label", "by", "ns")
    waiting = waits.by_label(len(steps))
    unknown = set(waits.part[waits.unknown].tolist())
    exposed = hollow.totals_ns(len(steps))
    figures = []
    for part, step in enumerate(steps):
        budget, rows = measures.budgets[part], labels.get(part, [])
        wait, least = int(exposed[part]), unseen or part in unknown or not pipeline
        figures.append(
            Measured(
                budget=budget,
                label_ns=_ordered({label: ns for label, ns, _, _ in rows}),
                label_count={label: count for label, _, count, _ in rows if count is not None},
                hidden_ns={
                    "communication": 0,
                    "copy": 0,
                    **{label: ns for label, _, _, ns in rows if label not in _NEVER_HIDDEN},
                },
                hidden_by_ns=_matrix([row[0] for row in rows], matrix.get(part, [])),
                wait_ns=waiting[part],
                weak_ns=measures.weak[part],
                because_ns=_because(budget.exposed_ns, because.get(part, [])),
                bubble=Bubble(budget.span_ns, budget.idle_ns, None if least else wait, wait if least else 0),
                idle_known=idle_known,
                lower_bound=pipeline and (least or budget.unrecorded_ns > 0),
                pipeline=pipeline,
                step=step,
            )
        )
    return figures


def _by_part(table: pl.DataFrame, *names: str) -> Rows:
    """Return the columns *names* of each part's rows."""
    rows: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    columns = (table[name].to_list() for name in names)
    for part, row in zip(table["part"].to_list(), zip(*columns, strict=True), strict=True):
        rows[part].append(row)
    return rows


def _ordered(by_label: dict[str, int]) -> dict[str, int]:
    return {label: by_label[label] for label in _ORDER if label in by_label}


def _matrix(labels: Sequence[str], rows: list[tuple[Any, ...]]) -> dict[str, dict[str, int]]:
    matrix: dict[str, dict[str, int]] = {label: {} for label in EXPOSABLE if label in labels}
    for detail, label, by, ns in rows:
        if not detail:
            matrix[label][by] = ns
    return matrix


def _because(exposed: Mapping[str, int], rows: list[tuple[Any, ...]]) -> dict[str, dict[str, int]]:
    """Return each exposed label's time by cause, in the order of the budget."""
    by_label: dict[str, dict[str, int]] = {label: {} for label, ns in exposed.items() if ns}
    for label, cause, ns in rows:
        by_label[label][cause] = ns
    return by_label


def _phases(part: RankTables, hollow: Intervals, steps: Sequence[int | None], *, known: bool) -> list[dict[str, Any]]:
    """Return each step's phases with the bubble inside them: idle and exposed pipeline waiting (*hollow*)."""
    table = part.by_step.phases
    if table.is_empty():
        return []
    spent = hollow.covered_ns(*(table[c].to_numpy() for c in ("start_ns", "end_ns", "part")))
    return [
        {
            "step": steps[row["part"]],
            "phase": row["phase"],
            "span_ns": row["span_ns"],
            "compute_ns": row["compute_ns"],
            "idle_ns": row["idle_ns"] if part.idle_known else None,
            "wait_ns": int(wait) if known else None,
        }
        for row, wait in zip(table.iter_rows(named=True), spent, strict=True)
    ]
