"""Runs held against their ideal: real samples, whole or stripped of what would help, and synthetic ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from tracekit.align.clocks import align
from tracekit.align.matching import match
from tracekit.classify import classify
from tracekit.compare import compare_pipelines
from tracekit.metrics.lanes import Lanes
from tracekit.metrics.operations import operations
from tracekit.reconstruct import rank_pipeline
from tracekit.run.load import load
from tracekit.schema import Source
from tracekit.synthetic import rank_events

SAMPLES = Path(__file__).parent.parent.parent / "sample_traces"


def strip(events, source):
    """The same events without pipeline ranges, shapes and group descriptions."""
    ranges = pl.col("kind").is_in(["annotation", "gpu_annotation"]) & pl.col("name").cast(pl.String).str.contains(
        r"^PP:|^Forward |^Backward "
    )
    kept = events.filter(~ranges).with_columns(
        shapes=pl.lit(None, events.schema["shapes"]), group_desc=pl.lit(None, events.schema["group_desc"])
    )
    return kept, replace(source, groups=tuple(replace(g, description=None) for g in source.groups))


@cache
def pipelines(name, bare=False, pattern="*.gz"):
    trace = load(sorted((SAMPLES / name).glob(pattern)))
    found = []
    for rank in trace.ranks:
        one = trace.rank(rank)
        events, source = strip(one.events, one.source) if bare else (one.events, one.source)
        found.append(rank_pipeline(classify(events), source))
    return tuple(found)


@pytest.fixture(scope="session")
def ran():
    """Rank tables of a sample: ``ran(name, bare=False)``."""
    return pipelines


@pytest.fixture(scope="session")
def held():
    """A sample against its ideal: ``held(name, bare=False, …)`` gives the comparison and the notices."""

    def hold(name, *, bare=False, pattern="*.gz", only=None, **options):
        ranks = [r for r in pipelines(name, bare, pattern) if only is None or r.rank in only]
        return compare_pipelines(ranks, **options)

    return hold


def clocks(labelled):
    """The clocks of ranks whose labelled events are given."""
    found = pl.concat([operations(table, Lanes.of(table)) for table in labelled.values()])
    return align(match(found).members, labelled)


@pytest.fixture(scope="session")
def trip():
    """A synthetic run, read back: the comparison and the notices."""

    def go(recipe, *, only=None, **options):
        wanted = range(recipe.world_size) if only is None else only
        labelled = {r: classify(rank_events(recipe, r)) for r in wanted}
        ranks = [rank_pipeline(table, Source(f"rank{r}", "kineto", r, "name")) for r, table in labelled.items()]
        return compare_pipelines(ranks, clocks=clocks(labelled), **options)

    return go
