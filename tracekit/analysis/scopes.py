"""One rank's measures and its waits, put together for each part: its whole window, or each of its steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from sys import intern
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from tracekit._util.arrays import Ints
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.analysis.measured import Measured, RankResult
from tracekit.analysis.tables import Measures, RankTables
from tracekit.intervals import Intervals, union
from tracekit.metrics.bubbles import Bubble, find_exposed_waits
from tracekit.metrics.causes import peers_heard
from tracekit.metrics.idle_gaps import CAUSE_COLUMNS
from tracekit.metrics.label_intervals import COMPUTE_SET, EXPOSABLE_LABELS, LABEL_SETS
from tracekit.metrics.waits import has_unknown_wait, has_unseen_messages, may_be_message
from tracekit.schema import COMMUNICATION_LABELS, EXPOSURE_CAUSES, LABELS

_NEVER_HIDDEN = ("compute", *COMPUTE_SET)
_ORDER = (*LABEL_SETS, *LABELS)

Rows = Mapping[int, list[tuple[Any, ...]]]
"""A table's rows by part."""

TOGETHER = 32
"""Ranks that are looked at in one go: more take memory, fewer take calls."""


def rank_results(parts: Sequence[RankTables], waited: pl.DataFrame, *, pipeline: bool) -> tuple[RankResult, ...]:
    """Return every rank's result; *waited* are all ranks' operations with their waits, both in order of rank.

    *pipeline*: whether the run has one. What is asked of the operations is computed for many ranks at once: a thousand
    ranks have few operations each.
    """
    ranks = waited["rank"].to_numpy()
    results: list[RankResult] = []
    for first in range(0, len(parts), TOGETHER):
        some = parts[first : first + TOGETHER]
        a, b = np.searchsorted(ranks, [some[0].source.rank, some[-1].source.rank + 1]).tolist()
        waits = _Waits.of(waited.slice(a, b - a), some)
        window, steps = _Scopes.of(some, waits, window=True), _Scopes.of(some, waits, window=False)
        results += [_rank_result(part, at, waits, window, steps, pipeline=pipeline) for at, part in enumerate(some)]
    return tuple(results)


def _rank_result(
    part: RankTables, at: int, waits: _Waits, window: _Scopes, by_step: _Scopes, *, pipeline: bool
) -> RankResult:
    """Return the result of the rank at place *at*."""
    steps = part.steps["step"].to_list() or [None]
    unseen = has_unseen_messages(part.messages_issued, int(waits.message[waits.place == at].sum()))
    known = {"idle_known": part.idle_known, "pipeline": pipeline, "unseen": unseen}
    causes = part.window.causes
    idle = causes.row(0, named=True) if len(causes) else {}
    return RankResult(
        rank=part.source.rank,
        steps=tuple(step for step in steps if step is not None),
        whole=_measured(part.window, window, at, [None], **known)[0],
        per_step=tuple(
            replace(scope, partial=partial)
            for scope, partial in zip(
                _measured(part.by_step, by_step, at, steps, **known),
                part.steps["partial"].to_list() or [False],
                strict=True,
            )
        ),
        phases=tuple(_phases(part, by_step.phases(at), steps, known=not (unseen or by_step.unknown_at(at)))),
        instead=tuple(part.instead.to_dicts()),
        inside_launch_ns=part.inside_launch_ns,
        idle_causes={name.removesuffix("_ns"): idle.get(name, 0) for name in CAUSE_COLUMNS},
    )


