"""The times of several steps, and a map of ranks and steps."""

from collections.abc import Sequence

import polars as pl

from tracekit._util.text import counted
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Figures
from tracekit.report.blocks import Block, StepMap
from tracekit.report.pace import NOISE_SHARE
from tracekit.report.palette import COMPUTE_COLOUR
from tracekit.report.section import TERMINAL_AND_PAGE, Section
from tracekit.report.table import Bar, BarPart, Column, PlacedValue, Table, make_table

MAX_STEPS_IN_TABLE = 100
LONGEST_STEPS_SHOWN = 5
"""Steps that a terminal shows of many."""
MAX_RANKS_IN_MAP = 64
MAX_STEPS_IN_MAP = 64


def steps_table(analysis: Analysis) -> Table | None:
    """Return the time of each step over ranks; None if there is one step."""
    times = analysis.tables["steps"]
    if times["step"].n_unique() < 2:
        return None
    exceeds_noise = pl.col("most_ns") - pl.col("second_ns") > NOISE_SHARE * pl.col("most_ns")
    steps = (
        times.filter(pl.col("time_ns").is_not_null())
        .group_by("step")
        .agg(
            least_ns=pl.col("time_ns").min(),
            median_ns=pl.col("time_ns").median(),
            most_ns=pl.col("time_ns").max(),
            longest=pl.col("rank").sort_by("time_ns").last(),
            second_ns=pl.col("time_ns").top_k(2).min(),
            partial=pl.col("partial").any(),
        )
        .sort("step")
        .with_columns(slowest=pl.when(exceeds_noise).then("longest"))
    )
    rows = steps.head(MAX_STEPS_IN_TABLE).to_dicts()
    longest_ns = max(row["median_ns"] for row in rows)
    is_one_rank = times["rank"].n_unique() == 1
    of_ranks = [] if is_one_rank else [Column("shortest", "ms", value="least_ns")]
    of_ranks += [] if is_one_rank else [Column("longest", "ms", value="most_ns")]
    columns = [
        Column(
            "step",
            "figure",
            value=lambda row: PlacedValue(row["step"], row["longest"], row["step"]),
        ),
        Column("median", "ms", value="median_ns"),
        *of_ranks,
        Column("slowest rank", "figure", value="slowest"),
        Column("", value=lambda row: "partial" if row["partial"] else ""),
        Column("of the longest", "bar", value=lambda row: _bar(row["median_ns"], longest_ns)),
    ]
    over_ranks = [] if is_one_rank else ["median, shortest and longest over ranks"]
    more = len(steps) - len(rows)
    left_out = [f"{counted(more, 'more step')} in the JSON"] if more else []
    by_length = sorted(range(len(rows)), key=lambda i: -rows[i]["median_ns"])
    return make_table(
        columns,
        rows,
        notes=[*over_ranks, *left_out],
        short=by_length[:LONGEST_STEPS_SHOWN],
        short_note=f"the longest of {counted(len(steps), 'step')}",
    )


def _bar(ns: float, longest_ns: float) -> Bar:
    return Bar([BarPart("of the longest", "total", ns, COMPUTE_COLOUR)], longest_ns)


def step_map(analysis: Analysis) -> StepMap | None:
    """Return the busy time of ranks by step; None for one rank, one step or unnumbered steps."""
    ranks = analysis.ranks[:MAX_RANKS_IN_MAP]
    busy_ns: dict[tuple[int, int | None], int] = {}  # by rank and step
    for rank in ranks:
        for scope in rank.per_step:
            busy_ns[rank.rank, scope.step] = _busy_without_waits_ns(scope)
    all_steps = sorted({step for _, step in busy_ns if step is not None})
    steps = all_steps[:MAX_STEPS_IN_MAP]
    if len(ranks) < 2 or len(steps) < 2:
        return None
    rows = []
    for rank in ranks:
        rows.append((rank.rank, [busy_ns.get((rank.rank, step)) for step in steps]))
    left_out = []
    if len(ranks) < len(analysis.ranks):
        left_out.append(counted(len(analysis.ranks) - len(ranks), "more rank"))
    if len(steps) < len(all_steps):
        left_out.append(counted(len(all_steps) - len(steps), "more step"))
    note = (
        "busy time in ms of each rank (row) in each step (column), its span without idle and without waiting for "
        "other ranks: a straggler is a dark row, a slow step a dark column"
    )
    if left_out:
        note += f"; not shown: {' and '.join(left_out)}"
    least_ns = min(busy_ns.values())
    return StepMap(steps, rows, least_ns, max(busy_ns.values()), what="busy", note=note)


def _busy_without_waits_ns(scope: Figures) -> int:
    """Return how long a rank's GPU worked in a step, without the waits inside communication."""
    wait_ns = 0
    for ns in scope.wait_ns.values():
        wait_ns += ns or 0
    return scope.budget.span_ns - scope.budget.idle_ns - wait_ns


def _build(analysis: Analysis) -> Sequence[Block | None]:
    table = steps_table(analysis)
    return [] if table is None else [table, step_map(analysis)]


STEPS_SECTION = Section(
    id="steps",
    tab="Budget",
    title="Steps",
    name="Steps",
    media=TERMINAL_AND_PAGE,
    build=_build,
)
