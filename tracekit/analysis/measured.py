"""Figures of a rank, of one of its steps, and of all ranks together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from sys import intern
from typing import Any

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import asdict, replace

from tracekit._util.columns import concat_ranks
from tracekit.align.clocks import Clocks
from tracekit.analysis.measure.tables import Measures, RankTables
from tracekit.documents.analysis import (
    Bubble,
    Budget,
    Figures,
    HostActivity,
    Memory,
    Phase,
    RankFigures,
    StepFigures,
    TimedStep,
)
from tracekit.documents.coding import rows
from tracekit.graph.critical_path import CriticalPath
from tracekit.intervals import Intervals, union
from tracekit.metrics.budget import find_exposed_waits
from tracekit.metrics.causes import with_peers
from tracekit.metrics.label_intervals import COMPUTE_SET, EXPOSABLE_LABELS, LABEL_SETS
from tracekit.metrics.operations import has_unknown_wait, has_unseen_messages, may_be_message
from tracekit.metrics.overlap import ratio
from tracekit.schema import COMMUNICATION_LABELS, LABELS, MEMORY_CURVE

MAX_OPEN_SHARE = 0.5
"""Share of a label's time in operations that no other rank recorded, up to which the others' waits
are a bound."""


def memory_curve(memory: Memory, clocks: Clocks) -> pl.DataFrame:
    """Return the ``MEMORY_CURVE`` of every rank, on the common clock.

    Its times are the hosts', because memory is allocated at launch.
    """
    lines = {
        rank.rank: pl.DataFrame(asdict(rank.line), schema=MEMORY_CURVE) for rank in memory.ranks
    }
    return clocks.align(concat_ranks(lines, MEMORY_CURVE), "at_ns")


def make_figures(
    *,
    budget: Budget,
    label_ns: Mapping[str, int],
    set_ns: Mapping[str, int],
    label_count: Mapping[str, int],
    hidden_ns: Mapping[str, int],
    hidden_by_ns: Mapping[str, Mapping[str, int]],
    wait_ns: Mapping[str, int | None],
    wait_open_ns: Mapping[str, int],
    weak_ns: int,
    because_ns: Mapping[str, Mapping[str, int]],
    blocking_ns: Mapping[str, int | None],
    exposed_wait_ns: int | None,
    least_wait_ns: int,
    lower_bound: bool,
    pipeline: bool,
) -> dict[str, Any]:
    """Return the fields of ``Figures``: the measured times, and the shares that follow from them.

    Args:
        budget: Parts of the span.
        label_ns: Time of each label.
        set_ns: Time of each set of labels.
        label_count: Events of each label.
        hidden_ns: Time of each communication and copy label, and set, that compute hides.
        hidden_by_ns: The same by label of the compute.
        wait_ns: Time in which operations of a label wait; None if it is unknown.
        wait_open_ns: Time, beyond known waits, in operations that another rank did not record.
        weak_ns: Time whose label rests on weak evidence.
        because_ns: Exposed time of each label by cause.
        blocking_ns: Exposed time of each label on the critical path; None if it is unknown.
        exposed_wait_ns: Exposed wait of pipeline messages; None if it is unknown.
        least_wait_ns: Lower bound of it.
        lower_bound: Whether some waiting could not be measured, or work was not recorded.
        pipeline: Whether the run has a pipeline; without one there is no bubble.
    """
    times_ns = {**label_ns, **set_ns}
    fraction = None
    if pipeline and budget.idle is not None:
        bubble_ns = budget.idle + max(exposed_wait_ns or 0, least_wait_ns)
        fraction = ratio(bubble_ns, budget.span_ns)
    return {
        "span_ns": budget.span_ns,
        "budget": budget,
        "label_ns": label_ns,
        "set_ns": set_ns,
        "label_count": label_count,
        "weak_ns": weak_ns,
        "weak_share": ratio(weak_ns, budget.compute_ns + sum(budget.exposed_ns.values())),
        "overlap": {name: ratio(ns, times_ns.get(name, 0)) for name, ns in hidden_ns.items()},
        "hidden_by_ns": hidden_by_ns,
        "wait_ns": wait_ns,
        "blocking_ns": blocking_ns,
        "because_ns": because_ns,
        "bubble": Bubble(
            idle_ns=budget.idle,
            wait_ns=exposed_wait_ns,
            fraction=fraction,
            lower_bound=lower_bound,
            least_wait_ns=least_wait_ns,
        ),
        "wait_open_ns": wait_open_ns,
        "hidden_ns": hidden_ns,
        "pipeline": pipeline,
    }


_SUMMED_FIELDS = (
    "label_ns",
    "set_ns",
    "label_count",
    "hidden_ns",
    "hidden_by_ns",
    "wait_ns",
    "blocking_ns",
    "because_ns",
    "weak_ns",
    "wait_open_ns",
)
"""Fields of ``Figures`` that are sums over ranks in the total, as they are."""


def total_figures(ranks: Sequence[Figures]) -> Figures:
    """Return the figures of all ranks together: times are added, ratios are of the sums."""
    no_rank: dict[str, Any] = {name: {} for name in _SUMMED_FIELDS}
    no_rank |= {"hidden_ns": {"communication": 0, "copy": 0}, "weak_ns": 0}
    of_ranks = [{name: getattr(rank, name) for name in _SUMMED_FIELDS} for rank in ranks]
    sums = total_of([no_rank, *of_ranks])
    sums["blocking_ns"] = total_of_known([rank.blocking_ns for rank in ranks])
    for name in ("hidden_by_ns", "because_ns"):
        sums[name] = _in_order(sums[name])
    budget = total_of(
        [Budget(compute_ns=0, exposed_ns={}, idle=0), *(rank.budget for rank in ranks)]
    )
    waits_ns = [rank.bubble.wait_ns for rank in ranks]
    return Figures(
        **make_figures(
            **sums,
            budget=replace(budget, exposed_ns=_in_order(budget.exposed_ns)),
            exposed_wait_ns=total_of([0, *waits_ns]),
            least_wait_ns=sum(rank.bubble.least_wait_ns for rank in ranks),
            lower_bound=any(rank.lower_bound for rank in ranks),
            pipeline=any(rank.pipeline for rank in ranks),
        )
    )


def total_of(parts: Sequence[Any]) -> Any:
    """Return the sum of numbers, None if any of them is None.

    Of mappings by key, and of structs by field.

    >>> total_of([{"dp_comm": 5, "pp_comm": 20}, {"dp_comm": None, "pp_comm": 1}])
    {'dp_comm': None, 'pp_comm': 21}
    """
    if isinstance(parts[0], msgspec.Struct):
        return type(parts[0])(**total_of([msgspec.structs.asdict(part) for part in parts]))
    if isinstance(parts[0], Mapping):
        keys = dict.fromkeys(chain.from_iterable(parts))
        total = {}
        for key in keys:
            total[key] = total_of([part[key] for part in parts if key in part])
        return total
    return None if None in parts else sum(parts)


def total_of_known(parts: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the sum of mappings by key, of what is known; None where nothing is.

    A path over some of the ranks is known as a whole though its share of the others is not.

    >>> total_of_known([{"dp_comm": 5, "pp_comm": None}, {"dp_comm": None, "pp_comm": None}])
    {'dp_comm': 5, 'pp_comm': None}
    """
    total: dict[str, int | None] = {}
    for key in dict.fromkeys(chain.from_iterable(parts)):
        known = [ns for ns in (part.get(key) for part in parts) if ns is not None]
        total[key] = sum(known) if known else None
    return total


