"""run_map: order, failures as data, dead workers, executors and scripts without a main guard."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tracekit._util.pool import Done, iter_map, run_map
from tracekit.errors import InputError, OptionError

DIE = "__import__('os')._exit(1)"
FAIL = "1 / 0"


def values(done):
    return [one.value if one.error is None else one.error.message for one in done]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_items_and_failures_are_data(workers):
    done = run_map(eval, ["1", FAIL, "'three'"], workers=workers)
    assert [one.value for one in done] == [1, None, "three"]
    assert done[1].error.message.startswith("a fault in tracekit: ZeroDivisionError: division by zero")
    assert [one.item for one in done] == ["1", FAIL, "'three'"]


def test_a_dead_worker_costs_only_the_item_that_killed_it():
    done = run_map(eval, ["0", "1", DIE, "3", "4", "5", "6"], workers=2)
    assert [one.value for one in done] == [0, 1, None, 3, 4, 5, 6]
    assert "died" in done[2].error.message


def test_two_deadly_items_are_both_found():
    done = run_map(eval, [DIE, "1", DIE, "3"], workers=2)
    assert [one.error is None for one in done] == [False, True, False, True]


def test_any_executor_takes_the_work_and_stays_open():
    with ThreadPoolExecutor(2) as threads:
        assert values(run_map(len, ["", "a", "bb"], executor=threads)) == [0, 1, 2]
        assert threads.submit(len, "abc").result() == 3


def test_an_executor_that_is_shut_down_is_reported_for_each_item():
    class Broken(ThreadPoolExecutor):
        def submit(self, *_):
            from concurrent.futures import BrokenExecutor

            raise BrokenExecutor("gone")

    with Broken(1) as executor:
        assert all(one.error is not None for one in run_map(len, ["a", "b"], executor=executor))


def test_items_are_handed_out_a_few_at_a_time():
    """A thousand ranks must not be queued, and their results held, all at once."""
    flying, most = 0, 0

    class Counting(ThreadPoolExecutor):
        def submit(self, *args):
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            return super().submit(*args)

    with Counting(1) as executor:
        for _ in iter_map(len, ["x"] * 50, executor=executor, workers=1):
            flying -= 1
    assert most <= 3


def test_no_workers_is_an_error():
    with pytest.raises(OptionError, match="0 workers"):
        run_map(len, ["a"], workers=0)


def test_unwrap_raises_what_stopped_the_item():
    with pytest.raises(InputError, match="no such"):
        Done(0, "x", error=InputError("no such file")).unwrap()


def test_a_script_without_a_main_guard_can_use_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from tracekit._util.pool import run_map\nprint('once')\n"
        "print([d.value for d in run_map(len, ['a', 'bb'], workers=2)])"
    )
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True)
    assert out.stdout.split("\n")[:2] == ["once", "[1, 2]"]
    assert out.stderr == ""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="this machine has no signal masks")
def test_the_first_worker_is_born_deaf_to_ctrl_c_too():
    """The process that multiprocessing starts beside the first one must not unblock the signal for it."""
    blocked = "__import__('signal').SIGINT in __import__('signal').pthread_sigmask(0, [])"
    code = (
        "from tracekit._util.pool import run_map\n"
        "if __name__ == '__main__':\n"
        f"    print([one.value for one in run_map(eval, [{blocked!r}] * 4, workers=2)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[True, True, True, True]"
