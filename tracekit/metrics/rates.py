"""How fast products ran: FLOP from recorded shapes over the union of their kernels' time, against the GPU's peak."""

from __future__ import annotations

import re

import polars as pl

from tracekit._util.coded import Text
from tracekit._util.records import dataclass
from tracekit._util.shapes import parsed
from tracekit.classify.matmul import KERNELS as GEMM_KERNELS
from tracekit.intervals import union
from tracekit.metrics.flops import CONVOLUTION_BACKWARD, FORMULAS, convolution_outputs, flop
from tracekit.metrics.peaks import peak_tflop_s
from tracekit.schema import conform

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


@dataclass(frozen=True, slots=True)
class Rates:
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
    labelled: pl.DataFrame, *, device: str | None = None, multiprocessors: int | None = None, key: str | None = None
) -> tuple[pl.DataFrame, Rates]:
    """Return one rank's products by what they are (``PRODUCTS``), and all of them together.

    *key* names a column that keeps products apart besides; the table then has it too.

    >>> from tracekit.schema import LABELLED
    >>> event = {"id": 9, "kind": "kernel", "name": "gemm_bf16", "label": "forward", "op": "aten::mm", "op_id": 4,
    ...          "shapes": "[[1000,1000],[1000,1000]]", "start_ns": 0, "end_ns": 10_000}
    >>> table, rates = products(conform(pl.DataFrame([event]), LABELLED), device="NVIDIA H200")
    >>> table["flop"].to_list(), round(rates.tflop_s), rates.utilisation == 2e9 / 989.4e3 / 10_000
    ([2000000000], 200, True)
    """
    span_ns = _span_ns(labelled)
    rows = _product_rows(labelled, *([key] if key else []))
    if rows.is_empty():
        return PRODUCTS.to_frame(), Rates(0, 0, 0, 0, None, span_ns)
    table = _by_kind(rows, device, multiprocessors, key)
    counted = table.filter(pl.col("flop").is_not_null())
    model = counted.filter(pl.col("label") != "recompute")
    known = bool(len(model)) and model["at_peak_ns"].null_count() == 0
    product_ns = int(union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()).totals_ns(1)[0])
    rates = Rates(
        flop=int(counted["flop"].sum()),
        model_flop=int(model["flop"].sum()),
        product_ns=product_ns,
        uncounted_ns=int(table.filter(pl.col("flop").is_null())["ns"].sum()),
        at_peak_ns=float(model["at_peak_ns"].sum()) if known else None,
        span_ns=span_ns,
    )
    return table, rates


def _span_ns(labelled: pl.DataFrame) -> int:
    if labelled.is_empty():
        return 0
    first, last = labelled.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return int(last - first)


