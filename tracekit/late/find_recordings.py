"""Dumps and logs of a run: found beside its traces or in its store, and read."""

from __future__ import annotations

import os
import shlex
from itertools import chain
from pathlib import Path

from tracekit.errors import InputError, Notice
from tracekit.late.recordings import Recordings, read_recordings
from tracekit.late.store import read_stored_recordings
from tracekit.parsers.discovery import Discovery, discover
from tracekit.parsers.file_type import FLIGHT_RECORDER, NCCL_INSPECTOR
from tracekit.parsers.source_refs import SourceRef, file_listing
from tracekit.schema import RankCollectives
from tracekit.store.files import holds_recordings, open_store
from tracekit.store.sources import PathList

COLLECTIVE_READERS = (FLIGHT_RECORDER, NCCL_INSPECTOR)
"""Recordings that hold collectives."""


def find_recordings(paths: PathList) -> Recordings | None:
    """Return the dumps and logs at *paths*, in folders and stores; None if there are none."""
    return read_found_recordings(discover(paths, check=False, need_traces=False))


def read_found_recordings(discovery: Discovery) -> Recordings | None:
    """Return the dumps and logs that were discovered; None if there are none."""
    refs = [ref for ref in discovery.recordings if ref.reader in COLLECTIVE_READERS]
    readings = [read_recordings(refs)] if refs else []
    for ref in discovery.refs:
        stored = read_stored_recordings(Path(ref.path)) if ref.reader == "store" else None
        if stored is not None:
            readings.append(stored)
    if not readings:
        return None
    if len(readings) == 1:
        return readings[0]
    parts: dict[tuple[str, int | None], RankCollectives] = {}
    for reading in readings:
        for part in reading.parts:
            source = part.source
            first_source = parts.setdefault((source.recorder, source.rank), part).source
            if first_source.path != source.path:
                files = file_listing([first_source.path, source.path])
                problem = f"rank {source.rank} has recordings of several runs{files}"
                raise InputError(problem, hint="name the dumps of one run")
    notices = dict.fromkeys(chain.from_iterable(reading.notices for reading in readings))
    return Recordings(tuple(parts.values()), tuple(notices))


def recordings_beside(discovery: Discovery) -> tuple[Notice, ...]:
    """Return a notice that names the folder or store with dumps or logs beside discovered traces; none without."""
    paths = [ref.path for ref in discovery.recordings if ref.reader in COLLECTIVE_READERS]
    folders = [str(Path(path).parent) for path in paths]
    for ref in discovery.refs:
        if ref.reader == "store" and holds_recordings(Path(ref.path)):
            folders.append(ref.path)
    if not folders:
        return ()
    return (
        Notice(
            "recordings-beside",
            (
                "dumps or logs of the whole run lie beside the traces: `tracekit late "
                f"{shlex.quote(os.path.commonpath(folders))}` shows who joins late, and "
                "hangs"
            ),
            values={"case": "beside", "path": os.path.commonpath(folders)},
        ),
    )


def has_recordings_alone(paths: PathList) -> bool:
    """Return whether there are dumps or logs at *paths*, and no trace.

    >>> has_recordings_alone("sample_traces/always-on/hang"), has_recordings_alone("sample_traces/reload")
    (True, False)
    """
    discovery = discover(paths, check=False, need_traces=False)
    if not all(_is_store_of_recordings(ref) for ref in discovery.refs):
        return False
    has_recordings = any(ref.reader in COLLECTIVE_READERS for ref in discovery.recordings)
    return bool(discovery.refs) or has_recordings


def _is_store_of_recordings(ref: SourceRef) -> bool:
    """Return whether a source is a store with dumps or logs, and without any rank's events."""
    return (
        ref.reader == "store"
        and holds_recordings(Path(ref.path))
        and not open_store(ref.path).entries
    )
