"""Alternatives of tables of embeddings and of lists that grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracekit.metrics.alternatives.entry import NOTHING, Alternative, SitePrice
from tracekit.metrics.alternatives.remedy import without_events
from tracekit.metrics.attainable import Share
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.sites import Inputs, count_elements
from tracekit.metrics.speeds import MIN_KERNEL_NS

ROWS_INPUT = {"aten::embedding_dense_backward": 2, "aten::_embedding_bag_dense_backward": 5}
"""Backwards that make a gradient of the whole table, and the input that is its number of rows."""
MAX_USED_SHARE = 0.1
"""Share of a table's rows that a step may use, for sparse gradients to be faster."""
SPARSE_PASSES = {"adam": Share(75, 60, 45), "sgd": Share(24, 16, 10)}
"""Times that an update with sparse gradients moves the rows that are used: it sorts and sums them, and gathers
and scatters each state. As counted in recordings of SparseAdam, and of SGD without momentum."""
WEIGHT_DECAY_INPUT = {"aten::_fused_adam_": 9, "aten::_fused_adamw_": 9, "aten::_fused_sgd_": 3}
"""Fused optimizers, and their input that is the decay of weights."""
MOMENTUM_INPUT = 4
"""Input of a fused SGD that is its momentum."""
MAKES_POSITIONS = "^aten::(arange|tril|triu|linspace|eye)$"
"""Operators that make something of positions alone."""
MAKES_TABLE = (
    "^aten::(arange|tril|triu|linspace|eye|fill_|zero_|copy_|cat|stack|cos|sin|exp|pow|reciprocal|mul|div|add|sub|rsub"
    "|neg|lt|gt|le|ge|eq|ne|where|masked_fill_?|logical_not|bitwise_not|clone)_?$"
)
"""Operators that make tables and masks of them."""
TABLE_DIMENSIONS = 2
LIST_OF_LARGER = r"^\[\[\[\d+,\d+,"
"""Sizes of a list of tensors of more dimensions."""
MIN_REBUILT = 4
"""Times that equal tables are built in a step, from which layers build them."""
FLOAT_BYTES = 4
MIN_GROWN_FACTOR = 16
"""Elements of a list over those that are put to its end, from which the copy of the list is what costs."""


class _DenseTable(NamedTuple):
    """A table with dense gradients."""

    size: list[int]
    used_rows: int
    """Rows that a step uses, at most."""


class SparseTable(Alternative, frozen=True, kw_only=True):
    """A table of which a step uses few rows has dense gradients: all of it is zeroed and updated."""

    change = "sparse table"
    rests_on = "tables of which few rows are used have sparse gradients and an optimizer for these"
    code = "sparse_table"
    case = ""
    rests_on_rates = True
    title = "tables of embeddings"
    training_only = True
    says = (
        "a table of embeddings has dense gradients though a step uses few of its rows ({what}): zeroing and "
        "updating all of them take {work_ns}"
    )
    advises = (
        "use `sparse=True` with `torch.optim.SparseAdam` or SGD for the table; check how it trains"
    )
    caveat = "SparseAdam updates only rows that were used, without weight decay, and counts steps alike for all rows."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        steps = max(rank.events["part"].n_unique(), 1)
        for table in _dense_tables(rank, steps):
            prices: dict[int, SitePrice] = {}
            updated = False
            for site in rank.sites.filter(
                pl.col("op").str.contains("fill_|zero_|_fused_")
            ).iter_rows(named=True):
                inputs = Inputs.of(site)
                if (site["node"] or "").startswith("Embedding") and inputs.size(0) == table.size:
                    prices[site["site"]] = NOTHING
                elif table.size in inputs.tensors(0):
                    price = _sparse_update(rank, site, inputs, table, steps)
                    if price is None:
                        break
                    prices[site["site"]] = price
                    updated = True
            else:
                if updated:
                    yield self.of_sites(rank, prices)


def _dense_tables(rank: RankWork, steps: int) -> list[_DenseTable]:
    """Return tables of which a step uses few rows."""
    used: dict[tuple[int, int], int] = {}
    # Kernels of a call may have several labels or modules, and so be of several sites.
    inputs_of_call = ("op", "shapes", "strides", "concrete")
    sites = rank.sites.filter(pl.col("op").is_in(list(ROWS_INPUT)))
    events = rank.events.select("site", "call").join(
        sites.select("site", *inputs_of_call), on="site", how="inner", maintain_order="left"
    )
    calls = events.group_by(inputs_of_call, maintain_order=True).agg(
        calls=pl.col("call").n_unique()
    )
    for site in calls.iter_rows(named=True):
        inputs = Inputs.of(site)
        rows = inputs.value(ROWS_INPUT[site["op"]])
        gradient = inputs.size(0)
        if type(rows) is int and rows > 0 and gradient:
            table = (rows, gradient[-1])
            indices = count_elements(inputs.size(1)) * site["calls"] / steps
            used[table] = used.get(table, 0) + round(indices)
    return [
        _DenseTable(list(table), rows)
        for table, rows in used.items()
        if rows <= MAX_USED_SHARE * table[0]
    ]


