"""Files that are no Nsight export, or one without events: each is refused in a line, or read with a notice."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import polars as pl
import pytest

from tests.parsers.nsight_files import Report
from tests.parsers.nsight_reading import refused
from tracekit.parsers import nsight

pytestmark = pytest.mark.slow


def test_no_such_file(tmp_path):
    assert "no such file" in refused(tmp_path / "gone.sqlite").message


def test_an_empty_file(tmp_path):
    (tmp_path / "a.sqlite").touch()
    assert "is empty" in refused(tmp_path / "a.sqlite").message


def test_an_sqlite_file_that_is_no_export(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE albums (name)")
    assert "no table of a profiler" in refused(tmp_path / "a.sqlite").message


def test_an_sqlite_file_without_tables(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 1")
    assert "no table of a profiler" in refused(tmp_path / "a.sqlite").message


def test_an_export_without_events(tmp_path):
    report = Report()
    assert "no GPU events" in refused(report.save(tmp_path / "a.sqlite")).message


@pytest.mark.parametrize("name", ["a.sqlite", "a.arrow"])
def test_text_under_a_false_name(tmp_path, name):
    (tmp_path / name).write_text("these are not the tables you are looking for\n" * 9)
    assert refused(tmp_path / name).message.startswith(str(tmp_path / name))


def test_a_folder_of_other_parquet_files(tmp_path):
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    assert "no table of a profiler" in refused(tmp_path).message


def test_cpu_events_alone_are_read_with_a_notice(tmp_path):
    (rank,) = nsight.read(Report().range("work", 1, 9).save(tmp_path / "a.sqlite"))
    assert rank.source.counts == {"annotation": 1}
    assert "no-gpu-events" in {notice.code for notice in rank.source.notices}
