"""Stores of ranks that are in memory."""

from __future__ import annotations

from tracekit.schema import LABELLED
from tracekit.store.files import open_store, write_rank
from tracekit.store.writer import StoreWriter, replace_store


def write_store(path, ranks, *, labelled=None, labelled_by=None):
    """Write *ranks* as a store at *path*, and open it."""
    frames = labelled if labelled is not None else [LABELLED.to_frame()] * len(ranks)
    with replace_store(path) as folder:
        entries = [write_rank(folder, rank, frame) for rank, frame in zip(ranks, frames, strict=True)]
        StoreWriter(folder, labelled_by, entries={entry.rank: entry for entry in entries}, complete=True).write()
    return open_store(path)
