"""Rates of matrix products: FLOP from recorded shapes over the union of their kernels' time, against the GPU's peak."""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints, group_rows
from tracekit._util.columns import to_int64
from tracekit.intervals import union
from tracekit.metrics.flop import TWO_IN_A_BYTE
from tracekit.metrics.peaks import peak_tflop_s
from tracekit.metrics.sites import RankSites, find_sites

PRODUCTS = pl.Schema(
    {
        "label": pl.String(),
        "module": pl.String(),
        "op": pl.String(),
        "kernel": pl.String(),  # family of the kernel, of products whose operator has no formula
        "shapes": pl.String(),
        "dtype": pl.String(),  # "bf16", "fp32", …; null where neither the trace nor the kernel's name gives it
        "calls": pl.Int64(),
        "flop": pl.Int64(),  # of all calls; null where it cannot be derived from the shapes
        "ns": pl.Int64(),  # union of the kernels' time
        "at_peak_ns": pl.Float64(),  # time of the same work at the GPU's peak; null where flop or peak is unknown
    }
)
"""One rank's matrix products, attentions and convolutions, by label, module, operator, kernel,
shapes and type."""

MAX_UNCOUNTED_SHARE = 0.01
"""Share of product time without known FLOP above which utilisation is withheld: it would be too
low."""
NOT_MODEL_LABELS = ("recompute", "optimizer")
"""Labels of products outside the model's forward and backward: repeated ones, and those of an
optimizer."""
MAX_FLOP = 1 << 62
"""More work than any call or run does: shapes that imply it are damaged."""


class ProductTotals(msgspec.Struct, frozen=True):
    """Totals of one rank's products over a window.

    >>> ProductTotals(4_000_000, 4_000_000, product_ns=2_000, uncounted_ns=0, at_peak_ns=1_000.0, span_ns=4_000).tflop_s
    2.0
    """

    flop: int
    """FLOP of all products with known shapes."""
    model_flop: int
    """FLOP without ``NOT_MODEL_LABELS``."""
    product_ns: int
    """Union of all product kernels' time."""
    uncounted_ns: int
    """Sum of the times of product groups without known FLOP."""
    at_peak_ns: float | None
    """Time the model's FLOP would take at the GPU's peak; None where a peak or a type is
    unknown."""
    span_ns: int

    @property
    def tflop_s(self) -> float | None:
        """FLOP over the products' own time; None without shapes."""
        return (
            self.flop / self.product_ns / 1e3
            if self.flop and self.product_ns and self.counted
            else None
        )

    @property
    def counted(self) -> bool:
        """Whether nearly all product time has known FLOP."""
        return self.uncounted_ns <= MAX_UNCOUNTED_SHARE * max(self.product_ns, 1)

    @property
    def utilisation(self) -> float | None:
        """Model FLOP utilisation: time the model's FLOP would take at peak, over the span."""
        if self.at_peak_ns is None or not self.counted or not self.span_ns or not self.model_flop:
            return None
        return self.at_peak_ns / self.span_ns


