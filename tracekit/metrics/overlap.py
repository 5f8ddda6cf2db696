"""Overlap of communication and copies with compute: time by label, and the matrix of which compute hides what."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints, group_rows
from tracekit._util.categories import CategoryColumn, CategoryColumns
from tracekit._util.columns import present, to_int64, with_nulls
from tracekit.documents.analysis import Hiding, LabelSlowdown
from tracekit.documents.coding import rows, table_schema
from tracekit.intervals import Intervals, sum_by_group, union
from tracekit.metrics.label_intervals import (
    COMPUTE_SET,
    EXPOSABLE_LABELS,
    LABEL_SETS,
    Lanes,
    has_label,
)
from tracekit.schema import LABELS

LABEL_TIMES = pl.Schema(
    {
        "part": pl.Int64(),
        "label": pl.String(),  # a label or a label set
        "ns": pl.Int64(),  # union of its events' time
        "count": pl.Int64(),  # events; null for label sets
        "hidden_ns": pl.Int64(),  # part of ns under compute
        "exposed_ns": pl.Int64(),  # the rest
        "bytes": pl.Int64(),  # null where not every event gives its bytes
    }
)
HIDDEN = pl.Schema(
    {
        "part": pl.Int64(),
        "detail": pl.Boolean(),  # split by pass and module
        "label": pl.String(),  # communication or copy
        "pass": pl.String(),
        "by": pl.String(),  # compute label that runs at the same time
        "by_pass": pl.String(),
        "by_module": pl.String(),
        "ns": pl.Int64(),  # time in which both run
        "of_ns": pl.Int64(),  # time of the label (and pass) in this part: the share's denominator
    }
)


def ratio(part: int, whole: int) -> float | None:
    """Return part / whole; None if *whole* is 0.

    >>> ratio(1, 4), ratio(0, 0)
    (0.25, None)
    """
    return part / whole if whole else None


def label_times(labelled: pl.DataFrame, lanes: Lanes, *, part: str | None = None) -> pl.DataFrame:
    """Return time, count, hidden and exposed time of every label and label set (``LABEL_TIMES``).

    Args:
        labelled: GPU events of one rank.
        lanes: Interval sets of the same events.
        part: Column with each event's part; None if all events form one part.

    >>> events = pl.DataFrame(
    ...     {"label": ["forward", "pp_comm"], "start_ns": [0, 4], "end_ns": [6, 8], "bytes": [None, 9]})
    >>> table = label_times(events, Lanes.of(events))
    >>> table.filter(label="pp_comm").select("ns", "hidden_ns", "exposed_ns", "bytes").rows()
    [(4, 2, 2, 9)]

    """
    names = (*LABEL_SETS, *LABELS)
    shape = (lanes.parts, len(names))
    total_ns, hidden_ns = np.zeros((2, *shape), np.int64)
    for column, name in enumerate(names):
        lane = lanes.named(name)
        if not len(lane):
            continue
        total_ns[:, column] = hidden_ns[:, column] = lane.totals_ns(lanes.parts)
        if name not in (*COMPUTE_SET, "compute"):
            covered_ns = lanes.compute.covered_ns(lane.start_ns, lane.end_ns, lane.group)
            hidden_ns[:, column] = sum_by_group(covered_ns, lane.group, lanes.parts)
    # Cell of each event in the flattened [part, name] arrays; label sets come first and have no
    # events of their own.
    cell = lanes.code + len(LABEL_SETS)
    if part is not None:
        cell = cell + to_int64(labelled[part]) * len(names)
    count = np.bincount(cell, minlength=total_ns.size)
    total_bytes = np.zeros(total_ns.size, np.int64)
    has_bytes = np.zeros(total_ns.size, np.bool_)
    if "bytes" in labelled.columns:
        sized = np.flatnonzero(present(labelled["bytes"]))
        np.add.at(total_bytes, cell[sized], to_int64(labelled["bytes"])[sized])
        has_bytes = (np.bincount(cell[sized], minlength=total_ns.size) == count) & (count > 0)
    rows = np.flatnonzero((total_ns.ravel() > 0) | (count > 0))
    return pl.DataFrame(
        {
            "part": rows // len(names),
            "label": pl.Series(names, dtype=pl.String)[rows % len(names)],
            "ns": total_ns.ravel()[rows],
            "count": with_nulls(count[rows], count[rows] > 0),
            "hidden_ns": hidden_ns.ravel()[rows],
            "exposed_ns": (total_ns - hidden_ns).ravel()[rows],
            "bytes": with_nulls(total_bytes[rows], has_bytes[rows]),
        },
        schema=LABEL_TIMES,
    )


def hidden(
    labelled: pl.DataFrame, *, part: str | None = None, texts: CategoryColumns | None = None
) -> pl.DataFrame:
    """Return how long compute runs at the same time as communication and copies (``HIDDEN``).

    Two kernels that hide the same moment both count, so that a row of the matrix may sum to more
    than the label's hidden time. Rows whose ``detail`` is false are the plain label × label matrix.
    Rows with true split both sides by pass, and the hiding side by module; a label and pass beside
    which no compute ran has one such row, with a null ``by``.

    Args:
        labelled: GPU events of one rank.
        part: Column with each event's part; None if all events form one part.
        texts: Text columns of *labelled*, if they were converted already.

    >>> events = pl.DataFrame({"label": ["dgrad", "ep_dispatch"], "start_ns": [0, 4], "end_ns": [6, 8],
    ...                        "pass": ["backward", "forward"], "module": ["mlp", None]})
    >>> hidden(events).select("detail", "label", "pass", "by", "by_module", "ns").rows()
    [(False, 'ep_dispatch', None, 'dgrad', None, 2), (True, 'ep_dispatch', 'forward', 'dgrad', 'mlp', 2)]

    """
    texts = texts or CategoryColumns(labelled)
    label = texts["label"]
    pass_ = texts["pass"]
    module = texts["module"]
    exposable = np.flatnonzero(label.any_of(*EXPOSABLE_LABELS))
    compute = np.flatnonzero(label.any_of(*COMPUTE_SET))
    if not len(exposable) or not len(compute):
        return HIDDEN.to_frame()
    event_part = to_int64(labelled[part]) if part is not None else np.zeros(len(labelled), np.int64)
    tables = []
    for detail, keys, by_keys in (
        (False, [label], [label]),
        (True, [label, pass_], [label, pass_, module]),
    ):
        kinds = _Kinds.of(labelled, exposable, keys, ("label", "pass"), event_part)
        by_kinds = _Kinds.of(labelled, compute, by_keys, ("by", "by_pass", "by_module"), event_part)
        tables.append(_overlap_matrix(kinds, by_kinds, detail=detail))
    label_order = pl.col("label").cast(pl.Enum(LABELS))
    order = ("part", "detail", label_order, "pass", -pl.col("ns"), "by", "by_pass", "by_module")
    return pl.concat(tables).sort(*order, maintain_order=True)


class _Kinds(msgspec.Struct, frozen=True, eq=False):
    """Events by kind: by their values in some columns."""

    names: pl.DataFrame
    """The values of each kind; null in columns that do not tell kinds apart."""
    parts: int
    lanes: Intervals
    """When events of each kind run; the group of part p of kind k is k × parts + p."""

    @classmethod
    def of(
        cls,
        labelled: pl.DataFrame,
        rows: Ints,
        keys: list[CategoryColumn],
        names: tuple[str, ...],
        part: Ints,
    ) -> _Kinds:
        """Return the kinds of *rows* by their values in *keys*, which get these *names*."""
        kind, first = group_rows(*(key.codes[rows] for key in keys))
        columns = []
        for key, name in zip(keys, names, strict=False):
            columns.append(key.take(rows[first]).series(name, pl.String()))
        nulls = [pl.lit(None, pl.String).alias(name) for name in names[len(keys) :]]
        start = labelled["start_ns"].to_numpy()[rows]
        end = labelled["end_ns"].to_numpy()[rows]
        parts = int(part.max()) + 1
        return cls(
            pl.DataFrame(columns).with_columns(nulls),
            parts,
            union(start, end, kind * parts + part[rows]),
        )


def _overlap_matrix(kinds: _Kinds, by_kinds: _Kinds, *, detail: bool) -> pl.DataFrame:
    """Return ``HIDDEN``: the time of *kinds* beside each of *by_kinds*.

    With *detail* also the kinds beside none.
    """
    lanes = kinds.lanes
    parts = kinds.parts
    of_ns = lanes.totals_ns(len(kinds.names) * parts)
    alone = of_ns > 0
    rows = []  # group of the kind and part, number of the other kind, and time of both
    for number in range(len(by_kinds.names)):
        beside = by_kinds.lanes.section(number * parts, (number + 1) * parts)
        covered_ns = beside.covered_ns(lanes.start_ns, lanes.end_ns, lanes.group % parts)
        ns = sum_by_group(covered_ns, lanes.group, len(of_ns))
        groups = np.flatnonzero(ns)
        alone[groups] = False
        rows.append((groups, np.full(len(groups), number), ns[groups]))
    if detail:
        groups = np.flatnonzero(alone)
        rows.append((groups, np.full(len(groups), -1), np.zeros(len(groups), np.int64)))
    group, other, ns = (np.concatenate(column) for column in zip(*rows, strict=True))
    return pl.DataFrame(
        [
            pl.Series("part", group % parts),
            pl.Series("detail", np.full(len(group), detail)),
            *kinds.names[group // parts],
            *by_kinds.names.select(pl.all().gather(with_nulls(other, other >= 0))),
            pl.Series("ns", ns),
            pl.Series("of_ns", of_ns[group]),
        ],
        schema=HIDDEN,
    )


# ---- Cost of overlap: kernels run slower beside communication than alone, since both use memory, links and
# processors.
#
# The time of a kernel beside communication is compared with the median of the same kernel, for the
# same operator and input shapes, alone. Groups whose times alone vary much are left out:
# differences there may have another reason.


MIN_KERNELS_TO_COMPARE = 3
"""Kernels of a group that must run alone, and as many beside communication, for a comparison."""
MIN_OVERLAPPED_SHARE = 0.9
"""Share of a kernel's time under communication from which it counts as beside communication."""
MAX_SPREAD_ALONE = 1.25
"""Largest ratio of the 90th to the 10th percentile of a group's times alone, for a comparison."""
MIN_COMPARED_SHARE = 0.5
"""Share of the kernel time beside communication that must be comparable before a net gain is
given."""

