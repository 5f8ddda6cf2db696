"""Remedies of weights that are cast to 16 bits again although they have not changed.

Autocast casts the weights of every product. A cast is of a weight if a product of the forward
multiplies by a matrix of its sizes. It is needed once for each update of the weight: its gradient is
cast back, and is not added to one that is there already. All other casts are of values that were cast
before: in a further micro-batch, of weights that are not trained, and in a program that trains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit._util.shapes import is_shape, parse_list
from tracekit.metrics.alternatives.remedy import without_events
from tracekit.metrics.rank_work import RankWork

CAST_ONCE = "cast once"
FIXED = "fixed_weights"
TRAINED = "trained_weights"
WIDE_TYPES = ("float", "Float")
NARROW_TYPES = ("c10::BFloat16", "c10::Half", "BFloat16", "Half")
MIN_NEEDLESS_SHARE = 0.5
"""Share of the casts of weights of one size that nothing needs, from which they are: two micro-batches have as
many, and a step whose backward was not recorded has fewer."""
_COLUMNS_OF_CASTS = (
    "row",
    "part",
    "label",
    "node",
    "is_backward",
    "kind",
    "op",
    "shapes",
    "dtypes",
)
"""Columns of a rank's events that are read: a frame of all is slow to filter."""
_WRITTEN = pl.Schema({"row": pl.Int32, "part": pl.Int64, "size": pl.String})


def cast_remedies(rank: RankWork) -> Iterator[pl.DataFrame]:
    """Yield the remedies ``cast once``; *what* is ``FIXED`` or ``TRAINED``."""
    events = rank.events.select(_COLUMNS_OF_CASTS).drop_nulls(["op", "shapes"])
    copies = events.filter(pl.col("op") == "aten::copy_")
    if copies.is_empty():
        return
    in_forward = copies.filter((pl.col("label") == "forward") & ~pl.col("is_backward"))
    all_casts = _tensors(in_forward, to=NARROW_TYPES, of=WIDE_TYPES)
    if all_casts.is_empty():
        return
    casts = all_casts.filter(pl.col("size").is_in(_sizes_of_weights(events)))
    if casts.is_empty():
        return
    cast_back = _tensors(copies.filter("is_backward"), to=WIDE_TYPES, of=NARROW_TYPES)
    accumulates = (pl.col("node") == "AccumulateGrad") & pl.col("op").str.contains("^aten::add_?$")
    added_up = _tensors(events.filter(accumulates))
    counts = _count(casts, "casts")
    for tensors, name in ((cast_back, "cast_back"), (added_up, "added_up")):
        counts = counts.join(_count(tensors, name), on="size", how="left")
    counts = counts.fill_null(0)
    trains = rank.events.select(pl.col("is_backward").any()).item()
    if not trains:  # a model in 16 bits casts no activations either
        yield without_events(all_casts, CAST_ONCE, what=FIXED)
        return
    if not counts["cast_back"].sum():  # gradients are cast elsewhere
        return
    updates = pl.col("cast_back") - pl.col("added_up")
    # Where gradients are kept and zeroed, all of them are added to one.
    counts = counts.with_columns(needed=pl.when(updates > 0).then(updates).otherwise("cast_back"))
    needless = pl.col("casts") - pl.col("needed") >= MIN_NEEDLESS_SHARE * pl.col("casts")
    parts = casts["part"].n_unique()
    casts_so_far = pl.col("row").rank("ordinal").over("part", "size")
    again = casts.join(counts.filter(needless), on="size", how="inner").filter(
        casts_so_far * parts > pl.col("needed")
    )
    is_trained = pl.col("cast_back") > 0
    yield without_events(again.filter(is_trained), CAST_ONCE, what=TRAINED)
    yield without_events(again.filter(~is_trained), CAST_ONCE, what=FIXED)


def _tensors(
    events: pl.DataFrame, *, to: tuple[str, ...] = (), of: tuple[str, ...] = ()
) -> pl.DataFrame:
    """Return row, part and size of what events write; with *to* and *of* only casts to such types of such types."""
    sizes = {}
    for shapes, dtypes in events.select("shapes", "dtypes").unique().iter_rows():
        tensors = parse_list(shapes)
        types = parse_list(dtypes or "")
        is_cast = len(types) > 1 and types[0] in to and types[1] in of
        if tensors and is_shape(tensors[0]) and (is_cast or not to):
            sizes[shapes, dtypes] = str(tensors[0])
    pairs = pl.DataFrame(
        [(shapes, dtypes, size) for (shapes, dtypes), size in sizes.items()],
        schema={"shapes": pl.String, "dtypes": pl.String, "size": pl.String},
        orient="row",
    )
    written = events.join(pairs, on=["shapes", "dtypes"], how="inner", nulls_equal=True)
    return written.select(_WRITTEN.names()).cast(_WRITTEN)


def _count(tensors: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return how many tensors there are of each size, as *name*."""
    return tensors.group_by("size").agg(pl.len().cast(pl.Int64).alias(name))


def _sizes_of_weights(events: pl.DataFrame) -> list[str]:
    """Return the sizes of weights: what products of the forward multiply by and add, and nothing that they multiply."""
    forward = events.filter(pl.col("kind").is_in(["product", "convolution"])).filter(
        (pl.col("label") == "forward") & ~pl.col("is_backward")
    )
    weights = set()
    inputs = set()
    for kind, shapes in forward.select("kind", "shapes").unique().iter_rows():
        tensors = [shape for shape in parse_list(shapes) if shape and is_shape(shape)]
        matrices = [shape for shape in tensors if len(shape) > 1]
        if len(matrices) < 2:
            continue
        if kind == "convolution":
            multiplied, weight = matrices[:2]
            columns = weight[:1]
            weights.add(str(weight))
        else:
            multiplied, weight = matrices[-2:]
            columns = weight[-1:]
            # A linear layer multiplies by its weight transposed.
            weights |= {str(weight), str(weight[::-1])}
        inputs.add(str(multiplied))
        if columns in tensors:
            weights.add(str(columns))  # a bias
    return sorted(weights - inputs)