def product_kinds(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return of every event whether it is a ``product``, and of products ``op``, ``shapes`` and ``dtype``.

    >>> from tracekit.schema import LABELLED
    >>> event = {"kind": "kernel", "name": "gemm_bf16", "op": "aten::mm", "shapes": "[[2,4],[4,8]]", "op_id": 1}
    >>> product_kinds(conform(pl.DataFrame([event, {**event, "name": "add", "op": "aten::add"}]), LABELLED)).rows()
    [(True, 'aten::mm', '[[2,4],[4,8]]', 'bf16'), (False, None, None, None)]
    """
    numbered = labelled.with_row_index("row")
    rows = _one_label_per_call(_typed(_product_rows(numbered, "row")))
    kinds = rows.select("row", "op", "shapes", "dtype", product=pl.lit(value=True))
    joined = numbered.select("row").join(kinds, on="row", how="left", maintain_order="left")
    return joined.select(pl.col("product").fill_null(value=False), "op", "shapes", "dtype")


def _product_rows(labelled: pl.DataFrame, *more: str) -> pl.DataFrame:
    """Return kernels that multiply matrices: by their operator, or by their own name."""
    asked = Text.of(labelled["name"]).matches(GEMM_KERNELS) | Text.of(labelled["op"]).map(FORMULAS.__contains__)
    asked &= Text.of(labelled["kind"]).map(lambda kind: kind == "kernel")
    columns = ("name", "label", "module", "op", "op_id", "shapes", "dtypes")
    rows = labelled.select(*columns, *more, "start_ns", "end_ns").filter(pl.Series(asked, dtype=pl.Boolean))
    return rows.with_columns(pl.col(c).cast(pl.String) for c in columns if c != "op_id")


def _by_kind(
    rows: pl.DataFrame, device: str | None, multiprocessors: int | None, key: str | None = None
) -> pl.DataFrame:
    """Return the sums over calls alike: one operator on inputs of one shape and type, for one label and module."""
    keys = ["label", "module", "op", "shapes", "dtype", *([key] if key else [])]
    rows = _one_label_per_call(_typed(rows))
    rows = rows.with_columns(kind=pl.struct(keys).rank("dense").cast(pl.Int64) - 1)
    count = int(rows["kind"].max()) + 1  # type: ignore[arg-type]
    busy = union(*(rows[c].to_numpy() for c in ("start_ns", "end_ns", "kind"))).totals_ns(count)
    table = rows.group_by("kind", *keys).agg(calls=pl.col("op_id").n_unique().cast(pl.Int64)).sort("kind")
    outputs = convolution_outputs(table.filter(pl.col("op") == CONVOLUTION_BACKWARD)["shapes"].drop_nulls().to_list())
    flops = [
        None if op is None or shapes is None else flop(op, shapes, outputs=outputs)
        for op, shapes in table.select("op", "shapes").iter_rows()
    ]
    peaks = {
        dtype: peak_tflop_s(device, dtype, multiprocessors=multiprocessors) if device and dtype else None
        for dtype in table["dtype"].unique().to_list()
    }
    table = table.with_columns(
        flop=_times(pl.Series([None if flop is None or flop >= MOST_FLOP else flop for flop in flops], dtype=pl.Int64)),
        ns=pl.Series(busy).gather(table["kind"]),
        peak=pl.col("dtype").replace_strict(peaks, default=None, return_dtype=pl.Float64),
    )
    table = table.with_columns(at_peak_ns=pl.col("flop") / (pl.col("peak") * 1e3))
    impossible = pl.col("at_peak_ns") > pl.col("ns")  # faster than the peak: the type is not what it seems
    table = table.with_columns(at_peak_ns=pl.when(~impossible).then("at_peak_ns"))
    schema = pl.Schema({**PRODUCTS, key: table.schema[key]}) if key else PRODUCTS
    return conform(table.sort(["ns", "kind"], descending=[True, False]), schema)


def _one_label_per_call(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows; all kernels of a call get the label of its longest, so that helpers do not count as calls.

    The backward of a convolution computes two gradients in one call: each keeps its label.
    """
    ns = pl.col("end_ns") - pl.col("start_ns")
    shared = pl.col("op_id").is_not_null() & (pl.col("op") != CONVOLUTION_BACKWARD)
    several = shared & pl.col("op_id").is_duplicated()
    main = [pl.col(c).sort_by(ns).last().over("op_id") for c in ("label", "module", "dtype")]
    calls = rows.filter(several).with_columns(main)
    return pl.concat([calls, rows.filter(~several.fill_null(False))])


def _typed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with ``dtype``: of the operator's recorded inputs, else from the kernel's name."""
    types = {text: _recorded_type(text) for text in rows["dtypes"].unique().drop_nulls().to_list()}
    named = {name: _named_type(name) for name in rows["name"].unique().to_list()}
    recorded = pl.col("dtypes").replace_strict(types, default=None, return_dtype=pl.String)
    by_name = pl.col("name").replace_strict(named, default=None, return_dtype=pl.String)
    # Products of 32-bit inputs may run on tensor cores in TF32: only the kernel's name tells.
    dtype = pl.when((recorded == "fp32") & (by_name == "tf32")).then(by_name).otherwise(pl.coalesce(recorded, by_name))
    return rows.with_columns(dtype=dtype)


MOST_FLOP = 1 << 62
"""No call, and no run, does as much work: shapes that imply it are damaged."""


def _times(per_call: pl.Series) -> pl.Expr:
    """Return the FLOP of all calls; null where they do not fit in 64 bits."""
    whole = pl.lit(per_call) * pl.col("calls")
    return pl.when(pl.lit(per_call).cast(pl.Float64) * pl.col("calls") < MOST_FLOP).then(whole)


def _recorded_type(text: str) -> str | None:
    known = [TYPES[t] for t in parsed(text) if isinstance(t, str) and t in TYPES]
    # A bias or scale may be wider than the operands of the product itself.
    order = ("fp8", "int8", "bf16", "fp16", "fp32", "fp64")
    return min(known, key=order.index) if known else None


def _named_type(name: str | None) -> str | None:
    return next((dtype for dtype, pattern in NAMED_TYPES if name and re.search(pattern, name)), None)
