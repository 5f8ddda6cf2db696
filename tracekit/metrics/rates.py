"""How fast products ran: FLOP from recorded shapes over the union of their kernels' time, against the GPU's peak."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.categories import CategoryColumn, CategoryColumns
from tracekit._util.columns import to_int64
from tracekit._util.shapes import parse_list
from tracekit.classify.matmul import MATMUL_KERNELS as GEMM_KERNELS
from tracekit.intervals import Longs, union
from tracekit.metrics.flops import CONVOLUTION_BACKWARD, FORMULAS, convolution_outputs, flop
from tracekit.metrics.peaks import peak_tflop_s

PRODUCTS = pl.Schema(
    {
        "label": pl.String(),
        "module": pl.String(),
        "op": pl.String(),
        "shapes": pl.String(),
        "dtype": pl.String(),  # "bf16", "fp32", …; null where neither the trace nor the kernel's name says
        "calls": pl.Int64(),
        "flop": pl.Int64(),  # of all calls; null where the shapes do not tell
        "ns": pl.Int64(),  # union of the kernels' time
        "at_peak_ns": pl.Float64(),  # the same work at the GPU's peak; null where that is not known
    }
)
"""One rank's matrix products, attentions and convolutions, by what they are."""

TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "signed char": "int8",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
}
"""Types as the profiler writes them."""

NAMED_TYPES = (
    ("tf32", r"(?i)tf32|s1688gemm(?!_b?f16)"),
    ("fp8", r"(?i)e4m3|e5m2|_f8|fp8|^nvjet_(sm\d+_)?q"),
    ("bf16", r"(?i)bf16|bfloat16|^nvjet_(sm\d+_)?t"),
    ("fp16", r"(?i)(?<!b)f16|half|hgemm|^nvjet_(sm\d+_)?h|^h\d{4,5}"),
    ("fp64", r"(?i)dgemm|f64|double|^nvjet_(sm\d+_)?d"),
    ("fp32", r"(?i)sgemm|f32|^nvjet_(sm\d+_)?s"),
)
"""What kernels' names say of their inputs' type, the first that matches."""

UNCOUNTED = 0.01
"""Share of product time without known FLOP above which utilisation is not stated: it would be too low."""


class Rates(msgspec.Struct, frozen=True):
    """How fast one rank's products ran, over a window.

    >>> Rates(4_000_000, 4_000_000, product_ns=2_000, uncounted_ns=0, at_peak_ns=1_000.0, span_ns=4_000).tflop_s
    2.0
    """

    flop: int
    """Of all products whose shapes are known, recomputation among them."""
    model_flop: int
    """The same without recomputation."""
    product_ns: int
    """Union of all product kernels' time."""
    uncounted_ns: int
    """The part of product kernels' time (a sum) whose FLOP is not known."""
    at_peak_ns: float | None
    """What the model's FLOP would take at the GPU's peak; None where a peak or a type is not known."""
    span_ns: int

    @property
    def tflop_s(self) -> float | None:
        """FLOP over the products' own time; None without shapes."""
        return self.flop / self.product_ns / 1e3 if self.flop and self.product_ns and self.counted else None

    @property
    def counted(self) -> bool:
        """Whether nearly all product time has known FLOP."""
        return self.uncounted_ns <= UNCOUNTED * max(self.product_ns, 1)

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
    texts: CategoryColumns | None = None,
) -> tuple[pl.DataFrame, Rates]:
    """Return one rank's products by what they are (``PRODUCTS``), and all of them together.

    *key* names a column that keeps products apart besides; the table then has it too.

    >>> from tracekit.schema import LABELLED, conform
    >>> event = {"id": 9, "kind": "kernel", "name": "gemm_bf16", "label": "forward", "op": "aten::mm", "op_id": 4,
    ...          "shapes": "[[1000,1000],[1000,1000]]", "start_ns": 0, "end_ns": 10_000}
    >>> table, rates = products(conform(pl.DataFrame([event]), LABELLED), device="NVIDIA H200")
    >>> table["flop"].to_list(), round(rates.tflop_s), rates.utilisation == 2e9 / 989.4e3 / 10_000
    ([2000000000], 200, True)
    """
    span_ns = _span_ns(labelled)
    rows = _Products.of(labelled, texts or CategoryColumns(labelled))
    if not len(rows.at):
        return PRODUCTS.to_frame(), Rates(0, 0, 0, 0, None, span_ns)
    table = _by_kind(rows, device, multiprocessors, labelled[key] if key else None)
    counted = table["flop"].is_not_null()
    model = counted & (table["label"] != "recompute")
    at_peak = table["at_peak_ns"].filter(model)
    rates = Rates(
        flop=int(table["flop"].filter(counted).sum()),
        model_flop=int(table["flop"].filter(model).sum()),
        product_ns=union(rows.start_ns, rows.end_ns).total_ns,
        uncounted_ns=int(table["ns"].filter(~counted).sum()),
        at_peak_ns=float(at_peak.sum()) if len(at_peak) and not at_peak.null_count() else None,
        span_ns=span_ns,
    )
    return table, rates


