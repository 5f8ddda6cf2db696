"""The tables that terminal, page and Markdown share, each defined once from the view."""

from __future__ import annotations

from tracekit._util.text import at_least, percent
from tracekit.report.view.grid import Column, Grid, Value, grid
from tracekit.report.view.model import View
from tracekit.report.view.work import CopyRow
from tracekit.schema import IDLE_CAUSES, PHASES

LANES = {"h2d": "H2D"}
"""Lanes of a weight update that are written otherwise than in the data."""


def copies(view: View, *, by_rank: bool = False) -> Grid | None:
    """Return copies by label over all ranks; *by_rank* puts each rank's above them."""
    if view.copies is None:
        return None
    columns = (
        Column("rank", "rank"), Column("label", "label"), Column("copies", "count"), Column("moved", "MB"),
        Column("GB/s", "rate", note="bytes over the union of the copies' time"), Column("of link", "share"),
        Column("time", "ms", 3), Column("hidden", "share"),
        Column("stalled", "ms", note="exposed time charged to the copy"), Column("stalls", "count", 2),
    )  # fmt: skip
    single = view.copies.by_rank if by_rank and len(view.analysis.rank_results) > 1 else ()
    rows = [_copy(row) for row in (*single, *view.copies.total)]
    links = sorted({row.link_gb_s for row in view.copies.total if row.link_gb_s})
    notes = [f"link: {gb_s:g} GB/s one way between a GPU and its host; processes of one GPU share it" for gb_s in links]
    first = 0 if single else 1  # without rows by rank there is no rank to name
    totals = range(len(single), len(rows)) if single else ()
    return grid(columns[first:], [row[first:] for row in rows], notes=notes, totals=totals)


def _copy(row: CopyRow) -> tuple[Value, ...]:
    rank = "all" if row.rank is None else row.rank
    return (rank, row.label, row.count, row.bytes, row.gb_s, row.of_link, row.ns, row.hidden, row.stall_ns, row.stalls)


def experts(view: View) -> Grid | None:
    """Return what each rank's experts receive, and what they compute with it."""
    if view.rates is None:
        return None
    columns = (
        Column("rank", "rank"), Column("received", "MB"),
        Column("of mean received", "share", note="of its group's ranks"),
        Column("most in", "word", 2, "exchanges in which it received most"), Column("waited", "ms", 1),
        Column("experts", "ms", note="their own compute"),
        Column("of mean time", "share", note="of its group's ranks"),
    )  # fmt: skip
    rows = [
        (row.rank, row.received_bytes, row.over_mean, f"{row.largest} of {row.exchanges}", row.wait_ns, row.work_ns,
         row.work_over_mean)
        for row in view.rates.experts
    ]  # fmt: skip
    return grid(columns, rows, notes=view.rates.expert_notes)


def communication(view: View) -> Grid | None:
    """Return how fast matched operations moved their bytes, waiting apart."""
    if view.rates is None:
        return None
    columns = (
        Column("operation", "name"), Column("size"), Column("count", "count", 1), Column("GB/s", "rate"),
        Column("bus GB/s", "rate", 0 if view.rates.linked else 2), Column("of link", "share"), Column("transfer", "ms"),
        Column("waited", "ms"),
    )  # fmt: skip
    rows = [
        (row.name, row.size, row.count, row.gb_s, row.bus_gb_s, row.share_of_link, row.transfer_ns, row.wait_ns)
        for row in view.rates.communication
    ]
    return grid(columns, rows)


def products(view: View) -> Grid | None:
    """Return how fast products ran, by label, then the kinds that take longest."""
    if view.rates is None:
        return None
    columns = (Column("products", "word"), Column("shape"), Column("TFLOP/s", "rate"), Column("of peak", "share"),
               Column("time", "ms"))  # fmt: skip
    found = (*view.rates.labels, *view.rates.kinds)
    rows = [(row.name, row.shape, row.tflop_s, row.share_of_peak, row.ns) for row in found]
    return grid(columns, rows, notes=view.rates.notes, totals=range(len(view.rates.labels)))


