"""What the tests of analyses share: each sample analysed once."""

from __future__ import annotations

import pytest

from tests.kept import analysis_of


@pytest.fixture(scope="session")
def run(samples):
    """Analyze a sample, once for all tests."""
    return lambda name, **options: analysis_of(samples / name, **options)