def _in_order(by_label: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures of communication and copy labels in the order of ``EXPOSABLE_LABELS``."""
    return {label: by_label[label] for label in EXPOSABLE_LABELS if label in by_label}


# ---- Figures of every rank by scope: its measures joined with its waits, for its whole window and for each of its
# steps.
#
# A scope is one part of one rank: its window, or one of its steps. The operations of many ranks are
# handled at once, because a call costs as much for those of one rank.


MAX_RANKS_AT_ONCE = 128
"""Ranks whose exposed time is in memory at the same time."""
_NEVER_HIDDEN = ("compute", *COMPUTE_SET)


def rank_results(
    ranks: Sequence[RankTables], operations: pl.DataFrame, critical: CriticalPath, *, pipeline: bool
) -> tuple[RankFigures, ...]:
    """Return the result of every rank.

    Args:
        ranks: Tables of each rank, in the order of their numbers.
        operations: Operations of all ranks with their waits, in the order of ranks.
        critical: The critical path, from which it is read how much exposed time blocks the step.
        pipeline: Whether the run has a pipeline.

    """
    is_message = pl.Series(may_be_message(operations))
    unknown = pl.Series(has_unknown_wait(operations)) | (
        is_message & operations["wait_is_bound"].fill_null(False)
    )
    operations = operations.with_columns(unknown=unknown, is_message=is_message)
    results: list[RankFigures] = []
    for start in range(0, len(ranks), MAX_RANKS_AT_ONCE):
        batch = ranks[start : start + MAX_RANKS_AT_ONCE]
        is_own = pl.col("rank").is_between(batch[0].source.rank, batch[-1].source.rank)
        results += _batch_results(batch, operations.filter(is_own), critical, pipeline=pipeline)
    return tuple(results)


def _batch_results(
    ranks: Sequence[RankTables], operations: pl.DataFrame, critical: CriticalPath, *, pipeline: bool
) -> list[RankFigures]:
    """Return the results of some ranks from their *operations*."""
    rank_numbers = [rank.source.rank for rank in ranks]
    rank_index = np.searchsorted(rank_numbers, operations["rank"].to_numpy())
    message_counts = np.bincount(
        rank_index[operations["is_message"].to_numpy()], minlength=len(ranks)
    ).tolist()
    # From here on ``rank`` is the index in *ranks*, and ``part`` that of the step, or 0 for the
    # window.
    operations = operations.with_columns(rank=pl.Series(rank_index))
    in_window = operations.with_columns(part=pl.lit(0, pl.Int64))
    unseen = [
        i
        for i, tables in enumerate(ranks)
        if has_unseen_messages(tables.messages_issued, message_counts[i])
    ]
    step_waits = _Waits.of(operations, [rank.by_step for rank in ranks], unseen)
    window_waits = _Waits.of(in_window, [rank.window for rank in ranks], unseen)
    results = []
    for index, rank in enumerate(ranks):
        figures = partial(_figures, rank, index, critical=critical, pipeline=pipeline)
        steps = rank.steps["step"].to_list() or [None]
        looks_cut = rank.steps["partial"].to_list() or [False]
        per_step = [
            StepFigures(
                step=step,
                partial=is_cut,
                start_up=timed.start_up,
                time_ns=timed.time_ns,
                time_budget=_with_known_idle(timed.budget, rank),
                **step_figures,
            )
            for step, is_cut, timed, step_figures in zip(
                steps,
                looks_cut,
                rank.timed_steps or [NO_TIME],
                figures(rank.by_step, step_waits, steps),
                strict=True,
            )
        ]
        (window_figures,) = figures(rank.window, window_waits, [None])
        results.append(
            RankFigures(
                rank=rank.source.rank,
                steps=tuple(rank.steps["step"].drop_nulls().to_list()),
                **window_figures,
                phases=_phases(rank, index, step_waits, steps),
                idle_host_ns=_idle_host_ns(rank) if rank.idle_known else None,
                idle_host=tuple(rows(rank.instead, HostActivity)),
                inside_launch_ns=rank.inside_launch_ns,
                idle_causes=rank.idle_causes if rank.idle_known else None,
                per_step=tuple(per_step),
            )
        )
    return results


NO_TIME = TimedStep(None, None, Budget(compute_ns=0, exposed_ns={}, idle=0))
"""The step of a rank without GPU events."""


def _with_known_idle(budget: Budget, rank: RankTables) -> Budget:
    """Return a rank's budget, without its idle time if work is missing in the recording."""
    return budget if rank.idle_known else replace(budget, idle=None)


def _idle_host_ns(rank: RankTables) -> dict[str, int] | None:
    """Return launch-bound idle time by kind of host activity; None if the trace does not show the host."""
    by_activity: Counter[str] = Counter()
    for activity, ns in rank.instead.select("instead", "ns").iter_rows():
        by_activity[activity] += ns
    host_is_unseen = not by_activity and rank.idle_causes.get("launch_bound")
    return None if host_is_unseen else dict(by_activity)


class _Waits(msgspec.Struct, frozen=True, eq=False):
    """Quantities that need the operations, by scope: part p of the rank with index i is scope i × parts + p."""

    parts: int
    by_label: Mapping[int, Mapping[str, int | None]]
    """Time in which operations of each label wait; None if it is unknown."""
    open_ns: Mapping[int, Mapping[str, int]]
    """Time of each label, beyond known waits, in operations that another rank did not record."""
    exposed_pp: Intervals
    """Waiting of the pipeline's messages that no compute hides; its groups are scopes."""
    unknown: frozenset[int]
    """Scopes whose bubble is a lower bound: of unknown waits, or of messages whose kernels are not
    known."""
    exposure: Mapping[int, list[tuple[Any, ...]]]
    """Exposed time as (label, cause, ns)."""

    @classmethod
    def of(
        cls, operations: pl.DataFrame, measures: Sequence[Measures], unseen: Sequence[int]
    ) -> _Waits:
        """Return the waits of all *operations*, whose ``rank`` and ``part`` are those of *measures*, from 0.

        *unseen* are the ranks whose hosts issued messages of which no kernel is known.
        """
        parts = max((len(rank_measures.budgets) for rank_measures in measures), default=0)
        scope_number = (pl.col("rank") * parts + pl.col("part")).alias("scope")
        exposure = with_peers(
            {i: rank_measures.exposed for i, rank_measures in enumerate(measures)}, operations
        )
        operations = operations.with_columns(scope_number)
        # A wait that is unknown, or known as an upper bound only, may be none.
        least_wait_ns = (
            pl.when(pl.col("wait_is_bound")).then(0).otherwise(pl.col("wait_ns")).fill_null(0)
        )
        pp_operations = operations.filter(pl.col("label") == "pp_comm").with_columns(
            wait_ns=least_wait_ns
        )
        start = pp_operations["start_ns"].to_numpy()
        wait = pp_operations["wait_ns"].to_numpy()
        scope = pp_operations["scope"].to_numpy()
        scopes_of_ranks = []
        starts_of_ranks = []
        ends_of_ranks = []
        for i, rank_measures in enumerate(measures):
            covered = rank_measures.covered
            scopes_of_ranks.append(covered.group + i * parts)
            starts_of_ranks.append(covered.start_ns)
            ends_of_ranks.append(covered.end_ns)
        covered_by_scope = Intervals(
            np.concatenate(scopes_of_ranks),
            np.concatenate(starts_of_ranks),
            np.concatenate(ends_of_ranks),
        )
        by_label, open_ns = waits_by_label(operations, parts * len(measures))
        unknown = operations["scope"].filter(operations["unknown"]).to_list()
        for rank_index in unseen:
            unknown += range(rank_index * parts, (rank_index + 1) * parts)
        return cls(
            parts=parts,
            by_label=by_label,
            open_ns=open_ns,
            exposed_pp=find_exposed_waits(start, wait, scope, covered_by_scope),
            unknown=frozenset(unknown),
            exposure=_rows_by(exposure.with_columns(scope_number), "scope", "label", "cause", "ns"),
        )

    def scopes(self, rank_index: int) -> range:
        """Return the scopes of a rank."""
        return range(rank_index * self.parts, (rank_index + 1) * self.parts)


def waits_by_label(
    operations: pl.DataFrame, scopes: int
) -> tuple[Mapping[int, Mapping[str, int | None]], Mapping[int, Mapping[str, int]]]:
    """Return by scope and label the time in which operations wait, and the time in operations with a hole.

    The wait is None where it is unknown: a trace or the name of a peer is missing, or more than
    ``MAX_OPEN_SHARE`` of the label's time is in operations that no other rank recorded, as in
    traces of different times. Where some rank did not record a few, the wait is a lower bound.
    """
    is_known = pl.col("wait_ns").is_not_null() & ~pl.col("open")
    label_code = pl.col("label").cast(pl.Enum(COMMUNICATION_LABELS)).to_physical().cast(pl.Int64)
    duration = pl.col("end_ns") - pl.col("start_ns")
    least_wait = pl.when(is_known | pl.col("hole")).then(pl.col("wait_ns")).fill_null(0)
    # Label and scope as one number, in the order of labels.
    rows = operations.select(
        "start_ns",
        "hole",
        is_alone=pl.col("hole") & pl.col("wait_ns").is_null(),
        number=label_code * scopes + pl.col("scope"),
        is_known=is_known,
        least_wait_ns=least_wait,
        duration_ns=duration,
        open_ns=pl.when("hole").then(duration - least_wait).otherwise(0),
    )
    start = rows["start_ns"].to_numpy()
    wait = rows["least_wait_ns"].to_numpy()
    number = rows["number"].to_numpy()
    waited = union(start, start + wait, number).to_frame()
    waited_ns = dict(
        waited.group_by("group").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).iter_rows()
    )
    by_label = rows.group_by("number").agg(
        is_known=(pl.col("is_known") | pl.col("hole")).all(),
        open_ns=pl.col("open_ns").sum(),
        is_mostly_open=pl.col("duration_ns").filter("is_alone").sum()
        > MAX_OPEN_SHARE * pl.col("duration_ns").sum(),
    )
    waits: dict[int, dict[str, int | None]] = defaultdict(dict)
    open_by_scope: dict[int, dict[str, int]] = defaultdict(dict)
    for row, is_all_known, open_ns, is_mostly_open in by_label.sort("number").iter_rows():
        label_number, scope = divmod(row, scopes)
        label = COMMUNICATION_LABELS[label_number]
        if not is_all_known or is_mostly_open:
            waits[scope][label] = None
            continue
        waits[scope][label] = waited_ns.get(row, 0)
        if open_ns:
            open_by_scope[scope][label] = open_ns
    return waits, open_by_scope


