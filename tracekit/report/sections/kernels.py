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
from tracekit.report.blocks import Block, FactList, Sentence
from tracekit.report.run_facts import quoted_path
from tracekit.report.section import Section
from tracekit.report.table import Column, PlacedValue, Table, make_table
from tracekit.report.words import shape_words, short_kernel

MAX_KERNELS_IN_TABLE = 20
MAX_KERNEL_RANKS = 4
"""Ranks listed of one kernel, those on which it takes longest."""
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


def kernels(analysis: Analysis) -> tuple[KernelRow, ...]:
    """Return the kernels that took longest in a step, as a mean over ranks."""
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.ranks))
    span_ns = max(1.0, analysis.total.budget.span_ns / rank_steps)
    longest = analysis.tables["kernels"].sort("ns", descending=True).head(MAX_KERNELS_IN_TABLE)
    reasons = analysis.tables["reasons"].rows_by_key(
        ["name", "label", "module"], named=True, include_key=True
    )
    path = quoted_path(analysis)
    kernel_rows = []
    for kernel in table_rows(longest, Kernel):
        of_ranks = reasons.get((kernel.name, kernel.label, kernel.module), [])
        places = [msgspec.convert(reason, KernelReason) for reason in of_ranks]
        kernel_rows.append(_kernel_row(kernel, places, span_ns, path))
    return tuple(kernel_rows)


def _kernel_row(
    kernel: Kernel, places: Sequence[KernelReason], span_ns: float, path: str | None
) -> KernelRow:
    """Return the row of a kernel.

    Args:
        kernel: Its row of the table ``kernels``.
        places: Its rows of the table ``reasons``, one per rank, the rank on which it takes longest
            first.
        span_ns: Mean span of a rank and step.
        path: The input as one path, for the command that explains the label.

    """
    command = None
    if path:
        command = f"tracekit analyze {path} --explain {shlex.quote(kernel.name)}"
    facts = _facts(places[0]) if places else []
    return KernelRow(
        **asdict(kernel),
        share=kernel.ns / span_ns,
        command=command,
        facts=[(topic, text) for topic, text in facts if text],
        places=places[:MAX_KERNEL_RANKS],
    )


def kernel_table(analysis: Analysis) -> Table | None:
    """Return the longest kernels as a table; None if there are none."""
    rows = analysis.once(kernels)
    columns = (
        Column("kernel", "code", value=lambda row: short_kernel(row.name)),
        Column("time per step", "ms", value="ns"),
        Column("of span", "share", 1, value="share"),
        Column("per step", "figure", value=lambda row: f"{row.count:,.1f}".removesuffix(".0")),
        Column("operator", "code", value=lambda row: row.op or ""),
        Column("label", "label"),
        Column("module"),
    )
    over = ", mean over ranks" if len(analysis.ranks) > 1 else ""
    return make_table(
        columns,
        rows,
        notes=(f"in a step{over}; durations are summed, also of kernels that run at once",),
        search=_search,
        details=[_details(row) for row in rows],
    )


def _search(row: KernelRow) -> str:
    name = row.name.replace('"', "")
    return f'name:"={name}" label:={row.label}'


def _details(row: KernelRow) -> list[Block]:
    """Return what a page unfolds: the whole name, what decided the label, and where it ran."""
    details: list[Block] = [Sentence(row.name, "fact")] if row.places else []
    if row.facts:
        details.append(FactList(row.facts))
    places = make_table(
        (
            Column("rank", "rank"),
            Column("events", "count", value="count"),
            Column("time", "ms", value="ns"),
            Column("longest", "ms", value=_longest),
        ),
        row.places,
        caption="Where it takes longest, all steps together",
    )
    if places is not None:
        details.append(places)
    if row.command:
        details.append(Sentence("every rule that was tried", command=row.command))
    return details


def _longest(reason: KernelReason) -> PlacedValue:
    """Return the longest event on a rank."""
    ns = reason.end_ns - reason.start_ns
    return PlacedValue(
        ns, reason.rank, reason.step, start_ns=reason.start_ns, end_ns=reason.end_ns, of_rank=True
    )


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


KERNELS_SECTION = Section(
    id="kernels",
    tab="Kernels",
    title="The longest kernels",
    name="Kernels",
    about="the longest",
    folded=("markdown",),
    when_asked=("terminal",),
    build=lambda analysis: [kernel_table(analysis)],
)