class _Waits(msgspec.Struct, frozen=True, eq=False):
    """Some ranks' operations: when they began, how long they waited and whether that is known, and what they are."""

    operations: pl.DataFrame
    place: Ints
    """Which of the ranks."""
    part: Ints
    start: Ints
    wait: Ints
    known: npt.NDArray[np.bool_]
    label: Ints
    unknown: npt.NDArray[np.bool_]
    """Which leave the bubble open."""
    message: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, waited: pl.DataFrame, parts: Sequence[RankTables]) -> _Waits:
        """Return the operations of the ranks *parts*, which are in the order of their numbers."""
        ranks = np.array([part.source.rank for part in parts])
        codes = CategoryColumn.from_series(waited["label"])
        return cls(
            waited,
            np.searchsorted(ranks, waited["rank"].to_numpy()),
            waited["part"].to_numpy().astype(np.int64, copy=False),
            waited["start_ns"].to_numpy(),
            to_int64(waited["wait_ns"], 0),
            waited["wait_ns"].is_not_null().to_numpy(),
            codes.look_up(np.array([*(LABELS.index(label) for label in codes.values), -1])),
            has_unknown_wait(waited),
            may_be_message(waited),
        )

    def by_label(self, group: Ints, groups: int) -> list[dict[str, int | None]]:
        """Return, for each group, the time some operation of each label waited; None where any wait is unknown."""
        waits: list[dict[str, int | None]] = [{} for _ in range(groups)]
        for label in COMMUNICATION_LABELS:
            rows = self.label == LABELS.index(label)
            if not rows.any():
                continue
            known = rows & self.known
            total = union(self.start[known], (self.start + self.wait)[known], group[known]).totals_ns(groups).tolist()
            unknown = set(group[rows & ~self.known].tolist())
            for at in np.unique(group[rows]).tolist():
                waits[at][label] = None if at in unknown else total[at]
        return waits


class _Scopes(msgspec.Struct, frozen=True, eq=False):
    """What was asked of some ranks' operations in each of their parts: the whole window, or every step."""

    parts: int
    """Parts of a rank, at most; those of the rank at place p begin at p times as many."""
    waiting: Sequence[Mapping[str, int | None]]
    hollow: Sequence[int]
    """Exposed waiting of the pipeline's messages."""
    unknown: frozenset[int]
    """Parts with a message that leaves the bubble open."""
    because: Mapping[int, list[tuple[str, str, int]]]
    """Label, cause and time of what was exposed."""
    in_phases: Sequence[Sequence[int]]
    """Of each rank's phases: the exposed waiting inside them."""

    @classmethod
    def of(cls, ranks: Sequence[RankTables], waits: _Waits, *, window: bool) -> _Scopes:
        measures = [rank.window if window else rank.by_step for rank in ranks]
        most = 1 if window else max(len(one.budgets) for one in measures)
        group = waits.place * most + (0 if window else waits.part)
        rows = waits.label == LABELS.index("pp_comm")
        covered = _side_by_side([one.covered for one in measures], most)
        hollow = find_exposed_waits(waits.start[rows], waits.wait[rows], group[rows], covered)
        phases = [] if window else _in_phases([one.phases for one in measures], hollow, most)
        count = len(ranks) * most
        return cls(
            most,
            waits.by_label(group, count),
            hollow.totals_ns(count).tolist(),
            frozenset(group[waits.unknown].tolist()),
            _because_of(ranks, [one.exposed for one in measures], waits, most),
            phases,
        )

    def phases(self, at: int) -> Sequence[int]:
        """Return the exposed waiting in each phase of the rank at place *at*."""
        return self.in_phases[at]

    def unknown_at(self, at: int) -> bool:
        """Return whether any part of the rank at place *at* has a message that leaves the bubble open."""
        return any(at * self.parts + part in self.unknown for part in range(self.parts))


def _side_by_side(sets: Sequence[Intervals], parts: int) -> Intervals:
    """Return several ranks' intervals as one set, each rank's groups behind those of the rank before."""
    return Intervals(
        np.concatenate([one.group + at * parts for at, one in enumerate(sets)]),
        np.concatenate([one.start_ns for one in sets]),
        np.concatenate([one.end_ns for one in sets]),
    )


