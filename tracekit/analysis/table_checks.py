"""Checks of a rank's measured tables when a store is read: whoever writes a store can also write checksums that fit.

Tables of a store are used only if they could be tables that tracekit wrote: columns and types are
those of ``table_columns.toml`` and of the side rooms' measures; times and sums fit into 64 bits; numbers of parts and
rows point into the tables that they count; a label of one table is in the others that must have it.
The loops behind them index arrays by these numbers without checking again.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.analysis.measure.room_measures import RoomMeasure
from tracekit.analysis.measure.tables import Measures, RankTables
from tracekit.graph.packed_events import EVENTS_WITH_REMEDIES
from tracekit.graph.rank_events import BEFORE, HOST_WORK
from tracekit.graph.remedies import REMEDY_CHANGES
from tracekit.intervals import Intervals
from tracekit.metrics.label_intervals import COMPUTE_SET, EXPOSABLE_LABELS
from tracekit.schema import CELLS, LABELS, LATEST_NS, PASSES, PHASES
from tracekit.store.checks import (
    is_number_of_an_event,
    is_time_of_a_clock,
    is_total_too_large,
)

TIME_COLUMNS = frozenset(
    (
        *("start_ns", "end_ns", "launch_ns", "last_ns", "at_ns", "order_ns"),
        *("host_start_ns", "host_end_ns", "interval_start_ns", "interval_end_ns"),
    )
)
"""Columns that hold times of a clock; other columns in nanoseconds hold durations."""
COUNT_COLUMNS = frozenset(
    (
        *("bytes", "received", "count", "calls", "flop", "events", "kernels", "tokens"),
        *("alone", "beside"),  # cells without and with a message beside them
    )
)
"""Columns without a unit in their name that are added up."""
REQUIRED_COLUMNS = frozenset(
    (
        *("rank", "part", "start_ns", "end_ns", "at_ns", "ns", "span_ns", "busy_ns", "compute_ns"),
        *("before", "cause", "code", "first", "last", "instead", "kind", "send", "detail"),
        *("interval_start_ns", "interval_end_ns"),
    )
)
"""Columns that every row has, in the tables that have them."""
LABEL_SET_NAMES = ("compute", "communication", "copy")
"""Sets of labels that tables list beside the labels."""
KNOWN_WORDS = {
    "label": frozenset((*LABELS, *LABEL_SET_NAMES, None)),
    "pass": frozenset((*PASSES, None)),
    "phases.phase": frozenset((*PHASES, "rest")),
    "pipeline.chunks.op": frozenset(CELLS["op"].categories),  # type: ignore[attr-defined]
    "pipeline.contention.op": frozenset(CELLS["op"].categories),  # type: ignore[attr-defined]
}
"""Words that columns of texts may hold, by the column, or by the table and the column."""


class StoredTables(NamedTuple):
    """The tables of a rank as they were read."""

    tables: RankTables
    fields: Mapping[str, Any]
    """Everything beside the tables."""
    schema: bytes
    """Columns and types of all its tables: those of ranks with equal bytes are equal."""


def check_rank_tables(
    ranks: Sequence[StoredTables], *, rooms: tuple[RoomMeasure[Any], ...]
) -> None:
    """Raise ``ValueError``, or an error of polars, if the tables of some rank are not ones that tracekit wrote.

    Those of all *ranks* are checked together, because a query costs as much for the rows of one.
    The largest tables are checked when they are loaded (``check_graph_events``,
    ``check_host_work``). *rooms* are what side rooms measure of a rank.
    """
    expected = _expected_tables(rooms)
    frames: dict[str, list[pl.DataFrame]] = {}
    owners: dict[str, list[int]] = {}
    schemas: set[bytes] = set()
    for index, stored in enumerate(ranks):
        _check_fields(stored)
        for room in rooms:
            measured = room.of(stored.tables)
            if measured is not None:
                room.check(measured)
        for name, table in named_tables(stored.tables):
            is_known = stored.schema in schemas
            if name not in expected or (not is_known and table.schema != expected[name].schema):
                raise ValueError(f"{name} has other columns than tracekit writes")
            frames.setdefault(name, []).append(table)
            owners.setdefault(name, []).append(index)
        schemas.add(stored.schema)
    parts = np.array([stored.tables.steps.height for stored in ranks])
    joined: dict[str, _Joined] = {}
    for name, of_ranks in frames.items():
        table = pl.concat(of_ranks)
        owner = np.repeat(owners[name], [frame.height for frame in of_ranks])
        joined[name] = _Joined(table, owner)
        limit = pl.Series(parts[owner])
        _check_columns(table, expected[name].checks, name=name, parts=limit)
    for name in ("window", "by_step"):
        measures = [getattr(stored.tables, name) for stored in ranks]
        _check_intervals([each.covered for each in measures], name=f"{name}.covered", parts=parts)
        _check_labels(measures, joined, name=name)


class _Joined(NamedTuple):
    """One table of several ranks."""

    table: pl.DataFrame
    owner: Ints
    """Of each row: index of its rank."""


def _check_fields(stored: StoredTables) -> None:
    """Raise ``ValueError`` if what is beside the tables is not as tracekit writes it."""
    tables = stored.tables
    _check_numbers(stored.fields)
    parts = tables.steps.height
    if tables.steps["step"].n_unique() != parts:
        raise ValueError("there are steps of the same number")
    if len(tables.timed_steps) != parts:
        raise ValueError(f"there are {len(tables.timed_steps)} timed steps of {parts}")
    for name, measures in (("window", tables.window), ("by_step", tables.by_step)):
        if len(measures.budgets) not in (1, parts) or len(measures.weak) != len(measures.budgets):
            raise ValueError(f"{name} is not of {parts} steps")


def check_graph_events(events: pl.DataFrame, *, parts: int) -> None:
    """Raise ``ValueError`` if the events of a replay are not ones that tracekit wrote.

    The replay takes the events that an event waits for from rows of the same table.

    >>> check_graph_events(pl.DataFrame({"start_ns": [0]}), parts=1)
    Traceback (most recent call last):
    ValueError: the events of the replay have other columns than tracekit writes
    """
    name = "the events of the replay"
    if events.schema != EVENTS_WITH_REMEDIES:
        raise ValueError(f"{name} have other columns than tracekit writes")
    check_values(events, EVENTS_WITH_REMEDIES, name=name, parts=parts)
    required = ("label", "held_by", "blocked_ns", "loading_ns", "after_release_ns", *BEFORE)
    if any(events.get_column(column).null_count() for column in required):
        raise ValueError(f"{name} have rows without a value")
    for column in BEFORE:
        rows = events.get_column(column).to_numpy()
        if rows.min(initial=-1) < -1 or rows.max(initial=-1) >= events.height:
            raise ValueError(f"{name} wait for a row that is not there")
    if events.get_column("remedies").null_count() == events.height:
        return
    remedies = events.select("remedies").drop_nulls().explode("remedies").unnest("remedies")
    if any(column.null_count() for column in remedies.drop("what")):
        raise ValueError(f"{name} have remedies without a value")
    if not set(remedies["change"].unique()) <= REMEDY_CHANGES.keys():
        raise ValueError(f"{name} have changes that tracekit does not know")
    check_values(remedies, remedies.schema, name=name, parts=parts)


def check_host_work(work: pl.DataFrame, *, parts: int) -> None:
    """Raise ``ValueError`` if the host's work of a replay is not such as tracekit wrote.

    >>> check_host_work(pl.DataFrame({"event": [0]}), parts=1)
    Traceback (most recent call last):
    ValueError: the host's work of the replay has other columns than tracekit writes
    """
    name = "the host's work of the replay"
    if work.schema != HOST_WORK:
        raise ValueError(f"{name} has other columns than tracekit writes")
    if any(column.null_count() for column in work):
        raise ValueError(f"{name} has rows without a value")
    if not is_number_of_an_event(work["event"]):
        raise ValueError(f"{name} is before events that are not there")
    check_values(work, HOST_WORK, name=name, parts=parts)


def check_values(table: pl.DataFrame, schema: pl.Schema, *, name: str, parts: int) -> None:
    """Raise ``ValueError`` if times or numbers of a table cannot be ones that were measured.

    Args:
        table: The table.
        schema: Its columns.
        name: What the error calls it.
        parts: Number of steps, which its column ``part`` counts from 0.

    >>> rows = pl.DataFrame({"part": [0, 3]})
    >>> check_values(rows, rows.schema, name="phases", parts=2)
    Traceback (most recent call last):
    ValueError: phases has rows of a step that is not there
    """
    _check_columns(table, _ColumnChecks.of(name, schema), name=name, parts=parts)


class _ColumnChecks(NamedTuple):
    """What is checked of which columns of a table."""

    required: tuple[str, ...]
    words: tuple[tuple[str, frozenset[str | None]], ...]
    floats: tuple[str, ...]
    times: tuple[str, ...]
    sums: tuple[str, ...]
    """Columns of durations and counts."""
    has_ids: bool
    has_intervals: bool
    has_parts: bool

    @classmethod
    def of(cls, name: str, schema: pl.Schema) -> _ColumnChecks:
        """Return the checks of a table with the columns of *schema*, by its name."""
        words = []
        times: list[str] = []
        sums: list[str] = []
        for column, dtype in schema.items():
            allowed = KNOWN_WORDS.get(f"{name}.{column}", KNOWN_WORDS.get(column))
            if allowed is not None and dtype == pl.String:
                words.append((column, allowed))
            is_checked = column.endswith("ns") or column in COUNT_COLUMNS
            if is_checked and dtype.is_numeric():
                (times if column in TIME_COLUMNS else sums).append(column)
        return cls(
            required=tuple(REQUIRED_COLUMNS.intersection(schema)),
            words=tuple(words),
            floats=tuple(column for column, dtype in schema.items() if dtype.is_float()),
            times=tuple(times),
            sums=tuple(sums),
            has_ids="id" in schema,
            has_intervals="start_ns" in schema and "end_ns" in schema,
            has_parts="part" in schema,
        )


def _check_columns(
    table: pl.DataFrame, checks: _ColumnChecks, *, name: str, parts: int | pl.Series
) -> None:
    """Raise ``ValueError`` as ``check_values`` does; *parts* may be a number for each row."""
    if table.is_empty():
        return
    for column in checks.required:
        if table.get_column(column).null_count():
            raise ValueError(f"{name} has rows without {column}")
    for column, words in checks.words:
        if not words.issuperset(table.get_column(column).unique().to_list()):
            raise ValueError(f"{name} has words that tracekit does not use: {column}")
    for column in checks.floats:
        # A sum is finite if all its numbers are; nulls do not count.
        if not isfinite(table.get_column(column).sum()):
            raise ValueError(f"{name} has numbers that are not finite: {column}")
    _check_numbers_of_columns(table, checks, name=name)
    if checks.has_intervals:
        duration_ns = table.get_column("end_ns") - table.get_column("start_ns")
        if (duration_ns.min() or 0) < 0:  # type: ignore[operator]  # polars types it as any value
            raise ValueError(f"{name} has rows that end before they start")
    if checks.has_parts and not _is_within(table.get_column("part"), parts):
        raise ValueError(f"{name} has rows of a step that is not there")


def _check_numbers_of_columns(table: pl.DataFrame, checks: _ColumnChecks, *, name: str) -> None:
    """Raise ``ValueError`` if a column has a number that cannot be one of its kind."""
    if checks.has_ids and not is_number_of_an_event(table.get_column("id")):
        raise ValueError(f"{name} has numbers that no event has")
    for column in checks.times:
        if not is_time_of_a_clock(table.get_column(column)):
            raise ValueError(f"{name} has times that no clock shows")
    for column in checks.sums:
        if is_total_too_large(table.get_column(column)):
            raise ValueError(f"{name} has sums that cannot be: {column}")


def _is_within(column: pl.Series, count: int | pl.Series) -> bool:
    """Return whether all values of a column are from 0 to *count*, exclusive."""
    return bool(((column >= 0) & (column < count)).all())


class _Expected(NamedTuple):
    """Columns of a table that tracekit writes, and what is checked of them."""

    schema: pl.Schema
    checks: _ColumnChecks


COLUMNS_FILE = Path(__file__).parent / "table_columns.toml"
"""Columns of each table that the core measures of a rank, which ``ci/table_columns.py`` writes: to measure a
rank without events for them takes 0.17 CPU s and 36 MB."""


@lru_cache(maxsize=1)
def _expected_tables(rooms: tuple[RoomMeasure[Any], ...]) -> Mapping[str, _Expected]:
    """Return the columns of each table, by the names that lead to it."""
    columns = read_table_columns()
    for room in rooms:
        columns |= room.table_columns()
    expected = {}
    for name, schema in columns.items():
        expected[name] = _Expected(schema, _ColumnChecks.of(name, schema))
        # The tables of single steps have the columns of those of the whole window.
        if name.startswith("window."):
            of_steps = name.replace("window.", "by_step.")
            expected[of_steps] = _Expected(schema, _ColumnChecks.of(of_steps, schema))
    return expected


def read_table_columns() -> dict[str, pl.Schema]:
    """Return the columns of each table of ``table_columns.toml``.

    >>> read_table_columns()["decode_steps"].names()
    ['start_ns', 'keys']
    """
    tables = tomllib.loads(COLUMNS_FILE.read_text(encoding="utf-8"))
    schemas = {}
    for name, columns in tables.items():
        schemas[name] = pl.Schema({column: _data_type(value) for column, value in columns.items()})
    return schemas


def _data_type(value: Any) -> pl.DataType:
    """Return the type of a column: the name of a type, the words of an enum, or a list or struct of types."""
    if isinstance(value, str):
        named_type: pl.DataType = getattr(pl, value)()
        return named_type
    if isinstance(value, list):
        return pl.Enum(value)
    if "list" in value:
        return pl.List(_data_type(value["list"]))
    return pl.Struct({name: _data_type(field) for name, field in value["struct"].items()})


def named_tables(value: Any, name: str = "") -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the tables in the fields of *value* and of its fields, or under keys, by the names that lead to them."""
    if isinstance(value, pl.DataFrame):
        yield name, value
        return
    if isinstance(value, Intervals):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tables(item, f"{name}.{key}")
        return
    for field in _field_names(type(value)):  # type: ignore[arg-type]  # every class can be hashed
        yield from named_tables(getattr(value, field), f"{name}.{field}".lstrip("."))


