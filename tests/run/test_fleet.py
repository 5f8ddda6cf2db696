"""Many ranks: the same answer from this process, from processes and from Dask.

Faults cost only their rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import importlib.util
import json
import os
import pickle
import pty
import shutil
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import polars as pl
import pytest

import tracekit
from tests.clusters import dask_cluster, until, wait_for_workers
from tests.kept import analysis_of
from tracekit.analysis.persistence import read_tables, write_tables
from tracekit.errors import InputError, OptionError
from tracekit.graph.loadable import LoadableTable
from tracekit.intervals import Intervals
from tracekit.pipeline.schedules import generate
from tracekit.report.notices import error_message, notice_sentence
from tracekit.rooms import ROOM_MEASURES
from tracekit.run import ingest as ingesting
from tracekit.run.analyze import analyze
from tracekit.run.dask import cluster
from tracekit.run.measure import SourceWorker
from tracekit.schema import LABELLED
from tracekit.store.files import CHECKSUM_KEY, open_store, read_entry, with_checksum, write_rank
from tracekit.store.sources import find, read_ref
from tracekit.synthetic import Recipe, write_run

pytestmark = pytest.mark.slow

RANKS, BAD = 8, 5
COMMAND = [sys.executable, "-c", "from tracekit.cli import main; main()"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Small ranks, two pipelines of 4; one file is cut off inside its first event."""
    folder = tmp_path_factory.mktemp("fleet") / "traces"
    recipe = Recipe(
        generate("1f1b", pp=4, microbatches=2),
        replicas=RANKS // 4,
        layers=1,
        jitter=0.05,
        p2p_ns=20_000,
    )
    files = write_run(recipe, folder)
    text = gzip.decompress(files[BAD].read_bytes())
    files[BAD].write_bytes(gzip.compress(text[: text.index(b'"traceEvents"') + 40]))
    return folder


@pytest.fixture(scope="module")
def serial(traces):
    """The answer that every other way has to give."""
    return analyze(traces, workers=1)


def run(*words):
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=200, check=False
    )


def without_paths(text):
    document = json.loads(text)
    document["source"]["paths"] = None
    return document


def same(a, b, name=""):
    """Assert that two values are equal down to types, order and columns; *name* is that of the values."""
    if isinstance(a, LoadableTable):
        a, b = a.load(), b.load()
    assert type(a) is type(b), name
    if isinstance(a, pl.DataFrame):
        assert a.schema == b.schema, name
        assert a.equals(b), name
    elif isinstance(a, Intervals):
        assert a == b, name
        assert a.start_ns.dtype == b.start_ns.dtype, name
    elif isinstance(a, msgspec.Struct):
        for field in a.__struct_fields__:
            same(getattr(a, field), getattr(b, field), f"{name}.{field}")
    elif dataclasses.is_dataclass(a):
        for field in dataclasses.fields(a):
            same(getattr(a, field.name), getattr(b, field.name), f"{name}.{field.name}")
    elif isinstance(a, tuple):
        assert len(a) == len(b), name
        for x, y in zip(a, b, strict=True):
            same(x, y, name)
    elif isinstance(a, dict):
        assert list(a) == list(b), name
        for key in a:
            same(a[key], b[key], f"{name}.{key}")
    else:
        assert a == b, name


# ---- a rank's tables


@pytest.mark.parametrize("name", ["1f1b", "steps/a", "reload", "vpp-overlap", "nsys-1f1b"])
def test_tables_come_back_exactly(samples, tmp_path, name):
    made = SourceWorker().measure(find(samples / name).refs[0])[0]
    write_tables(made, tmp_path)
    back = read_tables(tmp_path, rooms=ROOM_MEASURES)
    same(made, back)
    same(made, pickle.loads(pickle.dumps(back)))
    assert (made.by_step is made.window) == (back.by_step is back.window)


def test_the_events_of_the_graph_stay_in_the_store_until_they_are_loaded(samples, tmp_path):
    write_tables(SourceWorker().measure(find(samples / "1f1b", ranks=[1]).refs[0])[0], tmp_path)
    tables = read_tables(tmp_path, rooms=ROOM_MEASURES)
    assert (tables.pipeline.has_work, sorted(tables.pipeline.peers)) == (True, [0, 2])
    assert tables.graph_events.load().height > 100
    assert len(pickle.dumps(tables.graph_events)) < 1000  # the position travels, not the content
    os.utime(tmp_path / "tables.zip", ns=(1, 1))
    with pytest.raises(
        InputError, match=r"tables\.zip: cannot be read: it was written again since"
    ):
        tables.graph_events.load()