def _in_phases(tables: Sequence[pl.DataFrame], hollow: Intervals, parts: int) -> list[list[int]]:
    """Return the exposed waiting inside each phase of each rank."""
    columns = (np.concatenate([table[name].to_numpy() for table in tables]) for name in ("start_ns", "end_ns", "part"))
    start, end, part = columns
    sizes = [table.height for table in tables]
    spent = hollow.covered_ns(start, end, part + np.repeat(np.arange(len(tables)), sizes) * parts).tolist()
    edges = np.cumsum([0, *sizes]).tolist()
    return [spent[a:b] for a, b in pairwise(edges)]


def _because_of(
    ranks: Sequence[RankTables], exposed: Sequence[pl.DataFrame], waits: _Waits, parts: int
) -> Mapping[int, list[tuple[str, str, int]]]:
    """Return why time was exposed: in each part of each rank, by label and cause."""
    numbers = np.array([rank.source.rank for rank in ranks])
    of_rank = pl.Series("rank", np.repeat(numbers, [table.height for table in exposed]), pl.Int32)
    heard = peers_heard(pl.concat(exposed).with_columns(of_rank), waits.operations, by_rank=True)
    found: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
    group = np.searchsorted(numbers, heard.rank) * parts + heard.part
    for at, label, cause, ns in zip(*(of.tolist() for of in (group, heard.label, heard.cause, heard.ns)), strict=True):
        found[at].append((EXPOSABLE_LABELS[label], EXPOSURE_CAUSES[cause], ns))
    return found


def _measured(
    measures: Measures,
    scopes: _Scopes,
    at: int,
    steps: Sequence[int | None],
    *,
    idle_known: bool,
    pipeline: bool = True,
    unseen: bool = False,
) -> list[Measured]:
    """Return the figures of every part of the rank at place *at*; *steps* numbers them.

    *unseen*: the host issued sends or receives, and nothing on the GPU is known to be one.
    """
    labels = _by_part(measures.labels, "label", "ns", "count", "hidden_ns")
    matrix = _by_part(measures.hidden, "detail", "label", "by", "ns")
    figures = []
    for part, step in enumerate(steps):
        budget, rows, place = measures.budgets[part], labels.get(part, []), at * scopes.parts + part
        wait, least = scopes.hollow[place], unseen or place in scopes.unknown or not pipeline
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
                wait_ns=scopes.waiting[place],
                weak_ns=measures.weak[part],
                because_ns=_because(budget.exposed_ns, scopes.because.get(place, [])),
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
    columns = (_shared(table[name].to_list()) for name in names)
    for part, row in zip(table["part"].to_list(), zip(*columns, strict=True), strict=True):
        rows[part].append(row)
    return rows


def _shared(values: list[Any]) -> list[Any]:
    """Return the values, each text as one object however often it comes: results hold the same few words."""
    return list(map(intern, values)) if values and all(type(value) is str for value in values) else values


def _ordered(by_label: dict[str, int]) -> dict[str, int]:
    return {label: by_label[label] for label in _ORDER if label in by_label}


def _matrix(labels: Sequence[str], rows: list[tuple[Any, ...]]) -> dict[str, dict[str, int]]:
    matrix: dict[str, dict[str, int]] = {label: {} for label in EXPOSABLE_LABELS if label in labels}
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


def _phases(
    part: RankTables, spent: Sequence[int], steps: Sequence[int | None], *, known: bool
) -> list[dict[str, Any]]:
    """Return each step's phases with the bubble inside them: idle and exposed pipeline waiting (*spent*)."""
    table = part.by_step.phases
    names = ("part", "phase", "span_ns", "compute_ns", "idle_ns")
    columns = (_shared(table[name].to_list()) for name in names)
    return [
        {
            "step": steps[at],
            "phase": phase,
            "span_ns": span,
            "compute_ns": compute,
            "idle_ns": idle if part.idle_known else None,
            "wait_ns": wait if known else None,
        }
        for at, phase, span, compute, idle, wait in zip(*columns, spent, strict=True)
    ]
