"""Stores of ranks that are in memory."""

from __future__ import annotations

import json

from tracekit.schema import LABELLED
from tracekit.store.files import (
    CHECKSUM_KEY,
    MANIFEST,
    file_checksum,
    open_store,
    rank_folder,
    with_checksum,
    write_rank,
)
from tracekit.store.writer import StoreWriter, replace_store


def write_store(path, ranks, *, labelled=None, labelled_by=None):
    """Write *ranks* as a store at *path*, and open it."""
    frames = labelled if labelled is not None else [LABELLED.to_frame()] * len(ranks)
    with replace_store(path) as folder:
        entries = [
            write_rank(folder, rank, frame) for rank, frame in zip(ranks, frames, strict=True)
        ]
        StoreWriter(
            folder, labelled_by, entries={entry.rank: entry for entry in entries}, complete=True
        ).write()
    return open_store(path)


def reseal(path, rank, name, table):
    """Replace a table of a store by another one, with checksums that fit."""
    table.write_parquet(rank_folder(path, rank) / f"{name}.parquet")
    seal(path)


def seal(path):
    """Make the checksums of a store fit the files that are in it now."""
    manifest = json.loads((path / MANIFEST).read_text())
    for entry in manifest["ranks"]:
        for name in list(entry["digests"]):
            file = rank_folder(path, entry["rank"]) / name
            if file.exists():
                entry["digests"][name] = file_checksum(file)
    manifest.pop(CHECKSUM_KEY)
    (path / MANIFEST).write_text(json.dumps(with_checksum(manifest)))
