"""One rank's half of ``--by``: its events in rows, every busy nanosecond in one of them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.text import did_you_mean
from tracekit.analysis.by.frames import module_frames
from tracekit.analysis.by.places import NOWHERE, REPETITION, Places, module_places, places
from tracekit.errors import OptionError
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.rates import describe_products, products
from tracekit.metrics.time_attribution import attribute_time
from tracekit.schema import PATH_SEPARATOR, RankEvents, conform

Ints = npt.NDArray[np.int64]

KINDS = ("layer", "module", "annotation", "shape")
STACKED = 0.5
"""Of the time whose kind of module rules know, what recorded calls of modules must place to be preferred."""
APART = ("optimizer", "pp_comm")
"""Labels of what no layer runs."""
NOT_PLACED, OUTSIDE, NO_PRODUCT, NO_SHAPE = "not placed", "outside layers", "not a product", "shapes not recorded"

ROWS = pl.Schema(
    {
        "name": pl.String(),
        "layer": pl.Int64(),
        "stage": pl.Int64(),  # where the trace names it
        "path": pl.String(),  # of modules or annotations, outermost first, joined by ``PATH_SEPARATOR``
        "evidence": pl.String(),  # what says so; null where nothing does
        "label": pl.String(),
        "count": pl.Int64(),  # GPU events
        "ns": pl.Int64(),  # what they pay for: see metrics.charge
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
        "uncounted_ns": pl.Int64(),  # of products whose FLOP are not known
    }
)


class RankRows(msgspec.Struct, frozen=True, eq=False):
    """What leaves a rank: time by row and label, products by row."""

    kind: str
    rows: pl.DataFrame
    rates: pl.DataFrame
    note: str | None = None
    """What is missing, or how sure it is."""


def check_kind(kind: str | None) -> None:
    """Refuse words that ``--by`` does not know.

    >>> check_kind("layers")
    Traceback (most recent call last):
    tracekit.errors.OptionError: cannot show the step by 'layers' (did you mean layer?)
    """
    if kind is not None and kind not in KINDS:
        hint = did_you_mean(kind, KINDS, otherwise=f"use {', '.join(KINDS[:-1])} or {KINDS[-1]}")
        raise OptionError(f"cannot show the step by {kind!r}", hint=hint)


def rank_rows(
    rank: RankEvents, kept: pl.DataFrame, kind: str, *, modules: pl.DataFrame | None = None, lanes: Lanes | None = None
) -> RankRows:
    """Return one rank's rows; *kept* are its labelled events, *modules* its calls of modules, if not in its events."""
    calls = module_frames(rank.events) if modules is None else modules
    names, note = _NAMES[kind](rank.events, kept, calls)
    named = kept.with_columns(row=names["name"], row_stage=names["stage"])
    paid = pl.Series(attribute_time(kept, lanes if lanes is not None else Lanes.of(kept)))
    table = names.with_columns(label=kept["label"].cast(pl.String), ns=paid)
    keys = [name for name in ROWS if name not in ("count", "ns")]
    summed = table.group_by(keys, maintain_order=True).agg(pl.col("ns").sum(), count=pl.len())
    return RankRows(kind, conform(summed, ROWS), _rates(named, rank), note)


def _rates(named: pl.DataFrame, rank: RankEvents) -> pl.DataFrame:
    device = next(iter(rank.source.devices), None)
    key = pl.struct("row", "row_stage")
    rows = named.with_columns(key=key.rank("dense").cast(pl.Int64))
    table, _ = products(rows, device=device, multiprocessors=rank.source.multiprocessors, key="key")
    if table.is_empty():
        return RATES.to_frame()
    counted = pl.col("flop").is_not_null()
    summed = table.group_by("key").agg(
        pl.col("calls").sum(),
        pl.col("flop").sum(),
        product_ns=pl.col("ns").filter(counted).sum(),
        at_peak_ns=pl.when(pl.col("at_peak_ns").filter(counted).is_not_null().all()).then(
            pl.col("at_peak_ns").filter(counted).sum()
        ),
        uncounted_ns=pl.col("ns").filter(~counted).sum(),
    )
    names = rows.select("key", name="row", stage="row_stage").unique("key")
    return conform(summed.join(names, on="key").sort("key"), RATES)


Named = tuple[pl.DataFrame, str | None]