def _figures(
    rank: RankTables,
    rank_index: int,
    measures: Measures,
    waits: _Waits,
    steps: Sequence[int | None],
    *,
    critical: CriticalPath,
    pipeline: bool,
) -> list[dict[str, Any]]:
    """Return the fields of ``Figures`` of every part of a rank.

    *steps* are the numbers of its steps, or [None] for its window.
    """
    labels_by_part = _rows_by(measures.labels, "part", "label", "ns", "count", "hidden_ns")
    hidden_by_part = _rows_by(measures.hidden, "part", "label", "by", "ns", "detail")
    scopes = waits.scopes(rank_index)
    exposed_waits_ns = (
        waits.exposed_pp.section(scopes.start, scopes.stop).totals_ns(len(scopes)).tolist()
    )
    figures = []
    # Other ranks may have more steps.
    for part, (step, scope) in enumerate(zip(steps, scopes, strict=False)):
        budget = measures.budgets[part]
        # Without a pipeline the wait is unknown too; then there is no bubble at all
        # (Figures.bubble_fraction).
        wait_known = pipeline and scope not in waits.unknown
        least_wait_ns = exposed_waits_ns[part]
        exposed_labels = [label for label, ns in budget.exposed_ns.items() if ns]
        label_ns = {}
        label_count = {}
        hidden_ns = {"communication": 0, "copy": 0}
        for label, ns, count, label_hidden_ns in labels_by_part[part]:
            label_ns[label] = ns
            if count is not None:
                label_count[label] = count
            if label not in _NEVER_HIDDEN:
                hidden_ns[label] = label_hidden_ns
        figures.append(
            make_figures(
                budget=_with_known_idle(budget, rank),
                label_ns={label: label_ns[label] for label in LABELS if label in label_ns},
                set_ns={name: label_ns[name] for name in LABEL_SETS if name in label_ns},
                label_count=label_count,
                hidden_ns=hidden_ns,
                hidden_by_ns=_nested(
                    _in_order(label_ns),
                    [row[:3] for row in hidden_by_part[part] if not row[3]],  # without details
                ),
                wait_ns=waits.by_label.get(scope, {}),
                wait_open_ns=waits.open_ns.get(scope, {}),
                weak_ns=measures.weak[part],
                because_ns=_nested(exposed_labels, waits.exposure[scope]),
                blocking_ns=critical.blocking_ns(rank.source.rank, exposed_labels, step),
                exposed_wait_ns=least_wait_ns if wait_known else None,
                least_wait_ns=least_wait_ns,
                lower_bound=pipeline and (not wait_known or budget.unrecorded_ns > 0),
                pipeline=pipeline,
            )
        )
    return figures


