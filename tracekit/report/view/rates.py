"""The longest kernels, rates of products and communication, the load of experts, and the step by layer or module."""

import math
import shlex
from collections.abc import Callable, Sequence

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from tracekit._util.shapes import parse_list
from tracekit._util.text import counted, listing, ms, percent, terminal
from tracekit._util.values import without_none
from tracekit.analysis import Analysis
from tracekit.analysis.combine.communication import RunRates, below_peak_ns
from tracekit.analysis.measure.by import By
from tracekit.classify.messages import list_ranks
from tracekit.documents.analysis import Bandwidth, ByRow, Kernel
from tracekit.documents.coding import rows as table_rows
from tracekit.metrics.peaks import find_gpu, peak_tflop_s
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import size
from tracekit.report.words import short_kernel
from tracekit.schema import COMPUTE_LABELS, Source

MIN_UNEVEN_OVER_MEAN = 1.05
"""The expert table is shown if some rank receives at least this multiple of the mean."""
MAX_RATE_ROWS = 8
"""Kinds of products, kinds of operations and ranks shown, those that take longest."""
MAX_PLACE_ROWS = 40
"""Rows of places in the model that are shown; the JSON has all."""
MAX_KERNELS_IN_TABLE = 20
MAX_KERNEL_RANKS = 4
"""Ranks listed of one kernel, those on which it takes longest."""
MAX_NAME_LENGTH = 160
"""Characters of a kernel's name in a table."""
MAX_DTYPES = 3
"""Operands whose types are named."""
MIN_SOLE_RULE_SHARE = 0.999
"""Share of a kernel's time above which one rule counts as the only one that decided its label."""


def products_table(analysis: Analysis) -> Table | None:
    """Return the rate of all products of a label, then of the kinds (label, module, shape) that take longest."""
    rates = analysis.rates
    if rates is None or not rates.total.flop:
        return None
    columns = (
        Column("products", value=lambda row: f"{row['label']} {row.get('module') or ''}".rstrip()),
        Column("shape", value=lambda row: shape_words(row.get("shapes", "[]"))),
        Column("TFLOP/s", "rate", value="tflop_s"),
        Column("of peak", "share", value="share_of_peak"),
        Column("time", "ms", value="ns"),
    )
    by_label = rates.by("label").rows(named=True)
    longest_kinds = (
        rates.products.filter(pl.col("flop").is_not_null()).head(MAX_RATE_ROWS).rows(named=True)
    )
    return make_table(
        columns,
        [*by_label, *longest_kinds],
        notes=_product_notes(analysis.sources, rates),
        totals=range(len(by_label)),
    )


def _product_notes(sources: Sequence[Source], rates: RunRates) -> list[str]:
    total = rates.total
    notes = peak_notes(sources, rates.products["dtype"].drop_nulls().unique().sort().to_list())
    if total.utilisation is not None:
        notes.append(
            f"model FLOP utilisation over the span: {percent(total.utilisation)} of each GPU's peak as above"
        )
    if total.uncounted_ns:
        largest = rates.uncounted.row(0, named=True)
        name = largest["kernel"] or largest["op"] or "kernels without a name"
        bound = f"; all others: {total.flop / 1e12:.3g} TFLOP, a lower bound" if total.flop else ""
        notes.append(
            f"{ms(total.uncounted_ns)} of products have no known FLOP (most: {name}){bound}"
        )
    return notes


def peak_notes(sources: Sequence[Source], dtypes: Sequence[str]) -> list[str]:
    """Return the peak that shares refer to, by GPU, type and the multiprocessors that its ranks may use.

    >>> source = Source("rank0.json", "kineto", 0, "content", devices=("NVIDIA H200",), multiprocessors=33)
    >>> peak_notes([source], ["bf16"])
    ['peak of NVIDIA H200 with 33 of its 132 multiprocessors, TFLOP/s: bf16 247.3 (of 989.4)']
    """
    notes = []
    single_devices = [source for source in sources if len(source.devices) == 1]
    kinds = [(source.devices[0], source.multiprocessors) for source in single_devices]
    for device, usable in dict.fromkeys(kinds):
        gpu = find_gpu(device)
        peaks = {dtype: peak_tflop_s(device, dtype, multiprocessors=usable) for dtype in dtypes}
        gpu_peaks = without_none(peaks)
        if gpu is None or not gpu_peaks:
            continue
        is_part = usable is not None and usable < gpu.multiprocessors
        part = f" with {usable} of its {gpu.multiprocessors} multiprocessors" if is_part else ""
        whole = {
            dtype: f" (of {gpu.tflop_s[dtype]:,.1f})" if is_part else "" for dtype in gpu_peaks
        }
        listed = (f"{dtype} {peak:,.1f}{whole[dtype]}" for dtype, peak in gpu_peaks.items())
        notes.append(f"peak of {device}{part}, TFLOP/s: {', '.join(listed)}")
    return notes


