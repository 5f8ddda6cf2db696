"""A store holds the ranks of one run: what is of another is refused before anything is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recorders import ddp_dumps, write_dumps
from tracekit import ingest
from tracekit.errors import InputError, OutputError, TracekitError
from tracekit.run.analyze import analyze
from tracekit.store.files import CHECKSUM_KEY, MANIFEST, open_store, with_checksum

NOON_NS = 1_750_000_000_000_000_000
MINUTE_US = 60_000_000


def write_rank(folder: Path, rank: int, *, at_us: int = 0, world_size: int = 4, dated: bool = True):
    """Write a rank that works for 100 us, *at_us* after noon."""
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": at_us,
        "dur": 100,
    }
    trace = {
        "baseTimeNanoseconds": NOON_NS if dated else 0,
        "distributedInfo": {"rank": rank, "world_size": world_size},
        "traceEvents": [kernel | {"args": {"device": rank, "stream": 7}}],
    }
    folder.mkdir(exist_ok=True)
    (folder / f"rank{rank}.json").write_text(json.dumps(trace))


def write_run(folder: Path, *, ranks=range(4), **options) -> Path:
    for rank in ranks:
        write_rank(folder, rank, **options)
    return folder


def content(store: Path) -> dict[str, bytes]:
    """All files of a store, by name."""
    files = {}
    for file in sorted(store.rglob("*")):
        if file.is_file():
            files[str(file.relative_to(store))] = file.read_bytes()
    return files


def check_refused(paths, store: Path, match: str, **options):
    """Check that the store stays as it is, to the byte."""
    before = content(store)
    with pytest.raises(OutputError, match=match):
        ingest(paths, store, **options)
    assert content(store) == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("world_size", [4, 8])
def test_another_run_is_refused_before_a_rank_is_written(tmp_path, resume, world_size):
    store = ingest(write_run(tmp_path / "a"), tmp_path / "store").path
    other = write_run(tmp_path / "b", ranks=range(world_size), world_size=world_size)
    check_refused(other, store, r"holds the store of another run .*--overwrite", resume=resume)
    assert ingest(other, store, overwrite=True).ranks == tuple(range(world_size))


@pytest.mark.parametrize("dated", [True, False])
def test_other_ranks_of_another_run_are_refused(tmp_path, dated):
    """No rank of it is in the store, and the world sizes are equal."""
    store = ingest(write_run(tmp_path / "a", ranks=[0, 1], dated=dated), tmp_path / "store").path
    other = write_run(tmp_path / "b", ranks=[2, 3], at_us=MINUTE_US, dated=dated)
    match = "recorded at another time" if dated else "nothing tells that"
    check_refused(other, store, match, resume=True)


def test_other_ranks_that_were_recorded_at_the_same_time_are_added(tmp_path):
    store = ingest(write_run(tmp_path / "node0", ranks=[0, 1]), tmp_path / "store").path
    node1 = write_run(tmp_path / "node1", ranks=[2, 3], at_us=50)
    assert ingest(node1, store, resume=True).ranks == (0, 1, 2, 3)


def test_a_rank_comes_from_one_file(tmp_path):
    folder = write_run(tmp_path / "a")
    store = ingest(folder, tmp_path / "store").path
    (folder / "rank3.json").rename(folder / "again-rank3.json")
    check_refused(folder, store, "holds rank 3 of .*/rank3.json, not of", resume=True)


def test_a_file_that_holds_another_recording_now_is_refused(tmp_path):
    """A folder is used again for the next run: its names are those of the files in the store."""
    folder = write_run(tmp_path / "a")
    store = ingest(folder, tmp_path / "store").path
    write_run(folder, at_us=MINUTE_US)
    check_refused(folder, store, "holds another recording than the one in the store", resume=True)
    check_refused(folder, store, "holds a store already")
    write_run(folder, world_size=8)
    check_refused(folder, store, "world size 4, not 8", resume=True)


def test_a_file_that_was_written_again_is_read_again(tmp_path):
    folder = write_run(tmp_path / "a")
    store = ingest(folder, tmp_path / "store").path
    write_rank(folder, 2, at_us=20)
    again = ingest(folder, store, resume=True)
    assert again.rank(2).events["start_ns"].to_list() == [NOON_NS + 20_000]
    assert (again.ranks, again.complete) == ((0, 1, 2, 3), True)
    assert not list(store.glob(".*"))


def test_an_error_on_the_way_leaves_what_was_there(tmp_path):
    folder = write_run(tmp_path / "a")
    store = ingest(folder, tmp_path / "store").path
    before = content(store)
    for rank in range(4):
        (folder / f"rank{rank}.json").write_text('{"traceEvents": [{"a": 1}, {"b": 2}]}')
    with pytest.raises(InputError):
        ingest(folder, store, resume=True)
    assert content(store) == before


@pytest.mark.parametrize("resume", [False, True])
def test_nothing_is_written_into_a_store_of_a_newer_format(tmp_path, resume):
    folder = write_run(tmp_path / "a")
    store = ingest(folder, tmp_path / "store").path
    manifest = json.loads((store / MANIFEST).read_text())
    del manifest[CHECKSUM_KEY]
    manifest["format"] = "tracekit.store/99"
    (store / MANIFEST).write_text(json.dumps(with_checksum(manifest)))
    check_refused(folder, store, "is of the format tracekit.store/99", resume=resume)
    assert ingest(folder, store, overwrite=True).ranks == (0, 1, 2, 3)


def test_files_of_two_runs_leave_no_store(tmp_path):
    """Their times tell, which are known when both were read."""
    folder = write_run(tmp_path / "a", ranks=[0, 1])
    write_rank(folder, 2, at_us=120 * MINUTE_US)
    with pytest.raises(InputError, match="different runs"):
        ingest(folder, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_store_that_holds_two_runs_is_not_continued(tmp_path):
    folder = write_run(tmp_path / "a")
    store = ingest(folder, tmp_path / "store").path
    late = write_run(tmp_path / "b", at_us=600 * MINUTE_US)
    other = ingest(late, tmp_path / "other").path
    (store / "rank=3").rename(tmp_path / "rank=3")
    (other / "rank=3").rename(store / "rank=3")
    check_refused(folder / "rank0.json", store, "come from different runs", resume=True)


def test_a_role_is_not_written_into_a_store_without_roles(tmp_path):
    folder = write_run(tmp_path / "a")
    store = ingest(folder, tmp_path / "store").path
    check_refused({"trainer": folder}, store, "its ranks have no roles", resume=True)


def test_to_continue_and_to_replace_is_no_request(tmp_path):
    folder = write_run(tmp_path / "a")
    with pytest.raises(TracekitError, match="either continued or replaced"):
        ingest(folder, tmp_path / "store", resume=True, overwrite=True)
    assert not (tmp_path / "store").exists()


def test_dumps_of_another_run_are_refused(tmp_path):
    first = write_dumps(tmp_path / "first", ddp_dumps(4, 12))
    store = ingest(first, tmp_path / "store").path
    for resume in (False, True):
        other = write_dumps(tmp_path / f"other{resume}", ddp_dumps(4, 12))
        check_refused(other, store, "holds the store of another run", resume=resume)
    traces = ingest(write_run(tmp_path / "a", ranks=[0, 1], world_size=2), tmp_path / "traces").path
    check_refused(first, traces, "world size 2, and there is a dump of rank 3", resume=True)


def test_a_store_that_another_process_writes_is_left_alone(tmp_path):
    folder = write_run(tmp_path / "a")
    store = ingest(folder, tmp_path / "store").path
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)"
    code += "; print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(store)], text=True, **pipes) as other:
        other.stdout.readline()
        for options in ({"resume": True}, {"overwrite": True}):
            check_refused(folder, store, "another process is writing a store there", **options)
        other.communicate("\n")
    ingest(folder, store, resume=True)


def test_an_analysis_through_a_store_takes_no_store_of_another_run(tmp_path):
    store = ingest(write_run(tmp_path / "a"), tmp_path / "store").path
    other = write_run(tmp_path / "b", at_us=MINUTE_US)
    with pytest.raises(OutputError, match="holds the store of another run"):
        analyze(other, store=store, resume=True, schedule="none")
    assert "/a/" in open_store(store).entries[0].source.path


def test_what_a_kill_before_the_first_rank_left_is_no_other_file(tmp_path, samples):
    store = tmp_path / "store"
    store.mkdir()
    (store / ".tracekit-store.json.tracekit-523ae45ac933e1ce.json").touch()
    assert ingest(samples / "reload", store, ranks=[0], resume=True).ranks == (0,)
    assert not [path for path in store.iterdir() if path.name.startswith(".")]
    other = tmp_path / "other"
    other.mkdir()
    (other / ".tracekit-store.json.tracekit-523ae45ac933e1ce.json").touch()
    (other / "notes.txt").touch()
    with pytest.raises(OutputError, match="holds other files and is not a store"):
        ingest(samples / "reload", other, ranks=[0])