def _sparse_update(
    rank: RankWork, site: dict[str, Any], inputs: Inputs, table: _DenseTable, steps: int
) -> SitePrice | None:
    """Return the price of an optimizer's call that updates a table; None if sparse gradients cannot stand in."""
    op = site["op"]
    is_sgd = op == "aten::_fused_sgd_"
    if op not in WEIGHT_DECAY_INPUT or inputs.value(WEIGHT_DECAY_INPUT[op]) != 0:
        return None
    if is_sgd and inputs.value(MOMENTUM_INPUT) != 0:
        return None
    updated = inputs.tensors(0)
    elements = sum(map(count_elements, updated))
    others_ns = site["ns"] * (1 - count_elements(table.size) / elements)
    used_bytes = FLOAT_BYTES * table.used_rows * table.size[-1] * steps
    passes = SPARSE_PASSES["sgd" if is_sgd else "adam"]
    durations = [
        rank.speeds.memory_ns(np.array([used_bytes * count], np.float64)) for count in passes
    ]
    if durations[0] is None or durations[1] is None or durations[2] is None:
        return None
    most, likely, least = (float(values[1][0]) for values in durations if values is not None)
    share = table.used_rows / table.size[0]
    return SitePrice(
        low_ns=others_ns + least,
        likely_ns=others_ns + likely,
        high_ns=others_ns + most,
        what=f"at most {share:.0%} of {table.size[0]:,} rows",
    )


class StaticCache(Alternative, frozen=True, kw_only=True):
    """A tensor grows by `cat` in every step: all of it is copied to add little."""

    change = "static cache"
    rests_on = "tensors that grow are written in place, into one of their full size"
    code = "growing_tensor"
    case = ""
    title = "tensors that grow"
    says = (
        "tensors grow by `cat` {kernels_per_step} times a step, which copies all of each to add little: "
        "{work}"
    )
    advises = (
        "write new rows into a tensor of the full size (`cache[:, :, n] = new`; a static cache)"
    )
    caveat = "The full size is allocated from the beginning, and a mask leaves out what is not written yet."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        concatenations = rank.sites.filter((pl.col("op") == "aten::cat") & pl.col("node").is_null())
        grown: dict[tuple[str, str], list[tuple[int, int, dict[str, Any]]]] = {}
        for site in concatenations.iter_rows(named=True):
            tensors = Inputs.of(site).tensors(0)
            growth = _growth(tensors)
            if growth is not None:
                dimension, length, added = growth
                rest = [size for i, size in enumerate(tensors[0]) if i != dimension]
                key = (f"{dimension} {rest}", f"{added}")
                grown.setdefault(key, []).append((length, added, site))
        prices: dict[int, SitePrice] = {}
        for of_size in grown.values():
            lengths = {length for length, _, _ in of_size}
            for length, added, site in of_size:
                if length + added in lengths or length - added in lengths:
                    written_ns = float(MIN_KERNEL_NS * site["calls"])
                    prices[site["site"]] = SitePrice(written_ns, written_ns, 2 * written_ns)
        yield self.of_sites(rank, prices)


def _growth(tensors: list[list[int]]) -> tuple[int, int, int] | None:
    """Return the dimension along which a long tensor gets a short one at its end, its length and what is added.

    >>> _growth([[32, 16, 3000, 64], [32, 16, 1, 64]]), _growth([[8, 64], [8, 64]])
    ((2, 3000, 1), None)
    """
    if len(tensors) != 2 or len(tensors[0]) != len(tensors[1]):
        return None
    pairs = enumerate(zip(*tensors, strict=True))
    differing = [(i, long, short) for i, (long, short) in pairs if long != short]
    if len(differing) != 1 or differing[0][1] < MIN_GROWN_FACTOR * differing[0][2]:
        return None
    return differing[0]


class RebuiltTables(Alternative, frozen=True, kw_only=True):
    """Masks or tables of positions are built again in every layer."""

    change = "tables built once"
    rests_on = "masks and tables of positions are built once in a step"
    code = "rebuilt_tables"
    case = ""
    title = "tables of positions"
    says = "masks or tables of positions are built again in every layer, {kernels_per_step} kernels a step too many"
    advises = "build them once for all layers (a buffer, or an argument of the forward)"
    min_saved_share = 0.02

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        op = pl.col("op").fill_null("")
        columns = ("row", "part", "stream", "start_ns", "op", "dims", "site", "shapes", "node")
        ordered = rank.events.select(*columns).sort("part", "stream", "start_ns")
        if not ordered.select(op.str.contains(MAKES_POSITIONS).any()).item():
            return
        is_flat = (pl.col("dims").list.len() <= TABLE_DIMENSIONS).fill_null(value=True)
        of_lists = pl.col("shapes").str.contains(LIST_OF_LARGER).fill_null(value=False)
        follows = is_flat & ~of_lists & op.str.contains(MAKES_TABLE) & pl.col("node").is_null()
        ordered = ordered.with_columns(follows=follows)
        # A table is a stretch of small kernels in a row on a stream.
        begins = ~pl.col("follows") | (pl.col("follows") != pl.col("follows").shift(1))
        begins = begins | (pl.col("part") != pl.col("part").shift(1))
        stretches = ordered.with_columns(table=begins.fill_null(value=True).cum_sum())
        stretches = stretches.filter("follows")
        tables = stretches.group_by("part", "table", maintain_order=True).agg(
            pl.col("site").cast(pl.String).str.join(" "),
            is_of_positions=op.str.contains(MAKES_POSITIONS).any(),
        )
        repeated = tables.filter(
            pl.col("is_of_positions") & (pl.len().over("part", "site") >= MIN_REBUILT)
        )
        needless = repeated.filter(pl.int_range(pl.len()).over("part", "site") > 0)
        rows = stretches.filter(pl.col("table").is_in(needless["table"].implode()))["row"]
        yield without_events(rank.events.filter(pl.col("row").is_in(rows.implode())), self.change)
