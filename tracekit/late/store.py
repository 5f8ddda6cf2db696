"""Dumps and logs of a run in its store: one table of collectives for all ranks and recorders.

    STORE/recordings/collectives.parquet the collectives of all ranks and recorders
    (``COLLECTIVES``) STORE/recordings/entry.json the dumps and logs they come from, and notices

Both are written into a temporary folder that is renamed when it is complete, and carry checksums as
ranks do.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import polars as pl

from tracekit._util.os_errors import read_error, write_error
from tracekit.documents.coding import encode
from tracekit.documents.store_manifest import RecordingsEntry
from tracekit.errors import InputError, MachineError
from tracekit.late.recordings import Recordings
from tracekit.schema import COLLECTIVES, RankCollectives
from tracekit.store.checks import check_collectives, read_table
from tracekit.store.files import (
    ENTRY,
    INGEST_AGAIN,
    RECORDINGS_FOLDER,
    check_file,
    damaged_file_error,
    file_checksum,
    holds_recordings,
    read_checked_document,
    with_checksum,
    write_table,
)

COLLECTIVES_FILE = "collectives.parquet"


def write_recordings(store: Path, recordings: Recordings) -> None:
    """Write the dumps and logs of a run into its store, instead of those that are there."""
    target = store / RECORDINGS_FOLDER
    temporary = Path(tempfile.mkdtemp(prefix=f".{RECORDINGS_FOLDER}.", dir=store))
    collectives = recordings.collectives
    try:
        file = temporary / COLLECTIVES_FILE
        write_table(collectives, file)
        entry = RecordingsEntry(
            rows=collectives.height,
            sources=recordings.sources,
            notices=recordings.notices,
            digests={file.name: file_checksum(file)},
        )
        (temporary / ENTRY).write_text(encode(with_checksum(entry)), encoding="utf-8")
        temporary.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise write_error(error, target) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_stored_recordings(store: Path) -> Recordings | None:
    """Return the dumps and logs in a store; None if it holds none."""
    if not holds_recordings(store):
        return None
    entry = _read_entry(store)
    table = _read_collectives(store, entry)
    parts = []
    for source in entry.sources:
        of_source = (pl.col("rank") == source.rank) & (pl.col("source") == source.recorder)
        parts.append(RankCollectives(table.filter(of_source), source))
    return Recordings(tuple(parts), entry.notices)


def checked_collectives_file(store: Path) -> Path:
    """Return the path of a store's table of collectives after verifying its checksum."""
    file = store / RECORDINGS_FOLDER / COLLECTIVES_FILE
    check_file(file, _read_entry(store).digests)
    return file


def _read_entry(store: Path) -> RecordingsEntry:
    entry = read_checked_document(store / RECORDINGS_FOLDER / ENTRY, RecordingsEntry)
    ranks_and_recorders = [(source.rank, source.recorder) for source in entry.sources]
    if len(set(ranks_and_recorders)) < len(ranks_and_recorders):
        raise InputError(
            "is damaged: it lists a dump twice",
            path=store / RECORDINGS_FOLDER / ENTRY,
            hint=INGEST_AGAIN,
        )
    return entry


def _read_collectives(store: Path, entry: RecordingsEntry) -> pl.DataFrame:
    """Return a store's table of collectives, checked."""
    file = store / RECORDINGS_FOLDER / COLLECTIVES_FILE
    try:
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != entry.digests.get(file.name):
            raise damaged_file_error(file)
        table = read_table(data, COLLECTIVES)
        check_collectives(table, rows=entry.rows)
    except ValueError as error:
        raise InputError(f"is damaged: {error}", path=file, hint=INGEST_AGAIN) from error
    except MachineError as error:
        raise MachineError(error.message, path=file, hint=error.hint) from None
    except (pl.exceptions.PolarsError, OSError, MemoryError) as error:
        raise read_error(error, file, hint=INGEST_AGAIN) from error
    return table
