"""Rows of one rank by layer, module, annotation or shape: every busy nanosecond is in exactly one row."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import polars as pl

from tracekit._util.text import did_you_mean
from tracekit.analysis.measure.by.layers import repeated_positions
from tracekit.documents import coding
from tracekit.documents.analysis import ByRow, ByTable
from tracekit.errors import OptionError
from tracekit.metrics.label_intervals import COMPUTE_SET, Lanes, attribute_time
from tracekit.metrics.rates import MAX_UNCOUNTED_SHARE, products
from tracekit.metrics.sites import RankSites
from tracekit.schema import (
    COMMUNICATION_LABELS,
    COPY_LABELS,
    PATH_SEPARATOR,
    RankEvents,
    conform,
)

KINDS = ("layer", "module", "annotation", "shape")
MIN_STACK_TO_RULE_RATIO = 0.5
"""Time inside module calls, over the time whose module is known, from which rows are calls instead
of modules."""
LABELS_OUTSIDE_LAYERS = ("optimizer", "pp_comm")
NOT_PLACED = "not placed"
OUTSIDE = "outside layers"
NO_PRODUCT = "not a product"
NO_SHAPE = "shapes not recorded"
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
_PLACE = ("name", "layer", "stage", "path", "evidence")
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


def rank_rows(
    rank: RankEvents,
    gpu_events: pl.DataFrame,
    kind: str,
    *,
    sites: RankSites,
    lanes: Lanes | None = None,
) -> RankRows:
    """Return the rows of one rank.

    Args:
        rank: Its events and source.
        gpu_events: Its labelled GPU events in the selected steps.
        kind: One of ``KINDS``.
        sites: Sites of these.
        lanes: The lanes of *gpu_events*, if they are computed already.

    """
    row_of_event, note = _FUNCTIONS[kind](rank.events, gpu_events, sites)
    missing = [
        pl.lit(None, ROWS[name]).alias(name) for name in _PLACE if name not in row_of_event.columns
    ]
    row_of_event = row_of_event.with_columns(pl.col("name").fill_null(NOT_PLACED), *missing)
    attributed_ns = pl.Series(
        attribute_time(gpu_events, lanes if lanes is not None else Lanes.of(gpu_events))
    )
    table = row_of_event.with_columns(label=gpu_events["label"].cast(pl.String), ns=attributed_ns)
    keys = [name for name in ROWS if name not in ("count", "ns")]
    summed = table.group_by(keys, maintain_order=True).agg(pl.col("ns").sum(), count=pl.len())
    named = gpu_events.with_columns(row=row_of_event["name"], row_stage=row_of_event["stage"])
    return RankRows(kind, conform(summed, ROWS), _rates(named, rank, sites), note)


def _rates(named: pl.DataFrame, rank: RankEvents, sites: RankSites) -> pl.DataFrame:
    """Return ``RATES``.

    *named* are GPU events with the name (``row``) and stage (``row_stage``) of their row.
    """
    rows = named.with_columns(key=pl.struct("row", "row_stage").rank("dense").cast(pl.Int64))
    device = next(iter(rank.source.devices), None)
    table, _ = products(
        rows, device=device, multiprocessors=rank.source.multiprocessors, key="key", sites=sites
    )
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
"""The row of each GPU event, some of ``_PLACE``, and a note; an event without a name is not
placed."""


def _by_layer(events: pl.DataFrame, gpu_events: pl.DataFrame, sites: RankSites) -> RowsOfEvents:
    placed = gpu_events.select("label", "layer", evidence=pl.col("layer_from").cast(pl.String))
    note = None
    if placed["layer"].null_count() == len(placed):
        repeated = repeated_positions(events, gpu_events)
        if repeated is None:
            why = "nothing names layers, and no forward repeats the same kernels: record them with with_stack=True"
            return gpu_events.select(
                name=pl.repeat(NOT_PLACED, pl.len())
            ), f"{why}, or name them with record_function"
        positions, spare = repeated
        evidence = pl.when(pl.col("layer").is_not_null()).then(pl.lit("repetition"))
        placed = positions.with_columns(gpu_events["label"], evidence=evidence)
        if spare:
            note = f"layers are found by repetition: each may begin up to {spare} kernels later than shown"
    in_layer = pl.col("layer").is_not_null()
    is_outside = (
        pl.col("label").cast(pl.String).is_in(LABELS_OUTSIDE_LAYERS)
        | pl.col("evidence").is_not_null()
    )
    name = (
        pl.when(in_layer)
        .then(pl.format("layer {}", "layer"))
        .when(is_outside)
        .then(pl.lit(OUTSIDE))
    )
    return placed.with_columns(name=name, evidence=pl.when(in_layer).then("evidence")).drop(
        "label"
    ), note


def _by_module(events: pl.DataFrame, gpu_events: pl.DataFrame, sites: RankSites) -> RowsOfEvents:
    columns = {"path": "modules", "module": "module", "evidence": "module_from"}
    texts = gpu_events.select(**{name: _text_or_null(column) for name, column in columns.items()})
    ns = gpu_events["end_ns"] - gpu_events["start_ns"]
    called_ns = int(ns.filter(texts["path"].is_not_null()).sum())
    known_ns = int(ns.filter(texts["module"].is_not_null()).sum())
    if called_ns < max(MIN_STACK_TO_RULE_RATIO * known_ns, 1):
        note = "calls of modules were not recorded (with_stack=True): each row is a kind of module"
        return texts.select("evidence", name="module", path="module"), note
    evidence = pl.when(pl.col("path").is_not_null()).then(pl.lit("module stack"))
    return texts.select("path", name="path", evidence=evidence), None


def _by_annotation(
    events: pl.DataFrame, gpu_events: pl.DataFrame, sites: RankSites
) -> RowsOfEvents:
    annotations = gpu_events["annotations"].cast(pl.String)
    # Paths without the profiler's own ranges around steps; there are few distinct ones.
    path_of_text = {}
    for text in annotations.unique().drop_nulls():
        words = text.split(PATH_SEPARATOR)
        inside_step = [word for word in words if not word.startswith("ProfilerStep#")]
        path_of_text[text] = PATH_SEPARATOR.join(inside_step)
    paths = annotations.replace_strict(path_of_text, default=None, return_dtype=pl.String).to_frame(
        "path"
    )
    rows = paths.select(path=_text_or_null("path"))
    note = None
    if rows["path"].null_count() == len(rows):
        note = (
            "no GPU work was launched inside a range: name parts of the step with record_function"
        )
    evidence = pl.when(pl.col("path").is_not_null()).then(pl.lit("annotation"))
    return rows.with_columns(name="path", evidence=evidence), note


def _by_shape(events: pl.DataFrame, gpu_events: pl.DataFrame, sites: RankSites) -> RowsOfEvents:
    is_product = pl.col("is_product")
    has_shapes = is_product & pl.col("op").is_not_null() & pl.col("shapes").is_not_null()
    product = pl.format(
        "{} {} {}",
        pl.col("op").str.strip_prefix("aten::"),
        pl.col("shapes").str.replace_all(" ", ""),
        pl.col("dtype").fill_null("?"),
    )
    without_shapes = pl.when(is_product).then(pl.lit(NO_SHAPE)).otherwise(pl.lit(NO_PRODUCT))
    rows = sites.sites.select(
        name=pl.when(has_shapes).then(product).otherwise(without_shapes),
        evidence=pl.when(has_shapes).then(pl.lit("recorded shapes")),
    )[sites.of_event]
    has_any = rows["evidence"].is_not_null().any()
    return (
        rows,
        None if has_any else "no product has recorded shapes: record with record_shapes=True",
    )


def _text_or_null(column: str) -> pl.Expr:
    """Return a column of text with null in place of empty text."""
    text = pl.col(column).cast(pl.String)
    return pl.when(text != "").then(text)


_FUNCTIONS: dict[str, Callable[[pl.DataFrame, pl.DataFrame, RankSites], RowsOfEvents]] = {
    "layer": _by_layer,
    "module": _by_module,
    "annotation": _by_annotation,
    "shape": _by_shape,
}
"""The function of each kind; arguments: all events, GPU events, and the sites of these."""


# ---- all ranks: the result of ``analyze(..., by="layer")``


LAST = (OUTSIDE, NO_SHAPE, NO_PRODUCT, NOT_PLACED)
"""Names of rows that are no place, in the order in which they follow all others."""


class By(msgspec.Struct, frozen=True, eq=False):
    """The busy time of all GPUs in rows, each nanosecond in one of them.

    Sums over ranks and steps.
    """

    kind: str
    """``layer``, ``module``, ``annotation`` or ``shape``."""
    rows: pl.DataFrame
    """``name, stage, ranks, layer, path, evidence, count, ns, share, compute_ns, communication_ns,
    copy_ns``, a column ``…_ns`` for every compute label, ``inclusive_ns`` (with all that is inside;
    only for modules and annotations), ``calls, flop, tflop_s, share_of_peak, below_peak_ns``."""
    total_ns: int
    """Busy time of all GPUs: the sum of ``ns``."""
    steps: int
    notes: tuple[str, ...] = ()

    @property
    def placed(self) -> int:
        """Number of rows that are a place."""
        return len(self.rows.filter(~pl.col("name").is_in(LAST)))

    def to_document(self) -> ByTable:
        """Return the ``by`` of the document."""
        placed_rows = coding.rows(self.rows, ByRow) if self.placed else None
        return ByTable(self.kind, self.total_ns, self.steps, placed_rows, list(self.notes))

    @staticmethod
    def is_place(name: str) -> bool:
        """Return whether a row of this name is a place."""
        return name not in LAST


def combined(
    rows_by_rank: Mapping[int, RankRows],
    *,
    stages: Mapping[int, tuple[int, ...]],
    pipeline: bool,
    steps: int,
) -> By:
    """Return the rows of all ranks as one table.

    Args:
        rows_by_rank: The rows of each rank, of one at least.
        stages: Pipeline stages that each rank ran, if a schedule is known.
        pipeline: Whether the run has a pipeline, in which ranks of different stages hold different
            layers, so that their rows must not be added.
        steps: Number of steps.

    """
    kind = next(iter(rows_by_rank.values())).kind
    if not pipeline or kind not in ("layer", "module"):
        stages = {}
        groups = dict.fromkeys(rows_by_rank, 0)
    else:
        groups = _layer_groups(rows_by_rank, stages)
    row_tables = []
    rate_tables = []
    for rank, rank_rows in rows_by_rank.items():
        group = pl.lit(groups[rank])
        row_tables.append(rank_rows.rows.with_columns(group=group, rank=pl.lit(rank)))
        rate_tables.append(rank_rows.rates.with_columns(group=group))
    rows = pl.concat(row_tables)
    rates = pl.concat(rate_tables)
    # Rows that are no place are the same on all ranks.
    group = pl.when(pl.col("name").is_in(LAST)).then(-1).otherwise("group").alias("group")
    table = _with_rates(_sum_rows(rows.with_columns(group)), rates.with_columns(group))
    # Where the trace does not name the stage, the stage of a rank that runs only one.
    single_stage = {}
    for rank in rows_by_rank:
        stages_of_rank = stages.get(rank, ())
        if len(stages_of_rank) == 1:
            single_stage[groups[rank]] = stages_of_rank[0]
    stage_of_group = pl.col("group").replace_strict(
        single_stage, default=None, return_dtype=pl.Int64
    )
    table = table.with_columns(stage=pl.coalesce("stage", stage_of_group))
    total = int(table["ns"].sum())
    share = pl.col("ns") / total if total else pl.lit(None, pl.Float64)
    table = _with_inclusive(_sort_rows(table, kind), kind).with_columns(share=share)
    notes = list(
        dict.fromkeys(rank_rows.note for rank_rows in rows_by_rank.values() if rank_rows.note)
    )
    without_stage = table.filter(pl.col("layer").is_not_null() & pl.col("stage").is_null())
    if len(without_stage) and any(len(stages.get(rank, ())) > 1 for rank in rows_by_rank):
        notes.append("ranks that run several stages show layer n of all of them in one row")
    # Rows of ranks that hold different layers have the same names: reports then show the ranks.
    table = table.with_columns(apart=pl.lit(len(set(groups.values())) > 1))
    return By(kind, table.drop("group"), total, steps, tuple(notes))


def _layer_groups(ranks: Iterable[int], stages: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """Return a number per rank, equal for ranks that hold the same layers: those that run the same stages."""
    distinct = sorted(set(stages.values()))
    number_of_stages = {rank_stages: number for number, rank_stages in enumerate(distinct)}
    # A rank without known stages is a group of its own.
    groups = {}
    for rank in ranks:
        if rank in stages:
            groups[rank] = number_of_stages[stages[rank]]
        else:
            groups[rank] = len(distinct) + rank
    return groups


def _sum_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per place, with its time by compute label and by set of labels."""

    def ns_of(labels: Sequence[str]) -> pl.Expr:
        return pl.col("ns").filter(pl.col("label").is_in(labels)).sum()

    present = set(rows["label"].unique().to_list())
    compute_labels = [label for label in COMPUTE_SET if label in present]
    evidence = pl.col("evidence").drop_nulls().unique().sort().str.join(", ")
    summed = rows.group_by("group", "name", "stage", "layer", "path", maintain_order=True).agg(
        ranks=pl.col("rank").unique().sort(),
        evidence=evidence,
        count=pl.col("count").sum(),
        ns=pl.col("ns").sum(),
        compute_ns=ns_of(COMPUTE_SET),
        communication_ns=ns_of(COMMUNICATION_LABELS),
        copy_ns=ns_of(COPY_LABELS),
        **{f"{label}_ns": ns_of([label]) for label in compute_labels},
    )
    return summed.with_columns(evidence=pl.when(pl.col("evidence") != "").then("evidence"))


