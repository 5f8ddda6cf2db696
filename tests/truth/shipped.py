"""Recordings of frameworks that the repository holds: redacted, and cut to one step."""

from __future__ import annotations

import json
import os
from pathlib import Path

SHIPPED = Path(__file__).parent.parent / "data/frameworks"
TRUTH = json.loads((SHIPPED / "truth.json").read_text(encoding="utf-8"))
"""What each program ran, by the name of its recording; written down from the programs, not from
tracekit."""


def framework_folder():
    """The whole recordings if there are any (TRACEKIT_CORPUS), else those of the repository."""
    whole = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere")) / "frameworks"
    return whole if whole.is_dir() else SHIPPED
