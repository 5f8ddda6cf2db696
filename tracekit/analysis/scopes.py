"""Figures of every rank by scope: its measures joined with its waits, for its whole window and for each of its steps.

Quantities that need the operations of communication are computed for many ranks at once, because a run of a thousand
ranks has few operations per rank. In such a batch a rank has an index, from 0. A scope of a rank in a batch has the
number ``rank index * scopes per rank + part``, where ``part`` is 0 for the window, or counts the rank's steps.
"""

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

RANKS_PER_BATCH = 32
"""More take more memory, fewer take more calls."""
_NEVER_HIDDEN = ("compute", *COMPUTE_SET)
_LABEL_ORDER = (*LABEL_SETS, *LABELS)


def rank_results(ranks: Sequence[RankTables], operations: pl.DataFrame, *, pipeline: bool) -> tuple[RankResult, ...]:
    """Return the result of every rank.

    Args:
        ranks: Tables of each rank, in the order of their numbers.
        operations: Operations of all ranks with their waits, in the order of ranks.
        pipeline: Whether the run has a pipeline.

    """
    rank_column = operations["rank"].to_numpy()
    results: list[RankResult] = []
    for first in range(0, len(ranks), RANKS_PER_BATCH):
        batch = ranks[first : first + RANKS_PER_BATCH]
        bounds = [batch[0].source.rank, batch[-1].source.rank + 1]
        start, end = np.searchsorted(rank_column, bounds).tolist()
        waits = _Waits.of(operations.slice(start, end - start), batch)
        window, by_step = _Scopes.of(batch, waits, window=True), _Scopes.of(batch, waits, window=False)
        results += [
            _rank_result(rank, index, waits, window, by_step, pipeline=pipeline) for index, rank in enumerate(batch)
        ]
    return tuple(results)


def _rank_result(
    rank: RankTables, index: int, waits: _Waits, window: _Scopes, by_step: _Scopes, *, pipeline: bool
) -> RankResult:
    """Return the result of the rank with this index in its batch."""
    steps = rank.steps["step"].to_list() or [None]
    partial_steps = rank.steps["partial"].to_list() or [False]
    messages_seen = int(waits.is_message[waits.rank_index == index].sum())
    facts = _KnownFacts(
        idle=rank.idle_known,
        pipeline=pipeline,
        messages=not has_unseen_messages(rank.messages_issued, messages_seen),
    )
    step_figures = _figures(rank.by_step, by_step, index, steps, facts)
    causes = rank.window.causes
    idle_causes = causes.row(0, named=True) if len(causes) else {}
    return RankResult(
        rank=rank.source.rank,
        steps=tuple(step for step in steps if step is not None),
        whole=_figures(rank.window, window, index, [None], facts)[0],
        per_step=tuple(
            replace(figures, partial=partial) for figures, partial in zip(step_figures, partial_steps, strict=True)
        ),
        phases=_phases(
            rank, by_step.phase_waits_ns[index], steps, waits_known=facts.messages and not by_step.any_unknown(index)
        ),
        instead=tuple(rank.instead.to_dicts()),
        inside_launch_ns=rank.inside_launch_ns,
        idle_causes={name.removesuffix("_ns"): idle_causes.get(name, 0) for name in CAUSE_COLUMNS},
    )


class _KnownFacts(msgspec.Struct, frozen=True):
    """Facts about a rank that decide which of its figures are known."""

    idle: bool
    """All its work on the GPU was recorded."""
    pipeline: bool
    """The run has a pipeline."""
    messages: bool
    """The kernels of the sends and receives that its host issued are known."""


class _Waits(msgspec.Struct, frozen=True, eq=False):
    """The operations of a batch of ranks as arrays: times, waits and labels."""

    operations: pl.DataFrame
    rank_index: Ints
    part: Ints
    start_ns: Ints
    wait_ns: Ints
    """0 if the wait is unknown; a lower bound if not all members were recorded."""
    least_wait_ns: Ints
    """The same, and 0 if the wait is an upper bound."""
    wait_known: npt.NDArray[np.bool_]
    label: Ints
    """Index in ``LABELS``."""
    unknown: npt.NDArray[np.bool_]
    """Operations that make the bubble a lower bound."""
    is_message: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, operations: pl.DataFrame, batch: Sequence[RankTables]) -> _Waits:
        rank_numbers = np.array([rank.source.rank for rank in batch])
        labels = CategoryColumn.from_series(operations["label"])
        # Codes of the column become indexes in LABELS; the last entry, -1, is for null.
        label_index = np.array([*(LABELS.index(label) for label in labels.values), -1])
        is_bound, is_message = operations["wait_is_bound"].fill_null(False).to_numpy(), may_be_message(operations)
        wait_ns = to_int64(operations["wait_ns"], 0)
        return cls(
            operations=operations,
            rank_index=np.searchsorted(rank_numbers, operations["rank"].to_numpy()),
            part=operations["part"].to_numpy().astype(np.int64, copy=False),
            start_ns=operations["start_ns"].to_numpy(),
            wait_ns=wait_ns,
            least_wait_ns=np.where(is_bound, 0, wait_ns),
            wait_known=(operations["wait_ns"].is_not_null() & ~operations["open"]).to_numpy(),
            label=labels.look_up(label_index),
            unknown=has_unknown_wait(operations) | (is_message & is_bound),
            is_message=is_message,
        )

    def by_label(self, scope: Ints, scopes: int) -> list[dict[str, int | None]]:
        """Return for each scope the time in which operations of each label wait; None if any wait is unknown.

        Args:
            scope: Number of the scope of each operation.
            scopes: Number of scopes.

        """
        waits: list[dict[str, int | None]] = [{} for _ in range(scopes)]
        for label in COMMUNICATION_LABELS:
            rows = self.label == LABELS.index(label)
            if not rows.any():
                continue
            with_wait = rows & self.wait_known
            ends_ns = self.start_ns + self.wait_ns
            waited_ns = union(self.start_ns[with_wait], ends_ns[with_wait], scope[with_wait]).totals_ns(scopes).tolist()
            unknown_scopes = set(scope[rows & ~self.wait_known].tolist())
            for number in np.unique(scope[rows]).tolist():
                waits[number][label] = None if number in unknown_scopes else waited_ns[number]
        return waits


