"""Results that several tests look at: each is computed once in a run, by the worker that needs it first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from pathlib import Path

from tracekit import analyze, load
from tracekit.classify import classify

SHARED = "TRACEKIT_TEST_RUN"
"""Environment variable: a folder that the workers of one run share (``conftest`` makes it and takes it away)."""
_in_memory = {}


def kept(key, compute):
    """Return ``compute()``: from memory, or as another worker of this run computed it for the same *key*."""
    if key not in _in_memory:
        folder = os.environ.get(SHARED)
        file = Path(folder, hashlib.sha256(key.encode()).hexdigest()[:24]) if folder else None
        if file is not None and file.exists():
            _in_memory[key] = pickle.loads(file.read_bytes())
        else:
            _in_memory[key] = compute()
            if file is not None:
                _share(_in_memory[key], file)
    return _in_memory[key]


def _share(result, file):
    """Write a result for the other workers, who see the whole file or none."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_bytes(pickle.dumps(result, 5))
    with contextlib.suppress(OSError):
        part.replace(file)


def analysis_of(path, **options):
    """Return ``analyze(path, **options)``, analysed once in a run.

    For tests of what is done with an analysis. A test of how it comes about calls ``analyze`` itself.
    """
    return kept(f"analysis {Path(path).resolve()} {sorted(options.items())}", lambda: analyze(path, **options))


def example_analysis_of(path, **options):
    """Return ``analyze(path, **options)`` for an example in a docstring; it may show the path as it is spelled."""
    return kept(f"example {path} {sorted(options.items())}", lambda: analyze(path, **options))


def labelled_of(path):
    """Return the labelled events and the source of each rank of a recording, by rank, labelled once in a run."""

    def label():
        trace = load(path)
        return {rank: (classify(trace.rank(rank).events), trace.rank(rank).source) for rank in trace.ranks}

    return kept(f"labelled {Path(path).resolve()}", label)
