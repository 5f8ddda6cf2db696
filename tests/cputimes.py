"""How much processor time each test takes, its fixtures and the processes it starts included.

``pytest --cpu-times FILE`` writes one line per test, the dearest first. Unlike the clock on the
wall this says nearly the same on a busy machine: a test above a second or two gets the marker
``slow``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest


def spent_s():
    """Processor time of this process and of those it started that have ended."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system


class CpuTimes:
    """Adds up what set-up, call and teardown of each test take.

    Xdist's workers tell their controller.
    """

    def __init__(self, file):
        self.file = Path(file)
        self.last = spent_s()
        self.seconds = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self):
        outcome = yield
        now = spent_s()
        outcome.get_result().user_properties.append(("cpu_s", now - self.last))
        self.last = now

    def pytest_runtest_logreport(self, report):
        spent = dict(report.user_properties).get("cpu_s", 0.0)
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + spent

    def pytest_sessionfinish(self, session):
        if not hasattr(session.config, "workerinput"):
            lines = sorted(((spent, name) for name, spent in self.seconds.items()), reverse=True)
            self.file.write_text(
                "".join(f"{spent:8.2f} {name}\n" for spent, name in lines), encoding="utf-8"
            )
