"""Gathering of rank tables on rank 0, for ranks without a shared folder: each rank measures its own trace."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tracekit.analysis.persistence import FILE, read_tables, write_tables
from tracekit.analysis.tables import RankTables
from tracekit.record.process_info import import_torch
from tracekit.run.measure import Options
from tracekit.store.sources import find


def gather_tables(trace: Path | None) -> list[RankTables]:
    """Return the tables of all ranks on rank 0, an empty list elsewhere; a rank without a *trace* sends none."""
    distributed = import_torch().distributed
    own = b"" if trace is None else pack_tables(trace)
    if not (distributed.is_available() and distributed.is_initialized()):
        return [unpack_tables(own)] if own else []
    is_first = distributed.get_rank() == 0
    packed: list[bytes] = [b""] * distributed.get_world_size()
    distributed.gather_object(own, packed if is_first else None, dst=0)
    return [unpack_tables(data) for data in packed if data] if is_first else []


def pack_tables(trace: Path) -> bytes:
    """Measure a trace and return its tables as bytes."""
    tables = Options().source_tables(find(str(trace))[0][0])[0]
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        return write_tables(tables, Path(folder)).read_bytes()


def unpack_tables(data: bytes) -> RankTables:
    """Return the tables packed by ``pack_tables``."""
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        (Path(folder) / FILE).write_bytes(data)
        tables = read_tables(Path(folder))
        assert tables is not None, "every rank of a run has the same version"
        loaded: RankTables = tables.loaded()
        return loaded
