"""Processes that are killed, disks that are full, files that go away: nothing lost, nobody left, nothing lying around.

``TRACEKIT_KILLS`` says how often each is killed; ``make faults`` does it fifty times.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tracekit
from tests.clusters import dask_cluster, wait_for_workers
from tracekit._util.files import atomic_write, lock_temporary, remove_abandoned, temporary_prefix
from tracekit.report.notices import notice_sentence
from tracekit.store.files import open_store

KILLS = int(os.environ.get("TRACEKIT_KILLS", "1"))
SOON_S = 120
"""Far more than anything here takes: what takes longer hangs."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


def start(*words, **options):
    """The command line in a session of its own, so that all its processes can be found."""
    command = [sys.executable, "-m", "tracekit", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, start_new_session=True, text=True, **pipes, **options)


def members(session):
    """Processes of a session that still run: pid, and whether it is a worker."""
    processes = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdecimal():
                state, _, _, its = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its) == session and state != "Z":
                    words = (entry / "cmdline").read_bytes()
                    processes.append((int(entry.name), b"spawn_main" in words))
    return processes


def gone(session):
    """Whether all processes of a session end by themselves."""
    until = time.monotonic() + SOON_S
    while members(session) and time.monotonic() < until:
        time.sleep(0.05)
    return not members(session)


