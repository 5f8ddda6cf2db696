"""Analyses that several tests look at: each is made once in a run, by the worker that needs it first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from pathlib import Path

from tracekit import analyze

SHARED = "TRACEKIT_TEST_RUN"
"""Environment variable: a folder that the workers of one run share (``conftest`` makes it and takes it away)."""
_kept = {}


def analysis_of(path, **options):
    """Return ``analyze(path, **options)``, from memory or from the worker that made it.

    For tests of what is done with an analysis. A test of how it comes about calls ``analyze`` itself.
    """
    key = f"{Path(path).resolve()} {sorted(options.items())}"
    if key not in _kept:
        folder = os.environ.get(SHARED)
        file = Path(folder, hashlib.sha256(key.encode()).hexdigest()[:24]) if folder else None
        _kept[key] = _read(file) or _make(file, path, options)
    return _kept[key]


def _read(file):
    if file is not None and file.exists():
        return pickle.loads(file.read_bytes())
    return None


def _make(file, path, options):
    found = analyze(path, **options)
    if file is not None:
        part = file.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(found, 5))
        with contextlib.suppress(OSError):
            part.replace(file)
    return found