def _by_layer(events: pl.DataFrame, kept: pl.DataFrame, modules: pl.DataFrame) -> Named:
    found = places(events, kept, modules)
    layer = np.full(len(kept), -1, np.int64) if found is None else _of_frame(found.layer, found.row)
    if found is None or not (layer >= 0).any():
        why = "nothing names layers, and no forward repeats the same kernels: record them with with_stack=True"
        return _names(kept), f"{why}, or name them with record_function"
    stage = _of_frame(found.stage, found.row)
    # Where layers have names, what was launched outside of all of them is known to be outside.
    apart = kept["label"].cast(pl.String).is_in(APART).to_numpy()
    outside = (layer < 0) & (apart | ((found.row != NOWHERE) & (found.evidence != REPETITION)))
    name = np.where(layer >= 0, np.char.add("layer ", layer.astype(str)), np.where(outside, OUTSIDE, NOT_PLACED))
    table = _names(kept, name=name, layer=layer, stage=stage, evidence=np.where(layer >= 0, found.evidence, ""))
    return table, _layer_note(found)


def _layer_note(found: Places) -> str | None:
    if not found.spare:
        return None
    return f"layers are found by repetition: each may begin up to {found.spare} kernels later than shown"


def _by_module(events: pl.DataFrame, kept: pl.DataFrame, modules: pl.DataFrame) -> Named:
    found = module_places(events, kept, modules)
    known = kept["module"].cast(pl.String).fill_null("").to_numpy()
    ruled = known != ""
    ns = (kept["end_ns"] - kept["start_ns"]).to_numpy()
    if found is None or ns[found.row >= 0].sum() < STACKED * ns[ruled].sum():
        name, evidence = np.where(ruled, known, NOT_PLACED), np.where(ruled, "rule", "")
        table = _names(kept, name=name, path=known, evidence=evidence)
        return table, "calls of modules were not recorded (with_stack=True): the kind of module is what the rules say"
    path = np.append(_spelled(found), "")[found.row]
    name = np.where(found.row >= 0, path, NOT_PLACED)
    return _names(kept, name=name, path=path, evidence=np.where(found.row >= 0, found.evidence, "")), None


def _spelled(found: Places) -> npt.NDArray[np.str_]:
    """Return the path of every frame; each distinct one is spelled once."""
    _, first, place = np.unique(found.frames.paths, return_index=True, return_inverse=True)
    return np.array([found.frames.path(int(row)) for row in first], dtype=np.str_)[place]


def _by_annotation(events: pl.DataFrame, kept: pl.DataFrame, modules: pl.DataFrame) -> Named:
    path = kept["annotations"].cast(pl.String)
    distinct = path.unique().drop_nulls()
    own = {
        text: [word for word in text.split(PATH_SEPARATOR) if not word.startswith("ProfilerStep#")] for text in distinct
    }
    plain = {text: PATH_SEPARATOR.join(words) for text, words in own.items()}
    path = path.replace_strict(plain, default="", return_dtype=pl.String).fill_null("")
    if not (path != "").any():
        return _names(kept), "no GPU work was launched inside a range: name parts of the step with record_function"
    there = (path != "").to_numpy()
    name = np.where(there, path.to_numpy(), NOT_PLACED)
    return _names(kept, name=name, path=path.to_numpy(), evidence=np.where(there, "annotation", "")), None


def _by_shape(events: pl.DataFrame, kept: pl.DataFrame, modules: pl.DataFrame) -> Named:
    kinds = describe_products(kept)
    known = kinds["op"].is_not_null() & kinds["shapes"].is_not_null()
    text = pl.format(
        "{} {} {}",
        pl.col("op").str.strip_prefix("aten::"),
        pl.col("shapes").str.replace_all(" ", ""),
        pl.col("dtype").fill_null("?"),
    )
    spelled = kinds.select(
        pl.when(pl.lit(known)).then(text).when(pl.col("product")).then(pl.lit(NO_SHAPE)).otherwise(pl.lit(NO_PRODUCT))
    ).to_series()
    note = None if known.any() else "no product has recorded shapes: record with record_shapes=True"
    evidence = np.where(known.to_numpy(), "recorded shapes", "")
    return _names(kept, name=spelled.to_numpy(), evidence=evidence), note


def _names(kept: pl.DataFrame, **columns: Any) -> pl.DataFrame:
    """Return a row per event with what is known of its place; numbers below zero and empty text are unknown."""
    n = len(kept)
    table = pl.DataFrame({"name": pl.Series(columns.get("name", np.full(n, NOT_PLACED)) if n else [], dtype=pl.String)})
    for number in ("layer", "stage"):
        values = pl.Series(number, columns.get(number, np.full(n, -1, np.int64)), dtype=pl.Int64)
        table = table.with_columns(pl.select(pl.when(values >= 0).then(values)).to_series().alias(number))
    for word in ("path", "evidence"):
        values = pl.Series(word, columns.get(word, np.full(n, "")) if n else [], dtype=pl.String)
        table = table.with_columns(pl.select(pl.when(values != "").then(values)).to_series().alias(word))
    return table


def _of_frame(values: Ints, row: Ints) -> Ints:
    return np.where(row >= 0, np.append(values, -1)[row], -1)


_NAMES = {"layer": _by_layer, "module": _by_module, "annotation": _by_annotation, "shape": _by_shape}
