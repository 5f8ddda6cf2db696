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
