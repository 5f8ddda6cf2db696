"""The analysis as one long table, for spreadsheets and scripts: a row a figure."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.analysis import Analysis, Measured

FIGURES = pl.Schema(
    {
        "rank": pl.Int32(),  # null: all ranks
        "step": pl.Int64(),  # null: the whole window
        "figure": pl.String(),
        "label": pl.String(),
        "by": pl.String(),  # of hidden: the compute label that hides
        "value": pl.Float64(),
        "unit": pl.String(),  # ns, count or share
    }
)


def figures(analysis: Analysis) -> pl.DataFrame:
    """Return every figure of the analysis, a row each.

    >>> from tracekit.run.analyze import analyze
    >>> table = figures(analyze("sample_traces/reload", schedule="none"))
    >>> table.filter(rank=0, figure="span")["value"].to_list()
    [104587652.0]
    """
    rows: list[tuple[object, ...]] = [(None, None, *row) for row in _rows(analysis.total)]
    for one in analysis.rank_results:
        rows += [(one.rank, None, *row) for row in _rows(one.whole)]
        if len(one.per_step) > 1:
            rows += [(one.rank, step.step, *row) for step in one.per_step for row in _rows(step)]
    return pl.DataFrame(rows, schema=FIGURES, orient="row")


def _rows(one: Measured) -> Iterator[tuple[str, str | None, str | None, float | None, str]]:
    yield "span", None, None, one.budget.span_ns, "ns"
    yield "budget", "compute", None, one.budget.compute_ns, "ns"
    for label, ns in one.budget.exposed_ns.items():
        yield "budget", label, None, ns, "ns"
    yield "budget", "idle", None, one.budget.idle_ns if one.idle_known else None, "ns"
    if one.budget.unrecorded_ns:
        yield "budget", "not recorded", None, one.budget.unrecorded_ns, "ns"
    for label, ns in one.label_ns.items():
        yield "time", label, None, ns, "ns"
    for label, count in one.label_count.items():
        yield "count", label, None, count, "count"
    for label, share in one.overlap.items():
        yield "overlap", label, None, share, "share"
    for label, row in one.hidden_by_ns.items():
        for by, ns in row.items():
            yield "hidden", label, by, ns, "ns"
    for label, wait in one.wait_ns.items():
        yield "wait", label, None, wait, "ns"
    yield "bubble", None, None, one.bubble_fraction, "share"
    yield "exposed wait", "pp_comm", None, one.bubble.wait_ns, "ns"