def _with_rates(table: pl.DataFrame, rates: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the rates of their products, over the products' own time.

    Null if FLOP are unknown.
    """
    at_peak_ns = pl.when(pl.col("at_peak_ns").is_not_null().all()).then(pl.col("at_peak_ns").sum())
    summed = rates.group_by("group", "name", "stage").agg(
        pl.col("calls", "flop", "product_ns", "uncounted_ns").sum(), at_peak_ns=at_peak_ns
    )
    is_known = (pl.col("product_ns") > 0) & (
        pl.col("uncounted_ns") <= MAX_UNCOUNTED_SHARE * pl.col("product_ns")
    )
    joined = table.join(
        summed, on=("group", "name", "stage"), how="left", nulls_equal=True, maintain_order="left"
    )
    return joined.with_columns(
        calls=pl.when(is_known).then("calls"),
        flop=pl.when(is_known).then("flop"),
        tflop_s=pl.when(is_known).then(pl.col("flop") / pl.col("product_ns") / 1e3),
        share_of_peak=pl.when(is_known).then(pl.col("at_peak_ns") / pl.col("product_ns")),
        below_peak_ns=pl.when(is_known)
        .then((pl.col("product_ns") - pl.col("at_peak_ns")).round())
        .cast(pl.Int64),
    ).drop("product_ns", "uncounted_ns", "at_peak_ns")


def _sort_rows(table: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return layers in the model's order, shapes by the time they lose against the peak, all else by time."""
    positions_of_last = {name: position for position, name in enumerate(LAST)}
    last = pl.col("name").replace_strict(positions_of_last, default=-1, return_dtype=pl.Int64)
    order = {
        "layer": [pl.col("stage"), pl.col("group"), pl.col("layer")],
        "shape": [-pl.col("below_peak_ns"), -pl.col("ns"), pl.col("name")],
    }.get(kind, [-pl.col("ns"), pl.col("name")])
    return table.sort([last, *order], nulls_last=True)


def _with_inclusive(table: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return rows that are paths with ``inclusive_ns``, the time of all paths that begin with theirs."""
    if kind not in ("module", "annotation"):
        return table
    inclusive_ns: dict[tuple[int, str], int] = {}
    for group, path, ns in table.select("group", "path", "ns").iter_rows():
        words = path.split(PATH_SEPARATOR) if path else []
        for depth in range(1, len(words) + 1):
            key = (group, PATH_SEPARATOR.join(words[:depth]))
            inclusive_ns[key] = inclusive_ns.get(key, 0) + ns
    keys = table.select("group", "path").iter_rows()
    column = [inclusive_ns.get((group, path)) if path else None for group, path in keys]
    return table.with_columns(inclusive_ns=pl.Series(column, dtype=pl.Int64))