def test_tables_of_another_version_or_damaged_ones_are_not_taken(samples, tmp_path, monkeypatch):
    made = SourceWorker(with_pipeline=False).measure(find(samples / "reload").refs[0])[0]
    file = write_tables(made, tmp_path)
    monkeypatch.setattr("tracekit.analysis.persistence.__version__", "0.0.0")
    assert read_tables(tmp_path, rooms=ROOM_MEASURES) is None
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:-40])
    assert read_tables(tmp_path, rooms=ROOM_MEASURES) is None
    assert read_tables(tmp_path / "nowhere", rooms=ROOM_MEASURES) is None


def test_tables_that_lack_a_field_are_measured_again(samples, tmp_path):
    write_tables(SourceWorker().measure(find(samples / "reload").refs[0])[0], tmp_path)
    with zipfile.ZipFile(tmp_path / "tables.zip") as packed:
        members = {name: packed.read(name) for name in packed.namelist()}
    document = json.loads(members["tables.json"])
    del document["tables"]["hiding"]
    with zipfile.ZipFile(tmp_path / "tables.zip", "w") as packed:
        for name, data in (members | {"tables.json": json.dumps(document)}).items():
            packed.writestr(name, data)
    assert read_tables(tmp_path, rooms=ROOM_MEASURES) is None


def test_an_analysis_of_a_store_takes_its_tables_and_measures_where_it_must(
    samples, tmp_path, monkeypatch
):
    tracekit.ingest(samples / "steps/a", tmp_path / "store")
    whole, some = analysis_of(samples / "steps/a"), analyze(samples / "steps/a", steps="3:5")
    assert without_paths(analyze(tmp_path / "store", steps="3:5").to_json()) == without_paths(
        some.to_json()
    )
    monkeypatch.setattr("tracekit.run.measure.measure_rank", None)  # measuring would fail
    assert without_paths(analyze(tmp_path / "store").to_json()) == without_paths(whole.to_json())
    assert analyze(tmp_path / "store", schedule="none").schedule is None


# ---- the same answer, whoever works


def test_the_bad_rank_is_listed_by_path_and_the_rest_is_analyzed(serial, traces):
    assert len(serial.ranks) == RANKS - 1
    messages = {notice.code: notice_sentence(notice) for notice in serial.notices}
    assert messages["rank-failed"].startswith(
        f"rank {BAD} is left out: {traces}/rank{BAD}.pt.trace.json.gz: "
    )
    assert messages["missing-ranks"] == f"1 of {RANKS} ranks is not here: {BAD}"
    assert serial.schedule.name == "1f1b"
    # Its pipeline's causes.
    assert [held.gap_ns is None for held in serial.comparison.all].count(True) == 1


def test_a_store_gives_the_same_json(serial, traces, tmp_path):
    assert analyze(traces, store=tmp_path / "store", workers=2).to_json() == serial.to_json()
    stored = analyze(tmp_path / "store")
    assert without_paths(stored.to_json()) == without_paths(serial.to_json())


def test_any_executor_and_relative_paths_give_the_same_json(traces, monkeypatch):
    """Also of the bad rank, which is one of these."""
    absolute = analyze(traces, ranks=range(4, 8), workers=1).to_json()
    monkeypatch.chdir(traces.parent)
    with ThreadPoolExecutor(2) as threads:
        relative = analyze("traces", ranks=range(4, 8), executor=threads).to_json()
    assert relative == absolute.replace(str(traces), "traces")


def test_urls_travel_to_the_workers(traces, tmp_path):
    pytest.importorskip("fsspec")
    url = f"file://{traces}/rank[0-3].pt.trace.json.gz"
    store = tracekit.ingest(url, tmp_path / "store", workers=2)
    assert store.ranks == (0, 1, 2, 3)
    assert store.sources[0].path == f"file://{traces}/rank0.pt.trace.json.gz"
    assert store.rank(3).events.equals(tracekit.load(traces, ranks=[3]).rank(3).events)
    again = tracekit.ingest(url, tmp_path / "store", resume=True)
    assert again.notices[0].code == "resumed"
    assert again.ranks == (0, 1, 2, 3)


# ---- Dask, for real


def ranks_in(store):
    return len(list(Path(store).glob("rank=*")))


