"""Ranks without a shared folder: each measures its own trace, rank 0 gathers the small tables."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tracekit.analysis.persistence import FILE, read_tables, write_tables
from tracekit.analysis.tables import RankTables
from tracekit.record.place import import_torch
from tracekit.run.measure import Options
from tracekit.store.sources import find


def gather_tables(trace: Path | None) -> list[RankTables]:
    """Return all ranks' tables on rank 0, nothing elsewhere; a rank without a *trace* sends none."""
    group = import_torch().distributed
    own = b"" if trace is None else packed(trace)
    if not (group.is_available() and group.is_initialized()):
        return [unpacked(own)] if own else []
    here = group.get_rank() == 0
    everyone: list[bytes] = [b""] * group.get_world_size()
    group.gather_object(own, everyone if here else None, dst=0)
    return [unpacked(each) for each in everyone if each] if here else []


def packed(trace: Path) -> bytes:
    """Measure a trace; return its tables as bytes that any rank can read."""
    tables = Options().source_tables(find(str(trace))[0][0])[0]
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        return write_tables(tables, Path(folder)).read_bytes()


def unpacked(data: bytes) -> RankTables:
    """Return the tables that ``packed`` made."""
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        (Path(folder) / FILE).write_bytes(data)
        tables = read_tables(Path(folder))
        assert tables is not None, "every rank of a run has the same version"
        return tables.whole()