OVERLAP_COSTS = pl.Schema(list(table_schema(LabelSlowdown).items())[:5])
"""The measured columns of ``LabelSlowdown``: those up to ``all_ns``."""


def measure_overlap_costs(
    labelled: pl.DataFrame, lanes: Lanes, *, texts: CategoryColumns | None = None
) -> pl.DataFrame:
    """Return time beside communication and time alone of one rank's kernels, by compute label (``OVERLAP_COSTS``).

    >>> rows = [("k", 0, 10), ("k", 20, 30), ("k", 40, 50), ("k", 100, 112), ("k", 120, 132), ("k", 140, 152)]
    >>> gpu = pl.DataFrame({"name": [r[0] for r in rows] + ["nccl"], "label": ["forward"] * 6 + ["dp_comm"],
    ...     "start_ns": [r[1] for r in rows] + [95], "end_ns": [r[2] for r in rows] + [160]})
    >>> measure_overlap_costs(gpu, Lanes.of(gpu)).rows()
    [('forward', 3, 36, 30, 36)]
    """
    start = labelled["start_ns"].to_numpy()
    end = labelled["end_ns"].to_numpy()
    rows = np.flatnonzero(has_label(lanes.code, COMPUTE_SET) & (end > start))
    if not len(rows) or not len(lanes.communication):
        return OVERLAP_COSTS.to_frame()
    texts = texts or CategoryColumns(labelled)
    keys = [
        name for name in ("label", "name", "op", "shapes", "dtypes") if name in labelled.columns
    ]
    group, first = group_rows(*(texts[key].codes[rows] for key in keys))
    overlapped_ns = lanes.communication.covered_ns(start[rows], end[rows])
    kernels = pl.DataFrame(
        {"group": group, "ns": end[rows] - start[rows], "overlapped_ns": overlapped_ns}
    )
    is_beside = pl.col("overlapped_ns") >= MIN_OVERLAPPED_SHARE * pl.col("ns")
    is_alone = pl.col("overlapped_ns") == 0
    beside = (
        kernels.filter(is_beside)
        .group_by("group")
        .agg(kernels=pl.len().cast(pl.Int64), all_ns=pl.sum("ns"))
    )
    # Percentiles take time: only for groups with enough kernels beside communication.
    often_beside = beside.filter(pl.col("kernels") >= MIN_KERNELS_TO_COMPARE)
    alone = (
        kernels.filter(is_alone)
        .join(often_beside, on="group", how="semi")
        .group_by("group")
        .agg(pl.len(), *(pl.col("ns").quantile(q / 100).alias(f"q{q}") for q in (10, 50, 90)))
        .filter(
            (pl.col("len") >= MIN_KERNELS_TO_COMPARE)
            & (pl.col("q90") <= MAX_SPREAD_ALONE * pl.col("q10"))
        )
    )
    groups = pl.DataFrame(
        {"label": pl.Series(texts["label"].take(rows[first]).strings(), dtype=pl.String)}
    )
    is_compared = pl.col("q50").is_not_null()
    return (
        groups.with_columns(group=pl.int_range(pl.len()))
        .join(beside, on="group", how="left", maintain_order="left")
        .join(alone, on="group", how="left", maintain_order="left")
        .group_by("label", maintain_order=True)
        .agg(
            kernels=pl.col("kernels").filter(is_compared).sum(),
            beside_ns=pl.col("all_ns").filter(is_compared).sum(),
            alone_ns=(pl.col("q50") * pl.col("kernels")).round().sum().cast(pl.Int64),
            all_ns=pl.sum("all_ns"),
        )
        .filter(pl.col("all_ns") > 0)
    )


