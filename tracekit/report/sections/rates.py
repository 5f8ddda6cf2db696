"""Rates of products and communication, and the load of experts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tracekit._util.text import listing, ms, percent, terminal
from tracekit._util.values import without_none
from tracekit.analysis import Analysis
from tracekit.analysis.combine.communication import RunRates
from tracekit.documents.analysis import Bandwidth
from tracekit.documents.coding import rows as table_rows
from tracekit.metrics.peaks import find_gpu, peak_tflop_s
from tracekit.metrics.rates import NOT_MODEL_LABELS
from tracekit.report.section import TERMINAL_AND_PAGE, Section
from tracekit.report.table import Column, Table, make_table
from tracekit.report.words import shape_words
from tracekit.schema import Source

MIN_UNEVEN_OVER_MEAN = 1.05
"""The expert table is shown if some rank receives at least this multiple of the mean."""
MAX_RATE_ROWS = 8
"""Kinds of products, kinds of operations and ranks shown, those that take longest."""


def products_table(analysis: Analysis) -> Table | None:
    """Return the rate of all products of a label, then of the kinds (label, module, shape) that take longest."""
    rates = analysis.rate_tables
    if rates is None or not rates.total.flop:
        return None
    types_by_label = _types_by(rates, "label")
    columns = (
        Column("products", value=lambda row: f"{row['label']} {row.get('module') or ''}".rstrip()),
        Column("shape", value=lambda row: shape_words(row.get("shapes", "[]"))),
        Column("type", value=lambda row: row.get("dtype") or types_by_label.get(row["label"], "")),
        Column("TFLOP/s", "rate", value="tflop_s"),
        Column("of peak", "share", value="share_of_peak"),
        Column("time", "ms", value="ns"),
    )
    by_label = rates.by("label").rows(named=True)
    longest_kinds = (
        rates.products.filter(pl.col("flop").is_not_null()).head(MAX_RATE_ROWS).rows(named=True)
    )
    all_ranks = "All ranks; " if len(analysis.ranks) > 1 else ""
    return make_table(
        columns,
        [*by_label, *longest_kinds],
        notes=_product_notes(analysis.sources, rates),
        totals=range(len(by_label)),
        caption=f"{all_ranks}TFLOP/s over the products' own time; by label, then the kinds that take longest",
        search=_search_of_products,
    )


def _search_of_products(row: Mapping[str, Any]) -> str:
    """Return the search of the timeline for products of one label, and of one module where they have it."""
    module = row.get("module")
    in_module = f' module:"={module}"' if module else ""
    return f"label:={row['label']}{in_module}"


def _product_notes(sources: Sequence[Source], rates: RunRates) -> list[str]:
    total = rates.total
    notes = peak_notes(sources, rates.products["dtype"].drop_nulls().unique().sort().to_list())
    if total.utilisation is not None:
        notes.append(f"model FLOP utilisation over the span: {_utilisation(sources, rates)}")
    if total.uncounted_ns:
        largest = rates.uncounted.row(0, named=True)
        name = largest["kernel"] or largest["op"] or "kernels without a name"
        bound = f"; all others: {total.flop / 1e12:.3g} TFLOP, a lower bound" if total.flop else ""
        notes.append(
            f"{ms(total.uncounted_ns)} of products have no known FLOP (most: {name}){bound}"
        )
    return notes


def _types_by(rates: RunRates, column: str) -> dict[str, str]:
    """Return the types in which products with known FLOP compute, by label or another column."""
    typed = rates.products.drop_nulls(["flop", "dtype"])
    types = typed.group_by(column).agg(pl.col("dtype").unique().sort().str.join(", "))
    return dict(types.iter_rows())


def _utilisation(sources: Sequence[Source], rates: RunRates) -> str:
    """Return the model FLOP utilisation, and the peak that it is a share of.

    Where products compute in several types it is stated of the highest of their peaks, and with each
    product against the peak of its own type.
    """
    total = rates.total
    of_own_types = percent(total.utilisation)
    model = rates.products.filter(~pl.col("label").is_in(NOT_MODEL_LABELS))
    types = model.drop_nulls(["flop", "dtype"])["dtype"].unique().sort().to_list()
    kinds = set()
    for source in sources:
        kinds |= {(device, source.multiprocessors) for device in source.devices}
    if len(kinds) != 1:
        return f"{of_own_types}, each product against the peak of its GPU and type as above"
    device, usable = kinds.pop()
    peaks = {dtype: peak_tflop_s(device, dtype, multiprocessors=usable) for dtype in types}
    known_peaks = without_none(peaks)
    highest = max(known_peaks, key=lambda dtype: known_peaks[dtype], default=None)
    if highest is None or len(types) == 1:
        return f"{of_own_types} of the GPU's peak{'' if highest is None else f' in {highest}'}"
    of_highest = total.model_flop / (known_peaks[highest] * 1e3) / total.span_ns
    return (
        f"{percent(of_highest)} of the GPU's peak in {highest}; {of_own_types} with each product "
        "against the peak of its own type"
    )


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


def communication_table(analysis: Analysis) -> Table | None:
    """Return the bandwidth of the operations whose transfers take longest.

    Waiting is not part of it.
    """
    rates = analysis.rate_tables
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
    return make_table(
        columns,
        table_rows(longest, Bandwidth),
        notes=notes,
        caption="Bytes over transfer, waiting apart; the operations that take longest",
        search=lambda row: f"label:={row.label}",
    )


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
    rates = analysis.rate_tables
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
    return make_table(
        columns,
        table.rows(named=True),
        notes=_expert_notes(analysis, rates),
        caption="What each rank receives in the forward's dispatches, and what its experts compute",
    )


def _expert_notes(analysis: Analysis, rates: RunRates) -> list[str]:
    """Return where the load of experts is least even, and an upper bound of what that costs in a step."""
    cost = rates.expert_cost
    steps = max((len(rank.per_step) for rank in analysis.ranks), default=0)
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


RATE_SECTIONS = (
    Section(
        id="rates",
        tab="Kernels",
        title="Rates",
        name="Rates",
        about="how fast products and communication ran",
        media=("page",),
        folded=("page",),
        build=lambda _analysis: (),
    ),
    Section(
        id="products",
        title="How fast products ran",
        scope="{over}; over their own time",
        part_of="rates",
        media=TERMINAL_AND_PAGE,
        build=lambda analysis: [products_table(analysis)],
    ),
    Section(
        id="communication",
        title="How fast communication ran",
        scope="bytes over transfer, waiting apart",
        part_of="rates",
        media=TERMINAL_AND_PAGE,
        build=lambda analysis: [communication_table(analysis)],
    ),
    Section(
        id="experts",
        title="Experts: what each rank receives in the forward's dispatches",
        part_of="rates",
        build=lambda analysis: [experts_table(analysis)],
    ),
)
