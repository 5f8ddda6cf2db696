"""Where the real captures are, and how tests find them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent.parent / "sample_traces"


@pytest.fixture(scope="session")
def samples():
    """The captures that ship with the repository."""
    return SAMPLES


@pytest.fixture(scope="session")
def corpus():
    """Other people's traces: never committed, found through TRACEKIT_CORPUS."""
    root = os.environ.get("TRACEKIT_CORPUS")
    if not root:
        pytest.skip("TRACEKIT_CORPUS is not set: the public traces are not in this repository")
    return Path(root) / "public"
