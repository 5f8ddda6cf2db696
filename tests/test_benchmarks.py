"""Benchmarks are not tests, but they must still start: what they use of the package is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


HELP_OF_EACH = """
import contextlib, runpy, sys
sys.path.insert(0, sys.argv.pop(1))
for file in sys.argv[1:]:
    sys.argv = [file, "--help"]
    print(file)
    with contextlib.suppress(SystemExit):
        runpy.run_path(file, run_name="__main__")
"""


def test_each_says_how_it_is_called():
    """In one process, because most of the time goes into imports."""
    files = [file for file in FILES if not file.stem.endswith("inputs")]
    command = [sys.executable, "-c", HELP_OF_EACH, FILES[0].parent, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for file in files:
        assert f"{file}\nusage: {file.name}" in done.stdout


FLEET = FILES[0].parent / "fleet.py"


def run_fleet(*words):
    command = [sys.executable, str(FLEET), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)


@pytest.mark.nightly
def test_many_ranks_are_ingested_and_analyzed(tmp_path):
    done = run_fleet("curves", "--ranks", 8, "--megabytes", 1, "--folder", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\n| 8 | 0.0" in done.stdout


@pytest.mark.nightly
def test_tables_of_many_ranks_are_made_and_combined(tmp_path):
    """Of 64 ranks, 60 have tables that were made of those of four."""
    store = tmp_path / "store"
    done = run_fleet("store", store, "--ranks", 64, "--megabytes", 1)
    assert done.returncode == 0, done.stderr
    done = run_fleet("combine", store, "--ranks", 16, 64)
    assert done.returncode == 0, done.stderr
    assert [line.split(" | ")[0] for line in done.stdout.splitlines()[3:]] == ["| 16", "| 64"]


@pytest.mark.nightly
@pytest.mark.timeout(900)  # seven commands, and a cluster that starts
def test_the_answer_does_not_depend_on_who_worked(tmp_path):
    pytest.importorskip("distributed")
    done = run_fleet("same", "--ranks", 8)
    assert done.returncode == 0, done.stderr
