"""The longest kernels, and the evidence for their labels."""

import shlex
from collections.abc import Sequence

import msgspec
from msgspec.structs import asdict

from tracekit._util.shapes import parse_list
from tracekit._util.text import counted, ms, percent, size
from tracekit.analysis import Analysis
from tracekit.classify.messages import list_ranks
from tracekit.documents.analysis import Kernel
from tracekit.documents.coding import rows as table_rows
from tracekit.report.table import Column, Table, make_table
from tracekit.report.view.rates import shape_words
from tracekit.report.words import short_kernel

MAX_KERNELS_IN_TABLE = 20
MAX_KERNEL_RANKS = 4
"""Ranks listed of one kernel, those on which it takes longest."""
MAX_NAME_LENGTH = 160
"""Characters of a kernel's name in a table."""
MAX_DTYPES = 3
"""Operands whose types are named."""
MIN_SOLE_RULE_SHARE = 0.999
"""Share of a kernel's time above which one rule counts as the only one that decided its label."""


class KernelReason(msgspec.Struct, frozen=True):
    """One rank's longest event of a kernel, with the evidence for its label: a row of the table ``reasons``."""

    rank: int
    label: str | None
    module: str | None
    count: int
    ns: int
    rule: str | None
    rule_ns: int
    confidence: float
    tier: str | None
    pack: str | None
    asks: str | None
    step: int | None
    start_ns: int
    end_ns: int
    stream: int | None
    op: str | None
    chain: str | None
    annotations: str | None
    node: str | None
    fwd_op: str | None
    collective: str | None
    group_desc: str | None
    group_ranks: str | None
    peer: int | None
    bytes: int | None
    shapes: str | None
    dtypes: str | None


class KernelRow(Kernel, frozen=True, kw_only=True):
    """A kernel in a step, mean over ranks."""

    share: float
    """Share of the span."""
    command: str | None
    """Command that explains its label, rule by rule; None without an input that it could name."""
    facts: Sequence[tuple[str, str]]
    """Topic and text of the evidence for its label; empty if the analysis does not have it."""
    places: Sequence[KernelReason]
    """Its longest event on each rank, the rank on which it takes longest first."""

    @property
    def op(self) -> str | None:
        """Operator that launched the longest of them; None if it was not recorded."""
        return self.places[0].op if self.places else None


def kernels(analysis: Analysis, quoted_path: str | None) -> tuple[KernelRow, ...]:
    """Return the kernels that took longest in a step, as a mean over ranks."""
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.rank_results))
    span_ns = max(1.0, analysis.total.budget.span_ns / rank_steps)
    longest = analysis.tables["kernels"].sort("ns", descending=True).head(MAX_KERNELS_IN_TABLE)
    reasons = analysis.tables["reasons"].rows_by_key(
        ["name", "label", "module"], named=True, include_key=True
    )
    kernel_rows = []
    for kernel in table_rows(longest, Kernel):
        of_ranks = reasons.get((kernel.name, kernel.label, kernel.module), [])
        places = [msgspec.convert(reason, KernelReason) for reason in of_ranks]
        kernel_rows.append(_kernel_row(kernel, places, span_ns, quoted_path))
    return tuple(kernel_rows)


def _kernel_row(
    kernel: Kernel, places: Sequence[KernelReason], span_ns: float, quoted_path: str | None
) -> KernelRow:
    """Return the row of a kernel.

    Args:
        kernel: Its row of the table ``kernels``.
        places: Its rows of the table ``reasons``, one per rank, the rank on which it takes longest
            first.
        span_ns: Mean span of a rank and step.
        quoted_path: The input as one path, for the command that explains the label.

    """
    command = None
    if quoted_path:
        command = f"tracekit analyze {quoted_path} --explain {shlex.quote(kernel.name)}"
    facts = _facts(places[0]) if places else []
    return KernelRow(
        **asdict(kernel),
        share=kernel.ns / span_ns,
        command=command,
        facts=[(topic, text) for topic, text in facts if text],
        places=places[:MAX_KERNEL_RANKS],
    )


def kernel_table(rows: Sequence[KernelRow]) -> Table | None:
    """Return the longest kernels as a table; None if there are none."""
    columns = (
        Column("kernel", "code", value=lambda row: _shorten(short_kernel(row.name))),
        Column("time per step", "ms", digits=2, value="ns"),
        Column("per step", "figure", value=lambda row: f"{row.count:,.1f}".removesuffix(".0")),
        Column("operator", "code", value=lambda row: row.op or ""),
        Column("label"),
        Column("module"),
    )
    return make_table(columns, rows)


def _shorten(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


def _facts(row: KernelReason) -> list[tuple[str, str]]:
    """Return the facts about the longest event of one rank.

    The text is empty if a fact is not known.
    """
    step = "" if row.step is None else f", step {row.step}"
    stream = (
        "" if row.stream is None else f", stream {row.stream}; {counted(row.count, 'event')} there"
    )
    node = row.node or ""
    return [
        ("label", _label_decision(row)),
        ("the rule asks", row.asks or ""),
        ("launched by", row.chain or row.op or ""),
        ("inside", row.annotations or ""),
        ("autograd", f"{node}, of {row.fwd_op}" if node and row.fwd_op else node),
        ("communication", _communication(row)),
        ("shapes", _shapes(row)),
        (
            "the longest",
            f"{ms(row.end_ns - row.start_ns, 3)} on rank {row.rank}{step}{stream}",
        ),
    ]


def _label_decision(row: KernelReason) -> str:
    """Return the label, the rule that decided it, and how sure it is."""
    label = f"{row.label}, module {row.module}" if row.module else str(row.label)
    if row.tier is None and row.rule in (None, "other"):
        return f"{label}: no rule knows it"
    origin = f"{row.tier} evidence, {row.pack} rules" if row.tier else "of a rules file"
    decision = f"{label}: by rule {row.rule} ({origin}), confidence {row.confidence:.2f}"
    share = row.rule_ns / row.ns if row.ns else 1.0
    if share > MIN_SOLE_RULE_SHARE:
        return decision
    return f"{decision}; it decides {percent(share)} of its time, other rules the rest"


def _communication(row: KernelReason) -> str:
    """Return the collective, its peer, its group and its size, as far as they are known."""
    members = row.group_ranks
    peer = "" if row.peer is None or members is None else f"with rank {row.peer}"
    ranks = "" if members is None else f"(ranks {', '.join(map(str, list_ranks(members)))})"
    group = " ".join(filter(None, (row.group_desc, ranks)))
    bytes_moved = size(row.bytes) if row.bytes else ""
    return ", ".join(filter(None, (row.collective, peer, group and f"group {group}", bytes_moved)))


def _shapes(row: KernelReason) -> str:
    """Return the shapes and types of the operands; empty for a collective."""
    if not row.shapes or row.collective:
        return ""
    dtypes = [
        dtype.removeprefix("c10::")
        for dtype in parse_list(row.dtypes or "[]")
        if isinstance(dtype, str) and dtype
    ]
    return " ".join(
        filter(None, (shape_words(row.shapes), ", ".join(dict.fromkeys(dtypes[:MAX_DTYPES]))))
    )