def device_names(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the GPUs of a run, with the multiprocessors that its ranks may use where these are not all.

    >>> from msgspec.structs import replace
    >>> source = Source("rank0.json", "kineto", 0, "content", devices=("NVIDIA H200",), multiprocessors=33)
    >>> device_names([source]), device_names([source, replace(source, multiprocessors=12)])
    (('NVIDIA H200 (33 of 132 multiprocessors)',), ('NVIDIA H200 (12 or 33 of 132 multiprocessors)',))
    """
    usable: dict[str, set[int]] = {}
    for source in sources:
        for device in source.devices:
            usable.setdefault(device, set()).update(
                [] if source.multiprocessors is None else [source.multiprocessors]
            )
    names = []
    for device, counts in sorted(usable.items()):
        gpu = find_gpu(device)
        is_part = gpu is not None and any(count < gpu.multiprocessors for count in counts)
        share = (
            f" ({' or '.join(map(str, sorted(counts)))} of {gpu.multiprocessors} multiprocessors)"
            if gpu
            else ""
        )
        names.append(device + (share if is_part else ""))
    return tuple(names)


def below_peak(analysis: Analysis) -> str | None:
    """Return what faster kernels could save at most, which is part of the ideal too.

    None if it is not known.
    """
    rates = analysis.rates
    if rates is None or not rates.total.flop:
        return None
    shorter_ns = below_peak_ns(rates.products)
    rank_steps = sum(len(rank.per_step) for rank in analysis.rank_results)
    if shorter_ns is None or not rank_steps:
        return None
    return (
        f"kernels below peak: products would take {ms(shorter_ns / rank_steps)} less per rank and step at the GPUs' "
        "peak; they are as slow in the ideal, so this is not part of the gap"
    )


def communication_table(analysis: Analysis) -> Table | None:
    """Return the bandwidth of the operations whose transfers take longest.

    Waiting is not part of it.
    """
    rates = analysis.rates
    if rates is None:
        return None
    longest = rates.communication.sort("transfer_ns", descending=True).head(MAX_RATE_ROWS)
    # The bus bandwidth is what a link's peak and measurements are compared with: without either it is
    # less important.
    compared = ("share_of_link", "share_of_measured")
    is_compared = longest.select(pl.any_horizontal(pl.col(compared).is_not_null()).any()).item()
    columns = (
        Column("operation", "name", value=_operation_name),
        Column("size"),
        Column("count", "count", 1),
        Column("GB/s", "rate", value="algorithm_gb_s"),
        Column("bus GB/s", "rate", 0 if is_compared else 2, value="bus_gb_s"),
        Column("of link", "share", value="share_of_link"),
        Column("elsewhere", "rate", 1, value="measured_bus_gb_s"),
        Column("of elsewhere", "share", value="share_of_measured"),
        Column("transfer", "ms", value="transfer_ns"),
        Column("waited", "ms", value="wait_ns"),
    )
    notes = [
        *_measured_elsewhere(rates.communication),
        *_implausible_bandwidths(analysis.sources, rates.communication),
    ]
    return make_table(columns, table_rows(longest, Bandwidth), notes=notes)


def _measured_elsewhere(communication: pl.DataFrame) -> list[str]:
    """Return what the operations are compared with, if any are."""
    compared = communication.filter(pl.col("share_of_measured").is_not_null())
    if compared.is_empty():
        return []
    links = " or ".join(f"{link:,.0f}" for link in compared["gpu_link_gb_s"].unique().sort())
    return [
        "elsewhere: bus GB/s of NCCL for the same operation and sizes (sums of bf16 and fp32 as those of fp16) on "
        "as many GPUs of this model in one machine (aiconfigurator); by data sheet their links carry "
        f"{links} GB/s in one direction"
    ]


def _implausible_bandwidths(sources: Sequence[Source], communication: pl.DataFrame) -> list[str]:
    """Return the operations that are faster than their link or than the GPU's memory can be."""
    gpus = []
    for source in sources:
        for device in source.devices:
            gpu = find_gpu(device)
            if gpu is not None:
                gpus.append(gpu)
    memory_gb_s = max((gpu.memory_gb_s or math.inf for gpu in gpus), default=math.inf)
    above_link = pl.col("share_of_link") > 1
    above_memory = pl.col("algorithm_gb_s") > memory_gb_s
    rows = table_rows(communication.filter(above_link.fill_null(False) | above_memory), Bandwidth)
    if not rows:
        return []
    names = listing(f"{_operation_name(row)} {row.algorithm_gb_s:,.0f} GB/s" for row in rows)
    return [
        f"not plausible, because no link or GPU memory is that fast: {names}; sizes or times are recorded wrongly there"
    ]


def _operation_name(row: Bandwidth) -> str:
    """Return the name of an operation; its group and place tell it from other rows."""
    group = f" (group {terminal(row.group)})" if row.group else ""
    where = f", {row.where}" if row.where else ""
    collective = "" if row.what == row.label else f" {row.what}"
    return f"{row.label}{collective} × {row.ranks}{group}{where}"


def experts_table(analysis: Analysis) -> Table | None:
    """Return what each rank received in forward dispatches, and its experts' compute.

    None if all receive the same.
    """
    rates = analysis.rates
    if (
        rates is None
        or rates.experts.filter(pl.col("over_mean") >= MIN_UNEVEN_OVER_MEAN).is_empty()
    ):
        return None
    columns = (
        Column("rank", "rank"),
        Column("received", "MB"),
        Column("of mean received", "share", note="of its group's ranks", value="over_mean"),
        Column("most in", "word", 2, "exchanges in which it received most", value="most_in"),
        Column("waited", "ms", 1, value="wait_ns"),
        Column("experts", "ms", note="their own compute", value="expert_ns"),
        Column("of mean time", "share", note="of its group's ranks", value="work_over_mean"),
    )
    work = rates.expert_layers.group_by("rank", "group").agg(pl.sum("expert_ns"))
    work = work.with_columns(
        work_over_mean=pl.col("expert_ns") / pl.mean("expert_ns").over("group")
    )
    largest = rates.experts.head(MAX_RATE_ROWS).sort("rank")
    table = largest.join(work, on=["rank", "group"], how="left", maintain_order="left")
    table = table.with_columns(most_in=pl.format("{} of {}", "largest", "exchanges"))
    return make_table(columns, table.rows(named=True), notes=_expert_notes(analysis, rates))


def _expert_notes(analysis: Analysis, rates: RunRates) -> list[str]:
    """Return where the load of experts is least even, and an upper bound of what that costs in a step."""
    cost = rates.expert_cost
    steps = max((len(rank.per_step) for rank in analysis.rank_results), default=0)
    if cost is None or not steps or rates.expert_layers.is_empty():
        return []
    worst = rates.expert_layers.sort("expert_over_mean", descending=True, nulls_last=True).row(
        0, named=True
    )
    received = worst["received_over_mean"]
    receives = "" if received is None else f" receives {percent(received)} of the mean and"
    saved_ns = cost.transfer_ns
    shorter = (
        ""
        if saved_ns is None
        else f"; even dispatches would be {ms(saved_ns / steps)} shorter at most"
    )
    return [
        f"exchange {worst['exchange']}: rank {worst['rank']}{receives} "
        f"computes {percent(worst['expert_over_mean'])} of it",
        f"in the forward of a step, at most: the other ranks wait {ms(cost.wait_ns / steps)} in combines for longer "
        f"expert work (summed), and the step takes {ms(cost.step_ns / steps)} longer{shorter}",
    ]


def shape_words(shapes: str) -> str:
    """Return the sizes of the first two operands of a product.

    >>> shape_words("[[1024,2048],[2048,6144],[]]")
    '1024×2048 · 2048×6144'
    """
    operands = [sizes for sizes in parse_list(shapes) if isinstance(sizes, list) and len(sizes) > 1]
    return " · ".join("×".join(map(str, sizes)) for sizes in operands[:2])


def by_table(analysis: Analysis) -> Table | None:
    """Return the rows of ``--by``.

    Only notes if no event could be assigned to a row, None if none was asked for.
    """
    by = analysis.by
    if by is None:
        return None
    if not by.placed:
        return Table((), (), tuple(by.notes))
    rows = table_rows(by.rows, ByRow)
    places = [row for row in rows if by.is_place(row.name)]
    remainders = [row for row in rows if not by.is_place(row.name)]
    notes = (
        ["times: means over the ranks that have the row"] if len(analysis.rank_results) > 1 else []
    )
    notes += by.notes
    if len(places) > MAX_PLACE_ROWS:
        notes.append(f"{counted(len(places) - MAX_PLACE_ROWS, 'row')} more in the JSON")
    notes.append("the rows add up to all time in which GPUs were busy")
    return _places_table(by, places[:MAX_PLACE_ROWS], remainders, notes)


def _places_table(
    by: By, places: list[ByRow], remainders: list[ByRow], notes: list[str]
) -> Table | None:
    """Return the table: rows of places, then of the time that belongs to none."""
    rows = [*places, *remainders]

    def name(row: ByRow) -> str:
        return _place_name(row, by.kind) if by.is_place(row.name) else row.name

    columns = [
        Column(by.kind, "name", value=name),
        Column("time", "ms", value=_mean_per_rank_and_step(by, "ns")),
        Column("of busy", "share", expendable=2 if by.kind == "shape" else 0, value="share"),
        *_columns_of_kind(by),
    ]
    if any(row.tflop_s is not None for row in rows):
        columns += _rate_columns(by)
    evidence = {row.evidence for row in rows if row.evidence}
    if len(evidence) > 1:
        columns.append(Column("evidence", expendable=6, value=lambda row: row.evidence or ""))
    elif evidence:
        notes = [f"evidence: {evidence.pop()}", *notes]
    return make_table(columns, rows, notes=notes, totals=range(len(places), len(rows)))


def _columns_of_kind(by: By) -> list[Column]:
    """Return the columns that depend on what the rows are, in their order."""
    inside = Column("with inside", "ms", value=_mean_per_rank_and_step(by, "inclusive_ns"))
    exposed = Column("exposed comm", "ms", value=_mean_per_rank_and_step(by, "communication_ns"))
    calls = Column("calls", "count", expendable=3, value=_mean_per_rank_and_step(by, "calls"))
    columns_of_kind = {
        "layer": [*_label_columns(by), exposed],
        "module": [inside, exposed],
        "annotation": [inside, exposed],
        "shape": [calls],
    }
    return columns_of_kind[by.kind]


def _label_columns(by: By) -> list[Column]:
    """Return a column for each label of compute that any row has, also one that is not shown."""
    columns = []
    for label in COMPUTE_LABELS:
        key = f"{label}_ns"
        if key in by.rows.columns and by.rows[key].sum():
            mean_ns = _mean_per_rank_and_step(by, key, missing=0.0)
            columns.append(Column(label, "ms", expendable=5, value=mean_ns))
    return columns


def _rate_columns(by: By) -> list[Column]:
    """Return the columns about the speed of products."""
    columns = [
        Column("TFLOP/s", "rate", value="tflop_s"),
        Column("of peak", "share", expendable=1, value="share_of_peak"),
    ]
    if by.kind == "shape":
        mean_ns = _mean_per_rank_and_step(by, "below_peak_ns")
        columns.append(Column("below peak", "ms", value=mean_ns))
    return columns


def _mean_per_rank_and_step(
    by: By, key: str, *, missing: float | None = None
) -> Callable[[ByRow], float | None]:
    """Return the function that gives a row's sum *key* as its mean over steps and the ranks that have the row.

    It gives *missing* for a row without that sum.
    """

    def mean(row: ByRow) -> float | None:
        total: float | UnsetType | None = getattr(row, key)
        if total is None or total is UNSET:
            return missing
        return total / max(len(row.ranks) * by.steps, 1)

    return mean


def _place_name(row: ByRow, kind: str) -> str:
    if kind == "shape":
        # Neither shapes nor types contain a space.
        op, shapes, dtype = str(row.name).rsplit(" ", 2)
        return terminal(f"{op} {shape_words(shapes)} {dtype}")
    if row.stage is not None:
        return f"stage {row.stage}, {terminal(row.name)}"
    ranks = f"ranks {listing(map(str, row.ranks))}: " if row.apart and row.stage is None else ""
    return f"{ranks}{terminal(row.name)}"


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
        Column("label"),
        Column("module"),
        Column("per step", "figure", value=lambda row: f"{row.count:,.1f}".removesuffix(".0")),
        Column("time per step", "ms", digits=2, value="ns"),
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