@lru_cache
def _field_names(value_type: type[Any]) -> tuple[str, ...]:
    """Return the fields of a dataclass or struct; none of another type."""
    if dataclasses.is_dataclass(value_type):
        return tuple(field.name for field in dataclasses.fields(value_type))
    if issubclass(value_type, msgspec.Struct):
        return value_type.__struct_fields__
    return ()


def _check_labels(
    measures: Sequence[Measures], joined: Mapping[str, _Joined], *, name: str
) -> None:
    """Raise ``ValueError`` if tables of a window or of steps do not fit together.

    Hidden time is of communication and copies that ran, under compute. Exposed time with a cause is
    of labels that have exposed time in the budget.

    Args:
        measures: Of each rank.
        joined: The tables of all ranks.
        name: ``window`` or ``by_step``.
    """
    parts = np.array([len(each.budgets) for each in measures])
    rows = {}
    for of_measures in ("labels", "hidden", "exposed"):
        table, owner = joined[f"{name}.{of_measures}"]
        if not _is_within(table["part"], pl.Series(parts[owner])):
            raise ValueError(f"{name} has rows of a step that is not there")
        rows[of_measures] = table.with_columns(
            pl.col("label").cast(pl.String), owner=pl.Series(owner)
        )
    key = ["owner", "part", "label"]
    hidden = rows["hidden"].filter(~pl.col("detail")).select(*key, pl.col("by").cast(pl.String))
    is_exposable = pl.col("label").is_in(EXPOSABLE_LABELS) & pl.col("by").is_in(COMPUTE_SET)
    ran = rows["labels"].select(key).unique()
    did_not_run = hidden.join(ran, on=key, how="anti")
    if not did_not_run.is_empty() or not hidden.select(is_exposable.fill_null(False).all()).item():
        raise ValueError(f"{name} has hidden time of a label that did not run")
    for owner, part, label in rows["exposed"].filter(pl.col("ns") > 0).select(key).unique().rows():
        if not measures[owner].budgets[part].exposed_ns.get(label):
            raise ValueError(f"{name} has causes of exposed time that its budget does not have")


