"""Benchmarks are not tests, but they must still start: what they use of the package is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", [f for f in FILES if not f.stem.endswith("inputs")], ids=lambda f: f.stem)
def test_it_says_how_it_is_called(file):
    said = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert "usage:" in said.stdout
