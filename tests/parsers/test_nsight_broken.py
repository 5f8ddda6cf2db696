"""Nsight exports that are cut off or overwritten: what is left of them, said as such, or one clear line."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from tests.parsers.nsight_files import Report
from tests.parsers.nsight_reading import refused
from tracekit.errors import InputError
from tracekit.parsers import nsight
from tracekit.schema import EVENTS

pytestmark = pytest.mark.slow


def readable(path, table="CUPTI_ACTIVITY_KIND_KERNEL"):
    """What sqlite itself can still read of a table, from both ends."""
    outcomes = set()
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        for order in ("ASC", "DESC"):
            with contextlib.suppress(sqlite3.DatabaseError):
                for row in connection.execute(
                    f"SELECT start, end FROM {table} ORDER BY rowid {order}"
                ):
                    outcomes.add(row)
    return outcomes


@pytest.mark.parametrize("share", [0.999, 0.9, 0.7, 0.5, 0.3, 0.1, 0.01])
def test_a_truncated_file_gives_what_is_left_or_one_clear_line(sample, tmp_path, share):
    whole = (sample / "rank0.sqlite").read_bytes()
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(whole[: int(len(whole) * share)])
    left = readable(path)
    if (
        not left
        and not readable(path, "NVTX_EVENTS")
        and not readable(path, "CUPTI_ACTIVITY_KIND_RUNTIME")
    ):
        assert "damaged" in refused(path).message
        return
    (rank,) = nsight.read(path)
    assert "truncated" in {notice.code for notice in rank.source.notices}
    (complete,) = nsight.read(sample / "rank0.sqlite")
    kept = rank.events.filter(pl.col("kind") == "kernel").select("start_ns", "end_ns")
    # It stops at most a batch short of the damage, at either end.
    assert len(left) - 64 <= kept.height <= len(left)
    if "no-clock" not in {notice.code for notice in rank.source.notices}:
        assert kept.join(complete.events, on=["start_ns", "end_ns"], how="anti").is_empty()
    refused(path, lenient=False)


def test_a_table_damaged_in_the_middle_keeps_its_sound_rows(tmp_path):
    report = Report()
    for i in range(20000):
        report.kernel("k", 10 * i, 10 * i + 5, corr=i)
    path = report.save(tmp_path / "a.sqlite")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(bytes(data))
    (rank,) = nsight.read(path)
    assert 0 < rank.events.height < 20000
    assert "bad-events" in {notice.code for notice in rank.source.notices}


@pytest.mark.parametrize("name", ["rank0.sqlite", "rank0.arrow"])
@pytest.mark.parametrize("seed", range(8))
def test_random_damage_never_ends_in_anything_but_a_table_or_one_line(
    sample, arrow_file, tmp_path, name, seed
):
    rng = random.Random(f"{name}{seed}")
    data = bytearray((arrow_file if name.endswith("arrow") else sample / name).read_bytes())
    for _ in range(rng.choice([1, 10, 100])):
        offset = rng.randrange(len(data) - 50)
        data[offset : offset + 50] = rng.randbytes(50)
    (tmp_path / name).write_bytes(bytes(data))
    with contextlib.suppress(InputError):
        for rank in nsight.read(tmp_path / name):
            assert rank.events.schema == EVENTS


def test_a_truncated_arrow_file_keeps_the_tables_before(arrow_file, tmp_path):
    whole = arrow_file.read_bytes()
    path = tmp_path / "rank0.arrow"
    path.write_bytes(whole[: whole.index(b"NVTX_EVENTS") + 5000])
    (rank,) = nsight.read(path)
    assert rank.source.counts["kernel"] == 643
    assert "annotation" not in rank.source.counts
    assert "truncated" in {notice.code for notice in rank.source.notices}
    refused(path, lenient=False)


@pytest.mark.parametrize("size", [200, 10, 1])
def test_an_arrow_file_with_no_table_left(arrow_file, tmp_path, size):
    path = tmp_path / "rank0.arrow"
    path.write_bytes(arrow_file.read_bytes()[:size])
    assert "not an Arrow export" in refused(path).message


def test_a_damaged_parquet_table_is_left_out_and_said(sample, tmp_path):
    folder = Path(shutil.copytree(sample / "rank0.parquetdir", tmp_path / "rank0.parquetdir"))
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 no more")
    (rank,) = nsight.read(folder)
    assert rank.source.counts["kernel"] == 643
    assert "bad-events" in {notice.code for notice in rank.source.notices}
    refused(folder, lenient=False)