def wait_for(condition):
    until = time.monotonic() + SOON_S
    while not (result := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return result


@pytest.fixture(scope="module")
def traces(samples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    for rank in range(4):
        shutil.copy(samples / f"reload/rank{rank}.pt.trace.json.gz", folder)
    return folder


@pytest.fixture(scope="module")
def answer(traces):
    return tracekit.analyze(traces, schedule="none").to_json()


def without_paths(text):
    document = json.loads(text)
    document["source"]["paths"] = None
    return document


def from_store(store):
    return without_paths(tracekit.analyze(store, schedule="none").to_json())


@pytest.mark.nightly
def test_a_killed_parent_leaves_no_worker_and_the_work_goes_on(traces, tmp_path):
    choose = random.Random(1)
    store = tmp_path / "store"
    for _ in range(KILLS):
        running = start("ingest", traces, "-o", store, "--workers", 2, "--resume")
        wait_for(
            lambda running=running: (
                running.poll() is not None or any(w for _, w in members(running.pid))
            )
        )
        time.sleep(choose.uniform(0, 1.5))
        running.kill()
        running.communicate()
        assert gone(running.pid)
    done = start("ingest", traces, "-o", store, "--workers", 2, "--resume")
    assert done.wait(SOON_S) == 0, done.stderr.read()
    done.communicate()
    finished = open_store(store)
    assert finished.complete
    assert finished.ranks == (0, 1, 2, 3)
    assert all(
        finished.intact(rank, name)
        for rank in finished.ranks
        for name in ("events.parquet", "tables.zip")
    )
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert not [path for path in store.iterdir() if path.name.startswith(".")]


def test_a_killed_worker_costs_nothing(traces, answer):
    for _ in range(KILLS):
        running = start("analyze", traces, "--json", "--schedule", "none", "--workers", 2)
        workers = wait_for(
            lambda running=running: [pid for pid, worker in members(running.pid) if worker]
        )
        time.sleep(random.Random(2).uniform(0, 0.5))
        with contextlib.suppress(ProcessLookupError):
            os.kill(workers[0], signal.SIGKILL)
        out, err = running.communicate(timeout=SOON_S)
        assert running.returncode == 0, err
        assert out.strip() == answer.strip()
        assert gone(running.pid)


@pytest.mark.nightly
def test_ctrl_c_ends_everything(traces):
    choose = random.Random(3)
    for _ in range(KILLS):
        running = start("analyze", traces, "--json", "--workers", 2)
        wait_for(
            lambda running=running: (
                running.poll() is not None or any(w for _, w in members(running.pid))
            )
        )
        time.sleep(choose.uniform(0, 1))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=SOON_S)
        assert running.returncode in (0, 130)
        assert "Traceback" not in err
        assert gone(running.pid)


@pytest.mark.skipif(KILLS == 1, reason="tests/run/test_fleet.py kills one worker of Dask")
def test_a_killed_dask_worker_costs_nothing(traces, answer, tmp_path):
    """A worker is killed while it works, and another takes its place: the answer is the same."""
    pytest.importorskip("distributed")
    choose = random.Random(4)
    store = tmp_path / "store"
    of_files = without_paths(answer)
    with dask_cluster(tmp_path, 2) as (address, workers, start_worker):
        for _ in range(KILLS):
            wait_for_workers(tmp_path)
            running = start("ingest", traces, "-o", store, "--overwrite", "--dask", address)
            time.sleep(choose.uniform(0.3, 2))
            victim = workers.pop(0)
            victim.kill()
            workers.append(start_worker())
            out, err = running.communicate(timeout=SOON_S)
            assert running.returncode == 0, err
            assert out.startswith(f"Wrote {store}: ")
            assert gone(running.pid)
            assert from_store(store) == of_files


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.parametrize(
    "words",
    [
        ["ingest", "{traces}/rank0.pt.trace.json.gz", "-o", "{folder}/out"],
        pytest.param(
            ["export", "{traces}/rank0.pt.trace.json.gz", "-o", "{folder}/out.json"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ["redact", "{traces}/rank0.pt.trace.json.gz", "-o", "{folder}/out.json"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            ["analyze", "{traces}/rank0.pt.trace.json.gz", "-o", "{folder}/out.html"],
            marks=pytest.mark.nightly,
        ),
    ],
    ids=lambda words: words[0],
)
def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(traces, tmp_path, words):
    words = [word.format(traces=traces, folder=tmp_path) for word in words]
    # Compiled modules are not kept: Python would cut them short too, and the next process would
    # read them.
    running = start(
        *words, preexec_fn=small_files, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    _, err = running.communicate(timeout=SOON_S)
    assert running.returncode == 2, err
    assert err.count("\n") == 1
    assert "may not grow this large" in err
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_runs_out_of_memory_is_one_line(traces):
    """A library that cannot allocate ends its process: where that may happen, the process is not ours."""
    from tracekit._util.workers import map_items

    (done,) = map_items(eval, ["__import__('os').abort()"], workers=1, isolate=True)
    assert "memory ran out" in done.error.hint


@pytest.mark.nightly
@pytest.mark.parametrize("limit_mb", [600, 1_000])
@pytest.mark.parametrize("words", ["analyze", "doctor"])
def test_a_limit_on_memory_that_libraries_do_not_survive_is_one_line(traces, words, limit_mb):
    command = f"ulimit -v {limit_mb * 1_000}; exec {sys.executable} -m tracekit {words} {traces}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: the limit on memory is .* GB are needed \(ulimit -v\)\n", done.stderr
    )


@pytest.mark.nightly
def test_files_that_go_away_are_left_out_and_named(traces, tmp_path, monkeypatch):
    folder = tmp_path / "traces"
    shutil.copytree(traces, folder)
    from tracekit.run import driver as module

    find_sources = module.find_sources

    def find(*args, **options):
        sources = find_sources(*args, **options)
        (folder / "rank2.pt.trace.json.gz").unlink()  # a network's file, after it was listed
        return sources

    monkeypatch.setattr(module, "find_sources", find)
    result = tracekit.analyze(folder, schedule="none")
    assert [rank_result.rank for rank_result in result.ranks] == [0, 1, 3]
    assert any(
        n.code == "rank-failed" and "rank2.pt.trace.json.gz" in notice_sentence(n)
        for n in result.notices
    )


@pytest.mark.nightly
def test_a_clock_that_jumps_changes_no_answer(traces, tmp_path, answer, monkeypatch):
    jumps = iter(range(10**6, 0, -1))
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    tracekit.ingest(traces, tmp_path / "store")
    from_store = tracekit.analyze(tmp_path / "store", schedule="none").to_dict()
    assert from_store["total"] == json.loads(answer)["total"]


def test_what_a_killed_process_left_is_swept_and_what_is_being_built_is_not(tmp_path):
    target = tmp_path / "out.json"
    left, other = tmp_path / f"{temporary_prefix(target)}dead.json", tmp_path / ".out.json.swp"
    left.write_text("half")
    other.write_text("an editor's")
    with lock_temporary(tmp_path / other.name):
        remove_abandoned(target)
    assert not left.exists()
    assert other.exists()
    with atomic_write(target) as temporary:
        remove_abandoned(target)
        assert temporary.exists()
        temporary.write_text("whole")
    assert target.read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.json.swp", "out.json"]


def test_a_store_that_is_replaced_is_never_missing(traces, tmp_path):
    """The old store and the new one change places in one step."""
    tracekit.ingest(traces, tmp_path / "store", ranks=[0])
    before = (tmp_path / "store").stat().st_ino
    tracekit.ingest(traces, tmp_path / "store", ranks=[0, 1], overwrite=True)
    assert (tmp_path / "store").stat().st_ino != before
    assert open_store(tmp_path / "store").ranks == (0, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


KILLER = """
import os, signal, sys
target, number, *words = sys.argv[1:]
count = 0
WRITES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.truncate")

def kill_at_write(event, args):
    global count
    is_open = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if event not in WRITES and not is_open:
        return
    if not any(isinstance(arg, (str, bytes)) and os.fsdecode(arg).startswith(target) for arg in args):
        return
    count += 1
    if count == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill_at_write)
sys.argv[1:] = words
from tracekit.cli import main
main()
"""


def killed_at_write(number, target, *words):
    """Run the command line, killed at its write of this number below *target*; return the exit code."""
    command = [sys.executable, "-c", KILLER, str(target), str(number), *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=SOON_S, check=False).returncode


@pytest.mark.parametrize(
    "every",
    [pytest.param(7, marks=pytest.mark.nightly), pytest.param(1, marks=pytest.mark.nightly), 29],
)
def test_a_kill_at_any_write_of_a_store_leaves_what_can_be_resumed(traces, tmp_path, every):
    words = ("ingest", traces, "-o", tmp_path / "store", "--workers", 1, "--resume")
    number = every
    while killed_at_write(number, tmp_path, *words) == -signal.SIGKILL:
        has_manifest = (tmp_path / "store" / "tracekit-store.json").exists()
        if has_manifest and open_store(tmp_path / "store").entries:
            tracekit.load(tmp_path / "store")  # what is listed is whole
        if number % 2:
            shutil.rmtree(tmp_path / "store", ignore_errors=True)
        number += every
    finished = open_store(tmp_path / "store")
    assert finished.complete
    assert finished.ranks == (0, 1, 2, 3)
    assert number > every  # it was killed at least once
    assert not [path for path in (tmp_path / "store").iterdir() if path.name.startswith(".")]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["run.json", "run.html", "run.md", "run.csv"])
def test_a_kill_at_any_write_of_a_report_leaves_the_old_or_the_new_one(traces, tmp_path, name):
    report = tmp_path / name
    report.write_bytes(b"old")
    number = 1
    words = ("analyze", traces, "--schedule", "none", "--workers", 1, "-o", report)
    while killed_at_write(number, tmp_path, *words) == -signal.SIGKILL:
        assert report.read_bytes() == b"old" or report.stat().st_size > 1000
        number += 1
    assert number > 1
    assert report.stat().st_size > 1000
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("base.json", ["gate", "{saved}", "--update-baseline", "--baseline", "{out}"]),
        ("out.json.gz", ["export", "{trace}", "-o", "{out}", "--workers", "1"]),
        ("redacted.json.gz", ["redact", "{trace}", "-o", "{out}"]),
        ("late.json", ["late", "{dumps}", "-o", "{out}"]),
    ],
    ids=["gate", "export", "redact", "late"],
)
def test_a_kill_at_any_write_of_a_file_leaves_the_old_or_the_new_one(
    traces, samples, tmp_path, name, words
):
    folder = tmp_path / "out"
    folder.mkdir()
    places = {
        "saved": tmp_path / "saved.json",
        "trace": traces / "rank0.pt.trace.json.gz",
        "dumps": samples / "always-on/1f1b",
        "out": folder / name,
    }
    tracekit.analyze(samples / "steps/a", schedule="none").save(places["saved"])
    command = [word.format(**places) for word in words]
    assert killed_at_write(10**6, folder, *command) == 0
    old = places["out"].read_bytes()
    number = 1
    while killed_at_write(number, folder, *command) == -signal.SIGKILL:
        assert places["out"].stat().st_size == len(old)
        number += 1
    assert number > 1
    assert [path.name for path in folder.iterdir()] == [name]
