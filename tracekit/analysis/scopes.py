"""One rank's measures and its waits, put together for each part: its whole window, or each of its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

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

Rows = dict[int, list[dict[str, Any]]]


def rank_results(parts: Sequence[RankTables], waited: pl.DataFrame, *, pipeline: bool) -> tuple[RankResult, ...]:
    """Return every rank's result; *waited* are all ranks' operations with their waits.

    *pipeline*: whether the run has one. What is asked of the operations is computed for all ranks at once: a thousand
    ranks have few operations each.
    """
    waits = _Waits.by_rank(waited)
    window, by_step = (_causes(parts, waited, window=window) for window in (True, False))
    return tuple(
        _rank_result(
            part,
            waits.get(part.source.rank, _NOTHING),
            (window[part.source.rank], by_step[part.source.rank]),
            pipeline=pipeline,
        )
        for part in parts
    )


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


def _causes(parts: Sequence[RankTables], waited: pl.DataFrame, *, window: bool) -> dict[int, Rows]:
    """Return why time was exposed, by rank and part: in the whole window, or in each step."""
    pieces = pl.concat(
        (part.window if window else part.by_step).exposed.select(
            pl.all(), rank=pl.lit(part.source.rank, waited.schema["rank"])
        )
        for part in parts
    )
    found: dict[int, Rows] = defaultdict(lambda: defaultdict(list))
    for row in with_peers(pieces, waited, each=("rank",)).iter_rows(named=True):
        found[row["rank"]][row["part"]].append(row)
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
    labels = _by_part(measures.labels)
    matrix = _by_part(measures.hidden.filter(~pl.col("detail")))
    waiting = waits.by_label(len(steps))
    unknown = set(waits.part[waits.unknown].tolist())
    exposed = hollow.totals_ns(len(steps))
    figures = []
    for part, step in enumerate(steps):
        budget, rows = measures.budgets[part], labels[part]
        wait, least = int(exposed[part]), unseen or part in unknown or not pipeline
        figures.append(
            Measured(
                budget=budget,
                label_ns=_ordered({row["label"]: row["ns"] for row in rows}),
                label_count={row["label"]: row["count"] for row in rows if row["count"] is not None},
                hidden_ns={
                    "communication": 0,
                    "copy": 0,
                    **{row["label"]: row["hidden_ns"] for row in rows if row["label"] not in _NEVER_HIDDEN},
                },
                hidden_by_ns=_matrix(rows, matrix[part]),
                wait_ns=waiting[part],
                weak_ns=measures.weak[part],
                because_ns=_because(budget.exposed_ns, because[part]),
                bubble=Bubble(budget.span_ns, budget.idle_ns, None if least else wait, wait if least else 0),
                idle_known=idle_known,
                lower_bound=pipeline and (least or budget.unrecorded_ns > 0),
                pipeline=pipeline,
                step=step,
            )
        )
    return figures


def _by_part(table: pl.DataFrame) -> Rows:
    rows: Rows = defaultdict(list)
    for row in table.iter_rows(named=True):
        rows[row["part"]].append(row)
    return rows


def _ordered(by_label: dict[str, int]) -> dict[str, int]:
    return {label: by_label[label] for label in _ORDER if label in by_label}


def _matrix(labels: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    present = {row["label"] for row in labels}
    matrix: dict[str, dict[str, int]] = {label: {} for label in EXPOSABLE if label in present}
    for row in rows:
        matrix[row["label"]][row["by"]] = row["ns"]
    return matrix


def _because(exposed: Mapping[str, int], rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return each exposed label's time by cause, in the order of the budget."""
    by_label: dict[str, dict[str, int]] = {label: {} for label, ns in exposed.items() if ns}
    for row in rows:
        by_label[row["label"]][row["cause"]] = row["ns"]
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