def _check_intervals(intervals: Sequence[Intervals], *, name: str, parts: Ints) -> None:
    """Raise ``ValueError`` if intervals are not disjoint, sorted and of parts that exist.

    Args:
        intervals: Of each rank.
        name: What the error calls them.
        parts: Number of steps of each rank.
    """
    owner = np.repeat(np.arange(len(intervals)), [len(each.group) for each in intervals])
    group = np.concatenate([each.group for each in intervals])
    start = np.concatenate([each.start_ns for each in intervals])
    end = np.concatenate([each.end_ns for each in intervals])
    in_range = (group >= 0) & (group < np.maximum(parts, 1)[owner])
    is_time = (start > -LATEST_NS) & (end < LATEST_NS) & (start < end)
    is_other_rank = owner[1:] > owner[:-1]
    is_later = (group[1:] == group[:-1]) & (start[1:] > end[:-1])
    follows = is_other_rank | (group[1:] > group[:-1]) | is_later
    if not (in_range.all() and is_time.all() and follows.all()):
        raise ValueError(f"{name} has intervals that are not sorted or not of its steps")


def _check_numbers(value: Any) -> None:
    """Raise ``ValueError`` if a number in what JSON held is beyond all that can be measured."""
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind is int or kind is float:
            if not abs(item) < LATEST_NS:
                raise ValueError(f"{item} is beyond all that can be measured")
        elif kind is dict:
            pending.extend(item.values())
        elif kind is list:
            pending.extend(item)