def combine_overlap_costs(costs: Iterable[pl.DataFrame], saved_ns: int) -> Hiding | None:
    """Sum the costs of all ranks; None if no compute ran beside communication.

    Kernels that were not compared are assumed to have slowed down like the others. If too little
    was compared, the net gain is unknown.
    """
    total = (
        pl.concat([OVERLAP_COSTS.to_frame(), *costs])
        .group_by("label", maintain_order=True)
        .agg(pl.all().sum())
    )
    if total.is_empty():
        return None
    extra = pl.col("beside_ns") - pl.col("alone_ns")
    by_label = total.with_columns(slowdown=pl.col("beside_ns") / pl.col("alone_ns"), extra_ns=extra)
    by_label = by_label.filter(pl.col("beside_ns") > 0).sort("extra_ns", descending=True)
    all_ns = int(total["all_ns"].sum())
    compared = int(total["beside_ns"].sum()) / all_ns if all_ns else None
    extra_ns = int(by_label["extra_ns"].sum()) if compared else None
    net_ns = None
    if extra_ns is not None and compared is not None and compared >= MIN_COMPARED_SHARE:
        net_ns = saved_ns - round(extra_ns / compared)
    return Hiding(saved_ns, extra_ns, net_ns, compared, rows(by_label, LabelSlowdown))
