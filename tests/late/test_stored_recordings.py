"""Dumps and logs of a run in a store: written by ingest, read by late, analyze and query."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from tests.recorders import ddp_dumps, log_line, write_dumps, write_log
from tracekit import ingest
from tracekit.errors import InputError, OutputError
from tracekit.late import late
from tracekit.late.find_recordings import find_recordings, has_recordings_alone
from tracekit.late.store import COLLECTIVES_FILE, read_stored_recordings
from tracekit.run.analyze import analyze
from tracekit.run.query import query
from tracekit.store.files import file_checksum, open_store, with_checksum

ROOT = Path(__file__).parents[2]
PROFILED = ROOT / "tests/data/late-profiler"


@pytest.fixture
def dumps(tmp_path):
    """Dumps of four ranks, of which rank 2 is late in all 12 steps."""
    late_ms = lambda rank, step: 10.0 * (rank == 2)  # noqa: E731
    return write_dumps(tmp_path / "dumps", ddp_dumps(4, 12, late_ms=late_ms))


def test_a_store_of_dumps_alone_answers_as_the_dumps_do(dumps, tmp_path):
    store = ingest(dumps, tmp_path / "store")
    assert store.ranks == ()
    assert store.complete
    from_store = late(store.path)
    assert [fact.ranks for fact in from_store.late] == [(2,)]
    assert from_store.to_dict() == late(dumps).to_dict()


def test_a_store_of_dumps_alone_needs_late(dumps, tmp_path):
    store = ingest(dumps, tmp_path / "store").path
    assert has_recordings_alone(store)
    with pytest.raises(
        InputError, match=r"holds dumps and logs, but no trace \(tracekit late reads it\)"
    ):
        analyze(store)


@pytest.mark.slow
def test_dumps_beside_traces_are_in_the_store(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(PROFILED, folder)
    for dump in (ROOT / "sample_traces/always-on/late").glob("fr_*"):
        shutil.copy(dump, folder)
    store = ingest(folder, tmp_path / "store")
    assert store.ranks == (0, 1, 2, 3)
    run = late(store.path)
    assert [(fact.ranks, fact.period, fact.profiled_steps) for fact in run.late] == [
        ((1,), 3, (21, 24))
    ]
    notices = analyze(store.path, schedule="none").notices
    beside = [notice.values["path"] for notice in notices if notice.code == "recordings-beside"]
    assert beside == [str(store.path)]


def test_query_counts_the_entries_of_the_dumps(dumps, tmp_path):
    pytest.importorskip("duckdb")
    store = ingest(dumps, tmp_path / "store").path
    rows = query(
        store, "select rank, op::varchar, count(*) from collectives group by 1, 2 order by 1, 2"
    )
    # Three broadcasts of the warm-up and two all-reduces in each of 12 steps.
    assert rows.rows() == [
        (rank, op, count)
        for rank in range(4)
        for op, count in (("all_reduce", 24), ("broadcast", 3))
    ]
    assert query(store, "select count(*) from events").item() == 0
    assert query(store, "select count(*) from ranks").item() == 0


def test_a_store_without_dumps_has_an_empty_table(tmp_path):
    pytest.importorskip("duckdb")
    store = ingest(PROFILED, tmp_path / "store", ranks=[0]).path
    assert query(store, "select count(*) from collectives").item() == 0
    assert find_recordings(store) is None


def test_ranks_that_are_not_asked_for_are_left_out(dumps, tmp_path):
    store = ingest(dumps, tmp_path / "store", ranks=[0, 3]).path
    assert read_stored_recordings(store).collectives["rank"].unique().sort().to_list() == [0, 3]


def test_both_recorders_keep_their_sources(tmp_path):
    folder = write_dumps(tmp_path / "run", ddp_dumps(2, 8))
    for rank in range(2):
        write_log(
            folder / f"node0-pid{100 + rank}.log",
            [log_line(i, rank=rank, at_ms=60 * i) for i in range(8)],
        )
    stored = read_stored_recordings(ingest(folder, tmp_path / "store").path)
    recorders = [(source.recorder, source.rank) for source in stored.sources]
    assert recorders == [
        ("flight_recorder", 0),
        ("flight_recorder", 1),
        ("nccl_inspector", 0),
        ("nccl_inspector", 1),
    ]
    # 3 + 2 · 8 entries, 8 lines.
    assert [recording.collectives.height for recording in stored.parts] == [
        19,
        19,
        8,
        8,
    ]


def test_ingesting_again_replaces_the_dumps(dumps, tmp_path):
    store = ingest(dumps, tmp_path / "store").path
    (dumps / "nccl_trace_rank_3").unlink()
    for resume in (False, True):
        ingest(dumps, store, resume=resume, overwrite=not resume)
        assert read_stored_recordings(store).collectives["rank"].n_unique() == 3


def test_dumps_replace_the_store_of_another_run_only_with_overwrite(dumps, tmp_path):
    store = ingest(PROFILED, tmp_path / "store").path
    with pytest.raises(OutputError, match="holds the store of another run"):
        ingest(dumps, store)
    assert open_store(store).ranks
    assert ingest(dumps, store, overwrite=True).ranks == ()


def test_dumps_that_are_added_to_a_store_leave_the_rest_of_it_as_it_was(dumps, tmp_path):
    before = ingest(PROFILED, tmp_path / "store")
    ingest(dumps, before.path, resume=True)
    after = open_store(before.path)
    assert (after.ranks, after.labelled_by, after.complete) == (
        before.ranks,
        before.labelled_by,
        True,
    )


def test_a_store_of_a_store_keeps_the_dumps(dumps, tmp_path):
    first = ingest(dumps, tmp_path / "first").path
    second = ingest(first, tmp_path / "second").path
    assert read_stored_recordings(second).collectives.equals(
        read_stored_recordings(first).collectives
    )


def test_dumps_that_cannot_be_used_are_a_notice_beside_traces_and_an_error_with_strict(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(PROFILED / "rank0.json.gz", folder)
    (folder / "fr_rank0.pickle").write_bytes(
        (ROOT / "sample_traces/always-on/late/fr_rank0.pickle").read_bytes()[:900]
    )
    store = ingest(folder, tmp_path / "store", ranks=[0])
    assert any(notice.code == "recordings-beside" for notice in store.notices)
    assert read_stored_recordings(store.path) is None
    with pytest.raises(InputError, match=r"fr_rank0\.pickle"):
        ingest(folder, tmp_path / "strict", ranks=[0], on_damage="error")


def test_a_folder_and_a_store_of_another_run_are_refused(dumps, tmp_path):
    store = ingest(dumps, tmp_path / "store").path
    others = write_dumps(tmp_path / "others", ddp_dumps(4, 12))
    with pytest.raises(InputError, match="rank 0 has recordings of several runs"):
        find_recordings([store, others])
    assert len(find_recordings([store, dumps]).parts) == 4  # the same files twice are no second run


@pytest.mark.parametrize("damage", ["bytes", "rows", "time", "twice"])
def test_a_damaged_table_is_one_line(dumps, tmp_path, damage):
    store = ingest(dumps, tmp_path / "store").path
    file = store / "recordings" / COLLECTIVES_FILE
    entry_file = store / "recordings/entry.json"
    entry = json.loads(entry_file.read_text())
    del entry["digest"]
    if damage == "bytes":
        file.write_bytes(file.read_bytes()[:-5])
    elif damage == "rows":
        entry["rows"] += 1
    elif damage == "time":
        pl.read_parquet(file).with_columns(enqueued_ns=pl.lit(2**63 - 1)).write_parquet(file)
        entry["digests"] = {file.name: file_checksum(file)}
    else:
        entry["sources"].append(entry["sources"][0])
    entry_file.write_text(json.dumps(with_checksum(entry)))
    with pytest.raises(InputError, match=r"recordings/.*: is damaged"):
        read_stored_recordings(store)


def test_nothing_is_left_where_the_dumps_cannot_be_read(tmp_path):
    folder = write_dumps(tmp_path / "dumps", ddp_dumps(1, 4))
    (folder / "nccl_trace_rank_0").write_bytes((folder / "nccl_trace_rank_0").read_bytes()[:500])
    with pytest.raises(InputError):
        ingest(folder, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_the_store_opens_with_its_notices(dumps, tmp_path):
    (dumps / "nccl_trace_rank_1").write_bytes((dumps / "nccl_trace_rank_1").read_bytes()[:500])
    store = ingest(dumps, tmp_path / "store")
    assert [notice.code for notice in store.notices] == ["rank-failed"]
    assert "rank-failed" in [notice.code for notice in late(store.path).notices]
    assert open_store(store.path).ranks == ()