def _span_ns(labelled: pl.DataFrame) -> int:
    if labelled.is_empty():
        return 0
    return int(labelled["end_ns"].to_numpy().max() - labelled["start_ns"].to_numpy().min())


def product_kinds(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return of every event whether it is a ``product``, and of products ``op``, ``shapes`` and ``dtype``.

    >>> from tracekit.schema import LABELLED, conform
    >>> event = {"kind": "kernel", "name": "gemm_bf16", "op": "aten::mm", "shapes": "[[2,4],[4,8]]", "op_id": 1}
    >>> product_kinds(conform(pl.DataFrame([event, {**event, "name": "add", "op": "aten::add"}]), LABELLED)).rows()
    [(True, 'aten::mm', '[[2,4],[4,8]]', 'bf16'), (False, None, None, None)]
    """
    rows = _Products.of(labelled, CategoryColumns(labelled))
    place = np.full(len(labelled), len(rows.at), np.int64)
    place[rows.at] = np.arange(len(rows.at))
    columns = {name: [*getattr(rows, name).strings(), None] for name in ("op", "shapes", "dtype")}
    kinds = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))
    return kinds[place].insert_column(0, pl.Series("product", place < len(rows.at)))


class _Products(msgspec.Struct, frozen=True, eq=False):
    """Kernels that multiply matrices: by their operator, or by their own name."""

    at: Longs
    """Rows of the table."""
    label: CategoryColumn
    module: CategoryColumn
    op: CategoryColumn
    shapes: CategoryColumn
    dtype: CategoryColumn
    """Of the operator's recorded inputs, else from the kernel's name."""
    op_id: Longs
    start_ns: Longs
    end_ns: Longs

    @classmethod
    def of(cls, labelled: pl.DataFrame, texts: CategoryColumns) -> _Products:
        """Return the products of a labelled table, whose *texts* these are.

        All kernels of a call get the label, module and type of its longest, so that helpers do not count as calls.
        """
        names, ops = texts["name"], texts["op"]
        asked = names.matches(GEMM_KERNELS) | ops.map(FORMULAS.__contains__)
        at = np.flatnonzero(asked & (labelled["kind"] == "kernel").to_numpy())
        columns = (texts[c] for c in ("name", "op", "label", "module", "shapes", "dtypes"))
        name, op, label, module, shapes, dtypes = (CategoryColumn(text.values, text.codes[at]) for text in columns)
        start, end = labelled["start_ns"].to_numpy()[at], labelled["end_ns"].to_numpy()[at]
        op_id = to_int64(labelled["op_id"][at])
        dtype = _types(dtypes, name)
        main = _longest_of_call(op, op_id, end - start)
        return cls(at, label.take(main), module.take(main), op, shapes, dtype.take(main), op_id, start, end)


def _longest_of_call(op: CategoryColumn, op_id: Longs, ns: Longs) -> Longs:
    """Return for each kernel the longest of its call.

    The backward of a convolution computes two gradients in one call: each stands for itself.
    """
    longest = np.arange(len(ns))
    rows = np.flatnonzero((op_id >= 0) & op.map(lambda name: name != CONVOLUTION_BACKWARD))
    order = rows[np.lexsort((ns[rows], op_id[rows]))]
    last = np.flatnonzero(np.diff(op_id[order], append=-1))
    longest[order] = np.repeat(order[last], np.diff(last, prepend=-1))
    return longest


def _by_kind(
    rows: _Products, device: str | None, multiprocessors: int | None, key: pl.Series | None = None
) -> pl.DataFrame:
    """Return the sums over calls alike: one operator on inputs of one shape and type, for one label and module."""
    columns = (rows.label, rows.module, rows.op, rows.shapes, rows.dtype)
    keys = [] if key is None else [key[rows.at]]
    kind, first = group_rows(*(column.codes for column in columns), *(to_int64(one) for one in keys))
    names = list(
        zip(
            *(CategoryColumn(c.values, c.codes[first]).strings() for c in columns),
            *(one[first].to_list() for one in keys),
            strict=True,
        )
    )
    busy = union(rows.start_ns, rows.end_ns, kind).totals_ns(len(first)).tolist()
    calls = np.bincount(kind[group_rows(kind, rows.op_id)[1]], minlength=len(first)).tolist()
    outputs = convolution_outputs([name[3] for name in names if name[2] == CONVOLUTION_BACKWARD and name[3]])
    found = []
    for (label, module, op, shapes, dtype, *more), count, ns in zip(names, calls, busy, strict=True):
        each = None if op is None or shapes is None else flop(op, shapes, outputs=outputs)
        work = each * count if each is not None and each * count < MOST_FLOP else None
        peak = peak_tflop_s(device, dtype, multiprocessors=multiprocessors) if device and dtype else None
        at_peak = None if work is None or peak is None else work / (peak * 1e3)
        if at_peak is not None and at_peak > ns:  # faster than the peak: the type is not what it seems
            at_peak = None
        found.append((label, module, op, shapes, dtype, count, work, ns, at_peak, *more))
    found.sort(key=lambda row: (-row[7], *((value is not None, value) for value in (*row[:5], *row[9:]))))
    schema = PRODUCTS if key is None else {**PRODUCTS, key.name: key.dtype}
    return pl.DataFrame(found, schema=schema, orient="row")


def _types(recorded: CategoryColumn, name: CategoryColumn) -> CategoryColumn:
    """Return the type of each product's inputs: as recorded, else from the kernel's name."""
    known = recorded.replace([_recorded_type(text) for text in recorded.values])
    used = np.bincount(name.codes + 1, minlength=len(name.values) + 1)[1:]
    named = name.replace([_named_type(v) if often else None for v, often in zip(name.values, used, strict=True)])
    # Products of 32-bit inputs may run on tensor cores in TF32: only the kernel's name tells.
    wider = known.map(lambda dtype: dtype == "fp32") & named.map(lambda dtype: dtype == "tf32")
    return known.where(~wider).fill(named)


MOST_FLOP = 1 << 62
"""No call, and no run, does as much work: shapes that imply it are damaged."""


def _recorded_type(text: str) -> str | None:
    known = [TYPES[t] for t in parse_list(text) if isinstance(t, str) and t in TYPES]
    # A bias or scale may be wider than the operands of the product itself.
    order = ("fp8", "int8", "bf16", "fp16", "fp32", "fp64")
    return min(known, key=order.index) if known else None


def _named_type(name: str | None) -> str | None:
    return next((dtype for dtype, pattern in NAMED_TYPES if name and re.search(pattern, name)), None)
