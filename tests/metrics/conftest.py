"""A labelled table in a few words."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import settings

from tracekit.schema import LABELLED, conform

settings.register_profile("patient", deadline=None)  # a busy machine is not a failure
settings.load_profile("patient")


@pytest.fixture(scope="session")
def labelled():
    """Build a labelled table from rows (label, start, end) or dicts; times in ns."""

    def build(*rows, **common):
        dicts = [
            row if isinstance(row, dict) else dict(zip(("label", "start_ns", "end_ns"), row, strict=True))
            for row in rows
        ]
        full = [{"rank": 0, "kind": "kernel", "name": "k", "launch_ns": r["start_ns"], **common, **r} for r in dicts]
        return conform(pl.DataFrame(full, infer_schema_length=None), LABELLED)

    return build
