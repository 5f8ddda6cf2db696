"""One rank's measures and its waits, put together for each part: its whole window, or each of its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.tables import Measures, RankTables
from tracekit.intervals import union
from tracekit.metrics.bubbles import Bubble, exposed_waits
from tracekit.metrics.causes import with_peers
from tracekit.metrics.gaps import CAUSES
from tracekit.metrics.lanes import COMPUTE_SET, EXPOSABLE, SETS
from tracekit.metrics.messages import unknown_waits, unseen_messages
from tracekit.schema import COMMUNICATION_LABELS, LABELS

_NEVER_HIDDEN = ("compute", *COMPUTE_SET)
_ORDER = (*SETS, *LABELS)

Rows = dict[int, list[dict[str, Any]]]


def rank_result(part: RankTables, waited: pl.DataFrame, *, pipeline: bool = True) -> RankResult:
    """Return one rank's result; *waited* are its operations with their waits, *pipeline*: whether the run has one."""
    steps = part.steps["step"].to_list() or [None]
    known = {
        "idle_known": part.idle_known,
        "pipeline": pipeline,
        "unseen": unseen_messages(part.messages_issued, waited),
    }
    whole = measured(part.window, waited.with_columns(part=pl.lit(0, pl.Int64)), [None], **known)
    causes = part.window.causes.row(0, named=True) if len(part.window.causes) else {}
    return RankResult(
        rank=part.source.rank,
        steps=tuple(step for step in steps if step is not None),
        whole=whole[0],
        per_step=tuple(
            replace(scope, partial=partial)
            for scope, partial in zip(
                measured(part.by_step, waited, steps, **known),
                part.steps["partial"].to_list() or [False],
                strict=True,
            )
        ),
        phases=tuple(_phases(part, waited, steps)),
        instead=tuple(part.instead.to_dicts()),
        inside_launch_ns=part.inside_launch_ns,
        idle_causes={name.removesuffix("_ns"): causes.get(name, 0) for name in CAUSES},
    )


def measured(
    measures: Measures,
    waited: pl.DataFrame,
    steps: Sequence[int | None],
    *,
    idle_known: bool,
    pipeline: bool = True,
    unseen: bool = False,
) -> list[Measured]:
    """Return the figures of every part; *steps* numbers them.

    *unseen*: the host issued sends or receives, and nothing on the GPU is known to be one.
    """
    labels = _by_part(measures.labels)
    matrix = _by_part(measures.hidden.filter(~pl.col("detail")))
    waits = _waits(waited, len(steps))
    because = _by_part(with_peers(measures.exposed, waited))
    unknown = set(waited.filter(unknown_waits())["part"].to_list())
    exposed = exposed_waits(waited.filter(pl.col("label") == "pp_comm"), measures.covered).totals_ns(len(steps))
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
                wait_ns=waits[part],
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


def _waits(waited: pl.DataFrame, parts: int) -> list[dict[str, int | None]]:
    """Return, for each part, the time some operation of each label was waiting; None where any wait is unknown."""
    waits: list[dict[str, int | None]] = [{} for _ in range(parts)]
    present = set(waited["label"].unique().to_list())
    for label in (label for label in COMMUNICATION_LABELS if label in present):
        rows = waited.filter(pl.col("label") == label)
        known = rows.filter(pl.col("wait_ns").is_not_null())
        start, wait = known["start_ns"].to_numpy(), known["wait_ns"].to_numpy()
        total = union(start, start + wait, known["part"].to_numpy()).totals_ns(parts)
        unknown = set(rows.filter(pl.col("wait_ns").is_null())["part"].to_list())
        for part in set(rows["part"].to_list()):
            waits[part][label] = None if part in unknown else int(total[part])
    return waits


def _phases(part: RankTables, waited: pl.DataFrame, steps: Sequence[int | None]) -> list[dict[str, Any]]:
    """Return each step's phases with the bubble inside them: idle and exposed pipeline waiting."""
    table = part.by_step.phases
    if table.is_empty():
        return []
    pipeline = waited.filter(pl.col("label") == "pp_comm")
    hollow = exposed_waits(pipeline, part.by_step.covered)
    spent = hollow.covered_ns(*(table[c].to_numpy() for c in ("start_ns", "end_ns", "part")))
    known = waited.filter(unknown_waits()).is_empty() and not unseen_messages(part.messages_issued, waited)
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