class _Scopes(msgspec.Struct, frozen=True, eq=False):
    """Quantities of every scope of a batch that need its operations; lists are by number of the scope."""

    per_rank: int
    """Scopes per rank: 1 for windows, else the most steps of any rank."""
    waits_ns: Sequence[Mapping[str, int | None]]
    """Time that operations wait, by label."""
    exposed_pp_wait_ns: Sequence[int]
    """Waiting of the pipeline's messages that no compute hides."""
    unknown: frozenset[int]
    """Scopes whose bubble is a lower bound."""
    exposure: Mapping[int, list[tuple[str, str, int]]]
    """Exposed time as (label, cause, ns)."""
    phase_waits_ns: Sequence[Sequence[int]]
    """By rank of the batch: the exposed waiting in each of its phases. Empty for windows."""

    @classmethod
    def of(cls, batch: Sequence[RankTables], waits: _Waits, *, window: bool) -> _Scopes:
        measures = [rank.window if window else rank.by_step for rank in batch]
        per_rank = 1 if window else max(len(rank_measures.budgets) for rank_measures in measures)
        scope = waits.rank_index * per_rank + (0 if window else waits.part)
        covered = _number_scopes([rank_measures.covered for rank_measures in measures], per_rank)
        is_pp = waits.label == LABELS.index("pp_comm")
        exposed = find_exposed_waits(waits.start_ns[is_pp], waits.least_wait_ns[is_pp], scope[is_pp], covered)
        count = len(batch) * per_rank
        return cls(
            per_rank=per_rank,
            waits_ns=waits.by_label(scope, count),
            exposed_pp_wait_ns=exposed.totals_ns(count).tolist(),
            unknown=frozenset(scope[waits.unknown].tolist()),
            exposure=_exposure(batch, [rank_measures.exposed for rank_measures in measures], waits, per_rank),
            phase_waits_ns=(
                []
                if window
                else _phase_waits_ns([rank_measures.phases for rank_measures in measures], exposed, per_rank)
            ),
        )

    def any_unknown(self, index: int) -> bool:
        """Return whether the bubble of any scope of a rank is a lower bound."""
        return any(index * self.per_rank + part in self.unknown for part in range(self.per_rank))


def _number_scopes(intervals: Sequence[Intervals], per_rank: int) -> Intervals:
    """Return the intervals of a batch of ranks as one set, whose groups are the numbers of scopes."""
    return Intervals(
        np.concatenate([of_rank.group + index * per_rank for index, of_rank in enumerate(intervals)]),
        np.concatenate([of_rank.start_ns for of_rank in intervals]),
        np.concatenate([of_rank.end_ns for of_rank in intervals]),
    )


def _phase_waits_ns(phases: Sequence[pl.DataFrame], exposed: Intervals, per_rank: int) -> list[list[int]]:
    """Return for each rank of a batch the exposed waiting in each of its phases."""
    start, end, part = (
        np.concatenate([table[name].to_numpy() for table in phases]) for name in ("start_ns", "end_ns", "part")
    )
    counts = [table.height for table in phases]
    rank_index = np.repeat(np.arange(len(phases)), counts)
    waits_ns = exposed.covered_ns(start, end, rank_index * per_rank + part).tolist()
    # The phases of all ranks were concatenated: cut the result at the ends of the ranks.
    edges = np.cumsum([0, *counts]).tolist()
    return [waits_ns[first:last] for first, last in pairwise(edges)]


