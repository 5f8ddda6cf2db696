"""What the tests of analyses share: each sample analysed once."""

from __future__ import annotations

import pytest

from tests.kept import analysis_of


@pytest.fixture(scope="module")
def run(samples):
    """Analyze a sample once."""
    done = {}

    def get(name, **options):
        key = (name, tuple(sorted(options.items())))
        if key not in done:
            done[key] = analysis_of(samples / name, **{"schedule": "none", **options})
        return done[key]

    return get
