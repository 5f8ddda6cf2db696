"""Measurements that side rooms make of each rank, beside the tables of the core.

The list of them stands in ``tracekit.rooms``; it is handed to what measures a rank, writes its tables into a store and
reads them back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import polars as pl

from tracekit.errors import Notice
from tracekit.schema import RankEvents

if TYPE_CHECKING:
    from tracekit.analysis.measure.tables import RankTables

Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True)
class LabelledSteps:
    """The selected steps of one rank, as a side room measures them."""

    rank: RankEvents
    gpu_events: pl.DataFrame
    """Its labelled GPU events (``LABELLED``) in these steps."""
    stretches: pl.DataFrame
    """Its phases (``metrics.process_phases.STRETCHES``)."""
    chunks: pl.DataFrame | None
    """Its cells in the pipeline; None without one."""
    all_steps: bool
    """Whether no steps were chosen."""


def _accept(measured: Any) -> None:
    """Check nothing: its columns are all that is to be checked."""


@dataclass(frozen=True, eq=False)
class RoomMeasure(Generic[Measured]):
    """One measurement of a side room: how it is made, and what it must be when a store is read."""

    name: str
    """Its key in ``RankTables.of_rooms``."""
    measured_type: type[Measured]
    """A table, or a ``msgspec`` type that holds tables."""
    measure: Callable[[LabelledSteps], tuple[Measured | None, tuple[Notice, ...]]]
    """Returns what was measured, None where nothing was recorded, and notices about it."""
    columns: Mapping[str, pl.Schema]
    """Columns of its tables in a store, by the fields that lead to each, joined by dots; ``""`` is a sole table."""
    check: Callable[[Measured], None] = field(default=_accept)
    """Raises ``ValueError`` if what was read back is not such as it measures."""

    def of(self, tables: "RankTables") -> Measured | None:
        """Return what it measured of a rank; None if it was not asked, or nothing was recorded."""
        measured: Measured | None = tables.of_rooms.get(self.name)
        return measured

    def table_columns(self) -> dict[str, pl.Schema]:
        """Return the columns of its tables by their names among those of the rank.

        >>> room = RoomMeasure("reload", pl.DataFrame, lambda steps: (None, ()), {"": pl.Schema({"ns": pl.Int64()})})
        >>> list(room.table_columns())
        ['of_rooms.reload']
        """
        base = f"of_rooms.{self.name}"
        return {f"{base}.{name}".rstrip("."): schema for name, schema in self.columns.items()}
