"""Workers that are started before there is work: who starts them, and what is made beside them."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys

import pytest

import tracekit
from tracekit import program
from tracekit._util import processes
from tracekit._util.machine import SYSTEM, WORKER_BYTES, cores
from tracekit._util.pool import iter_map, started_ahead
from tracekit._util.processes import beside_workers, start_ahead
from tracekit.program import MOST, PAYS_FILES, ROOM, look_ahead, start_workers

DIE_IN_A_WORKER = f"__import__('os').getpid() == {os.getpid()} or __import__('os')._exit(1)"
SLOWLY = "__import__('time').sleep(0.3) or __import__('os').getpid()"


@pytest.fixture
def ahead():
    """Start a worker, and see that none is left."""
    start_ahead(1, "tracekit._util.text")
    crew = list(processes.waiting)
    yield crew
    for worker in processes._taken(len(crew)):
        worker.end(now=True)


def test_every_item_is_made_once_here_or_there(ahead):
    made = list(beside_workers(eval, [SLOWLY] * 6))
    assert [alive for _, alive, _ in made] == [True] * 6
    places = {place for _, _, place in made}
    assert os.getpid() in places
    assert len(places) == 2, "both worked"
    assert started_ahead() == 0


def test_what_is_needed_later_is_imported_while_a_worker_is_waited_for(monkeypatch, tmp_path):
    (tmp_path / "needed_later.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    start_ahead(1, "tracekit._util.text", later="needed_later")
    for _ in beside_workers(eval, [SLOWLY] * 2):
        pass
    assert sys.modules.pop("needed_later", None) is not None


def test_results_are_those_of_one_process(ahead):
    items = [str(k) for k in range(20)]
    assert sorted(value for _, _, value in beside_workers(eval, items)) == list(range(20))


def test_an_item_of_which_a_worker_died_runs_again_and_is_reported(ahead):
    done = sorted(iter_map(eval, [DIE_IN_A_WORKER, SLOWLY, SLOWLY], beside=True), key=lambda one: one.index)
    assert "died" in done[0].error.message
    assert done[1].value == done[2].value == os.getpid(), "nobody else was left"


def test_when_the_caller_stops_the_workers_end(ahead):
    with contextlib.closing(beside_workers(eval, [SLOWLY] * 6)) as stream:
        next(stream)
    with pytest.raises(ValueError, match="closed"):
        ahead[0].process.is_alive()


def test_spawned_crews_take_those_that_wait(ahead):
    pids = {one.value for one in iter_map(eval, [SLOWLY] * 4, workers=2)}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert started_ahead() == 0


def test_an_analysis_beside_a_worker_is_the_same(ahead):
    beside = tracekit.analyze("sample_traces/reload").to_json()
    assert started_ahead() == 0
    assert json.loads(beside) == json.loads(tracekit.analyze("sample_traces/reload", workers=1).to_json())


FORKED = """
import os, sys
from tracekit._util import processes
from tracekit._util.processes import beside_workers, start_ahead

start_ahead(2, "tracekit._util.text")
crew = list(processes.waiting)
print(sorted({type(one.process).__name__ for one in crew}), os.environ["POLARS_MAX_THREADS"])
made = list(beside_workers(eval, ["__import__('time').sleep(0.2) or __import__('os').getpid()"] * 12))
print(len({pid for _, _, pid in made}), all(alive for _, alive, _ in made))
for one in crew:
    one.process.join(20)
print([one.process.exitcode for one in crew])
"""


@pytest.mark.skipif(not SYSTEM.exists(), reason="only Linux says how many threads a process has")
def test_a_bare_process_forks_and_its_workers_end_when_all_is_done():
    """They hold no end of each other's pipes: else none would see that the parent hung up."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True)
    method, made, codes = done.stdout.splitlines()
    assert method == f"['ForkProcess'] {max(1, cores() // 3)}"
    assert made == "3 True"
    assert codes == "[0, 0]"
    assert done.stderr == ""


@pytest.mark.skipif(not SYSTEM.exists(), reason="only Linux says how many threads a process has")
def test_forked_workers_end_with_their_parent():
    """They write where it does: that there is nothing more to read says that they are gone."""
    code = FORKED.partition("made =")[0] + "sys.stdout.flush(); os._exit(3)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert done.stdout.startswith("['ForkProcess']")


def test_a_process_with_threads_spawns(ahead):
    assert type(ahead[0].process).__name__ == "SpawnProcess"