def products(
    labelled: pl.DataFrame,
    *,
    device: str | None = None,
    multiprocessors: int | None = None,
    key: str | None = None,
    sites: RankSites | None = None,
) -> tuple[pl.DataFrame, ProductTotals]:
    """Return one rank's products by group (``PRODUCTS``), and the rates of all of them together.

    Args:
        labelled: GPU events of one rank.
        device: Name of the GPU; None if unknown.
        multiprocessors: Multiprocessors that the process may use; None if all, or unknown.
        key: A further column of *labelled* to group by; the table then has it too.
        sites: Their sites, if they were found already.

    >>> from tracekit.schema import LABELLED, conform
    >>> event = {"id": 9, "kind": "kernel", "name": "gemm_bf16", "label": "forward", "op": "aten::mm", "op_id": 4,
    ...          "shapes": "[[1000,1000],[1000,1000]]", "start_ns": 0, "end_ns": 10_000}
    >>> table, rates = products(conform(pl.DataFrame([event]), LABELLED), device="NVIDIA H200")
    >>> table["flop"].to_list(), round(rates.tflop_s), rates.utilisation == 2e9 / 989.4e3 / 10_000
    ([2000000000], 200, True)

    """
    span_ns = 0
    if len(labelled):
        span_ns = int(labelled["end_ns"].to_numpy().max() - labelled["start_ns"].to_numpy().min())
    sites = sites or find_sites(labelled)
    rows = np.flatnonzero(sites.column("is_product").to_numpy())
    if not len(rows):
        return PRODUCTS.to_frame(), ProductTotals(0, 0, 0, 0, None, span_ns)
    start_ns = labelled["start_ns"].to_numpy()[rows]
    end_ns = labelled["end_ns"].to_numpy()[rows]
    keys = () if key is None else (labelled[key].gather(sites.main_rows[rows]),)
    group, groups = _group_products(sites, sites.of_event.to_numpy()[rows], *keys)
    # One row for each operator call of each group.
    first_of_call = group_rows(group, to_int64(labelled["op_id"][rows]))[1]
    groups = groups.with_columns(
        calls=pl.Series(np.bincount(group[first_of_call], minlength=groups.height)),
        ns=pl.Series(union(start_ns, end_ns, group).totals_ns(groups.height)),
    )
    table = _add_flop_and_peak(groups, device, multiprocessors)
    is_counted = table["flop"].is_not_null()
    is_model = is_counted & ~table["label"].is_in(NOT_MODEL_LABELS)
    model_at_peak_ns = table["at_peak_ns"].filter(is_model)
    at_peak_ns = None
    if len(model_at_peak_ns) and not model_at_peak_ns.null_count():
        at_peak_ns = float(model_at_peak_ns.sum())
    rates = ProductTotals(
        flop=int(table["flop"].sum()),
        model_flop=int(table["flop"].filter(is_model).sum()),
        product_ns=union(start_ns, end_ns).total_ns,
        uncounted_ns=int(table["ns"].filter(~is_counted).sum()),
        at_peak_ns=at_peak_ns,
        span_ns=span_ns,
    )
    return table, rates


def _group_products(sites: RankSites, site: Ints, *keys: pl.Series) -> tuple[Ints, pl.DataFrame]:
    """Return the group of each product kernel, and the groups: by label, module, operator, shapes and type, and *keys*.

    *site* is that of each kernel.
    """
    names = ("label", "module", "op", "kernel", "shapes", "dtype")
    of_site = pl.struct(names).rank("dense").cast(pl.Int64)
    site_group = sites.sites.select(of_site).to_series().to_numpy()
    group, first = group_rows(site_group[site], *(to_int64(column) for column in keys))
    groups = sites.sites.select(*names, call_flop="flop")[site[first]]
    return group, groups.with_columns(*(column.gather(first) for column in keys))


def _add_flop_and_peak(
    groups: pl.DataFrame, device: str | None, multiprocessors: int | None
) -> pl.DataFrame:
    """Return ``PRODUCTS``: the groups with FLOP and with the time they would take at peak, longest first."""
    # A byte of fp4 holds two numbers along the inner size.
    is_packed = (pl.col("dtype") == "fp4") & ~pl.col("op").is_in(list(TWO_IN_A_BYTE))
    packed = pl.when(is_packed).then(2).otherwise(1)
    flop = pl.col("call_flop").cast(pl.Float64) * packed * pl.col("calls")
    is_plausible_work = flop < MAX_FLOP
    flops = pl.when(is_plausible_work).then(pl.col("call_flop") * packed * pl.col("calls"))
    peaks: dict[str, float | None] = {}
    if device:
        for dtype in groups["dtype"].unique().drop_nulls().to_list():
            peaks[dtype] = peak_tflop_s(device, dtype, multiprocessors=multiprocessors)
    tflop_s = pl.col("dtype").replace_strict(peaks, default=None, return_dtype=pl.Float64)
    at_peak_ns = pl.col("flop") / (tflop_s * 1e3)
    # A group that would be faster than the peak has a wrong type (for example TF32 recorded as
    # FP32): no claim.
    is_plausible = at_peak_ns <= pl.col("ns")
    further_keys = [name for name in groups.columns if name not in (*PRODUCTS, "call_flop")]
    return (
        groups.with_columns(flop=flops)
        .with_columns(at_peak_ns=pl.when(is_plausible).then(at_peak_ns))
        .select(*PRODUCTS, *further_keys)
        .sort(
            -pl.col("ns"),
            "label",
            "module",
            "op",
            "kernel",
            "shapes",
            "dtype",
            *further_keys,
            maintain_order=True,
        )
    )