def _exposure(
    batch: Sequence[RankTables], exposed: Sequence[pl.DataFrame], waits: _Waits, per_rank: int
) -> Mapping[int, list[tuple[str, str, int]]]:
    """Return the exposed time of each scope as (label, cause, ns), with waiting for peers among the causes."""
    rank_numbers = np.array([rank.source.rank for rank in batch])
    rank_column = pl.Series("rank", np.repeat(rank_numbers, [table.height for table in exposed]), pl.Int32)
    heard = peers_heard(pl.concat(exposed).with_columns(rank_column), waits.operations, by_rank=True)
    scope = np.searchsorted(rank_numbers, heard.rank) * per_rank + heard.part
    columns = (column.tolist() for column in (scope, heard.label, heard.cause, heard.ns))
    exposure: dict[int, list[tuple[str, str, int]]] = defaultdict(list)
    for number, label, cause, ns in zip(*columns, strict=True):
        exposure[number].append((EXPOSABLE_LABELS[label], EXPOSURE_CAUSES[cause], ns))
    return exposure


def _figures(
    measures: Measures, scopes: _Scopes, index: int, steps: Sequence[int | None], facts: _KnownFacts
) -> list[Measured]:
    """Return the figures of every scope of a rank; *steps* are the numbers of its steps, or [None] for its window."""
    labels_by_part = _rows_by_part(measures.labels, "label", "ns", "count", "hidden_ns")
    hidden_by_part = _rows_by_part(measures.hidden, "detail", "label", "by", "ns")
    figures = []
    for part, step in enumerate(steps):
        scope = index * scopes.per_rank + part
        budget, labels = measures.budgets[part], labels_by_part.get(part, [])
        wait_ns = scopes.exposed_pp_wait_ns[scope]
        # Without a pipeline the wait is unknown too; then there is no bubble at all (Measured.bubble_fraction).
        wait_known = facts.pipeline and facts.messages and scope not in scopes.unknown
        if wait_known:
            bubble = Bubble(budget.span_ns, budget.idle_ns, wait_ns)
        else:
            bubble = Bubble(budget.span_ns, budget.idle_ns, None, wait_ns)
        label_ns = {label: ns for label, ns, _, _ in labels}
        hidden_ns = {label: ns for label, _, _, ns in labels if label not in _NEVER_HIDDEN}
        figures.append(
            Measured(
                budget=budget,
                label_ns={label: label_ns[label] for label in _LABEL_ORDER if label in label_ns},
                label_count={label: count for label, _, count, _ in labels if count is not None},
                hidden_ns={"communication": 0, "copy": 0, **hidden_ns},
                hidden_by_ns=_hidden_by_ns(label_ns, hidden_by_part.get(part, [])),
                wait_ns=scopes.waits_ns[scope],
                weak_ns=measures.weak[part],
                because_ns=_because_ns(budget.exposed_ns, scopes.exposure.get(scope, [])),
                bubble=bubble,
                idle_known=facts.idle,
                lower_bound=facts.pipeline and (not wait_known or budget.unrecorded_ns > 0),
                pipeline=facts.pipeline,
                step=step,
            )
        )
    return figures


def _rows_by_part(table: pl.DataFrame, *names: str) -> Mapping[int, list[tuple[Any, ...]]]:
    """Return the columns *names* of a table as rows, by their part."""
    rows: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    columns = (_interned(table[name].to_list()) for name in names)
    for part, row in zip(table["part"].to_list(), zip(*columns, strict=True), strict=True):
        rows[part].append(row)
    return rows


def _interned(values: list[Any]) -> list[Any]:
    """Return the values with equal texts as one object: the results of all ranks hold the same few words."""
    return list(map(intern, values)) if values and all(type(value) is str for value in values) else values


def _hidden_by_ns(label_ns: Mapping[str, int], rows: list[tuple[Any, ...]]) -> dict[str, dict[str, int]]:
    """Return the hidden time of each label by the label that hides it; rows are (detail, label, by, ns)."""
    matrix: dict[str, dict[str, int]] = {label: {} for label in EXPOSABLE_LABELS if label in label_ns}
    for detail, label, by, ns in rows:
        if not detail:
            matrix[label][by] = ns
    return matrix


def _because_ns(exposed_ns: Mapping[str, int], exposure: list[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """Return the time of each exposed label by cause, in the order of the budget."""
    by_label: dict[str, dict[str, int]] = {label: {} for label, ns in exposed_ns.items() if ns}
    for label, cause, ns in exposure:
        by_label[label][cause] = ns
    return by_label


def _phases(
    rank: RankTables, waits_ns: Sequence[int], steps: Sequence[int | None], *, waits_known: bool
) -> tuple[dict[str, Any], ...]:
    """Return the phases of each step with the bubble in them: idle time and exposed waiting of the pipeline."""
    table = rank.by_step.phases
    columns = (_interned(table[name].to_list()) for name in ("part", "phase", "span_ns", "compute_ns", "idle_ns"))
    return tuple(
        {
            "step": steps[part],
            "phase": phase,
            "span_ns": span_ns,
            "compute_ns": compute_ns,
            "idle_ns": idle_ns if rank.idle_known else None,
            "wait_ns": wait_ns if waits_known else None,
        }
        for part, phase, span_ns, compute_ns, idle_ns, wait_ns in zip(*columns, waits_ns, strict=True)
    )
