"""How tests read Nsight exports: the one rank, rows of a kind, codes of notices, whole tables, or why it is refused."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.errors import InputError
from tracekit.parsers import nsight


def only(report, path, version="3.20.3", **options):
    """The one rank of a report."""
    (rank,) = nsight.read(report.save(path, version, **options))
    return rank


def rows(rank, kind, *columns):
    """Columns of the events of a kind: tuples, or values where it is one column."""
    frame = rank.events.filter(pl.col("kind") == kind).select(columns)
    return [row[0] if len(columns) == 1 else row for row in frame.rows()]


def codes(rank):
    """The codes of the notices that came with a rank."""
    return {notice.code for notice in rank.source.notices}


def frames(folder):
    """The tables of a folder of Parquet files, by name."""
    return {file.stem: pl.read_parquet(file) for file in sorted(folder.glob("*.parquet"))}


def refused(path, **options):
    """The error of one line, with a hint, by which a file is refused."""
    with pytest.raises(InputError) as caught:
        nsight.read(path, **options)
    error = caught.value
    assert "\n" not in error.message
    assert error.hint
    return error
