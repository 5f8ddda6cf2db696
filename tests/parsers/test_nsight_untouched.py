"""The file of an Nsight export stays as it is, with nothing beside it, and is not read while it is written."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.parsers.nsight_files import Report
from tests.parsers.nsight_reading import refused
from tracekit.parsers import nsight

pytestmark = pytest.mark.slow


def test_the_file_is_left_byte_identical_with_nothing_beside_it(sample, tmp_path):
    path = Path(shutil.copy(sample / "rank0.sqlite", tmp_path / "rank0.sqlite"))
    path.chmod(0o644)
    before = hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns
    nsight.read(path)
    assert (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) == before
    assert [file.name for file in tmp_path.iterdir()] == ["rank0.sqlite"]


def test_a_file_in_wal_mode_leaves_nothing_beside_it_either(tmp_path):
    path = Report().kernel("k", 1, 2).save(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    before = path.read_bytes()
    assert nsight.read(path)[0].events.height == 1
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite"]


def test_a_read_only_file_in_a_read_only_folder(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    path = Report().kernel("k", 1, 2).save(folder / "odd name #1?.sqlite")
    path.chmod(stat.S_IRUSR)
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert nsight.read(path)[0].events.height == 1
    finally:
        folder.chmod(stat.S_IRWXU)


LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
connection.execute("CREATE TABLE more (x)")
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_file_that_is_being_written_is_refused_and_read_afterwards(tmp_path):
    path = Report().kernel("k", 1, 2).save(tmp_path / "a.sqlite")
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as locker:
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        assert "another program is writing" in refused(path).message
        locker.communicate()
    assert nsight.read(path)[0].events.height == 1


def test_a_log_that_was_not_written_back_is_refused(tmp_path):
    path = Report().kernel("k", 1, 2).save(tmp_path / "a.sqlite")
    (tmp_path / "a.sqlite-wal").write_bytes(b"x" * 100)
    assert "another program is writing" in refused(path).message
