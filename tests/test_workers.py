"""map_items: order, failures as results, dead workers, killed parents, Ctrl-C, executors and unguarded scripts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from tracekit._util import workers as module
from tracekit._util.machine import cores
from tracekit._util.workers import MAX_PIPE_BYTES, ItemResult, map_items
from tracekit.errors import InputError, OptionError

pytestmark = pytest.mark.slow

DIE = "__import__('os')._exit(1)"
FAIL = "1 / 0"
PID = "__import__('os').getpid()"
SLEEP = "__import__('time').sleep(60)"

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def results_of(items, **options):
    return sorted(map_items(eval, items, **options), key=lambda result: result.index)


def values_of(items, **options):
    return [result.value for result in results_of(items, **options)]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_name_their_item_and_failures_are_results(workers):
    results = results_of(["1", FAIL, "'three'"], workers=workers)
    assert [result.value for result in results] == [1, None, "three"]
    assert results[1].error.message.startswith(
        "a fault in tracekit: ZeroDivisionError: division by zero"
    )
    assert [result.item for result in results] == ["1", FAIL, "'three'"]


def test_large_results_arrive_too_and_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert [
        len(value)
        for value in values_of([f"'x' * {MAX_PIPE_BYTES * n}" for n in range(4)], workers=2)
    ] == [MAX_PIPE_BYTES * n for n in range(4)]
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_cannot_be_pickled_is_the_failure_of_its_item():
    results = results_of(["lambda: 0", "2"], workers=2)
    assert "pickle" in results[0].error.message
    assert results[1].value == 2


def test_a_dead_worker_costs_only_the_item_that_killed_it():
    results = results_of(["0", "1", DIE, "3", "4", "5", "6"], workers=2)
    assert [result.value for result in results] == [0, 1, None, 3, 4, 5, 6]
    assert results[2].error.message == "the worker process that read this died"
    assert "memory ran out" in results[2].error.hint


def test_two_deadly_items_are_both_reported():
    assert [result.error is None for result in results_of([DIE, "1", DIE, "3"], workers=2)] == [
        False,
        True,
        False,
        True,
    ]


def test_a_worker_that_was_killed_once_costs_nothing(tmp_path):
    once = f"__import__('pathlib').Path({str(tmp_path)!r}, 'x').mkdir() or {DIE}"
    attempt = f"7 if __import__('pathlib').Path({str(tmp_path)!r}, 'x').exists() else {once}"
    assert values_of([attempt, "1", "2"], workers=2) == [7, 1, 2]


def test_one_worker_can_be_a_process_of_its_own():
    assert values_of([PID], workers=1) == [os.getpid()]
    assert values_of([PID], workers=1, isolate=True) != [os.getpid()]


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    shown = "__import__('os').environ.get('POLARS_MAX_THREADS')"
    assert values_of([shown] * 2, workers=2) == [str(max(1, cores() // 2))] * 2
    assert "POLARS_MAX_THREADS" not in os.environ
    monkeypatch.setenv("POLARS_MAX_THREADS", "7")
    assert values_of([shown] * 2, workers=2) == ["7", "7"]


def test_any_executor_takes_the_work_and_stays_open():
    with ThreadPoolExecutor(2) as threads:
        assert values_of(["0", "1", "2"], executor=threads) == [0, 1, 2]
        assert threads.submit(len, "abc").result() == 3


def test_an_executor_that_is_broken_or_shut_down_is_the_failure_of_each_item():
    class Broken(ThreadPoolExecutor):
        def submit(self, *_):
            raise BrokenExecutor("gone")

    with Broken(1) as executor:
        assert all(result.error is not None for result in results_of(["1", "2"], executor=executor))
    with ThreadPoolExecutor(1) as executor:
        executor.shutdown()
        assert all(
            "shutdown" in result.error.message
            for result in results_of(["1", "2"], executor=executor)
        )


def test_only_a_few_items_per_worker_are_handed_out_at_a_time():
    in_flight, most = 0, 0

    class Counting(ThreadPoolExecutor):
        def submit(self, *args):
            nonlocal in_flight, most
            in_flight += 1
            most = max(most, in_flight)
            return super().submit(*args)

    with Counting(1) as executor:
        for _ in map_items(len, ["x"] * 50, executor=executor, workers=1):
            in_flight -= 1
    assert most <= 3


def test_no_workers_is_an_error():
    with pytest.raises(OptionError, match="0 workers"):
        results_of(["1"], workers=0)


def test_unwrap_raises_the_error_of_the_item():
    with pytest.raises(InputError, match="no such"):
        ItemResult(0, "x", error=InputError("no such file")).unwrap()


def test_a_caller_that_stops_early_does_not_wait_for_its_workers():
    began = time.monotonic()
    with contextlib.closing(map_items(eval, ["1", SLEEP, SLEEP], workers=2)) as results:
        assert next(results).value == 1
    assert time.monotonic() - began < 30


def test_a_script_without_a_main_guard_is_one_clear_error(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tracekit._util.workers import map_items\nfrom tracekit.errors import OptionError\n"
        "try:\n    list(map_items(len, ['a', 'bb', 'c'], workers=2))\nexcept OptionError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.count("\n") == 1
    assert 'if __name__ == "__main__"' in done.stdout
    assert done.stderr == ""


def test_a_script_with_a_main_guard_uses_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tracekit._util.workers import map_items\ndef double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n    print(sorted(r.value for r in map_items(double, [1, 2, 3], workers=2)))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("[2, 4, 6]\n", "")


@pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"), reason="this machine has no signal masks"
)
def test_no_module_beside_the_traces_is_run(tmp_path):
    for name in ("multiprocessing", "signal", "json", "polars", "tracekit"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()", encoding="utf-8")
    # As an installed script: its own folder is searched for modules, the working folder is not.
    script = tmp_path / "bin" / "count.py"
    script.parent.mkdir()
    script.write_text(
        "from tracekit._util.workers import map_items\n"
        "if __name__ == '__main__':\n"
        "    print(sorted(result.value for result in map_items(abs, [-1, -2], workers=2)))\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    assert done.stdout == b"[1, 2]\n"
    assert not list(tmp_path.glob("ran-*"))


def test_every_worker_is_started_with_ctrl_c_blocked():
    """The process that multiprocessing starts beside the first worker must not unblock the signal for it."""
    blocked = "__import__('signal').SIGINT in __import__('signal').pthread_sigmask(0, [])"
    code = (
        "from tracekit._util.workers import map_items\n"
        f"print([result.value for result in map_items(eval, [{blocked!r}] * 4, workers=2)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[True, True, True, True]"


@pytest.fixture
def working(tmp_path):
    """A process in a session of its own whose two workers have begun to sleep."""
    begin = f"open({str(tmp_path)!r} + '/' + str({PID}), 'w').close() or {SLEEP}"
    code = f"from tracekit._util.workers import map_items\nlist(map_items(eval, [{begin!r}] * 4, workers=2))"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    yield process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def alive_in_session(session):
    alive = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdecimal():
                state, _, _, its_session = (
                    (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                )
                if int(its_session) == session and state != "Z":
                    alive.append(int(entry.name))
    return alive


@on_linux
def test_a_killed_parent_leaves_no_worker(working):
    working.kill()
    working.wait()
    assert wait_until(lambda: alive_in_session(working.pid) == [])


@on_linux
def test_ctrl_c_ends_parent_and_workers_without_a_word_of_the_workers(working):
    os.killpg(working.pid, signal.SIGINT)
    _, errors = working.communicate(timeout=60)
    assert errors.strip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1
    assert wait_until(lambda: alive_in_session(working.pid) == [])


def test_the_bar_is_shown_on_a_terminal_only(monkeypatch, capsys):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    assert values_of(["1", "2"], workers=1) == [1, 2]
    assert capsys.readouterr().err == ""
    list(map_items(eval, ["1", "2"], workers=1, progress="reading"))
    assert "reading" in capsys.readouterr().err