@pytest.fixture
def busy(monkeypatch, tmp_path_factory):
    """Let some others run on a machine of 8 cores."""

    def set_to(others):
        file = tmp_path_factory.mktemp("proc") / "loadavg"
        file.write_text(f"9.53 8.95 5.85 {others + 1}/204 465\n")
        monkeypatch.setattr(program, "_RUNNING", file)
        monkeypatch.setattr(os, "cpu_count", lambda: 8)

    set_to(0)
    return set_to


@pytest.fixture
def started(monkeypatch, busy):
    """How many workers each call starts, on a machine of 8 idle cores."""
    counts = []
    monkeypatch.setattr(processes, "start_ahead", lambda count, module, later: counts.append((count, module)))
    monkeypatch.setattr(program, "cores", lambda: 8)
    monkeypatch.setattr(program, "available_memory", lambda: 64 << 30)
    return counts


def traces(folder, count):
    for k in range(count):
        (folder / f"rank{k}.json.gz").touch()
    return str(folder)


def test_they_are_started_where_there_are_enough_traces(started, tmp_path):
    start_workers([traces(tmp_path, PAYS_FILES - 1)])
    assert started == []
    start_workers([traces(tmp_path, PAYS_FILES)])
    start_workers([str(file) for file in sorted(tmp_path.iterdir())])
    assert started == [(2, "tracekit.run.measure")] * 2
    start_workers([traces(tmp_path, 40)])
    assert started[-1][0] == MOST


def test_they_are_started_where_cores_are_idle(started, busy, tmp_path, monkeypatch):
    folder = traces(tmp_path, 40)
    for others in (5, 6, 7, 30):  # 3 cores are left, 2, 1 for this process, none
        busy(others)
        start_workers([folder])
    assert [count for count, _ in started] == [2, 1]
    busy(3)
    monkeypatch.setattr(program, "cores", lambda: 2)  # of the eight
    start_workers([folder])
    assert started[-1][0] == 1
    assert len(started) == 3


def test_who_runs_for_a_moment_only_is_not_in_the_way(started, busy, tmp_path, monkeypatch):
    folder = traces(tmp_path, 40)
    busy(30)
    monkeypatch.setattr(program.time, "sleep", lambda _: busy(0))
    start_workers([folder])
    assert [count for count, _ in started] == [MOST]


def test_they_are_started_where_memory_is_there(started, tmp_path, monkeypatch):
    folder, each = traces(tmp_path, 40), ROOM * WORKER_BYTES
    for memory in (3 * each, each, each - 1):
        monkeypatch.setattr(program, "available_memory", lambda memory=memory: memory)
        start_workers([folder])
    assert [count for count, _ in started] == [3, 1]


def test_a_glance_at_the_words_says_whether_they_are_started(started, tmp_path):
    folder = traces(tmp_path, 40)
    for words in (["analyze", folder], ["analyze", "--what-if", folder, "-o", "x.html"], ["analyze", folder, "--json"]):
        look_ahead(words)
    assert len(started) == 3
    for words in (
        [],
        ["ingest", folder],
        ["analyze"],
        ["analyze", "--help"],
        ["analyze", folder, "--workers", "1"],
        ["analyze", folder, "--workers=2"],
        ["analyze", folder, "--dask", "here"],
        ["analyze", folder, "--explain", "gemm"],
    ):
        look_ahead(words)
    assert len(started) == 3


def test_where_no_process_can_be_started_nothing_is_said(started, tmp_path, monkeypatch):
    def refused(count, module, later):
        raise BlockingIOError("resource temporarily unavailable")

    monkeypatch.setattr(processes, "start_ahead", refused)
    start_workers([traces(tmp_path, 40)])


def test_elsewhere_the_load_of_the_last_minute_tells(started, tmp_path, monkeypatch):
    folder = traces(tmp_path, 40)
    monkeypatch.setattr(program, "_RUNNING", tmp_path / "nothing")
    monkeypatch.setattr(os, "getloadavg", lambda: (5.6, 0.0, 0.0))
    start_workers([folder])
    assert [count for count, _ in started] == [1]
    monkeypatch.delattr(os, "getloadavg")
    start_workers([folder])
    assert started[-1][0] == MOST


def test_they_are_not_started_for_a_store_or_what_is_not_there(started, tmp_path):
    (tmp_path / "tracekit-store.json").touch()
    start_workers([traces(tmp_path, 9)])
    start_workers(["nowhere", "http://host/trace.json", "run/*.json", "a\0b"] * 3)
    assert started == []


def test_the_module_they_import_is_there():
    assert importlib.import_module(program.WORK).Options
