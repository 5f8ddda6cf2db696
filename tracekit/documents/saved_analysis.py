"""Measured tables of one rank in a store: ``tables.json`` in ``tables.zip``. A whole analysis is ``analysis.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

FORMAT: Literal["tracekit.tables/2"] = "tracekit.tables/2"


class TablesDocument(Struct, frozen=True):
    """Everything but the tables themselves; read only by the version that wrote it."""

    format: Literal["tracekit.tables/2"]
    """Name and number of the format."""
    tracekit: str
    """Version that measured them."""
    tables: Mapping[str, Any]
    """The fields of ``analysis.tables.RankTables``, as ``analysis.persistence`` writes them."""
