"""Records which tests reach which lines of the packages that ``benchmarks.mutants`` changes.

``pytest -p tests.covering --covering FOLDER`` adds two files to the folder: the lines that each
test reached (``coverage`` with a context per test), and a record of what ``coverage`` does not know.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from coverage import Coverage

from benchmarks.mutants import PACKAGES, ROOT, Record
from tests import kept
from tests.cputimes import spent_s


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--covering", metavar="FOLDER", help="record which tests reach which lines")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.getoption("--covering"):
        config.pluginmanager.register(Recorder(Path(folder).resolve()))


class Recorder:
    """Switches the context for each test and for each result that tests share."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{time.time_ns()}.coverage"
        include = [str(ROOT / "tracekit" / package / "*") for package in PACKAGES]
        self.coverage = Coverage(str(self.file), include=include, config_file=False)
        self.context = ""
        self.since_s = 0.0
        self.record = Record(
            uses=defaultdict(set),
            seconds=defaultdict(float),
            sources={
                str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
                for package in PACKAGES
                for file in (ROOT / "tracekit" / package).rglob("*.py")
            },
        )

    def switch(self, context: str) -> None:
        """Count what runs from now on to a test or to a shared result."""
        now_s = spent_s()
        self.record.seconds[self.context] += now_s - self.since_s
        self.context, self.since_s = context, now_s
        self.coverage.switch_context(context)

    def share(self, file: Path, compute: Callable[[], Any], in_memory: dict[str, Any]) -> Any:
        """Stand in for ``tests.kept.share``: count what is computed to the shared result."""
        user, result = self.context, f"kept {file.name}"
        self.record.uses[user].add(result)

        def compute_in_context() -> Any:
            self.switch(result)
            try:
                return compute()
            finally:
                self.switch(user)

        return self.original(file, compute_in_context, in_memory)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Trace from the first test on."""
        self.original = kept.share
        with mock.patch.object(kept, "share", self.share):
            self.coverage.start()
            self.since_s = spent_s()
            try:
                return (yield)
            finally:
                self.coverage.stop()
                self.coverage.save()
                self.file.with_suffix(".json").write_bytes(msgspec.json.encode(self.record))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count what a test runs, its fixtures included, to it."""
        self.switch(item.nodeid)
        try:
            return (yield)
        finally:
            self.switch("")
