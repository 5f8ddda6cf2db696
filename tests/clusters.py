"""A Dask cluster on loopback, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from functools import partial


@contextlib.contextmanager
def dask_cluster(folder, workers):
    """A scheduler and worker processes on loopback.

    Yields its address, the workers, and how to start another.
    """
    started = []
    environment = {
        **os.environ,
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "5",
        "PYTHONWARNINGS": "ignore",
    }

    def start(module, *words):
        with (folder / f"{len(started)}.log").open("w") as log:
            command = [sys.executable, "-m", f"distributed.cli.{module}", *words, "--no-dashboard"]
            started.append(
                subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment)
            )
        return started[-1]

    try:
        file = folder / "scheduler.json"
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
        until(lambda: file.exists() and file.read_text().strip().endswith("}"))
        address = json.loads(file.read_text())["address"]
        each = ["--nthreads", "1", "--no-nanny", "--local-directory", str(folder)]
        yield (
            address,
            [start("dask_worker", address, *each) for _ in range(workers)],
            partial(start, "dask_worker", address, *each),
        )
    finally:
        for process in started:
            process.kill()
            process.wait()


def until(ready, seconds=120):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def wait_for_workers(folder):
    """Return when every worker of the cluster in a folder has written into its log that it joined."""
    logs = [log for log in folder.glob("*.log") if log.stem != "0"]  # that of the scheduler
    until(lambda: all("Registered to" in log.read_text() for log in logs))
