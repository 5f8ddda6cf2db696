"""Results that several tests look at: each is computed once in a run, by the worker that needs it first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import msgspec

from docsite.json_keys import json_schema
from tracekit import analyze, diagnose, load
from tracekit.analysis.measure.tables import label_rank, measure_rank
from tracekit.classify import classify
from tracekit.metrics.alternatives.own import NO_OWN_ADVICE
from tracekit.rooms import ROOM_MEASURES

SHARED = "TRACEKIT_TEST_RUN"
"""Environment variable: a folder that the workers of one run share (``conftest`` makes it and takes
it away)."""
_in_memory = {}


def kept(key, compute):
    """Return ``compute()``: from memory, or as another worker of this run computed it for the same *key*."""
    folder = os.environ.get(SHARED, "")
    return share(Path(folder, hashlib.sha256(key.encode()).hexdigest()[:24]), compute, _in_memory)


def share(file, compute, in_memory):
    """Return the result *in_memory* or in a file, or compute it and write it there.

    Another worker that needs it waits meanwhile. Without a folder for the run it is in memory alone.
    """
    if file.name not in in_memory:
        in_memory[file.name] = _from_file(file, compute) if SHARED in os.environ else compute()
    return in_memory[file.name]


def _from_file(file, compute):
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.exists():
            return pickle.loads(file.read_bytes())
        result = compute()
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_bytes(pickle.dumps(result, 5))
        unfinished.replace(file)  # a worker that is killed leaves no half file
        return result


def analysis_of(path, **options):
    """Return ``analyze(path, **options)``, analysed once in a run.

    For tests of what is done with an analysis. A test of how it comes about calls ``analyze``
    itself.
    """
    key = f"analysis {Path(path).resolve()} {sorted(options.items())}"
    return kept(key, lambda: _analyze(path, **options))


def example_analysis_of(path, **options):
    """Return ``analyze(path, **options)`` for an example in a docstring.

    It may show the path as it is spelled.
    """
    return kept(f"example {path} {sorted(options.items())}", lambda: _analyze(path, **options))


def diagnosis_of(path):
    """Return ``diagnose(path)``, diagnosed once in a run."""
    return kept(f"diagnosis {Path(path).resolve()}", lambda: diagnose(path))


def schema_of(name):
    """Return the JSON schema of a kind of document, derived from its types once in a run."""
    return kept(f"schema {name}", lambda: json_schema(name))


def labelled_of(path):
    """Return the labelled events and the source of each rank of a recording, by rank, labelled once in a run."""

    def label():
        trace = load(path)
        return {
            rank: (classify(trace.rank(rank).events), trace.rank(rank).source)
            for rank in trace.ranks
        }

    return kept(f"labelled {Path(path).resolve()}", label)


def _analyze(path, **options):
    with measuring_once():
        return analyze(path, **options)


@contextmanager
def measuring_once():
    """Let analyses and stores share what was measured of equal traces in this run, also in other workers."""
    with (
        mock.patch("tracekit.run.measure.label_rank", _label_later),
        mock.patch("tracekit.run.measure.measure_rank", _label_and_measure_once),
        mock.patch("tracekit.run.ingest.label_rank", _label_later),
        mock.patch("tracekit.run.ingest.measure_rank", _label_and_measure_once),
    ):
        yield


def _label_later(rank, *, all_columns=False, **options):
    """Stand in for ``label_rank``: what was measured already need not be labelled."""
    return rank, options


def _label_and_measure_once(labelled_rank, *, rooms, advice=NO_OWN_ADVICE, **options):
    """Stand in for ``measure_rank``, of analyses to which nobody adds advice."""
    assert advice == NO_OWN_ADVICE
    assert rooms == ROOM_MEASURES
    rank, label_options = labelled_rank
    return measure_once(rank, **label_options, **options)


def measured_tables(rank, *, labelled=None, lost=None, rules=None, by=None, **options):
    """Return the tables of one rank, labelled and measured with what side rooms measure."""
    labelled_rank = label_rank(
        rank, labelled=labelled, lost=lost, rules=rules, all_columns=by is not None
    )
    return measure_rank(labelled_rank, by=by, rooms=ROOM_MEASURES, **options)


def measure_once(rank, **options):
    """Return ``measured_tables(rank, **options)``, measured once in a run for the same content of a trace.

    Its path and role are no content: a copy under another name is measured as the original was.
    """
    folder = os.environ.get(SHARED)
    if folder is None or options.get("rules") is not None:
        return measured_tables(rank, **options)
    source = msgspec.structs.replace(rank.source, path="", role=None, rank_from="")
    nameless = replace(rank, source=source)
    content = pickle.dumps((nameless, sorted(options.items())), 5)
    file = Path(folder, f"tables-{hashlib.sha256(content).hexdigest()[:24]}")
    tables = share(file, lambda: measured_tables(rank, **options), in_memory={})
    return replace(tables, source=rank.source)


def by_identity(function, count=64):
    """Return *function* of one object that remembers the results of the last *count* objects.

    For objects that never change and cannot be hashed, such as a rank's events.
    """
    results = OrderedDict()

    def remembered(subject):
        # The subject is kept beside its result: while it lives no other object has its id.
        if id(subject) not in results:
            results[id(subject)] = (subject, function(subject))
        if len(results) > count:
            results.popitem(last=False)
        return results[id(subject)][1]

    return remembered