@pytest.mark.nightly
@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="dask.distributed is not installed"
)
def test_dask_with_a_worker_killed_in_the_middle_gives_the_same_tables(serial, traces, tmp_path):
    store = tmp_path / "store"
    with dask_cluster(tmp_path, 2) as (address, workers, _):
        wait_for_workers(tmp_path)
        with subprocess.Popen(
            [*COMMAND, "ingest", str(traces), "-o", str(store), "--dask", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as command:
            until(lambda: ranks_in(store) >= 2)
            workers[0].kill()
            assert ranks_in(store) < RANKS - 1, "the worker was not killed in the middle"
            out, err = command.communicate(timeout=200)
        assert command.returncode == 0, err
        assert out.startswith(f"Wrote {store}: {RANKS - 1} ranks, ")
        assert f"note: rank {BAD} is left out: {traces}/rank{BAD}.pt.trace.json.gz: " in err
        with cluster(address) as (executor, workers_left):  # the worker that is left
            answer = analyze(traces, executor=executor, workers=workers_left)
    assert answer.to_json() == serial.to_json()
    assert without_paths(analyze(store).to_json()) == without_paths(serial.to_json())
    alone = SourceWorker()  # as ingest
    stored = read_tables(store / f"rank={RANKS - 1}", rooms=ROOM_MEASURES)
    same(alone.measure(find(traces, ranks=[RANKS - 1]).refs[0])[0], stored)


def test_no_scheduler_is_one_line_and_exit_code_2(traces, tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    code = (
        "from tracekit.run import dask\ndask.CONNECT_S = 1\nfrom tracekit.cli import main; main()"
    )
    words = ["ingest", traces, "-o", tmp_path / "store", "--dask", "tcp://127.0.0.1:9"]
    out = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert out.returncode == 2
    assert out.stderr.splitlines()[-1].startswith(
        "error: --dask tcp://127.0.0.1:9: no scheduler answers"
    )
    assert not (tmp_path / "store").exists()


# ---- faults and exit codes


def test_strict_makes_a_bad_rank_fatal(run_command, traces, tmp_path):
    few = ["--ranks", f"{BAD - 1}-{BAD}", "--strict"]
    for words in (["ingest", traces, "-o", tmp_path / "store", *few], ["analyze", traces, *few]):
        out = run_command(*words)
        assert out.returncode == 2
        assert out.stdout == ""
        assert f"rank{BAD}.pt.trace.json.gz" in out.stderr
        assert out.stderr.count("\n") == 1


def test_strict_makes_a_missing_rank_and_a_skipped_file_fatal(traces, tmp_path):
    for rank in (0, 1):
        shutil.copy(traces / f"rank{rank}.pt.trace.json.gz", tmp_path)
    assert len(analyze(tmp_path).ranks) == 2
    with pytest.raises(InputError, match="ranks are missing") as caught:
        analyze(tmp_path, on_damage="error")
    assert f": {RANKS - 2} of {RANKS} ranks are not here" in error_message(caught.value)
    (tmp_path / "rank2.pt.trace.json.gz").write_bytes(b"")
    assert any(notice.code == "rank-failed" for notice in analyze(tmp_path).notices)
    with pytest.raises(InputError, match=r"rank2\.pt\.trace"):
        analyze(tmp_path, on_damage="error")


@pytest.mark.nightly
def test_ctrl_c_leaves_a_usable_store_and_resume_finishes_it(serial, traces, tmp_path):
    store = tmp_path / "store"
    with subprocess.Popen(
        [*COMMAND, "ingest", str(traces), "-o", str(store), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  # as at a terminal
    ) as command:
        until(lambda: ranks_in(store) >= 2)
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=100)
    assert command.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    left = open_store(store)
    assert 0 < len(left.ranks) < len(serial.ranks)
    assert not left.complete
    assert not list(store.glob(".rank=*"))
    unfinished = analyze(store)
    assert len(unfinished.ranks) == len(left.ranks)
    assert unfinished.notices[0].code == "store-incomplete"
    written = {
        folder: (folder / "events.parquet").stat().st_mtime_ns for folder in store.glob("rank=*")
    }
    out = run("ingest", traces, "-o", store, "--resume", "--workers", "2")
    assert out.returncode == 0, out.stderr
    assert f"note: {len(written)} traces were in the store already" in out.stderr
    assert all(
        (folder / "events.parquet").stat().st_mtime_ns == then for folder, then in written.items()
    )
    assert without_paths(analyze(store).to_json()) == without_paths(serial.to_json())


# ---- resume


@pytest.fixture
def four(traces, tmp_path):
    """Four ranks of their own, to be changed."""
    folder = tmp_path / "four"
    folder.mkdir()
    for rank in range(4):
        shutil.copy(traces / f"rank{rank}.pt.trace.json.gz", folder)
    return folder


def reads(monkeypatch):
    """The ranks that are read from now on."""
    seen = []

    def reading(ref, **options):
        seen.append(ref.rank)
        return read_ref(ref, **options)

    monkeypatch.setattr(ingesting, "read_ref", reading)
    return seen


def test_resume_reads_only_what_changed(four, tmp_path, monkeypatch):
    first = tracekit.ingest(four, tmp_path / "store")
    seen = reads(monkeypatch)
    tracekit.ingest(four, tmp_path / "store", resume=True)
    assert seen == []
    os.utime(four / "rank2.pt.trace.json.gz", ns=(1, 1))
    (four / "rank1.pt.trace.json.gz").unlink()
    again = tracekit.ingest(four, tmp_path / "store", resume=True)
    assert seen == [2]
    assert again.rank(2).events.equals(first.rank(2).events)
    assert again.ranks == (0, 1, 2, 3)  # resuming adds: what is not named stays
    tracekit.ingest(four, tmp_path / "store", resume=True, stacks=True)
    assert seen == [2, 0, 2, 3]  # other options, other content


def test_resume_after_a_kill_takes_ranks_the_manifest_does_not_list(four, tmp_path, monkeypatch):
    tracekit.ingest(four, tmp_path / "store")
    manifest = json.loads((tmp_path / "store/tracekit-store.json").read_text())
    manifest.pop(CHECKSUM_KEY)
    # As it was written before the first rank.
    early = with_checksum({**manifest, "ranks": [], "complete": False})
    (tmp_path / "store/tracekit-store.json").write_text(json.dumps(early))
    with pytest.raises(InputError, match="holds no rank yet"):
        analyze(tmp_path / "store")
    seen = reads(monkeypatch)
    shutil.rmtree(tmp_path / "store/rank=3")
    store = tracekit.ingest(four, tmp_path / "store", resume=True)
    assert (seen, store.ranks, store.complete) == ([3], (0, 1, 2, 3), True)


def test_a_trace_that_went_bad_leaves_no_stale_rank(four, tmp_path):
    tracekit.ingest(four, tmp_path / "store")
    (four / "rank1.pt.trace.json.gz").write_bytes(
        gzip.compress(b'{"traceEvents": [{"a": 1}, {"b": 2}]}')
    )
    store = tracekit.ingest(four, tmp_path / "store", resume=True)
    assert store.ranks == (0, 2, 3)
    assert "rank 1 is left out" in next(
        notice_sentence(notice) for notice in store.notices if notice.code == "rank-failed"
    )


def test_resume_needs_something_to_go_on_with(four, tmp_path):
    with pytest.raises(OptionError, match="needs a store"):
        analyze(four, resume=True)
    tracekit.ingest(four, tmp_path / "store")
    with pytest.raises(OptionError, match="from itself"):
        tracekit.ingest(tmp_path / "store", tmp_path / "store", resume=True)


def test_work_done_twice_is_no_conflict_and_two_traces_of_a_rank_are(four, tmp_path):
    rank = tracekit.load(four, ranks=[0]).rank(0)
    write_rank(tmp_path, rank, LABELLED.to_frame(), key="one")
    write_rank(tmp_path, rank, LABELLED.to_frame(), key="one")
    assert read_entry(tmp_path / "rank=0").key == "one"
    with pytest.raises(InputError, match="rank 0 was found twice"):
        write_rank(tmp_path, rank, LABELLED.to_frame(), key="other")


def test_progress_and_an_estimate_on_a_terminal(four, tmp_path):
    ours, theirs = pty.openpty()
    words = ["ingest", four, "-o", tmp_path / "store", "--workers", "1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    out = subprocess.run(
        [*COMMAND, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=100,
        check=False,
        env=environment,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # a closed terminal ends so on Linux
        while more := os.read(ours, 65536):
            shown += more
    os.close(ours)
    assert out.returncode == 0
    assert b"ingesting" in shown
    assert b"4/4" in shown
    assert b"0:00:0" in shown