def _rows_by(table: pl.DataFrame, key: str, *names: str) -> Mapping[int, list[tuple[Any, ...]]]:
    """Return the columns *names* as rows, by the column *key*.

    Equal texts are one object: all ranks have the same.
    """
    columns = []
    for name in names:
        values = table[name].to_list()
        is_text = table[name].dtype in (pl.String, pl.Categorical, pl.Enum)
        columns.append(list(map(intern, values)) if is_text and None not in values else values)
    rows: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for number, *row in zip(table[key].to_list(), *columns, strict=True):
        rows[number].append(tuple(row))
    return rows


def _nested(labels: Iterable[str], rows: list[tuple[Any, ...]]) -> dict[str, dict[str, int]]:
    """Return the time of each of *labels* by a second name; rows are (label, second name, ns)."""
    by_label: dict[str, dict[str, int]] = {label: {} for label in labels}
    for label, name, ns in rows:
        by_label[label][name] = ns
    return by_label


def _phases(
    rank: RankTables, rank_index: int, waits: _Waits, steps: Sequence[int | None]
) -> tuple[Phase, ...]:
    """Return the phases of each step with the bubble in them: idle time and exposed waiting of the pipeline."""
    table = rank.phases
    scopes = waits.scopes(rank_index)
    waits_known = waits.unknown.isdisjoint(scopes)
    start = table["start_ns"].to_numpy()
    end = table["end_ns"].to_numpy()
    part = table["part"].to_numpy()
    unknown = [None] * len(table)
    waits_ns = waits.exposed_pp.covered_ns(start, end, scopes.start + part).tolist()
    # As lists: the table is small, and every query of polars takes as long as a thousand rows.
    columns = (  # in the order of ``Phase``
        [steps[number] for number in part.tolist()],
        table["phase"].to_list(),
        table["span_ns"].to_list(),
        table["compute_ns"].to_list(),
        table["idle_ns"].to_list() if rank.idle_known else unknown,
        waits_ns if waits_known else unknown,
    )
    return tuple(Phase(*row) for row in zip(*columns, strict=True))
