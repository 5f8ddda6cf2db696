"""Runs pytest many times in copies of the repository without importing other people's packages again.

``python -m tests.fork_server`` reads a job per line, forks for it, and prints pytest's exit code
or ``null`` for one that took too long. Nothing of this repository is imported before the fork.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback

PRELOADED = (
    "_pytest.doctest",
    "hypothesis.extra.numpy",
    "hypothesis.strategies",
    "msgspec",
    "numpy",
    "polars",
    "pyarrow",
    "pytest",
    "rich.console",
)
"""What nearly every test file needs and what starts no threads that a child would miss."""


def run_pytest(folder: str, log: str, words: list[str], variables: dict[str, str]) -> int:
    """Run pytest in a copy of the repository, in this process."""
    os.setsid()
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        os.dup2(os.open(log if number else os.devnull, flags), number)
    os.dup2(1, 2)
    os.chdir(folder)
    os.environ.update(variables)
    sys.path[0] = folder
    sys.argv = ["pytest", *words]
    pytest = importlib.import_module("pytest")
    # That what is imported already has no rewritten assertions changes nothing: they are not ours.
    return int(pytest.main(["-W", "ignore::pytest.PytestAssertRewriteWarning", *words]))


def wait(process: int, timeout_s: float) -> int | None:
    """Return the exit code of a process; end its group if it takes too long."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def main() -> None:
    """Answer jobs until there are no more."""
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        job = json.loads(line)
        process = os.fork()
        if process == 0:
            code = 3
            try:
                code = run_pytest(job["folder"], job["log"], job["words"], job["variables"])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        sys.stdout.write(json.dumps(wait(process, job["timeout_s"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