def idle(view: View) -> Grid | None:
    """Return why each rank was idle, how long it waited in the pipeline, and its bubble by phase."""
    rows = view.bubbles
    usual = ("launch_bound", "dependency")
    causes = [name for name in IDLE_CAUSES if name in usual or any(row.causes.get(name) for row in rows)]
    columns = [
        Column("rank", "rank"),
        Column("idle", "ms"),
        *(Column(IDLE_CAUSES[name], "share", note="shares of idle") for name in causes),
    ]
    if view.pipelined:
        columns += [Column("pipeline wait", "ms"), Column("bubble", "figure", note="of the span")]
        columns += [Column(phase, "ms", 1, "bubble in that phase") for phase in PHASES]
    made = [
        (row.rank, row.idle_ns, *(row.causes[name] for name in causes))
        + ((row.wait_ns, at_least(percent(row.bubble), row.lower_bound)) if view.pipelined else ())
        + (tuple(row.phase_ns.get(phase) for phase in PHASES) if view.pipelined else ())
        for row in rows
    ]
    return grid(columns, made)


def hiding(view: View) -> Grid | None:
    """Return how much slower compute ran beside communication."""
    if view.hiding is None:
        return None
    columns = (Column("label", "label"), Column("kernels", "count"), Column("slower by", "share"),
               Column("extra per rank", "ms"))  # fmt: skip
    rows = [(row.label, row.kernels, row.slower, row.extra_ns) for row in view.hiding.rows]
    return grid(columns, rows, notes=(view.hiding.note,))


def reload_lanes(view: View) -> Grid | None:
    """Return a weight update's lanes by rank."""
    if view.reload is None:
        return None
    columns = (Column("rank", "rank"), Column("lane"), Column("buckets", "count"), Column("time", "ms"),
               Column("GB/s", "rate"))  # fmt: skip
    keys = ("rank", "lane", "count", "ns", "bandwidth_gb_s")
    lanes = [{**row, "lane": LANES.get(str(row["lane"]), row["lane"])} for row in view.reload.lanes]
    return grid(columns, [tuple(row[key] for key in keys) for row in lanes])  # type: ignore[misc]


def by(view: View) -> Grid | None:
    """Return the step in the rows that were asked for."""
    found = view.by
    if found is None:
        return None
    layered, nested, shaped = found.kind == "layer", found.kind in ("module", "annotation"), found.kind == "shape"
    kinds = {row.evidence for row in found.rows if row.evidence}
    labels = found.labels if layered else ()
    columns: list[tuple[Column, list[Value]]] = [
        (Column(found.kind, "name"), [row.name for row in found.rows]),
        (Column("time", "ms"), [row.ns for row in found.rows]),
        (Column("of busy", "share", 2 if shaped else 0), [row.share for row in found.rows]),
    ]
    columns += [(Column(label, "ms", 5), [row.label(label) for row in found.rows]) for label in labels]
    columns += [(Column("with inside", "ms"), [row.inclusive_ns for row in found.rows])] if nested else []
    columns += [(Column("calls", "count", 3), [row.calls for row in found.rows])] if shaped else []
    columns += [(Column("exposed comm", "ms"), [row.communication_ns for row in found.rows])] if not shaped else []
    if found.rated:
        columns += [(Column("TFLOP/s", "rate"), [row.tflop_s for row in found.rows])]
        columns += [(Column("of peak", "share", 1), [row.share_of_peak for row in found.rows])]
        columns += [(Column("below peak", "ms"), [row.below_peak_ns for row in found.rows])] if shaped else []
    columns += [(Column("evidence", "word", 6), [row.evidence for row in found.rows])] if len(kinds) > 1 else []
    notes = ([f"evidence: {kinds.pop()}"] if len(kinds) == 1 else []) + list(found.notes)
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    totals = [at for at, row in enumerate(found.rows) if not row.place]
    return grid([column for column, _ in columns], rows, notes=notes, totals=totals)
