"""Rows of one rank by layer, module, annotation or shape: every busy nanosecond is in exactly one row."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import to_int64
from tracekit._util.text import did_you_mean
from tracekit.analysis.by.places import repeated_positions
from tracekit.errors import OptionError
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.rates import describe_products, products
from tracekit.metrics.time_attribution import attribute_time
from tracekit.schema import PATH_SEPARATOR, RankEvents, conform

Ints = npt.NDArray[np.int64]
Strings = npt.NDArray[np.str_]

KINDS = ("layer", "module", "annotation", "shape")
MIN_STACK_TO_RULE_RATIO = 0.5
"""Time inside module calls, over the time whose module is known, from which rows are calls instead of modules."""
LABELS_OUTSIDE_LAYERS = ("optimizer", "pp_comm")
NOT_PLACED, OUTSIDE, NO_PRODUCT, NO_SHAPE = "not placed", "outside layers", "not a product", "shapes not recorded"
"""Names of rows for work that has no place."""

ROWS = pl.Schema(
    {
        "name": pl.String(),
        "layer": pl.Int64(),
        "stage": pl.Int64(),  # null if the trace does not name it
        "path": pl.String(),  # modules or annotations, outermost first, joined by ``PATH_SEPARATOR``
        "evidence": pl.String(),  # null if there is none
        "label": pl.String(),
        "count": pl.Int64(),  # GPU events
        "ns": pl.Int64(),  # time that is attributed to them: see metrics.charge
    }
)
RATES = pl.Schema(
    {
        "name": pl.String(),
        "stage": pl.Int64(),
        "calls": pl.Int64(),
        "flop": pl.Int64(),
        "product_ns": pl.Int64(),  # union of the products' time
        "at_peak_ns": pl.Float64(),
        "uncounted_ns": pl.Int64(),  # time of products whose FLOP are not known
    }
)


class RankRows(msgspec.Struct, frozen=True, eq=False):
    """The rows of one rank: time by row and label (``ROWS``), products by row (``RATES``)."""

    kind: str
    rows: pl.DataFrame
    rates: pl.DataFrame
    note: str | None = None
    """A remark on missing records or on uncertainty."""


def check_kind(kind: str | None) -> None:
    """Raise if *kind* is not one of ``KINDS``.

    >>> check_kind("layers")
    Traceback (most recent call last):
    tracekit.errors.OptionError: cannot show the step by 'layers' (did you mean layer?)
    """
    if kind is not None and kind not in KINDS:
        hint = did_you_mean(kind, KINDS, otherwise=f"use {', '.join(KINDS[:-1])} or {KINDS[-1]}")
        raise OptionError(f"cannot show the step by {kind!r}", hint=hint)


def rank_rows(rank: RankEvents, gpu_events: pl.DataFrame, kind: str, *, lanes: Lanes | None = None) -> RankRows:
    """Return the rows of one rank.

    Args:
        rank: Its events and source.
        gpu_events: Its labelled GPU events in the selected steps.
        kind: One of ``KINDS``.
        lanes: The lanes of *gpu_events*, if they are computed already.

    """
    row_of_event, note = _FUNCTIONS[kind](rank.events, gpu_events)
    attributed_ns = pl.Series(attribute_time(gpu_events, lanes if lanes is not None else Lanes.of(gpu_events)))
    table = row_of_event.with_columns(label=gpu_events["label"].cast(pl.String), ns=attributed_ns)
    keys = [name for name in ROWS if name not in ("count", "ns")]
    summed = table.group_by(keys, maintain_order=True).agg(pl.col("ns").sum(), count=pl.len())
    named = gpu_events.with_columns(row=row_of_event["name"], row_stage=row_of_event["stage"])
    return RankRows(kind, conform(summed, ROWS), _rates(named, rank), note)


def _rates(named: pl.DataFrame, rank: RankEvents) -> pl.DataFrame:
    """Return ``RATES``; *named* are GPU events with the name (``row``) and stage (``row_stage``) of their row."""
    rows = named.with_columns(key=pl.struct("row", "row_stage").rank("dense").cast(pl.Int64))
    device = next(iter(rank.source.devices), None)
    table, _ = products(rows, device=device, multiprocessors=rank.source.multiprocessors, key="key")
    if table.is_empty():
        return RATES.to_frame()
    is_counted = pl.col("flop").is_not_null()
    at_peak_ns = pl.col("at_peak_ns").filter(is_counted)
    summed = table.group_by("key").agg(
        pl.col("calls").sum(),
        pl.col("flop").sum(),
        product_ns=pl.col("ns").filter(is_counted).sum(),
        at_peak_ns=pl.when(at_peak_ns.is_not_null().all()).then(at_peak_ns.sum()),
        uncounted_ns=pl.col("ns").filter(~is_counted).sum(),
    )
    names = rows.select("key", name="row", stage="row_stage").unique("key")
    return conform(summed.join(names, on="key").sort("key"), RATES)


RowsOfEvents = tuple[pl.DataFrame, str | None]
"""The row of each GPU event (``name, layer, stage, path, evidence``), and a note."""


def _by_layer(events: pl.DataFrame, gpu_events: pl.DataFrame) -> RowsOfEvents:
    layer, stage = to_int64(gpu_events["layer"]), None
    evidence = gpu_events["layer_from"].cast(pl.String).fill_null("").to_numpy()
    note = None
    if not (layer >= 0).any():
        repeated = repeated_positions(events, gpu_events)
        if repeated is None:
            why = "nothing names layers, and no forward repeats the same kernels: record them with with_stack=True"
            return _rows_of_events(gpu_events), f"{why}, or name them with record_function"
        layer, stage = repeated.layer, repeated.stage
        evidence = np.where(layer >= 0, "repetition", "")
        if repeated.spare:
            note = f"layers are found by repetition: each may begin up to {repeated.spare} kernels later than shown"
    in_layer = layer >= 0
    never_in_layer = gpu_events["label"].cast(pl.String).is_in(LABELS_OUTSIDE_LAYERS).to_numpy()
    other_name = np.where(never_in_layer | (evidence != ""), OUTSIDE, NOT_PLACED)
    name = np.where(in_layer, np.char.add("layer ", layer.astype(str)), other_name)
    evidence = np.where(in_layer, evidence, "")
    return _rows_of_events(gpu_events, name=name, layer=layer, stage=stage, evidence=evidence), note


def _by_module(events: pl.DataFrame, gpu_events: pl.DataFrame) -> RowsOfEvents:
    path, module, source = (
        gpu_events[name].cast(pl.String).fill_null("").to_numpy() for name in ("modules", "module", "module_from")
    )
    ns = (gpu_events["end_ns"] - gpu_events["start_ns"]).to_numpy()
    note = None
    if ns[path != ""].sum() < max(MIN_STACK_TO_RULE_RATIO * ns[module != ""].sum(), 1):
        path = module
        note = "calls of modules were not recorded (with_stack=True): each row is a kind of module"
    else:
        source = np.where(path != "", "module stack", "")
    return _rows_of_events(gpu_events, name=np.where(path != "", path, NOT_PLACED), path=path, evidence=source), note


def _by_annotation(events: pl.DataFrame, gpu_events: pl.DataFrame) -> RowsOfEvents:
    annotations = gpu_events["annotations"].cast(pl.String)
    # Paths without the profiler's own ranges around steps; there are few distinct ones.
    path_of_text = {
        text: PATH_SEPARATOR.join(word for word in text.split(PATH_SEPARATOR) if not word.startswith("ProfilerStep#"))
        for text in annotations.unique().drop_nulls()
    }
    path = annotations.replace_strict(path_of_text, default="", return_dtype=pl.String).fill_null("").to_numpy()
    has_path = path != ""
    if not has_path.any():
        note = "no GPU work was launched inside a range: name parts of the step with record_function"
        return _rows_of_events(gpu_events), note
    name = np.where(has_path, path, NOT_PLACED)
    return _rows_of_events(gpu_events, name=name, path=path, evidence=np.where(has_path, "annotation", "")), None


def _by_shape(events: pl.DataFrame, gpu_events: pl.DataFrame) -> RowsOfEvents:
    kinds = describe_products(gpu_events)
    has_shapes = kinds["op"].is_not_null() & kinds["shapes"].is_not_null()
    product = pl.format(
        "{} {} {}",
        pl.col("op").str.strip_prefix("aten::"),
        pl.col("shapes").str.replace_all(" ", ""),
        pl.col("dtype").fill_null("?"),
    )
    without_shapes = pl.when(pl.col("product")).then(pl.lit(NO_SHAPE)).otherwise(pl.lit(NO_PRODUCT))
    name = kinds.select(pl.when(pl.lit(has_shapes)).then(product).otherwise(without_shapes)).to_series()
    note = None if has_shapes.any() else "no product has recorded shapes: record with record_shapes=True"
    evidence = np.where(has_shapes.to_numpy(), "recorded shapes", "")
    return _rows_of_events(gpu_events, name=name.to_numpy(), evidence=evidence), note


def _rows_of_events(
    gpu_events: pl.DataFrame,
    *,
    name: npt.NDArray[np.generic] | None = None,
    layer: Ints | None = None,
    stage: Ints | None = None,
    path: npt.NDArray[np.generic] | None = None,
    evidence: npt.NDArray[np.generic] | None = None,
) -> pl.DataFrame:
    """Return the row of each event as a table; numbers below zero and empty texts become null.

    Without a name, all events are in the row ``NOT_PLACED``; other columns that are not given are null.
    """
    count = len(gpu_events)

    def numbers(values: Ints | None) -> pl.Expr:
        series = pl.Series(np.full(count, -1, np.int64) if values is None else values, dtype=pl.Int64)
        return pl.when(series >= 0).then(series)

    def texts(values: npt.NDArray[np.generic] | None) -> pl.Expr:
        series = pl.Series([""] * count if values is None else values.tolist(), dtype=pl.String)
        return pl.when(series != "").then(series)

    names = pl.Series([NOT_PLACED] * count if name is None else name.tolist(), dtype=pl.String)
    return pl.select(name=names, layer=numbers(layer), stage=numbers(stage), path=texts(path), evidence=texts(evidence))


_FUNCTIONS: dict[str, Callable[[pl.DataFrame, pl.DataFrame], RowsOfEvents]] = {
    "layer": _by_layer,
    "module": _by_module,
    "annotation": _by_annotation,
    "shape": _by_shape,
}
"""The function of each kind; arguments: all events, GPU events."""
