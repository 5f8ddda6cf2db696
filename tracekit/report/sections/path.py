"""The critical path of the slowest step."""

from collections.abc import Mapping

import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import PathSegment
from tracekit.documents.coding import rows as table_rows
from tracekit.report.notices import notice_sentence
from tracekit.report.section import TERMINAL_AND_PAGE, Section
from tracekit.report.table import Column, PlacedValue, Table, make_table
from tracekit.report.words import short_kernel

MAX_OPERATORS = 2
"""Innermost operators around a launch that are named."""
_WRAPPER_NAMES = ("record_param_comms", "autograd::engine::evaluate_function")
"""Operators that say nothing about what they wrap."""
MAX_SEGMENTS = 10
"""Segments that are listed, the longest."""
MAX_PARTS = 6
"""Labels or ranks that are named in a sum."""
MIN_PART_SHARE = 1 / 200
"""Share of the path from which a label or rank is named in a sum."""


def innermost_operators(chain: str | None) -> str:
    """Return the innermost operators of a chain that say what was called.

    >>> innermost_operators("Model > _AllToAll > c10d::alltoall_base_ > record_param_comms")
    '_AllToAll > c10d::alltoall_base_'
    """
    names = [
        name for name in (chain or "").split(" > ") if name and not name.startswith(_WRAPPER_NAMES)
    ]
    return " > ".join(names[-MAX_OPERATORS:])


class PathRow(PathSegment, frozen=True, kw_only=True):
    """A segment of the critical path of one step."""

    from_ns: int
    """Start, from that of the step."""
    ns: int
    """Length."""
    share: float
    """Share of the step."""
    chain: str | None
    """Operators around its launch, outermost first."""

    @property
    def name(self) -> str:
        """What ran; of work of the host, what it launched at its end."""
        if self.kind not in ("host", "launch"):
            return short_kernel(self.what or "")
        launched = innermost_operators(self.chain) or self.what
        return f"{'before' if self.kind == 'host' else 'of'} {launched}" if launched else ""


def path_table(analysis: Analysis) -> Table | None:
    """Return the path of the slowest step: its longest segments in order of time, and sums over all of it.

    None if there is none.
    """
    path = analysis.critical_path
    if path is None or path.segments.is_empty():
        return None
    length = pl.col("end_ns") - pl.col("start_ns")
    steps = path.segments.group_by("step", maintain_order=True).agg(span=length.sum())
    step, span_ns = steps.sort("span", descending=True).row(0)
    segments = path.segments.filter(pl.col("step").eq_missing(step)).with_columns(
        ns=length,
        from_ns=pl.col("start_ns") - pl.col("start_ns").min(),
        share=length / max(span_ns, 1),
    )
    longest = segments.sort("ns", descending=True).head(MAX_SEGMENTS).sort("start_ns")
    of_step = ""
    in_steps = ""
    if len(steps) > 1:
        of_step = f" of step {step}, the longest of {len(steps)}"
        in_steps = f" {counted(len(steps), 'step')}"
    totals = path.totals()
    by_rank = {f"rank {key}" if key.isdigit() else key: ns for key, ns in totals["by_rank"].items()}
    notes = [
        f"the {len(longest)} longest of {counted(len(segments), 'segment')}{of_step}: "
        f"{percent(int(longest['ns'].sum()), span_ns)} of the step's {ms(span_ns)}",
        f"in all{in_steps}: {_shares(totals['by_label'])}",
        f"by rank: {_shares(by_rank)}",
    ]
    hosts = path.pieces.filter(pl.col("kind") == "host").with_columns(ns=length)
    host_ns = int(hosts["ns"].sum())
    if host_ns >= MIN_PART_SHARE * sum(totals["by_kind"].values()):
        busy = percent(host_ns - int(hosts["idle_ns"].sum()), host_ns)
        notes.append(
            f"host: the work that follows waited for its launch; the GPU had other work in {busy} of that time"
        )
    if "cell" in longest["kind"]:
        notes.append(
            "a cell is named by stage, op and micro-batch: 0F3 is stage 0's forward of micro-batch 3"
        )
    notes += [notice_sentence(notice) for notice in path.notices]
    columns = (
        Column("from", "ms", value=lambda row: _place(row, step)),
        Column("time", "ms", terminal_heading="ms", value="ns"),
        Column("of step", "share", 1, value="share"),
        Column("rank", "figure", value=lambda row: str(row.rank)),
        Column("kind"),
        Column("label", "label", value=lambda row: row.label or ""),
        Column("came last", "figure", 2, value=_last_peer),
        Column("what", "name", value="name"),
    )
    return make_table(columns, table_rows(longest, PathRow), notes=notes)


def _place(row: PathRow, step: int | None) -> PlacedValue:
    return PlacedValue(row.from_ns, row.rank, step, row.start_ns, row.end_ns, kind=row.kind)


def _last_peer(row: PathRow) -> str:
    return "" if row.peer is None else f"rank {row.peer}"


def _shares(parts: Mapping[str, int]) -> str:
    """Return the first parts with their shares of the sum, without small ones."""
    total = sum(parts.values())
    first = list(parts.items())[:MAX_PARTS]
    shares = [f"{name} {percent(ns, total)}" for name, ns in first if ns >= MIN_PART_SHARE * total]
    return ", ".join(shares)


CRITICAL_PATH_SECTION = Section(
    id="critical-path",
    tab="Critical path",
    title="Critical path: what the step had to wait for, in order of time",
    name="Critical path",
    about="what the step had to wait for",
    media=TERMINAL_AND_PAGE,
    when_asked=("terminal",),
    build=lambda analysis: [path_table(analysis)],
)
