"""Documents of a store: its manifest ``tracekit-store.json``, a rank's ``entry.json``, and its measured tables."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from tracekit.errors import Notice
from tracekit.schema import Recording, Source

STORE_FORMAT: Literal["tracekit.store/3"] = "tracekit.store/3"
TABLES_FORMAT: Literal["tracekit.tables/11"] = "tracekit.tables/11"


class StoreEntry(Struct, frozen=True):
    """One rank of a store."""

    rank: int
    """Number of the rank."""
    rows: int
    """Rows of the events."""
    labelled_rows: int
    """Rows of the labelled events."""
    start_ns: int | None
    """Start of its first event; None without events."""
    end_ns: int | None
    """End of its last event."""
    source: Source
    """Origin of its events."""
    key: str | None = None
    """Digest of the trace's path, size and time and of the options it was read with: equal keys
    mean equal content."""
    together: tuple[int, ...] = ()
    """All ranks that the same trace holds."""
    digests: Mapping[str, str] = {}
    """Checksum of each of its files, by file name."""


class RecordingsEntry(Struct, frozen=True):
    """Dumps and logs of a store: ``recordings/entry.json``.

    The key ``digest`` holds a checksum of all other keys.
    """

    rows: int
    """Rows of the collectives."""
    sources: tuple[Recording, ...]
    """Origin of the collectives of each rank and recorder."""
    notices: tuple[Notice, ...] = ()
    """Notices from when they were read."""
    digests: Mapping[str, str] = {}
    """Checksum of each file, by file name."""


class StoreManifest(Struct, frozen=True, kw_only=True):
    """Ranks of a store and how they were labelled.

    The key ``digest`` holds a checksum of all other keys.
    """

    format: Literal["tracekit.store/3"]
    """Name and number of the format."""
    tracekit: str
    """Version that wrote it."""
    labelled_by: str | None = None
    """Version and rules that labelled it; null if labels were not written."""
    complete: bool = True
    """False while it is written, and if writing was interrupted."""
    notices: tuple[Notice, ...] = ()
    """Notices from when it was written."""
    ranks: tuple[StoreEntry, ...]
    """The ranks, ascending."""


class TablesDocument(Struct, frozen=True):
    """``tables.json`` in ``tables.zip``: all but the tables themselves.

    Read only by the version that wrote it.
    """

    format: Literal["tracekit.tables/11"]
    """Name and number of the format."""
    tracekit: str
    """Version that measured them."""
    tables: Mapping[str, Any]
    """The fields of ``analysis.measure.tables.RankTables``, as ``analysis.persistence`` writes
    them."""
